//go:build e2e

package plugin_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/coffer-project/coffer/test/harness/apiserver"
)

// blocks returns the blocks of a language in a section of a page of docs, as one text.
func blocks(t *testing.T, page, heading, language string) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadFile(filepath.Join(root, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut("\n"+string(all), "\n"+heading+"\n")
	text, _, _ = strings.Cut(text, "\n##")
	var found string
	for _, block := range strings.Split(text, "```"+language+"\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		found += block
	}
	return found
}

// documented runs the commands of a section of a page of docs, beside files, with values in the place of others.
func documented(t *testing.T, c *harness.Cluster, page, section string, files map[string]string, replace ...string) {
	t.Helper()
	commands := blocks(t, page, section, "sh")
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(commands, replace[i]) {
			t.Fatalf("%q in %s does not have %s: %q", section, page, replace[i], commands)
		}
	}
	dir := t.TempDir()
	if err := os.Symlink(harness.Binary(t), filepath.Join(dir, "coffer")); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shell := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", strings.NewReplacer(replace...).Replace(commands))
	shell.Dir = dir
	shell.Env = []string{
		"HOME=" + dir, "PATH=" + dir + ":" + os.Getenv("PATH"), "COFFER_ADDR=" + c.Leader().URL, "COFFER_CACERT=" + c.CAFile, "COFFER_TOKEN=" + c.RootToken,
	}
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%q in %s: %v: %s", section, page, err, out)
	}
}

// issuer signs tokens, and serves its public key and, as an OpenID provider, where that is.
type issuer struct {
	*httptest.Server
	key *rsa.PrivateKey
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func newIssuer(t *testing.T) *issuer {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/.well-known/openid-configuration" {
			json.NewEncoder(w).Encode(map[string]string{"issuer": i.URL, "jwks_uri": i.URL + "/keys"})
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"keys": []map[string]any{{
			"kty": "RSA", "use": "sig", "kid": "one", "alg": "RS256",
			"n": encode(key.N.Bytes()), "e": encode(big.NewInt(int64(key.E)).Bytes()),
		}}})
	}))
	t.Cleanup(i.Close)
	return i
}

// authority is the certificate of a TLS server, PEM.
func authority(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// token returns a signed one, valid for an hour, with further claims.
func (i *issuer) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iat": time.Now().Unix(), "nbf": time.Now().Unix() - 1, "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range claims {
		all[name] = value
	}
	body, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	signed := encode([]byte(`{"alg":"RS256","typ":"JWT","kid":"one"}`)) + "." + encode(body)
	digest := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + encode(signature)
}

// counterpart is a plugin together with what it talks to.
type counterpart struct {
	name string
	// use does all that it is for, through a node. It is tried again while there is no active node.
	use func(*harness.Node) error
	// before creates something while one node is active, after uses and removes it when another is. nil: there is nothing.
	before, after func(*harness.Node) error
}

// byLogin is a counterpart that logs clients in, who may then read kv/app.
func byLogin(t *testing.T, name string, login func(*harness.Node) (harness.Answer, error)) counterpart {
	return counterpart{name: name, use: func(n *harness.Node) error {
		a, err := login(n)
		if err != nil || a.Status != 200 {
			return fmt.Errorf("login: %d %s, %v", a.Status, a.Body, err)
		}
		var out struct {
			Auth struct {
				Token string `json:"client_token"`
			}
		}
		a.Decode(t, &out)
		return readsApp(t, n, out.Auth.Token)
	}}
}

// readsApp is nil if a token has the policy app.
func readsApp(t *testing.T, n *harness.Node, token string) error {
	a, err := n.Do(t.Context(), "GET", "/v1/kv/app", token, nil)
	if err != nil || a.Status != 200 {
		return fmt.Errorf("reading: %d %s, %v", a.Status, a.Body, err)
	}
	return nil
}

// lease is what was issued with one.
type lease struct {
	ID        string `json:"lease_id"`
	Seconds   int    `json:"lease_duration"`
	Renewable bool
	Data      map[string]string // lists without their brackets
}

