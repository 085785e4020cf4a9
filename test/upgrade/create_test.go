package upgrade_test

import (
	"archive/tar"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// TestCreate writes testdata/<release>/ with the binary of that release:
//
//	COFFER_TEST_BINARY=/path/to/its/coffer COFFER_UPGRADE_CREATE=v0.3 go test -run TestCreate ./test/upgrade
func TestCreate(t *testing.T) {
	release := os.Getenv("COFFER_UPGRADE_CREATE")
	if release == "" {
		t.Skip("COFFER_UPGRADE_CREATE is not set")
	}
	out := absolute(t, filepath.Join("testdata", release))
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	// Tokens have to outlive the release: lifetimes in years need a maximum that allows them.
	const years = "max_lease_ttl = \"876000h\"\n"
	key := base64.StdEncoding.EncodeToString([]byte("a key that seals only test data."))
	t.Run("shamir", func(t *testing.T) { create(t, filepath.Join(out, "shamir"), years, true) })
	t.Run("static", func(t *testing.T) {
		stanza := fmt.Sprintf("seal \"static\" {\n  current_key = %q\n  current_key_id = \"2026-a\"\n}\n", key)
		create(t, filepath.Join(out, "static"), years+stanza, false)
	})
}

// creation fills one node and writes down what it answers.
type creation struct {
	*testing.T
	n *harness.Node
	inventory
}

func create(t *testing.T, to, config string, shamir bool) {
	harness.Binary(t)
	dir := t.TempDir()
	t.Chdir(dir)
	c := harness.NewCluster(t, 1, harness.Options{
		Bare: true, Shamir: true, Config: config,
		Dir: func(string) string { return filepath.Join(dir, "data") },
	})
	n := c.Nodes[0]
	n.WaitHealth(501)
	k := &creation{T: t, n: n, inventory: inventory{Config: config, Tokens: map[string]oldToken{}}}
	shares := map[string]any{}
	if shamir {
		shares = map[string]any{"secret_shares": 3, "secret_threshold": 2}
	}
	var made struct {
		Token string   `json:"root_token"`
		Keys  []string `json:"keys_base64"`
	}
	do(t, n, "PUT", "/v1/sys/init", "", shares).Decode(t, &made)
	c.RootToken, c.Keys, k.RootToken, k.Keys = made.Token, made.Keys, made.Token, made.Keys
	if shamir {
		n.Unseal()
	}
	n.WaitHealth(200)
	k.Tokens["root"] = oldToken{ID: made.Token}

	k.must("PUT", "/v1/sys/audit/file", "root", map[string]any{"type": "file", "options": map[string]string{"file_path": auditFile}})
	k.policies()
	k.mounts()
	k.tokens()
	k.secrets()
	k.ask()
	var hash struct{ Hash string }
	n.MustDo("POST", "/v1/sys/audit-hash/file", map[string]any{"input": auditInput}).Decode(t, &hash)
	k.AuditHash = hash.Hash
	if shamir {
		write(t, to+".snapshot", n.MustDo("GET", "/v1/sys/storage/raft/snapshot", nil).Body)
	}
	n.Stop()
	delete(k.Tokens, "root")
	text, err := json.MarshalIndent(k.inventory, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, inventoryFile), append(text, '\n'))
	pack(t, to+".tar.gz", dir)
}

func (k *creation) must(method, path, token string, body any) harness.Answer {
	k.Helper()
	a := do(k.T, k.n, method, path, k.Tokens[token].ID, body)
	if a.Status >= 300 {
		k.Fatalf("%s %s: status %d: %s", method, path, a.Status, a.Body)
	}
	return a
}

// policies writes some in each syntax, and one that later releases refuse to take.
func (k *creation) policies() {
	for name, text := range map[string]string{
		"app":    `path "kv2/data/app/*" { capabilities = ["create", "read", "update"] } path "kv1/app/+" { capabilities = ["read", "list"] }`,
		"issuer": `path "auth/token/create" { capabilities = ["create", "update"] } path "kv1/*" { capabilities = ["read"] }`,
		"json":   `{"path": {"kv1/json": {"capabilities": ["read"]}, "kv1/json/secret": {"capabilities": ["deny"]}}}`,
		"params": `path "kv1/params" { capabilities = ["create", "update"] allowed_parameters = { "a" = ["1", "2"] "b" = [] } required_parameters = ["a"] }`,
		"named":  `path "kv1/{{identity.entity.name}}" { capabilities = ["read"] }`,
		"cut":    `path "kv1/cut" { capabilities = ["read"] } foo =`,
	} {
		k.must("PUT", "/v1/sys/policies/acl/"+name, "root", map[string]any{"policy": text})
	}
}

