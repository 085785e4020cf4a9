package hostile_test

import (
	"context"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cert/certtest"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

// place is a namespace of a server, as somebody with a root token sees it.
type place struct {
	n     *harness.Node
	token string
	ns    string        // "" is the root
	idp   *samltest.IdP // of auth/sso
	cloud bool          // there are credentials for a cloud
}

func (p *place) String() string {
	if p.ns == "" {
		return ""
	}
	return "nested "
}

func (p *place) do(t *testing.T, method, path string, body any, header ...string) harness.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	a, err := p.n.Do(ctx, method, "/v1/"+path, p.token, body, append(header, "X-Vault-Namespace", p.ns)...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (p *place) mustDo(t *testing.T, method, path string, body any) harness.Answer {
	t.Helper()
	a := p.do(t, method, path, body)
	if a.Status >= 300 {
		t.Fatalf("%s %s in %q: status %d: %.300s", method, path, p.ns, a.Status, a.Body)
	}
	return a
}

type fields = map[string]any

// administer goes on with a token of the namespace that may do everything there.
func (p *place) administer(t *testing.T) {
	t.Helper()
	all := `path "*" { capabilities = ["create", "read", "update", "patch", "delete", "list", "sudo"] }`
	p.mustDo(t, "POST", "sys/policies/acl/all", fields{"policy": all})
	p.token = p.newToken(t, fields{"policies": []string{"all"}, "no_parent": true})
}

func (p *place) newToken(t *testing.T, body fields) string {
	t.Helper()
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	p.mustDo(t, "POST", "auth/token/create", body).Decode(t, &out)
	return out.Auth.Token
}

// seed makes things that could be lost.
func (p *place) seed(t *testing.T) {
	t.Helper()
	p.mustDo(t, "POST", "sys/mounts/kv2", fields{"type": "kv", "options": map[string]string{"version": "2"}})
	p.mustDo(t, "POST", "sys/mounts/kv1", fields{"type": "kv"})
	p.mustDo(t, "POST", "sys/auth/people", fields{"type": "userpass"})
	p.mustDo(t, "POST", "sys/auth/machines", fields{"type": "approle"})
	ca := certtest.New(t, "ca")
	p.mustDo(t, "POST", "sys/auth/certs", fields{"type": "cert"})
	p.mustDo(t, "POST", "auth/certs/certs/web", fields{"certificate": ca.PEM(), "token_policies": "mine"})
	p.mustDo(t, "POST", "auth/certs/crls/ca", fields{"crl": ca.Revoke()})
	p.seedSAML(t)
	p.mustDo(t, "POST", "sys/namespaces/child", nil)
	p.mustDo(t, "POST", "sys/policies/acl/mine", fields{"policy": `path "kv2/*" { capabilities = ["read"] }`})
	p.mustDo(t, "POST", "kv2/data/a/b", fields{"data": fields{"x": "y"}})
	p.mustDo(t, "POST", "kv2/data/a/b", fields{"data": fields{"x": "z"}})
	p.mustDo(t, "POST", "kv1/a/b", fields{"x": "y"})
	p.mustDo(t, "POST", "cubbyhole/a/b", fields{"x": "y"})
	p.mustDo(t, "POST", "auth/token/roles/role", fields{"allowed_policies": "mine"})
	p.newToken(t, fields{"policies": []string{"mine"}})
	p.mustDo(t, "POST", "auth/people/users/bob", fields{"password": "correct horse", "token_policies": "mine"})
	p.mustDo(t, "POST", "auth/machines/role/app", fields{"token_policies": "mine"})
	p.mustDo(t, "POST", "auth/machines/role/app/secret-id", nil)
	p.mustDo(t, "POST", "auth/people/login/bob", fields{"password": "correct horse"})
	p.mustDo(t, "POST", "sys/sync/destinations/cloud1-sm/store", fields{"access_key_id": "AKIAEXAMPLEEXAMPLE00", "secret_access_key": "kept", "region": "us-east-1"})
	p.mustDo(t, "POST", "sys/sync/destinations/cloud1-sm/store/pause", nil) // nobody is called
	p.mustDo(t, "POST", "sys/sync/destinations/cloud1-sm/store/associations/set", fields{"mount": "kv2", "secret_name": "a/b"})
	p.mustDo(t, "POST", "identity/entity/name/somebody", fields{"policies": "mine"})
	p.mustDo(t, "POST", "identity/group/name/team", fields{"policies": "mine"})
}

// seedCloud makes a mount of cloud credentials, of one of the types that it has. No credentials are made: as long as there is a
// lease, the server writes the time each minute.
func (p *place) seedCloud(t *testing.T, kind string, provider *awstest.Server) {
	t.Helper()
	p.cloud = true
	user := provider.AddUser("static-" + kind).Name
	role := provider.AddRole(awstest.Role{Name: "role-" + kind})
	access, secret := provider.Root()
	p.mustDo(t, "POST", "sys/mounts/cloud", fields{"type": kind})
	p.mustDo(t, "POST", "cloud/config/root", fields{
		"access_key": access, "secret_key": secret, "region": "us-east-1", "iam_endpoint": provider.URL, "sts_endpoint": provider.URL,
	})
	p.mustDo(t, "POST", "cloud/config/lease", fields{"lease": "1h", "lease_max": "2h"})
	p.mustDo(t, "POST", "cloud/roles/a", fields{"credential_type": "assumed_role", "role_arns": role})
	p.mustDo(t, "POST", "cloud/roles/users", fields{"credential_type": "iam_user", "policy_arns": provider.AddPolicy("reads-" + kind)})
	p.mustDo(t, "POST", "cloud/static-roles/a", fields{"username": user, "rotation_period": "24h"})
}

// seedRoot makes what only the root namespace can have.
func (p *place) seedRoot(t *testing.T) {
	t.Helper()
	p.mustDo(t, "POST", "sys/audit/trail", fields{"type": "file", "options": map[string]string{"file_path": filepath.Join(t.TempDir(), "audit.log")}})
	p.mustDo(t, "POST", "sys/config/auditing/request-headers/x-kept", fields{"hmac": true})
	p.mustDo(t, "POST", "sys/config/ui/headers/X-Kept", fields{"values": "kept"})
	p.mustDo(t, "POST", "sys/quotas/rate-limit/rate", fields{"rate": 1e6, "path": "kv1"})
	p.mustDo(t, "POST", "sys/quotas/lease-count/leases", fields{"max_leases": 1000, "path": "kv1"})
	p.mustDo(t, "POST", "sys/replication/performance/primary/enable", nil)
	p.mustDo(t, "POST", "sys/replication/performance/primary/secondary-token", fields{"id": "eu"})
	p.mustDo(t, "POST", "sys/replication/performance/primary/paths-filter/eu", fields{"mode": "deny", "paths": "kv1"})
}

// nobodysToken returns a valid token that may do nothing.
func (p *place) nobodysToken(t *testing.T) string {
	t.Helper()
	return p.newToken(t, fields{"policies": []string{"none"}, "no_default_policy": true, "no_parent": true})
}

// dump reads everything that clients can see.
func (p *place) dump(t *testing.T) map[string]any {
	t.Helper()
	out := map[string]any{}
	read := []string{
		"sys/mounts", "sys/auth", "sys/policies/acl/mine", "sys/policies/acl/default", "sys/mounts/kv2/tune", "sys/auth/token/tune",
		"kv2/config", "kv2/data/a/b", "kv2/metadata/a/b", "kv1/a/b", "cubbyhole/a/b", "auth/token/roles/role", "auth/people/users/bob",
		"auth/machines/role/app", "auth/certs/config", "auth/certs/certs/web", "auth/certs/crls/ca", "auth/sso/config", "auth/sso/role/staff", "identity/entity/name/somebody", "identity/group/name/team", "sys/namespaces/child",
		"sys/sync/destinations/cloud1-sm/store", "sys/sync/destinations/cloud1-sm/store/associations", "sys/sync/associations/kv2/a/b",
	}
	list := []string{
		"sys/policies/acl", "kv2/metadata", "kv1", "cubbyhole", "auth/token/accessors", "auth/token/roles", "auth/people/users", "auth/machines/role",
		"auth/machines/role/app/secret-id", "auth/certs/certs", "auth/certs/crls", "auth/sso/role", "identity/entity/id", "identity/group/id", "identity/entity-alias/id", "sys/namespaces",
		"sys/sync/destinations", "sys/sync/associations",
	}
	if p.ns == "" {
		read = append(read, "sys/audit", "sys/key-status", "sys/storage/raft/autopilot/configuration", "sys/seal-status",
			"sys/config/auditing/request-headers", "sys/config/ui/headers/X-Kept", "sys/quotas/rate-limit/rate", "sys/quotas/lease-count/leases",
			"sys/replication/performance/primary/paths-filter/eu", "sys/replication/performance/primary/dynamic-filter/eu",
			"sys/config/cors", "sys/quotas/config", "sys/sync/config", "sys/rotate/config", "sys/generate-root/attempt", "sys/loggers")
	}
	if p.cloud {
		read = append(read, "cloud/config/root", "cloud/config/lease", "cloud/roles/a", "cloud/roles/users", "cloud/static-roles/a", "cloud/static-creds/a")
		list = append(list, "cloud/roles", "cloud/static-roles")
	}
	for _, path := range read {
		out[path] = data(t, p.mustDo(t, "GET", path, nil))
	}
	for _, path := range list {
		out[path+"/"] = data(t, p.mustDo(t, "LIST", path, nil))
	}
	if status, ok := out["sys/key-status"].(map[string]any); ok {
		out["sys/key-status"] = maps.Clone(status)
		delete(out["sys/key-status"].(map[string]any), "encryptions") // it counts, also what leaves no trace
	}
	return out
}

// role returns what replication is about, without what moves.
func (p *place) role(t *testing.T) []any {
	t.Helper()
	status, _ := data(t, p.mustDo(t, "GET", "sys/replication/performance/status", nil)).(map[string]any)
	return []any{status["mode"], status["cluster_id"], status["set_id"], status["epoch"], status["known_secondaries"], status["fenced"]}
}

func data(t *testing.T, a harness.Answer) any {
	t.Helper()
	var out map[string]any
	a.Decode(t, &out)
	if inner, ok := out["data"]; ok && inner != nil {
		return inner
	}
	delete(out, "request_id")
	return out
}
