package security_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// neighbours makes the namespaces a, a/sub and b, each with a secret, and returns their administrators, who may do
// everything there and nothing elsewhere.
func neighbours(t *testing.T) (c *harness.Cluster, root, a, sub, b user) {
	t.Helper()
	c, root = single(t, harness.Options{})
	var admins []user
	for _, ns := range []string{"", "a", "a/sub", "b"} {
		here := root.in(ns)
		if ns != "" {
			root.must("POST", "sys/namespaces/"+ns, nil)
			here.policy("all", everything)
			admins = append(admins, here.having("all"))
		}
		here.must("POST", "sys/mounts/kv", fields{"type": "kv"})
		here.must("POST", "kv/x", fields{"secret": hidden, "of": ns})
	}
	return c, root, admins[0], admins[1], admins[2]
}

// TestNamespaceHeader names namespaces in ways that could lead out of the caller's own.
func TestNamespaceHeader(t *testing.T) {
	t.Parallel()
	_, _, a, sub, b := neighbours(t)
	for _, u := range []user{a, b} {
		if got := u.do("GET", "kv/x", nil); got.Status != 200 {
			t.Fatalf("in %q the owner gets %d", u.ns, got.Status)
		}
	}
	if got := a.in("a/sub").do("GET", "kv/x", nil); got.Status != 200 {
		t.Errorf("the administrator above gets %d below", got.Status)
	}
	for _, header := range []string{"", "/", "root", "..", "../", "a/..", "a/../", "a/../b", "./", ".", "a/./..", "b", "/b/", "a//../b", "%2e%2e", "a%2f..", "a/%2e%2e/b", "a\\..\\b", "a/;/b", "*", "+", "a/*", "A/../b", "b ", "b,a", "b;a"} {
		a.in(header).refused("header "+header, "GET", "kv/x", nil)
		a.in(header).refused("header "+header, "LIST", "kv", nil)
		a.in(header).refused("header "+header, "POST", "kv/x", fields{"secret": "taken"})
		a.in(header).refused("header "+header, "GET", "sys/mounts/kv/tune", nil)
	}
	for _, header := range []string{"", "a", "b", "/", "a/sub/.."} {
		sub.in(header).refused("from below, header "+header, "GET", "kv/x", nil)
	}
	for _, path := range []string{"../kv/x", "..%2fkv/x", "%2e%2e/kv/x", "../b/kv/x", "b/kv/x", "a/../kv/x", "/kv/x", "sub/../../kv/x", "sub/%2e%2e/%2e%2e/b/kv/x", "root/kv/x", "root/b/kv/x", "a/kv/x", "v1/kv/x"} {
		a.refused("path "+path, "GET", path, nil)
	}
	for _, path := range []string{"b/kv/x", "a/../b/kv/x", "a/../kv/x", "a//kv/x", "A/kv/x", "a%2f..%2fkv/x", "kv/x"} {
		a.in("").refused("no header, path "+path, "GET", path, nil)
	}
	if got := a.in("").do("GET", "a/kv/x", nil); got.Status != 200 {
		t.Errorf("the path alone names the namespace, too: status %d", got.Status)
	}
	if got := a.in("").do("GET", "a%2fkv/x", nil); got.Status != 200 && got.Status >= 500 {
		t.Errorf("an encoded slash: status %d", got.Status)
	}
}