// issue sends a request for a secret.
func issue(n *harness.Node, method, path string, body any) (lease, error) {
	var out struct {
		lease
		Data map[string]any
	}
	a, err := n.DoAsRoot(method, "/v1/"+path, body)
	if err != nil || a.Status != 200 {
		return lease{}, fmt.Errorf("%s %s: %d %.300s, %v", method, path, a.Status, a.Body, err)
	}
	if err := json.Unmarshal(a.Body, &out); err != nil {
		return lease{}, err
	}
	out.lease.Data = map[string]string{}
	for name, value := range out.Data {
		out.lease.Data[name] = strings.Trim(fmt.Sprint(value), "[]")
	}
	return out.lease, nil
}

// request sends one that has to succeed.
func request(n *harness.Node, method, path string, body any) error {
	a, err := n.DoAsRoot(method, "/v1/"+path, body)
	if err != nil || a.Status >= 300 {
		return fmt.Errorf("%s %s: %d %.300s, %v", method, path, a.Status, a.Body, err)
	}
	return nil
}

// revoke revokes a lease at once.
func revoke(n *harness.Node, l lease) error {
	return request(n, "POST", "sys/leases/revoke", map[string]any{"lease_id": l.ID, "sync": true})
}

// newShipped starts a cluster with the plugins that come with Coffer.
func newShipped(t *testing.T, nodes int) *harness.Cluster {
	directory := os.Getenv("COFFER_PLUGINS")
	if directory == "" {
		t.Fatal("COFFER_PLUGINS must name the directory that make plugins fills")
	}
	return harness.NewCluster(t, nodes, harness.Options{Config: fmt.Sprintf("\nui = true\nplugin_directory = %q\n", directory)})
}

// kill kills the processes of a node's plugins.
func kill(t *testing.T, n *harness.Node) {
	t.Helper()
	for _, pid := range processes(t, n) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
}

// TestShippedPlugins uses the plugins that come with Coffer on three nodes, without registering anything, with what they are made for,
// through the end of their processes and of the active node.
func TestShippedPlugins(t *testing.T) {
	t.Parallel()
	c := newShipped(t, 3)
	n := c.Leader()
	n.MustDo("PUT", "/v1/sys/policies/acl/app", map[string]any{"policy": `path "kv/app" { capabilities = ["read"] }`})
	n.MustDo("POST", "/v1/sys/mounts/kv", map[string]any{"type": "kv"})
	n.MustDo("POST", "/v1/kv/app", map[string]any{"a": "b"})
	audit := filepath.Join(t.TempDir(), "audit.log")
	n.MustDo("PUT", "/v1/sys/audit/file", map[string]any{"type": "file", "options": map[string]any{"file_path": audit}})
	api := apiserver.Start(t)
	all := []counterpart{
		jwtLogin(t, c), jwtLoginByKey(t, n), oidcLogin(t, c), kubernetesLogin(t, c, api), kubernetesEngine(t, n, api), openldapEngine(t, n),
	}
	each := func(what string, n *harness.Node, of func(counterpart) func(*harness.Node) error) {
		for _, one := range all {
			if do := of(one); do != nil {
				harness.Await(t, what+", "+one.name+" through "+n.ID, patience, func() error { return do(n) })
			}
		}
	}
	use := func(c counterpart) func(*harness.Node) error { return c.use }
	for _, node := range c.Nodes {
		each("at first", node, use)
	}
	for _, standby := range c.Standbys() {
		if running := processes(t, standby); len(running) > 0 {
			t.Errorf("%s is a standby and runs %v", standby.ID, running)
		}
	}
	kill(t, n)
	each("after the end of the plugins", n, use)
	each("before the end of the active node", n, func(c counterpart) func(*harness.Node) error { return c.before })
	n.Kill9()
	for i, standby := range c.Standbys() {
		if i == 0 {
			each("what was issued before the end of the active node", standby, func(c counterpart) func(*harness.Node) error { return c.after })
		}
		each("after the end of the active node", standby, use)
	}
	n.Start()
	records, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]string{"the audit log": string(records)}
	for _, node := range c.Nodes {
		written["the log of "+node.ID] = node.Log()
	}
	for where, text := range written {
		for what, secret := range map[string]string{
			"a token": "hvs.", "a signed token": "eyJ", "the client's secret": clientSecret, "the directory's password": enginePass, "the provider's code": "code=",
		} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %s", where, what)
			}
		}
	}
}

