package security_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// TestTenantsTakeNothingFromAbove: an administrator of a namespace puts entities of the root namespace into groups with
// policies that deny everything, into very many groups, and into groups that are templates' values. They keep their rights
// there and their records, and what they get back stays small.
func TestTenantsTakeNothingFromAbove(t *testing.T) {
	t.Parallel()
	_, root, a, _, _ := neighbours(t)
	root.policy("strong", everything)
	root.people("boss", "strong")
	boss := root.login("boss")
	team := root.must("POST", "identity/group", fields{"name": "team", "member_entity_ids": boss.Entity})
	group := dataOf(t, team)["id"]
	above := root.with(boss.Token)
	record := above.must("GET", "identity/entity/id/"+boss.Entity, nil).Body
	self := above.must("GET", "auth/token/lookup-self", nil).Body
	for name, text := range map[string]string{
		"all": `path "*" { capabilities = ["deny"] }`, "some": `path "sys/+" { capabilities = ["deny"] } path "kv/x" { capabilities = ["list"] }`,
		"rules":   `path "kv/x" { capabilities = ["read", "create", "update"] denied_parameters = { "*" = [] } required_parameters = ["never"] }`,
		"wrapped": `path "kv/x" { capabilities = ["read"] min_wrapping_ttl = "1m" }`,
	} {
		a.policy("nothing-"+name, text)
		a.must("POST", "identity/group/name/"+name, fields{"policies": "nothing-" + name, "member_entity_ids": boss.Entity})
		a.must("POST", "identity/group/name/through-"+name, fields{"policies": "nothing-" + name, "member_group_ids": group})
	}
	for range 300 {
		a.must("POST", "identity/group", fields{"policies": "nothing-all", "member_entity_ids": boss.Entity})
	}
	for _, ns := range []string{"a", "a/sub"} {
		there := above.in(ns)
		for _, path := range []string{"sys/mounts", "sys/policies/acl?list=true", "kv/x", "sys/mounts/kv/tune"} {
			there.must("GET", path, nil)
		}
		there.must("POST", "kv/y", fields{"written": "by the boss"})
		there.must("DELETE", "kv/y", nil)
		capabilities := dataOf(t, there.must("POST", "sys/capabilities-self", fields{"paths": []string{"kv/x"}}))["kv/x"].([]any)
		if len(capabilities) < 6 {
			t.Errorf("in %s the boss's capabilities are said to be %v", ns, capabilities)
		}
	}
	for path, before := range map[string][]byte{"identity/entity/id/" + boss.Entity: record, "auth/token/lookup-self": self} {
		if after := above.must("GET", path, nil).Body; len(after) > len(before)+100 {
			t.Errorf("%s grew from %d to %d bytes by what a tenant did", path, len(before), len(after))
		}
	}
	if got := above.must("GET", "identity/entity/id/"+boss.Entity, nil).Body; !bytes.Equal(dataOnly(t, got), dataOnly(t, record)) {
		t.Errorf("the entity's record changed: %s", got)
	}
	// What a tenant gives counts there, and only there.
	root.people("guest", "default")
	guest := root.login("guest")
	a.must("POST", "identity/group/name/guests", fields{"policies": "all", "member_entity_ids": guest.Entity})
	root.with(guest.Token).in("a").must("GET", "kv/x", nil)
	root.with(guest.Token).refused("the rights that a tenant gave", "GET", "kv/x", nil)
	if got := string(root.with(guest.Token).must("GET", "sys/internal/ui/namespaces", nil).Body); !strings.Contains(got, `"a/"`) {
		t.Errorf("the namespaces that the guest may enter: %s", got)
	}
}

// dataOnly returns the data of a response as it came.
func dataOnly(t *testing.T, body []byte) []byte {
	t.Helper()
	_, data, ok := bytes.Cut(body, []byte(`"data":{`))
	if !ok {
		t.Fatalf("no data in %s", body)
	}
	data, _, _ = bytes.Cut(data, []byte("},"))
	return data
}

// TestStorageIsLimited fills the storage with a token of the policy "default", by every path that it may write to, until
// quotas end that, and shows that deleting and what others do goes on.
func TestStorageIsLimited(t *testing.T) {
	t.Parallel()
	_, root, a, _, b := neighbours(t)
	big := strings.Repeat("x", 200_000)
	root.must("POST", "sys/quotas/storage/a", fields{"path": "a/", "inheritable": true, "max_bytes": 1_000_000})
	root.must("POST", "sys/quotas/lease-count/a", fields{"path": "a/", "inheritable": true, "max_leases": 12})
	ordinary := a.child(fields{"policies": []string{"default"}})
	fill := func(what string, u user, method, path string, body any, header ...string) (written int) {
		t.Helper()
		for range 12 {
			got := u.do(method, strings.ReplaceAll(path, "N", string(rune('a'+written))), body, header...)
			switch {
			case got.Status < 300:
				written++
				continue
			case got.Status != 429 || !strings.Contains(string(got.Body), "quota exceeded"):
				t.Errorf("%s: status %d: %.200s", what, got.Status, got.Body)
			}
			return written
		}
		t.Errorf("%s: no end after %d", what, written)
		return written
	}
	if n := fill("cubbyholes", ordinary, "POST", "cubbyhole/N", fields{"v": big}); n == 0 || n > 5 {
		t.Errorf("%d values of 200 KB in a cubbyhole of a namespace with 1 MB", n)
	}
	fill("wrapped responses", ordinary, "POST", "sys/wrapping/wrap", fields{"v": big}, "X-Vault-Wrap-TTL", "24h")
	fill("secrets", a, "POST", "kv/N", fields{"v": big})
	fill("secrets below", a.in("a/sub"), "POST", "kv/N", fields{"v": big})
	b.must("POST", "kv/y", fields{"v": big})
	root.must("POST", "kv/y", fields{"v": big})
	a.must("GET", "kv/x", nil)
	ordinary.must("DELETE", "cubbyhole/a", nil)
	harness.Await(t, "what was deleted to be free again", 30*time.Second, func() error {
		if got := ordinary.do("POST", "cubbyhole/a", fields{"v": big[:100_000]}); got.Status >= 300 {
			return fmt.Errorf("status %d", got.Status)
		}
		return nil
	})
	// Tokens and small wrapped responses are counted.
	if n := fill("tokens", a, "POST", "auth/token/create", fields{"policies": []string{"default"}}); n == 0 {
		t.Error("no token at all is admitted")
	}
	fill("small wrapped responses", ordinary, "POST", "sys/wrapping/wrap", fields{"v": "x"}, "X-Vault-Wrap-TTL", "24h")
	b.must("POST", "sys/wrapping/wrap", fields{"v": "x"}, "X-Vault-Wrap-TTL", "1m")
	a.must("POST", "auth/token/revoke-self", nil)
}
