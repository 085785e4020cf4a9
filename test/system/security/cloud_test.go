package security_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/test/harness"
)

// cloud is a mount of cloud credentials, its user and its provider.
type cloud struct {
	user
	provider *awstest.Server
	name     string
}

// readOnly is a policy of the provider.
const readOnly = "arn:aws:iam::aws:policy/ReadOnlyAccess"

// cloud mounts the engine in the namespace, with a role of each type and a static role; the names at the provider begin
// with prefix.
func (u user) cloud(name, prefix string, provider *awstest.Server) cloud {
	u.t.Helper()
	m := cloud{u, provider, name}
	access, secret := provider.Root()
	u.must("POST", "sys/mounts/"+name, fields{"type": "cloud"})
	m.must("POST", m.path("config/root"), fields{
		"access_key": access, "secret_key": secret, "region": "eu-central-1", "iam_endpoint": provider.URL, "sts_endpoint": provider.URL, "max_retries": 0,
		"username_template": `{{ if eq .Type "STS" }}` + prefix + `-{{ random 20 }}{{ else }}` + prefix + `-{{ .PolicyName }}-{{ random 20 }}{{ end }}`,
	})
	m.must("POST", m.path("config/lease"), fields{"lease": "1h", "lease_max": "2h"})
	m.must("POST", m.path("roles/users"), fields{"credential_type": "iam_user", "policy_arns": readOnly})
	m.must("POST", m.path("roles/admin"), fields{"credential_type": "iam_user", "policy_arns": "arn:aws:iam::aws:policy/AdministratorAccess"})
	m.must("POST", m.path("roles/sessions"), fields{"credential_type": "assumed_role", "role_arns": provider.AddRole(awstest.Role{Name: prefix + "-role"})})
	m.must("POST", m.path("roles/federated"), fields{"credential_type": "federation_token", "policy_arns": readOnly})
	m.must("POST", m.path("static-roles/fixed"), fields{"username": provider.AddUser(prefix + "-fixed").Name, "rotation_period": "24h"})
	return m
}

func (m cloud) path(rest string) string { return m.name + "/" + rest }

// as is the mount for another user.
func (m cloud) as(u user) cloud { m.user = u; return m }

// issued are credentials.
type issued struct {
	Lease string `json:"lease_id"`
	Data  struct {
		AccessKey    string `json:"access_key"`
		SecretKey    string `json:"secret_key"`
		SessionToken string `json:"session_token"`
	}
}

func (m cloud) issue(path string) issued {
	m.t.Helper()
	var out issued
	m.must("GET", m.path(path), nil).Decode(m.t, &out)
	if out.Data.AccessKey == "" || out.Data.SecretKey == "" {
		m.t.Fatalf("%s gives no key", path)
	}
	return out
}

// users returns the names of the provider's users.
func (m cloud) users() []string {
	var names []string
	for _, u := range m.provider.Users() {
		names = append(names, u.Name)
	}
	return names
}

// operations returns what is documented about the mount, parameters filled in.
func (m cloud) operations() [][2]string {
	m.t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name, In string }
		}
	}
	m.must("GET", "sys/internal/specs/openapi", nil).Decode(m.t, &doc)
	var out [][2]string
	for _, template := range slices.Sorted(maps.Keys(doc.Paths)) {
		rest, ok := strings.CutPrefix(template, "/"+m.name+"/")
		if !ok {
			continue
		}
		name := "users"
		if strings.HasPrefix(rest, "static-") {
			name = "fixed"
		}
		path := strings.NewReplacer("{name}", name, "{id}", "x").Replace(rest)
		for method, op := range doc.Paths[template] {
			method = strings.ToUpper(method)
			for _, p := range op.Parameters {
				if p.In == "query" && p.Name == "list" {
					method = "LIST"
				}
			}
			out = append(out, [2]string{method, strings.TrimSuffix(path, "/")})
		}
	}
	return out
}

