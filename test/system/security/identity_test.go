package security_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// TestTemplateNames gives somebody names that would widen a policy with templates, if they were taken for patterns.
func TestTemplateNames(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.must("POST", "sys/mounts/kv", fields{"type": "kv"})
	root.must("POST", "kv/victim/x", fields{"secret": hidden})
	root.must("POST", "kv/victim", fields{"secret": hidden})
	root.policy("own", `path "kv/{{identity.entity.name}}/*" { capabilities = ["read", "list"] }
		path "kv/{{identity.entity.name}}" { capabilities = ["read", "list"] }
		path "kv/{{identity.entity.metadata.team}}/*" { capabilities = ["read", "list"] }
		path "{{identity.entity.metadata.mount}}*" { capabilities = ["read", "list"] }`)
	root.people("eve", "own")
	login := root.login("eve")
	eve := root.with(login.Token)
	for _, name := range []string{"*", "+", "vict*", "+/", "victim/x", "victim/../victim", "eve/../victim", "..", ".", "%2e%2e", "victim%2fx", "vi?tim", "{{identity.entity.id}}", "kv/", ""} {
		root.do("POST", "identity/entity/id/"+login.Entity, fields{"name": name})
		root.do("POST", "identity/entity/id/"+login.Entity, fields{"metadata": fields{"team": name, "mount": name}})
		for _, path := range []string{"kv/victim/x", "kv/victim", "kv/victim/"} {
			eve.refused("called "+name, "GET", path, nil)
			eve.refused("called "+name, "LIST", path, nil)
		}
	}
	root.must("POST", "identity/entity/id/"+login.Entity, fields{"name": "victim"})
	if got := eve.do("GET", "kv/victim/x", nil); got.Status != 200 {
		t.Errorf("a plain name is not filled in: status %d", got.Status)
	}
}

// TestPolicyNamedRoot: whatever hands out policies does not hand out root, however it is spelled.
func TestPolicyNamedRoot(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.people("eve")
	login := root.login("eve")
	root.must("POST", "sys/auth/machines", fields{"type": "approle"})
	root.policy("creator", `path "auth/token/create/*" { capabilities = ["create", "update", "sudo"] }
		path "auth/token/create" { capabilities = ["create", "update", "sudo"] }`)
	creator := root.having("creator")
	privileged := func(what string, u user) {
		t.Helper()
		u.refused(what, "GET", "sys/audit", nil)
	}
	for _, name := range []string{"root", "Root", "ROOT", " root", "root ", "\troot", "\u00a0root", "root\u3000", "\u2003root\u2003", "root\n", "ro\u200bot", "rооt"} {
		what := fmt.Sprintf("policy %q", name)
		list := []string{"default", name}
		root.do("POST", "auth/people/users/eve", fields{"token_policies": list})
		root.do("POST", "auth/people/users/eve/policies", fields{"policies": name})
		root.do("POST", "auth/people/users/eve", fields{"policies": list})
		privileged(what+" of a user", root.with(root.login("eve").Token))
		root.do("POST", "identity/entity/id/"+login.Entity, fields{"policies": list})
		root.do("POST", "identity/group/name/g", fields{"policies": list, "member_entity_ids": login.Entity})
		privileged(what+" of an entity and a group", root.with(root.login("eve").Token))
		root.do("POST", "auth/machines/role/m", fields{"token_policies": list, "bind_secret_id": false, "token_bound_cidrs": "127.0.0.1/32"})
		if a := root.do("GET", "auth/machines/role/m/role-id", nil); a.Status == 200 {
			a = root.nobody().do("POST", "auth/machines/login", fields{"role_id": dataOf(t, a)["role_id"]})
			if a.Status == 200 {
				privileged(what+" of a role", root.with(authOf(t, a).Token))
			}
		}
		for _, role := range []fields{{"allowed_policies": list}, {"allowed_policies_glob": []string{"*"}}, {"disallowed_policies": "x"}, {"allowed_policies_glob": "r*t"}} {
			root.do("POST", "auth/token/roles/r", role)
			for _, path := range []string{"auth/token/create/r", "auth/token/create"} {
				for _, body := range []fields{{"policies": list}, {"policies": []string{name}}, {}} {
					if a := creator.do("POST", path, body); a.Status == 200 {
						privileged(what+" by "+path, creator.with(authOf(t, a).Token))
					}
				}
			}
		}
		root.do("DELETE", "auth/token/roles/r", nil)
	}
}