// jwtLogin enables jwt with a server of keys, with which workloads log in.
func jwtLogin(t *testing.T, c *harness.Cluster) counterpart {
	n := c.Leader()
	keys := newIssuer(t)
	documented(t, c, "jwt.md", "## Log workloads in with JSON web tokens", map[string]string{"ca.pem": authority(keys.Server)},
		"jwks_url=https://ci.example.com/keys", "jwks_ca_pem=@ca.pem jwks_url="+keys.URL)
	claims := map[string]any{"iss": "https://ci.example.com", "aud": "coffer", "sub": "job", "project": "web"}
	login := func(n *harness.Node, token string) (harness.Answer, error) {
		return n.Do(t.Context(), "POST", "/v1/auth/jwt/login", "", map[string]any{"role": "app", "jwt": token})
	}
	for what, change := range map[string]map[string]any{
		"another audience": {"aud": "else"}, "another project": {"project": "mail"}, "another issuer": {"iss": "https://evil.example"},
		"an ended token": {"exp": time.Now().Add(-time.Hour).Unix()},
	} {
		wrong := map[string]any{}
		for _, from := range []map[string]any{claims, change} {
			for name, value := range from {
				wrong[name] = value
			}
		}
		if a, err := login(n, keys.token(t, wrong)); err != nil || a.Status == 200 {
			t.Errorf("%s: status %d, %v", what, a.Status, err)
		}
	}
	forged := newIssuer(t).token(t, claims)
	if a, err := login(n, forged); err != nil || a.Status == 200 {
		t.Errorf("another key: status %d, %v", a.Status, err)
	}
	loginByCommand(t, c, keys.token(t, claims), "-method=jwt")
	return byLogin(t, "jwt", func(n *harness.Node) (harness.Answer, error) { return login(n, keys.token(t, claims)) })
}

// loginByCommand logs a workload in with coffer login, through a standby.
func loginByCommand(t *testing.T, c *harness.Cluster, token string, args ...string) {
	t.Helper()
	file, n := filepath.Join(t.TempDir(), "token"), c.Standbys()[0]
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := client(t, c, n, append(append([]string{"login", "-token-only"}, args...), "role=app", "jwt=@"+file)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("coffer login %s: %v", args, err)
	}
	if err := readsApp(t, n, strings.TrimSpace(string(out))); err != nil {
		t.Errorf("coffer login %s: %v", args, err)
	}
}

// jwtLoginByKey enables jwt with a public key.
func jwtLoginByKey(t *testing.T, n *harness.Node) counterpart {
	keys := newIssuer(t)
	der, err := x509.MarshalPKIXPublicKey(keys.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	n.MustDo("POST", "/v1/sys/auth/ci", map[string]any{"type": "jwt"})
	n.MustDo("POST", "/v1/auth/ci/config", map[string]any{
		"jwt_validation_pubkeys": []string{string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))},
	})
	n.MustDo("POST", "/v1/auth/ci/role/app", map[string]any{"role_type": "jwt", "user_claim": "sub", "bound_subject": "job", "token_policies": []string{"app"}})
	login := func(n *harness.Node, token string) (harness.Answer, error) {
		return n.Do(t.Context(), "POST", "/v1/auth/ci/login", "", map[string]any{"role": "app", "jwt": token})
	}
	for what, token := range map[string]string{
		"another subject": keys.token(t, map[string]any{"sub": "else"}), "another key": newIssuer(t).token(t, map[string]any{"sub": "job"}),
	} {
		if a, err := login(n, token); err != nil || a.Status == 200 {
			t.Errorf("%s: status %d, %v", what, a.Status, err)
		}
	}
	return byLogin(t, "jwt by key", func(n *harness.Node) (harness.Answer, error) {
		return login(n, keys.token(t, map[string]any{"sub": "job"}))
	})
}