func (k *creation) mounts() {
	k.must("POST", "/v1/sys/mounts/kv2", "root", map[string]any{"type": "kv", "description": "versions", "options": map[string]string{"version": "2"}})
	k.must("POST", "/v1/sys/mounts/kv1", "root", map[string]any{"type": "kv", "options": map[string]string{"version": "1"},
		"config": map[string]any{"default_lease_ttl": "2h", "max_lease_ttl": "20h"}})
	k.must("POST", "/v1/sys/mounts/deep/er/kv", "root", map[string]any{"type": "kv", "local": true, "options": map[string]string{"version": "2"}})
	k.must("POST", "/v1/sys/mounts/kv2/tune", "root", map[string]any{"description": "tuned", "max_lease_ttl": "30h",
		"audit_non_hmac_request_keys": []string{"plain"}, "listing_visibility": "unauth"})
	if len(k.Keys) == 0 { // in one of the two, where a later release has a mount of its own
		k.must("POST", "/v1/sys/mounts/identity", "root", map[string]any{"type": "kv"})
		k.must("POST", "/v1/identity/x", "root", map[string]any{"v": "in the way"})
		k.question("GET", "/v1/identity/x", "root", nil)
	}
}

// tokens makes a tree and one of each kind.
func (k *creation) tokens() {
	const years = "400000h"
	k.token("reader", "root", map[string]any{"policies": []string{"app"}, "meta": map[string]string{"who": "reader"}})
	k.token("app", "root", map[string]any{"policies": []string{"app", "named"}, "ttl": years, "display_name": "app"})
	k.token("parent", "root", map[string]any{"policies": []string{"issuer"}, "ttl": years})
	k.token("child", "parent", map[string]any{"policies": []string{"issuer"}, "ttl": years})
	k.token("grandchild", "child", map[string]any{"policies": []string{"issuer"}, "ttl": years})
	k.token("orphan", "root", map[string]any{"policies": []string{"json"}, "ttl": years, "no_parent": true})
	k.token("periodic", "root", map[string]any{"policies": []string{"app"}, "period": years})
	k.token("limited", "root", map[string]any{"policies": []string{"issuer"}, "ttl": years, "num_uses": 2})
	k.token("bounded", "root", map[string]any{"policies": []string{"params"}, "ttl": years, "explicit_max_ttl": "500000h"})
	k.token("named", "root", map[string]any{"id": "a-token-id-of-ones-own", "policies": []string{"issuer"}, "ttl": years})
	k.token("cut", "root", map[string]any{"policies": []string{"cut"}, "ttl": years, "no_default_policy": true})
	k.token("revoked", "root", map[string]any{"policies": []string{"issuer"}, "ttl": years})
	k.must("POST", "/v1/auth/token/revoke", "root", map[string]any{"token": k.Tokens["revoked"].ID})
}

func (k *creation) token(name, by string, body map[string]any) {
	k.Helper()
	var out struct {
		Auth struct {
			ID       string `json:"client_token"`
			Accessor string
			Seconds  int64 `json:"lease_duration"`
		}
	}
	k.must("POST", "/v1/auth/token/create", by, body).Decode(k.T, &out)
	token := oldToken{ID: out.Auth.ID, Accessor: out.Auth.Accessor}
	if ttl := time.Duration(out.Auth.Seconds) * time.Second; ttl < 10*365*24*time.Hour {
		token.Expires = time.Now().Add(ttl).UTC().Truncate(time.Second)
	}
	k.Tokens[name] = token
}

func (k *creation) secrets() {
	put := func(path string, data map[string]any) { k.must("POST", "/v1/"+path, "root", data) }
	for i := range 12 {
		put("kv2/data/app/many", map[string]any{"data": map[string]any{"n": i, "text": fmt.Sprintf("version %d", i+1)}})
	}
	put("kv2/data/app/one", map[string]any{"data": map[string]any{"nested": map[string]any{"list": []any{1, "two", nil, 3.5}}, "unicode": "schlüssel 鍵"}})
	put("kv2/data/app/deleted", map[string]any{"data": map[string]any{"v": "it can come back"}})
	k.must("DELETE", "/v1/kv2/data/app/deleted", "root", nil)
	for range 3 {
		put("kv2/data/app/destroyed", map[string]any{"data": map[string]any{"v": "only the last stays"}})
	}
	put("kv2/destroy/app/destroyed", map[string]any{"versions": []int{1, 2}})
	put("kv2/metadata/app/kept", map[string]any{"max_versions": 4, "cas_required": true, "delete_version_after": "100000h", "custom_metadata": map[string]string{"owner": "shop"}})
	put("kv2/data/app/kept", map[string]any{"data": map[string]any{"v": "1"}, "options": map[string]any{"cas": 0}})
	put("kv2/config", map[string]any{"max_versions": 8})
	for _, name := range []string{"app/a", "app/b", "json", "json/secret", "params", "cut", "a/b/c/d", "empty"} {
		put("kv1/"+name, map[string]any{"v": name, "big": strings.Repeat("0123456789abcdef", 64)})
	}
	k.must("POST", "/v1/sys/rotate", "root", nil) // what follows is encrypted with another key
	put("kv1/later", map[string]any{"v": "second key"})
	put("deep/er/kv/data/x", map[string]any{"data": map[string]any{"v": "in a local mount"}})
	k.must("POST", "/v1/cubbyhole/mine", "root", map[string]any{"of": "root"})
	k.must("POST", "/v1/cubbyhole/mine", "app", map[string]any{"of": "app"})
	k.must("POST", "/v1/cubbyhole/dir/mine", "child", map[string]any{"of": "child"})
	for i := range 60 {
		put(fmt.Sprintf("kv2/data/list/%02d", i), map[string]any{"data": map[string]any{"i": i}})
	}
}