// TestNamespaceEscape uses what an administrator of a namespace has against the others: tokens, accessors, policies,
// leases, mounts and what concerns the whole server.
func TestNamespaceEscape(t *testing.T) {
	t.Parallel()
	_, root, a, _, b := neighbours(t)
	victims := map[string]user{"root": root.having("default"), "b": b.having("default")}
	for where, victim := range victims {
		self := dataOf(t, victim.must("GET", "auth/token/lookup-self", nil))
		accessor := self["accessor"]
		for _, path := range []string{"lookup-accessor", "renew-accessor", "revoke-accessor"} {
			a.refused("accessor of "+where, "POST", "auth/token/"+path, fields{"accessor": accessor})
		}
		for _, path := range []string{"lookup", "renew", "revoke-orphan"} {
			a.refused("token of "+where, "POST", "auth/token/"+path, fields{"token": victim.token})
		}
		a.do("POST", "auth/token/revoke", fields{"token": victim.token})
		a.refused("capabilities of "+where, "POST", "sys/capabilities", fields{"token": victim.token, "paths": []string{"kv/x"}})
		a.refused("capabilities of "+where, "POST", "sys/capabilities-accessor", fields{"accessor": accessor, "paths": []string{"kv/x"}})
		for _, prefix := range []string{"auth/token/create", "auth/token", "auth/", "auth", "..%2fauth", "root/auth/", "b/auth/", "/auth/"} {
			for _, path := range []string{"sys/leases/revoke-prefix/", "sys/leases/revoke-force/", "sys/revoke-prefix/"} {
				a.do("POST", path+prefix, nil)
			}
			if !a.valid() { // it has hit its own token, which it may
				a = root.in("a").having("all")
			}
		}
		if !victim.valid() {
			t.Errorf("an administrator of a has revoked a token of %s", where)
		}
	}
	list := fmt.Sprint(dataOf(t, a.must("LIST", "auth/token/accessors", nil))["keys"])
	for where, victim := range victims {
		if accessor := dataOf(t, victim.must("GET", "auth/token/lookup-self", nil))["accessor"]; strings.Contains(list, fmt.Sprint(accessor)) {
			t.Errorf("accessors of %s are listed in a", where)
		}
	}
	// Policies that name other namespaces.
	for i, pattern := range []string{"/kv/*", "../kv/*", "root/kv/*", "/../kv/*", "b/kv/*", "+/kv/*", "../b/kv/*", "{{namespace}}/kv/*"} {
		name := fmt.Sprint("reach", i)
		a.do("POST", "sys/policies/acl/"+name, fields{"policy": fmt.Sprintf("path %q { capabilities = [\"read\", \"list\", \"sudo\"] }", pattern)})
		reach := a.having(name)
		reach.in("").refused("policy "+pattern, "GET", "kv/x", nil)
		reach.in("b").refused("policy "+pattern, "GET", "kv/x", nil)
		reach.in("").refused("policy "+pattern, "GET", "b/kv/x", nil)
	}
	// What would make a token of another namespace, or one that may do everything.
	a.refused("root policy", "POST", "auth/token/create", fields{"policies": []string{"root"}})
	a.in("").refused("token in root", "POST", "auth/token/create", fields{"policies": []string{"default"}})
	a.in("b").refused("token in b", "POST", "auth/token/create-orphan", fields{"policies": []string{"all"}})
	for _, name := range []string{"root", "Root", " root ", "ROOT"} {
		a.do("POST", "sys/policies/acl/"+strings.ReplaceAll(name, " ", "%20"), fields{"policy": everything})
		a.do("POST", "auth/token/roles/r", fields{"allowed_policies": name})
		if got := a.do("POST", "auth/token/create/r", fields{"policies": []string{name}}); got.Status < 300 {
			a.with(authOf(t, got).Token).in("").refused("role with policy "+name, "GET", "kv/x", nil)
		}
	}
	// Mounts that would lie elsewhere.
	for _, to := range []string{"../stolen/", "/../stolen", "root/stolen", "../b/stolen", "b/../../stolen"} {
		a.do("POST", "sys/remount", fields{"from": "kv/", "to": to})
		a.do("POST", "sys/remount", fields{"from": to, "to": "kv9/"})
	}
	a.do("POST", "sys/remount", fields{"from": "../kv/", "to": "stolen/"})
	for _, ns := range []string{"", "b"} {
		for path := range dataOf(t, root.in(ns).must("GET", "sys/mounts", nil)) {
			if strings.Contains(path, "stolen") {
				t.Errorf("a mount appeared in %q: %s", ns, path)
			}
		}
		if got := root.in(ns).do("GET", "kv/x", nil); got.Status != 200 {
			t.Errorf("afterwards the secret of %q answers %d", ns, got.Status)
		}
	}
	// What concerns everybody. The complete list is checked by test/system/hostile.
	for _, request := range [][2]string{
		{"POST", "sys/seal"}, {"POST", "sys/step-down"}, {"POST", "sys/rotate"}, {"GET", "sys/storage/raft/snapshot"}, {"POST", "sys/audit/x"},
		{"POST", "sys/quotas/rate-limit/x"}, {"POST", "sys/leases/tidy"}, {"GET", "sys/metrics"}, {"GET", "sys/host-info"}, {"GET", "sys/pprof/heap"},
		{"GET", "sys/config/state/sanitized"}, {"POST", "sys/loggers"}, {"POST", "sys/generate-root-token/attempt"}, {"GET", "sys/in-flight-req"},
	} {
		a.refused("of the server", request[0], request[1], nil)
		a.in("").refused("of the server, in root", request[0], request[1], nil)
	}
}

// TestWrappingAcrossNamespaces: a wrapping token is good where it was made, for who holds it.
func TestWrappingAcrossNamespaces(t *testing.T) {
	t.Parallel()
	_, root, a, sub, b := neighbours(t)
	taken := root.wrapped()
	for _, ns := range []string{"a", "a/sub", "b"} {
		root.with(taken).in(ns).do("POST", "sys/wrapping/lookup", nil) // it may answer, and must not use the token up
		root.with(taken).in(ns).do("GET", "sys/wrapping/lookup", nil)
	}
	if got := root.with(taken).must("POST", "sys/wrapping/unwrap", nil); !strings.Contains(string(got.Body), hidden) {
		t.Errorf("after lookups the token unwraps nothing: %.200s", got.Body)
	}
	wrapped := a.wrapped()
	for _, ns := range []string{"", "b", "a/sub"} {
		a.with(wrapped).in(ns).refused("unwrapping elsewhere", "POST", "sys/wrapping/unwrap", nil)
		a.with(wrapped).in(ns).refused("the cubbyhole elsewhere", "GET", "cubbyhole/response", nil)
		a.with(wrapped).in(ns).refused("another use", "GET", "kv/x", nil)
	}
	for _, u := range []user{a, sub, b} { // who only may read the cubbyhole of others
		u.refused("the cubbyhole of another token", "GET", "cubbyhole/response", nil)
	}
	if got := a.with(wrapped).must("POST", "sys/wrapping/unwrap", nil); !strings.Contains(string(got.Body), hidden) {
		t.Errorf("its own namespace does not unwrap it: %.200s", got.Body)
	}
}