// TestCloudPolicies: no path of the engine does anything without a policy, which the provider never hears of; a policy about
// one role is about that one, however it is spelled.
func TestCloudPolicies(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	m := root.cloud("cloud", "coffer", awstest.New(t))
	requests := m.operations()
	if len(requests) < 20 {
		t.Fatalf("only %d operations are documented: %q", len(requests), requests)
	}
	m.provider.Forget()
	body := fields{
		"credential_type": "iam_user", "policy_arns": readOnly, "username": "coffer-fixed", "rotation_period": "1m", "lease": "1s", "lease_max": "1s",
		"access_key": "AKIAIOSFODNN7EXAMPLE", "secret_key": "x",
	}
	root.policy("elsewhere", `path "cloudy/*" { capabilities = ["create", "read", "update", "delete", "list", "sudo"] }
		path "+/cloud/*" { capabilities = ["create", "read", "update", "delete", "list", "sudo"] }
		path "cloud" { capabilities = ["create", "read", "update", "delete", "list", "sudo"] }`)
	for who, u := range map[string]user{"no token": root.nobody(), "default": root.having("default"), "a user elsewhere": root.having("elsewhere")} {
		for _, r := range requests {
			var send any
			if r[0] == "POST" {
				send = body
			}
			if a := u.do(r[0], m.path(r[1]), send); a.Status != 403 {
				t.Errorf("%s: %s %s: status %d: %.200s", who, r[0], r[1], a.Status, a.Body)
			}
		}
	}
	if did := m.provider.Actions(); len(did) > 0 {
		t.Errorf("the provider was asked for %q", did)
	}

	// Who may have credentials of one role has nothing else.
	root.policy("users", `path "cloud/creds/users" { capabilities = ["read"] }`)
	u := m.as(root.having("users"))
	u.issue("creds/users")
	for _, r := range requests {
		if r == [2]string{"GET", "creds/users"} {
			continue
		}
		if a := u.do(r[0], m.path(r[1]), nil); a.Status != 403 {
			t.Errorf("with creds/users: %s %s: status %d: %.200s", r[0], r[1], a.Status, a.Body)
		}
	}
	m.provider.Forget()
	root.policy("all-but-admin", `path "cloud/creds/*" { capabilities = ["read", "update"] }
		path "cloud/sts/*" { capabilities = ["read", "update"] }
		path "cloud/roles/*" { capabilities = ["create", "read", "update", "delete", "list"] }
		path "cloud/creds/admin" { capabilities = ["deny"] }
		path "cloud/sts/admin" { capabilities = ["deny"] }
		path "cloud/roles/admin" { capabilities = ["deny"] }`)
	other := root.having("all-but-admin")
	before := string(dataText(t, root, m.path("roles/admin")))
	for _, name := range []string{"admin", "ADMIN", "Admin", "%61dmin", "admin%20", "%20admin", "admin/", "admin%2f", "./admin", "users/../admin", "users/%2e%2e/admin", "admin%00", "users?name=admin"} {
		for _, path := range []string{"creds/", "sts/"} {
			for _, method := range []string{"GET", "POST"} {
				var send any
				if method == "POST" {
					send = fields{"name": "admin", "role": "admin"}
				}
				a := other.do(method, m.path(path+name), send)
				if a.Status < 300 && name != "users?name=admin" {
					t.Errorf("%s %s%s gives credentials: %d", method, path, name, a.Status)
				}
			}
		}
		other.do("POST", m.path("roles/"+name), fields{"name": "admin", "policy_arns": readOnly})
		other.do("DELETE", m.path("roles/"+name), nil)
		if strings.HasPrefix(name, "users") { // it has deleted its own
			root.must("POST", m.path("roles/users"), fields{"credential_type": "iam_user", "policy_arns": readOnly})
		}
	}
	if now := string(dataText(t, root, m.path("roles/admin"))); now != before {
		t.Errorf("the role was changed:\n%s\nwas\n%s", now, before)
	}
	for _, name := range m.users() {
		if strings.HasPrefix(name, "coffer-admin") {
			t.Errorf("the provider has %s", name)
		}
	}
}

// TestCloudNamespaces: mounts of two namespaces, even with the same provider, have nothing to do with one another: roles,
// credentials, leases, users.
func TestCloudNamespaces(t *testing.T) {
	t.Parallel()
	_, root, a, _, b := neighbours(t)
	provider := awstest.New(t)
	ma, mb := a.cloud("cloud", "of-a", provider), b.cloud("cloud", "of-b", provider)
	theirs, own := mb.issue("creds/users"), ma.issue("creds/users")
	mb.must("POST", mb.path("roles/only-b"), fields{"credential_type": "iam_user", "policy_arns": readOnly})
	ma.refused("a role of b", "GET", ma.path("creds/only-b"), nil)
	for _, ns := range []string{"b", "", "a/../b", "../b", "b/"} {
		there := ma.as(a.in(ns))
		for _, r := range ma.operations() {
			if r[0] != "LIST" {
				there.refused("in "+ns, r[0], ma.path(r[1]), nil)
			}
		}
	}
	for _, front := range []string{"b/", "../b/", "root/b/", "a/../../b/", "%2e%2e/b/", "..%2fb/"} {
		for _, path := range []string{"creds/users", "static-creds/fixed", "config/root", "roles/users"} {
			a.refused("by path", "GET", front+"cloud/"+path, nil)
		}
	}
	for _, lease := range []string{theirs.Lease, "b/" + theirs.Lease, "../b/" + theirs.Lease} {
		for _, path := range []string{"sys/leases/lookup", "sys/leases/renew", "sys/leases/revoke"} {
			x := a.do("POST", path, fields{"lease_id": lease, "sync": true})
			if x.Status < 300 && path != "sys/leases/revoke" {
				t.Errorf("%s of a lease of b: status %d: %.200s", path, x.Status, x.Body)
			}
		}
		a.do("POST", "sys/leases/revoke-prefix/"+lease, fields{"sync": true})
		a.do("POST", "sys/leases/revoke-force/"+lease, nil)
	}
	if len(provider.Users()) != 5 { // root-user, two of static roles, two
		t.Errorf("the provider has %q", ma.users())
	}
	a.must("POST", "sys/leases/revoke-prefix/cloud", fields{"sync": true})
	a.must("DELETE", "sys/mounts/cloud", nil)
	var left []string
	for _, u := range provider.Users() {
		for _, k := range u.Keys {
			left = append(left, k.ID)
		}
	}
	if !slices.Contains(left, theirs.Data.AccessKey) || slices.Contains(left, own.Data.AccessKey) {
		t.Errorf("when the mount of a is gone, the provider has %q", ma.users())
	}
	if x := b.do("POST", "sys/leases/lookup", fields{"lease_id": theirs.Lease}); x.Status != 200 {
		t.Errorf("the lease of b answers %d: %.200s", x.Status, x.Body)
	}
	mb.must("GET", mb.path("static-creds/fixed"), nil)
	root.must("DELETE", "sys/namespaces/b", nil)
	harness.Await(t, "b to be gone", time.Minute, func() error {
		if x := root.do("GET", "sys/namespaces/b", nil); x.Status != 404 {
			return fmt.Errorf("it answers %d", x.Status)
		}
		return nil
	})
	if names := fmt.Sprint(ma.users()); strings.Contains(names, "of-b-users") {
		t.Errorf("when b is gone, the provider has %s", names)
	}
}
