package conformance_test

import (
	"fmt"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

func (x *tour) tokenRoles(t *testing.T) {
	c := x.root
	at := "auth/token/roles/"
	put := func(t *testing.T, name string, more map[string]any) string {
		t.Helper()
		done(t)(c.write(at+x.my(name), more))
		return x.my(name)
	}
	t.Run("write and read", func(t *testing.T) {
		name := put(t, "full", map[string]any{
			"allowed_policies": "a,b", "disallowed_policies": "c", "orphan": true, "renewable": false, "path_suffix": "sfx",
			"token_period": "1h", "token_explicit_max_ttl": "2h", "token_num_uses": 5, "token_type": "service",
		})
		fields(t, data(t)(c.read(at+name)), map[string]any{
			"name": name, "allowed_policies": []string{"a", "b"}, "disallowed_policies": []string{"c"}, "orphan": true, "renewable": false,
			"path_suffix": "sfx", "token_period": 3600, "token_explicit_max_ttl": 7200, "token_num_uses": 5, "token_type": "service",
		})
	})
	t.Run("partial update", func(t *testing.T) {
		name := put(t, "full", map[string]any{"orphan": false})
		fields(t, data(t)(c.read(at+name)), map[string]any{"orphan": false, "path_suffix": "sfx"})
	})
	t.Run("list", func(t *testing.T) {
		contains(t, "roles", texts(data(t)(c.list("auth/token/roles"))["keys"]), x.my("full"))
	})
	t.Run("allowed policies", func(t *testing.T) {
		name := put(t, "allowed", map[string]any{"allowed_policies": "pa,pb"})
		same(t, "all of them", auth(t)(c.createByRole(api.TokenCreateRequest{}, name)).Policies, []string{"default", "pa", "pb"})
		same(t, "one of them", auth(t)(c.createByRole(api.TokenCreateRequest{Policies: []string{"pb"}}, name)).Policies, []string{"default", "pb"})
		_, err := c.createByRole(api.TokenCreateRequest{Policies: []string{"pc"}}, name)
		refused(t, err, 400)
	})
	t.Run("more than the creator has", func(t *testing.T) {
		name := put(t, "allowed", map[string]any{"allowed_policies": "pa,pb"})
		maker := x.policy(t, c, "rolemaker", `path "auth/token/create/`+name+`" { capabilities = ["create", "update"] }`)
		same(t, "policies", auth(t)(maker.createByRole(api.TokenCreateRequest{}, name)).Policies, []string{"default", "pa", "pb"})
		_, err := maker.create(api.TokenCreateRequest{})
		refused(t, err, 403)
	})
	t.Run("globs", func(t *testing.T) {
		name := put(t, "globs", map[string]any{"allowed_policies_glob": "app-*", "disallowed_policies_glob": "app-x*"})
		auth(t)(c.createByRole(api.TokenCreateRequest{Policies: []string{"app-a"}}, name))
		for _, bad := range []string{"app-xy", "other"} {
			_, err := c.createByRole(api.TokenCreateRequest{Policies: []string{bad}}, name)
			refused(t, err, 400)
		}
	})
	t.Run("disallowed policies", func(t *testing.T) {
		name := put(t, "disallowed", map[string]any{"disallowed_policies": "secret"})
		_, err := c.createByRole(api.TokenCreateRequest{Policies: []string{"secret"}}, name)
		refused(t, err, 400)
	})
	t.Run("orphan", func(t *testing.T) {
		name := put(t, "orphan", map[string]any{"orphan": true})
		same(t, "orphan", auth(t)(c.createByRole(api.TokenCreateRequest{}, name)).Orphan, true)
	})
	t.Run("path", func(t *testing.T) {
		name := put(t, "path", map[string]any{"path_suffix": "sfx"})
		token := auth(t)(c.createByRole(api.TokenCreateRequest{}, name)).ClientToken
		fields(t, data(t)(c.lookup(token)), map[string]any{"path": "auth/token/create/" + name + "/sfx", "role": name})
	})
	t.Run("periodic", func(t *testing.T) {
		name := put(t, "periodic", map[string]any{"token_period": "10m"})
		a := auth(t)(c.createByRole(api.TokenCreateRequest{}, name))
		same(t, "ttl", a.LeaseDuration, 600)
		put(t, "periodic", map[string]any{"token_period": "20m"})
		same(t, "renewed by the role's new terms", auth(t)(c.renew(a.ClientToken, 0)).LeaseDuration, 1200)
	})
	t.Run("explicit maximum", func(t *testing.T) {
		name := put(t, "max", map[string]any{"token_explicit_max_ttl": "10m"})
		if d := auth(t)(c.createByRole(api.TokenCreateRequest{TTL: "1h"}, name)).LeaseDuration; d > 600 {
			t.Errorf("ttl = %d s", d)
		}
	})
	t.Run("not renewable", func(t *testing.T) {
		name := put(t, "fixed", map[string]any{"renewable": false})
		a := auth(t)(c.createByRole(api.TokenCreateRequest{TTL: "1h"}, name))
		same(t, "renewable", a.Renewable, false)
		_, err := c.as(a.ClientToken).renewSelf(60)
		refused(t, err, 400)
	})
	t.Run("limited uses", func(t *testing.T) {
		name := put(t, "uses", map[string]any{"token_num_uses": 1})
		me := c.as(auth(t)(c.createByRole(api.TokenCreateRequest{}, name)).ClientToken)
		same(t, "uses", []bool{x.alive(t, me), x.alive(t, me)}, []bool{true, false})
	})
	t.Run("batch", func(t *testing.T) {
		name := put(t, "batch", map[string]any{"token_type": "batch", "renewable": false, "orphan": true})
		same(t, "prefix", auth(t)(c.createByRole(api.TokenCreateRequest{TTL: "10m", Policies: []string{"default"}}, name)).ClientToken[:4], "hvb.")
	})
	t.Run("bound addresses", func(t *testing.T) {
		name := put(t, "far", map[string]any{"token_bound_cidrs": "10.9.0.0/16"})
		me := c.as(auth(t)(c.createByRole(api.TokenCreateRequest{}, name)).ClientToken)
		same(t, "alive", x.alive(t, me), false)
		name = put(t, "near", map[string]any{"token_bound_cidrs": "127.0.0.1"})
		me = c.as(auth(t)(c.createByRole(api.TokenCreateRequest{}, name)).ClientToken)
		same(t, "alive", x.alive(t, me), true)
	})
	t.Run("entity alias", func(t *testing.T) {
		name := put(t, "aliased", map[string]any{"allowed_entity_aliases": "robot-*"})
		a := auth(t)(c.createByRole(api.TokenCreateRequest{EntityAlias: "robot-" + x.name}, name))
		if a.EntityID == "" {
			t.Errorf("no entity")
		}
		_, err := c.createByRole(api.TokenCreateRequest{EntityAlias: "human"}, name)
		refused(t, err, 400)
	})
	t.Run("unknown", func(t *testing.T) {
		absent(t)(c.read(at + x.my("nothing")))
		_, err := c.createByRole(api.TokenCreateRequest{}, x.my("nothing"))
		refused(t, err, 400)
	})
	t.Run("delete", func(t *testing.T) {
		name := put(t, "gone", map[string]any{"token_period": "10m"})
		token := auth(t)(c.createByRole(api.TokenCreateRequest{}, name)).ClientToken
		done(t)(c.remove(at + name))
		absent(t)(c.read(at + name))
		_, err := c.renew(token, 60)
		refused(t, err, 400)
	})
	t.Run("in a namespace", func(t *testing.T) {
		ns := x.my("roles")
		x.namespace(t, c, ns)
		done(t)(c.in(ns).write(at+"inner", map[string]any{"allowed_policies": "default"}))
		absent(t)(c.read(at + "inner"))
		token := auth(t)(c.in(ns).createByRole(api.TokenCreateRequest{}, "inner")).ClientToken
		same(t, "inside", x.alive(t, c.in(ns).as(token)), true)
	})
}

func (x *tour) tokenKinds(t *testing.T) {
	c := x.root
	t.Run("batch", func(t *testing.T) {
		a := auth(t)(c.create(api.TokenCreateRequest{Type: "batch", Policies: []string{"default"}, TTL: "10m"}))
		same(t, "prefix, accessor, renewable", []any{a.ClientToken[:4], a.Accessor, a.Renewable}, []any{"hvb.", "", false})
		fields(t, data(t)(c.as(a.ClientToken).lookupSelf()), map[string]any{"type": "batch", "renewable": false, "orphan": false})
	})
	t.Run("what a batch token cannot", func(t *testing.T) {
		me := c.as(auth(t)(c.create(api.TokenCreateRequest{Type: "batch", Policies: []string{"default"}, TTL: "10m"})).ClientToken)
		_, err := me.renewSelf(60)
		refused(t, err, 400)
		_, err = me.write("cubbyhole/a", map[string]any{"x": "1"})
		refused(t, err, 400, 403)
		_, err = me.create(api.TokenCreateRequest{})
		refused(t, err, 400, 403)
		_, err = me.write("auth/token/revoke-self", nil)
		refused(t, err, 400)
	})
	t.Run("what cannot be a batch token", func(t *testing.T) {
		for _, r := range []api.TokenCreateRequest{
			{Policies: []string{"root"}}, {ID: "chosen-" + x.name}, {NumUses: 3}, {Period: "10m"},
		} {
			r.Type = "batch"
			_, err := c.create(r)
			refused(t, err, 400)
		}
	})
	t.Run("a batch token ends with its parent", func(t *testing.T) {
		noErr(t, c.putPolicy(x.my("maker"), `path "auth/token/create" { capabilities = ["create", "update"] }`))
		parent := auth(t)(c.create(api.TokenCreateRequest{Policies: []string{x.my("maker")}})).ClientToken
		child := auth(t)(c.as(parent).create(api.TokenCreateRequest{Type: "batch", TTL: "10m"})).ClientToken
		same(t, "before", x.alive(t, c.as(child)), true)
		noErr(t, c.revokeTree(parent))
		same(t, "after", x.alive(t, c.as(child)), false)
	})
	t.Run("an orphan batch token stays", func(t *testing.T) {
		token := auth(t)(c.createOrphan(api.TokenCreateRequest{Type: "batch", Policies: []string{"default"}, TTL: "10m"})).ClientToken
		same(t, "alive", x.alive(t, c.as(token)), true)
	})
	t.Run("periodic", func(t *testing.T) {
		a := auth(t)(c.create(api.TokenCreateRequest{Period: "10m"}))
		same(t, "ttl", a.LeaseDuration, 600)
		same(t, "renewed", auth(t)(c.as(a.ClientToken).renewSelf(99999)).LeaseDuration, 600)
		fields(t, data(t)(c.lookup(a.ClientToken)), map[string]any{"period": 600})
	})
	t.Run("explicit maximum", func(t *testing.T) {
		a := auth(t)(c.create(api.TokenCreateRequest{TTL: "10m", ExplicitMaxTTL: "15m"}))
		fields(t, data(t)(c.lookup(a.ClientToken)), map[string]any{"explicit_max_ttl": 900})
		if d := auth(t)(c.renew(a.ClientToken, 99999)).LeaseDuration; d > 900 {
			t.Errorf("renewed to %d s", d)
		}
	})
	t.Run("a period within an explicit maximum", func(t *testing.T) {
		a := auth(t)(c.create(api.TokenCreateRequest{Period: "10m", ExplicitMaxTTL: "5m"}))
		if a.LeaseDuration > 300 {
			t.Errorf("ttl = %d s", a.LeaseDuration)
		}
	})
	t.Run("accessors", func(t *testing.T) {
		a := auth(t)(c.create(api.TokenCreateRequest{DisplayName: "acc"}))
		fields(t, data(t)(c.lookupAccessor(a.Accessor)), map[string]any{"id": "", "display_name": "token-acc", "accessor": a.Accessor})
		contains(t, "accessors", texts(data(t)(c.list("auth/token/accessors"))["keys"]), a.Accessor)
		same(t, "capabilities", texts(data(t)(c.write("sys/capabilities-accessor", map[string]any{"accessor": a.Accessor, "paths": "sys/mounts"}))["sys/mounts"]), []string{"root"})
		noErr(t, c.revokeAccessor(a.Accessor))
		same(t, "alive", x.alive(t, c.as(a.ClientToken)), false)
		_, err := c.lookupAccessor(a.Accessor)
		refused(t, err, 400)
	})
	t.Run("revoke and keep the children", func(t *testing.T) {
		parent := auth(t)(c.create(api.TokenCreateRequest{})).ClientToken
		child := auth(t)(c.as(parent).create(api.TokenCreateRequest{})).ClientToken
		noErr(t, c.revokeOrphan(parent))
		same(t, "parent, child", []bool{x.alive(t, c.as(parent)), x.alive(t, c.as(child))}, []bool{false, true})
	})
	t.Run("capabilities", func(t *testing.T) {
		noErr(t, c.putPolicy(x.my("caps"), `path "caps/*" { capabilities = ["read", "list"] }`))
		token := auth(t)(c.create(api.TokenCreateRequest{Policies: []string{x.my("caps")}})).ClientToken
		got, err := c.capabilities(token, "caps/a")
		noErr(t, err)
		contains(t, "capabilities", got, "read", "list")
		got, err = c.as(token).capabilitiesSelf("other/a")
		noErr(t, err)
		same(t, "capabilities", got, []string{"deny"})
	})
	t.Run("capabilities in a namespace", func(t *testing.T) {
		ns := x.my("caps")
		x.namespace(t, c, ns)
		noErr(t, c.in(ns).putPolicy("p", `path "kv/*" { capabilities = ["read"] }`))
		token := auth(t)(c.in(ns).create(api.TokenCreateRequest{Policies: []string{"p"}})).ClientToken
		got, err := c.in(ns).as(token).capabilitiesSelf("kv/a")
		noErr(t, err)
		same(t, "inside", got, []string{"read"})
	})
	t.Run("tidy", func(t *testing.T) {
		a := x.raw(t, x.node(), "POST", "/v1/auth/token/tidy", x.RootToken, nil)
		same(t, "status", a.Status, 202)
		harness.Await(t, "the end of tidying", patience, func() error {
			s, err := c.read("auth/token/tidy")
			if err != nil || s.Data["state"] != "finished" {
				return fmt.Errorf("%v, %v", s, err)
			}
			fields(t, s.Data, map[string]any{"revoked": 0, "accessors_mended": 0, "children_mended": 0, "expiries_mended": 0})
			return nil
		})
	})
}