// ask writes down the answers of this release.
func (k *creation) ask() {
	gets := map[string][]string{
		"root": {"sys/mounts", "sys/mounts/kv2/tune", "sys/mounts/kv1/tune", "sys/mounts/deep/er/kv", "sys/auth", "sys/audit",
			"sys/policies/acl/app", "sys/policies/acl/json", "sys/policies/acl/default", "sys/policies/acl/cut", "sys/policy", "sys/key-status",
			"kv2/data/app/many", "kv2/data/app/many?version=1", "kv2/data/app/many?version=9", "kv2/metadata/app/many", "kv2/data/app/one",
			"kv2/data/app/deleted", "kv2/metadata/app/deleted", "kv2/data/app/destroyed", "kv2/data/app/destroyed?version=1",
			"kv2/metadata/app/destroyed", "kv2/metadata/app/kept", "kv2/data/app/kept", "kv2/data/none", "kv2/config", "kv2/subkeys/app/one",
			"kv1/app/a", "kv1/a/b/c/d", "kv1/later", "kv1/none", "deep/er/kv/data/x", "cubbyhole/mine", "cubbyhole/none"},
		"app": {"kv2/data/app/one", "kv2/data/other", "kv1/app/a", "kv1/later", "cubbyhole/mine", "cubbyhole/dir/mine", "auth/token/lookup-self",
			"sys/mounts", "kv1/{{identity.entity.name}}"},
		"child":    {"kv1/later", "cubbyhole/dir/mine", "cubbyhole/mine", "auth/token/lookup-self", "kv2/data/app/one"},
		"orphan":   {"kv1/json", "kv1/json/secret", "auth/token/lookup-self"},
		"periodic": {"auth/token/lookup-self", "kv1/app/b"},
		"bounded":  {"auth/token/lookup-self", "kv1/params"},
		"named":    {"auth/token/lookup-self", "kv1/later"},
		"revoked":  {"auth/token/lookup-self", "kv1/later"},
	}
	for token, paths := range gets {
		for _, path := range paths {
			k.question("GET", "/v1/"+path, token, nil)
		}
	}
	for _, path := range []string{"kv2/metadata/list", "kv2/metadata/app", "kv2/metadata/", "kv1/", "kv1/app", "kv1/none", "cubbyhole/", "sys/policies/acl", "deep/er/kv/metadata"} {
		k.question("LIST", "/v1/"+path, "root", nil)
	}
	for _, token := range []string{"parent", "grandchild", "limited", "reader"} {
		if k.Tokens[token].Expires.IsZero() {
			k.question("POST", "/v1/auth/token/lookup-accessor", "root", map[string]any{"accessor": k.Tokens[token].Accessor})
		}
	}
	k.question("POST", "/v1/sys/capabilities-self", "app", map[string]any{"paths": []string{"kv2/data/app/x", "kv1/app/x", "kv1/app/x/y", "sys/seal"}})
}

func (k *creation) question(method, path, token string, body any) {
	k.Helper()
	q := question{Method: method, Path: path, Token: token}
	if body != nil {
		q.Body, _ = json.Marshal(body)
	}
	a := do(k.T, k.n, method, path, k.Tokens[token].ID, body)
	q.Status = a.Status
	var out struct{ Data json.RawMessage }
	if len(a.Body) > 0 {
		a.Decode(k.T, &out)
		q.Data = out.Data
	}
	k.Questions = append(k.Questions, q)
}

func write(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(name, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// pack writes what is in dir and belongs to the node, and the inventory, to an archive.
func pack(t *testing.T, name, dir string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	packed, _ := gzip.NewWriterLevel(f, gzip.BestCompression)
	files := tar.NewWriter(packed)
	root := os.DirFS(dir)
	err = fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path != "audit.log" && path != inventoryFile && !strings.HasPrefix(path, "data/") {
			return err
		}
		text, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		if err := files.WriteHeader(&tar.Header{Name: path, Mode: 0o600, Size: int64(len(text))}); err != nil {
			return err
		}
		_, err = files.Write(text)
		return err
	})
	for _, end := range []func() error{files.Close, packed.Close, f.Close} {
		if closing := end(); err == nil {
			err = closing
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
