//go:build e2e

package plugin_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// issuer signs tokens, and serves its public key.
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

// TestShippedPlugins uses the plugins that come with Coffer on three nodes, without registering anything, and through the end of their
// process and of the active node.
func TestShippedPlugins(t *testing.T) {
	directory := os.Getenv("COFFER_PLUGINS")
	if directory == "" {
		t.Fatal("COFFER_PLUGINS must name the directory that make plugins fills")
	}
	c := harness.NewCluster(t, 3, harness.Options{Config: fmt.Sprintf("\nplugin_directory = %q\n", directory)})
	n := c.Leader()
	n.MustDo("PUT", "/v1/sys/policies/acl/app", map[string]any{"policy": `path "kv/app" { capabilities = ["read"] }`})
	n.MustDo("POST", "/v1/sys/mounts/kv", map[string]any{"type": "kv"})
	n.MustDo("POST", "/v1/kv/app", map[string]any{"a": "b"})
	clients := []struct {
		name  string
		login func(n *harness.Node) (harness.Answer, error)
	}{
		{"jwt", jwtLogin(t, n)},
		{"kubernetes", kubernetesLogin(t, n)},
	}
	try := func(what string, n *harness.Node) {
		for _, client := range clients {
			harness.Await(t, what+", "+client.name+" through "+n.ID, patience, func() error {
				a, err := client.login(n)
				if err != nil || a.Status != 200 {
					return fmt.Errorf("login: %d %s, %v", a.Status, a.Body, err)
				}
				var out struct {
					Auth struct {
						Token string `json:"client_token"`
					}
				}
				a.Decode(t, &out)
				a, err = n.Do(t.Context(), "GET", "/v1/kv/app", out.Auth.Token, nil)
				if err != nil || a.Status != 200 {
					return fmt.Errorf("reading: %d %s, %v", a.Status, a.Body, err)
				}
				return nil
			})
		}
	}
	for _, node := range c.Nodes {
		try("at first", node)
	}
	for _, pid := range processes(t, n) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	try("after the end of the plugins", n)
	n.Kill9()
	for _, node := range c.Nodes {
		if node != n {
			try("after the end of the active node", node)
		}
	}
	n.Start()
}

// jwtLogin enables jwt with a server of keys, and returns a login of a workload.
func jwtLogin(t *testing.T, n *harness.Node) func(*harness.Node) (harness.Answer, error) {
	keys := newIssuer(t)
	n.MustDo("POST", "/v1/sys/auth/jwt", map[string]any{"type": "jwt"})
	n.MustDo("POST", "/v1/auth/jwt/config", map[string]any{"jwks_url": keys.URL, "jwks_ca_pem": authority(keys.Server), "bound_issuer": "https://ci.example"})
	n.MustDo("POST", "/v1/auth/jwt/role/app", map[string]any{
		"role_type": "jwt", "user_claim": "sub", "bound_audiences": []string{"coffer"}, "bound_claims": map[string]any{"project": "web"},
		"token_policies": []string{"app"}, "token_ttl": "10m",
	})
	claims := map[string]any{"iss": "https://ci.example", "aud": "coffer", "sub": "job", "project": "web"}
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
	return func(n *harness.Node) (harness.Answer, error) { return login(n, keys.token(t, claims)) }
}

// kubernetesLogin enables kubernetes with a stand-in for the API server's token reviews, and returns a login of a pod.
func kubernetesLogin(t *testing.T, n *harness.Node) func(*harness.Node) (harness.Answer, error) {
	cluster := newIssuer(t)
	pod := cluster.token(t, map[string]any{
		"iss": "https://kubernetes.default.svc", "aud": []string{"https://kubernetes.default.svc"}, "sub": "system:serviceaccount:shop:web",
		"kubernetes.io": map[string]any{"namespace": "shop", "serviceaccount": map[string]any{"name": "web", "uid": "uid-1"}},
	})
	var reviews atomic.Int32
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Spec       struct {
				Token     string   `json:"token"`
				Audiences []string `json:"audiences"`
			} `json:"spec"`
		}
		if r.Method != "POST" || r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" || r.Header.Get("Authorization") != "Bearer reviewer" ||
			json.NewDecoder(r.Body).Decode(&in) != nil || in.Kind != "" && in.Kind != "TokenReview" || in.Spec.Token == "" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		reviews.Add(1)
		status := map[string]any{"authenticated": in.Spec.Token == pod}
		if in.Spec.Token == pod {
			status["audiences"] = []string{"https://kubernetes.default.svc"}
			status["user"] = map[string]any{
				"username": "system:serviceaccount:shop:web", "uid": "uid-1", "groups": []string{"system:serviceaccounts", "system:authenticated"},
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": map[string]any{}, "spec": in.Spec, "status": status})
	}))
	t.Cleanup(api.Close)
	n.MustDo("POST", "/v1/sys/auth/kubernetes", map[string]any{"type": "kubernetes"})
	n.MustDo("POST", "/v1/auth/kubernetes/config", map[string]any{
		"kubernetes_host": api.URL, "kubernetes_ca_cert": authority(api), "token_reviewer_jwt": "reviewer", "disable_local_ca_jwt": true,
	})
	n.MustDo("POST", "/v1/auth/kubernetes/role/app", map[string]any{
		"bound_service_account_names": "web", "bound_service_account_namespaces": "shop", "token_policies": "app", "token_ttl": "10m",
	})
	n.MustDo("POST", "/v1/auth/kubernetes/role/other", map[string]any{
		"bound_service_account_names": "mail", "bound_service_account_namespaces": "shop", "token_policies": "app",
	})
	login := func(n *harness.Node, role, token string) (harness.Answer, error) {
		return n.Do(t.Context(), "POST", "/v1/auth/kubernetes/login", "", map[string]any{"role": role, "jwt": token})
	}
	if a, err := login(n, "other", pod); err != nil || a.Status == 200 {
		t.Errorf("a role of another service account: status %d, %v", a.Status, err)
	}
	forged := strings.TrimSuffix(pod, pod[len(pod)-8:]) + "AAAAAAAA"
	if a, err := login(n, "app", forged); err != nil || a.Status == 200 {
		t.Errorf("a forged token: status %d, %v", a.Status, err)
	}
	if reviews.Load() == 0 {
		t.Error("the API server was not asked")
	}
	return func(n *harness.Node) (harness.Answer, error) { return login(n, "app", pod) }
}