// TestChildTokens: what a token makes has no more rights than it.
func TestChildTokens(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.must("POST", "sys/mounts/kv", fields{"type": "kv"})
	root.must("POST", "kv/x", fields{"secret": hidden})
	root.policy("reader", `path "kv/*" { capabilities = ["read"] }`)
	root.policy("creator", `path "auth/token/create*" { capabilities = ["create", "update"] }`)
	root.policy("response-wrapping-like", everything)
	creator := root.having("creator")
	for what, body := range map[string]fields{
		"another policy": {"policies": "reader"}, "two policies": {"policies": []string{"creator", "reader"}}, "root": {"policies": "root"},
		"the policy of wrapping tokens": {"policies": "response-wrapping"}, "an orphan": {"no_parent": true}, "a period": {"period": "1h"},
		"an id": {"id": "chosen"}, "an entity": {"entity_alias": "x"}, "an unknown type": {"type": "root"},
		"negative uses": {"num_uses": -1}, "a negative lifetime": {"ttl": "-1h"},
	} {
		creator.refused(what, "POST", "auth/token/create", body)
		creator.refused(what+", as an orphan", "POST", "auth/token/create-orphan", fields{"policies": "reader"})
	}
	limited := root.child(fields{"policies": []string{"creator"}, "num_uses": 5, "no_parent": true})
	limited.refused("a limited token", "POST", "auth/token/create", nil)
	batch := root.child(fields{"policies": []string{"creator"}, "type": "batch", "no_parent": true})
	batch.refused("a batch token", "POST", "auth/token/create", nil)
	bound := root.with(root.token)
	bound.must("POST", "auth/token/roles/bound", fields{"allowed_policies": "creator", "token_bound_cidrs": "10.0.0.0/8"})
	elsewhere := root.with(authOf(t, root.must("POST", "auth/token/create/bound", nil)).Token)
	if elsewhere.valid() {
		t.Error("a token works outside the networks it is bound to")
	}
	child := creator.child(nil)
	creator.must("POST", "auth/token/revoke-self", nil)
	if child.valid() {
		t.Error("a token has outlived its parent")
	}
}

// TestSudoPaths: paths that ask for sudo do not take the plain capability.
func TestSudoPaths(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.policy("plain", `path "*" { capabilities = ["create", "read", "update", "patch", "delete", "list"] }`)
	plain := root.having("plain")
	for _, request := range [][2]string{
		{"POST", "sys/seal"}, {"POST", "sys/step-down"}, {"POST", "sys/rotate"}, {"GET", "sys/audit"}, {"POST", "sys/audit/x"}, {"DELETE", "sys/audit/x"},
		{"LIST", "auth/token/accessors"}, {"POST", "auth/token/revoke-orphan"}, {"POST", "auth/token/create-orphan"}, {"POST", "sys/leases/tidy"},
		{"POST", "sys/leases/revoke-prefix/auth"}, {"POST", "sys/leases/revoke-force/auth"}, {"POST", "sys/revoke-prefix/auth"}, {"LIST", "sys/leases/lookup/auth"},
		{"POST", "sys/config/cors"}, {"POST", "sys/config/ui/headers/X-A"}, {"POST", "sys/config/auditing/request-headers/x"}, {"GET", "sys/pprof/heap"},
		{"POST", "sys/generate-root-token/attempt"}, {"POST", "sys/namespaces/api-lock/lock/x"}, {"POST", "sys/rotate/root/init"}, {"POST", "sys/rotate/config"},
		{"POST", "sys/storage/raft/snapshot-force"}, {"GET", "sys/storage/raft/snapshot"}, {"POST", "sys/storage/raft/remove-peer"},
		{"POST", "sys/storage/raft/snapshot-auto/config/x"}, {"GET", "sys/storage/raft/snapshot-auto/config/x"},
	} {
		if a := plain.do(request[0], request[1], nil); a.Status != 403 {
			t.Errorf("%s %s without sudo: status %d: %.200s", request[0], request[1], a.Status, a.Body)
		}
	}
	if root.n.Health() != 200 {
		t.Error("one of them has worked")
	}
}

// TestIdentityMerge: nobody takes over an entity by merging it into their own, or an alias by writing it.
func TestIdentityMerge(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.must("POST", "sys/mounts/kv", fields{"type": "kv"})
	root.must("POST", "kv/x", fields{"secret": hidden})
	root.policy("reader", `path "kv/*" { capabilities = ["read"] }`)
	root.people("admin")
	root.people("eve", "merger")
	admin, eve := root.login("admin"), root.login("eve")
	root.must("POST", "identity/entity/id/"+admin.Entity, fields{"policies": "reader"})
	root.must("POST", "identity/group/name/readers", fields{"policies": "reader", "member_entity_ids": admin.Entity})
	root.policy("merger", `path "identity/entity/merge" { capabilities = ["update"] }
		path "identity/entity/id/`+eve.Entity+`" { capabilities = ["read", "update"] }
		path "identity/lookup/*" { capabilities = ["update"] }`)
	attacker := root.with(eve.Token)
	for _, body := range []fields{
		{"from_entity_ids": admin.Entity, "to_entity_id": eve.Entity}, {"from_entity_ids": eve.Entity, "to_entity_id": admin.Entity},
		{"from_entity_ids": []string{eve.Entity, admin.Entity}, "to_entity_id": eve.Entity}, {"from_entity_ids": admin.Entity, "to_entity_id": eve.Entity, "force": true},
		{"from_entity_ids": strings.ToUpper(admin.Entity), "to_entity_id": eve.Entity}, {"from_entity_ids": " " + admin.Entity, "to_entity_id": eve.Entity},
	} {
		attacker.refused("merging", "POST", "identity/entity/merge", body)
	}
	accessor := dataOf(t, root.must("GET", "sys/auth", nil))["people/"].(map[string]any)["accessor"]
	for _, path := range []string{"identity/entity-alias", "identity/alias"} {
		attacker.refused("an alias", "POST", path, fields{"name": "eve", "mount_accessor": accessor, "canonical_id": admin.Entity})
	}
	attacker.refused("a group", "POST", "identity/group/name/readers", fields{"member_entity_ids": eve.Entity})
	attacker.do("POST", "identity/entity/id/"+eve.Entity, fields{"name": "admin", "policies": []string{"root"}, "group_ids": "x", "id": admin.Entity, "aliases": "x"})
	root.with(root.login("eve").Token).refused("afterwards", "GET", "kv/x", nil)
	if got := root.with(admin.Token).do("GET", "kv/x", nil); got.Status != 200 {
		t.Errorf("afterwards the administrator gets %d", got.Status)
	}
}

// TestIdentityAcrossNamespaces: an administrator of a namespace gives people of others rights there, and nowhere
// else, and changes nothing about them.
func TestIdentityAcrossNamespaces(t *testing.T) {
	t.Parallel()
	_, root, a, _, _ := neighbours(t)
	root.policy("strong", everything)
	root.people("boss", "default")
	boss := root.login("boss")
	root.must("POST", "identity/group/name/bosses", fields{"policies": "strong", "member_entity_ids": boss.Entity})
	group := fmt.Sprint(dataOf(t, root.must("GET", "identity/group/name/bosses", nil))["id"])
	a.people("eve", "all")
	eve := a.login("eve")
	attacker := a.with(eve.Token)
	for _, id := range []string{boss.Entity} {
		attacker.refused("reading", "GET", "identity/entity/id/"+id, nil)
		attacker.refused("writing", "POST", "identity/entity/id/"+id, fields{"policies": "x", "disabled": true})
		attacker.do("DELETE", "identity/entity/id/"+id, nil)
		attacker.do("POST", "identity/entity/batch-delete", fields{"entity_ids": []string{id}})
		attacker.refused("merging", "POST", "identity/entity/merge", fields{"from_entity_ids": id, "to_entity_id": eve.Entity})
		attacker.refused("merging into", "POST", "identity/entity/merge", fields{"from_entity_ids": eve.Entity, "to_entity_id": id})
		if got := attacker.do("POST", "identity/lookup/entity", fields{"id": id}); got.Status == 200 {
			t.Errorf("an entity of root is found from a: %.200s", got.Body)
		}
	}
	attacker.refused("a group of root", "GET", "identity/group/id/"+group, nil)
	attacker.refused("a group of root", "POST", "identity/group/id/"+group, fields{"member_entity_ids": eve.Entity})
	attacker.do("DELETE", "identity/group/id/"+group, nil)
	accessor := dataOf(t, root.must("GET", "sys/auth", nil))["people/"].(map[string]any)["accessor"]
	attacker.refused("an alias at a mount of root", "POST", "identity/entity-alias", fields{"name": "boss", "mount_accessor": accessor, "canonical_id": eve.Entity})
	own := dataOf(t, a.must("GET", "sys/auth", nil))["people/"].(map[string]any)["accessor"]
	attacker.refused("an alias of an entity of root", "POST", "identity/entity-alias", fields{"name": "eve2", "mount_accessor": own, "canonical_id": boss.Entity})
	external := dataOf(t, attacker.must("POST", "identity/group", fields{"name": "external", "type": "external", "policies": "all"}))["id"]
	attacker.refused("a group alias at a mount of root", "POST", "identity/group-alias", fields{"name": "x", "mount_accessor": accessor, "canonical_id": external})
	attacker.refused("a group alias of a group of root", "POST", "identity/group-alias", fields{"name": "x", "mount_accessor": own, "canonical_id": group})
	// Groups of a that hold people of root, or take root's policies by name.
	attacker.must("POST", "identity/group/name/own", fields{"policies": []string{"strong", "all"}, "member_entity_ids": eve.Entity})
	attacker.do("POST", "identity/group/name/around", fields{"policies": "strong", "member_group_ids": group})
	attacker.do("POST", "identity/group/name/up", fields{"policies": "strong", "member_entity_ids": []string{boss.Entity, eve.Entity}})
	for _, ns := range []string{"", "b"} {
		again := a.with(a.login("eve").Token).in(ns)
		again.refused("with groups of a", "GET", "kv/x", nil)
		again.refused("with groups of a", "GET", "sys/mounts/kv/tune", nil)
	}
	if got := root.with(boss.Token).do("GET", "kv/x", nil); got.Status != 200 {
		t.Errorf("afterwards the boss gets %d in root", got.Status)
	}
}
