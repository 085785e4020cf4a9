package conformance_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

// alive reports whether the token can look itself up.
func (s *suite) alive(t *testing.T, token string) bool {
	t.Helper()
	_, err := s.as(token).Auth().Token().LookupSelf()
	if err != nil {
		status(t, err, 403)
	}
	return err == nil
}

func (s *suite) tokens(t *testing.T) {
	tokens := s.root.Auth().Token()
	create := func(t *testing.T, by *api.Client, o api.TokenCreateRequest) *api.SecretAuth {
		t.Helper()
		secret, err := by.Auth().Token().Create(&o)
		noErr(t, err)
		return secret.Auth
	}
	noErr(t, s.root.Sys().PutPolicy("maker", `path "auth/token/create" { capabilities = ["update", "create"] }
path "auth/token/create-orphan" { capabilities = ["update", "create"] }
path "auth/token/renew" { capabilities = ["update"] }`))

	t.Run("create", func(t *testing.T) {
		a := create(t, s.root, api.TokenCreateRequest{Policies: []string{"maker"}, TTL: "1h", DisplayName: "app", Metadata: map[string]string{"k": "v"}})
		same(t, "policies", a.Policies, []string{"default", "maker"})
		same(t, "metadata", a.Metadata, map[string]string{"k": "v"})
		same(t, "renewable, ttl, orphan", []any{a.Renewable, a.LeaseDuration, a.Orphan}, []any{true, 3600, false})
		l, err := tokens.Lookup(a.ClientToken)
		noErr(t, err)
		same(t, "display name", l.Data["display_name"], any("token-app"))
		same(t, "path", l.Data["path"], any("auth/token/create"))
	})
	t.Run("lookup self", func(t *testing.T) {
		token := s.token(t, api.TokenCreateRequest{TTL: "1h"})
		l, err := s.as(token).Auth().Token().LookupSelf()
		noErr(t, err)
		same(t, "id", l.Data["id"], any(token))
		if ttl := number(t, l.Data["ttl"]); ttl <= 3500 || ttl > 3600 {
			t.Errorf("ttl = %d", ttl)
		}
		expire, _ := l.Data["expire_time"].(string)
		if _, err := time.Parse(time.RFC3339, expire); err != nil {
			t.Errorf("expire_time = %v", l.Data["expire_time"])
		}
		for name, want := range map[string]any{"type": "service", "renewable": true, "orphan": false, "entity_id": ""} {
			same(t, name, l.Data[name], want)
		}
	})
	t.Run("root never expires", func(t *testing.T) {
		l, err := tokens.LookupSelf()
		noErr(t, err)
		same(t, "ttl, expire_time", []any{number(t, l.Data["ttl"]), l.Data["expire_time"]}, []any{int64(0), nil})
		same(t, "policies", texts(l.Data["policies"]), []string{"root"})
	})
	t.Run("no token", func(t *testing.T) {
		_, err := s.as("").Sys().ListMounts()
		status(t, err, 403)
	})
	t.Run("wrong tokens", func(t *testing.T) {
		for _, token := range []string{"x", "hvs.wrong", s.RootToken + "x", s.RootToken[:len(s.RootToken)-1]} {
			_, err := s.as(token).Sys().ListMounts()
			status(t, err, 403)
		}
	})
	t.Run("bearer", func(t *testing.T) {
		a := s.raw(t, s.n1, "GET", "/v1/auth/token/lookup-self", "", nil, "Authorization", "Bearer "+s.RootToken)
		same(t, "status", a.Status, 200)
	})
	t.Run("a tree falls together", func(t *testing.T) {
		parent := create(t, s.root, api.TokenCreateRequest{Policies: []string{"maker"}})
		child := create(t, s.as(parent.ClientToken), api.TokenCreateRequest{Policies: []string{"maker"}})
		grandchild := create(t, s.as(child.ClientToken), api.TokenCreateRequest{})
		orphan := create(t, s.root, api.TokenCreateRequest{NoParent: true})
		noErr(t, tokens.RevokeTree(parent.ClientToken))
		for _, a := range []*api.SecretAuth{parent, child, grandchild} {
			same(t, "alive", s.alive(t, a.ClientToken), false)
		}
		same(t, "orphan alive", s.alive(t, orphan.ClientToken), true)
	})
	t.Run("revoke and keep the children", func(t *testing.T) {
		parent := create(t, s.root, api.TokenCreateRequest{Policies: []string{"maker"}})
		child := create(t, s.as(parent.ClientToken), api.TokenCreateRequest{})
		noErr(t, tokens.RevokeOrphan(parent.ClientToken))
		same(t, "parent, child", []bool{s.alive(t, parent.ClientToken), s.alive(t, child.ClientToken)}, []bool{false, true})
		l, err := tokens.Lookup(child.ClientToken)
		noErr(t, err)
		same(t, "orphan", l.Data["orphan"], any(true))
	})
	t.Run("orphan", func(t *testing.T) {
		secret, err := tokens.CreateOrphan(&api.TokenCreateRequest{})
		noErr(t, err)
		same(t, "orphan", secret.Auth.Orphan, true)
	})
	t.Run("orphans need sudo", func(t *testing.T) {
		c := s.as(s.token(t, api.TokenCreateRequest{Policies: []string{"maker"}}))
		_, err := c.Auth().Token().CreateOrphan(&api.TokenCreateRequest{})
		status(t, err, 403)
	})
	t.Run("accessor", func(t *testing.T) {
		a := create(t, s.root, api.TokenCreateRequest{})
		l, err := tokens.LookupAccessor(a.Accessor)
		noErr(t, err)
		same(t, "id, accessor", []any{l.Data["id"], l.Data["accessor"]}, []any{"", a.Accessor})
		secret, err := s.root.Logical().List("auth/token/accessors")
		noErr(t, err)
		contains(t, "accessors", texts(secret.Data["keys"]), a.Accessor)
		noErr(t, tokens.RevokeAccessor(a.Accessor))
		same(t, "alive", s.alive(t, a.ClientToken), false)
		if _, err := tokens.LookupAccessor(a.Accessor); err == nil {
			t.Errorf("the accessor of a revoked token is still known")
		}
	})
	t.Run("limited uses", func(t *testing.T) {
		token := s.token(t, api.TokenCreateRequest{NumUses: 2})
		same(t, "uses", []bool{s.alive(t, token), s.alive(t, token), s.alive(t, token)}, []bool{true, true, false})
	})
	t.Run("renew", func(t *testing.T) {
		a := create(t, s.root, api.TokenCreateRequest{TTL: "1h"})
		secret, err := tokens.Renew(a.ClientToken, 7200)
		noErr(t, err)
		same(t, "ttl", secret.Auth.LeaseDuration, 7200)
		secret, err = s.as(a.ClientToken).Auth().Token().RenewSelf(1800)
		noErr(t, err)
		same(t, "ttl", secret.Auth.LeaseDuration, 1800)
		secret, err = tokens.RenewAccessor(a.Accessor, 600)
		noErr(t, err)
		same(t, "ttl", secret.Auth.LeaseDuration, 600)
	})
	t.Run("not beyond its end", func(t *testing.T) {
		a := create(t, s.root, api.TokenCreateRequest{TTL: "10m", ExplicitMaxTTL: "20m"})
		secret, err := tokens.Renew(a.ClientToken, 7200)
		noErr(t, err)
		if d := secret.Auth.LeaseDuration; d > 1200 || d < 1100 {
			t.Errorf("renewed to %d s, the end is at 1200 s", d)
		}
	})
	t.Run("not renewable", func(t *testing.T) {
		no := false
		a := create(t, s.root, api.TokenCreateRequest{TTL: "1h", Renewable: &no})
		_, err := s.as(a.ClientToken).Auth().Token().RenewSelf(7200)
		status(t, err, 400)
	})
	t.Run("periodic", func(t *testing.T) {
		a := create(t, s.root, api.TokenCreateRequest{Period: "30m"})
		same(t, "ttl", a.LeaseDuration, 1800)
		secret, err := tokens.Renew(a.ClientToken, 99999)
		noErr(t, err)
		same(t, "ttl", secret.Auth.LeaseDuration, 1800)
		l, err := tokens.Lookup(a.ClientToken)
		noErr(t, err)
		same(t, "period", number(t, l.Data["period"]), int64(1800))
	})
	t.Run("expiry", func(t *testing.T) {
		token := s.token(t, api.TokenCreateRequest{TTL: "1s"})
		harness.Await(t, "the token's end", patience, func() error {
			if s.alive(t, token) {
				return fmt.Errorf("it still works")
			}
			return nil
		})
	})
	t.Run("revoke self", func(t *testing.T) {
		token := s.token(t, api.TokenCreateRequest{})
		noErr(t, s.as(token).Auth().Token().RevokeSelf(""))
		same(t, "alive", s.alive(t, token), false)
	})
	t.Run("no more than oneself", func(t *testing.T) {
		c := s.as(s.token(t, api.TokenCreateRequest{Policies: []string{"maker"}}))
		for _, p := range []string{"root", "other"} {
			if _, err := c.Auth().Token().Create(&api.TokenCreateRequest{Policies: []string{p}}); err == nil {
				t.Errorf("a token without policy %q created one with it", p)
			} else {
				var answer *api.ResponseError
				if !asResponse(err, &answer) || answer.StatusCode != 400 && answer.StatusCode != 403 {
					t.Errorf("refused with %v", err)
				}
			}
		}
	})
	t.Run("chosen ids are for root", func(t *testing.T) {
		token := s.token(t, api.TokenCreateRequest{ID: "my-own-id"})
		same(t, "token", token, "my-own-id")
		c := s.as(s.token(t, api.TokenCreateRequest{Policies: []string{"maker"}}))
		if _, err := c.Auth().Token().Create(&api.TokenCreateRequest{ID: "another-id"}); err == nil {
			t.Errorf("a token that is not root chose an id")
		}
	})
}

func asResponse(err error, into **api.ResponseError) bool {
	answer, ok := err.(*api.ResponseError)
	*into = answer
	return ok
}

func (s *suite) policies(t *testing.T) {
	s.mount(t, "pol", "kv", map[string]string{"version": "1"})
	sys := s.root.Sys()
	write := func(c *api.Client, path string) error {
		_, err := c.Logical().Write("pol/"+path, map[string]any{"a": "b"})
		return err
	}
	read := func(c *api.Client, path string) error {
		_, err := c.Logical().Read("pol/" + path)
		return err
	}
	allow := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("refused: %v", err)
		}
	}
	deny := func(t *testing.T, err error) {
		t.Helper()
		status(t, err, 403, "permission denied")
	}

	t.Run("list", func(t *testing.T) {
		names, err := sys.ListPolicies()
		noErr(t, err)
		contains(t, "policies", names, "default", "root")
	})
	t.Run("write, read, delete", func(t *testing.T) {
		text := `path "pol/*" { capabilities = ["read"] } # kept as written`
		noErr(t, sys.PutPolicy("Mixed-Case", text))
		got, err := sys.GetPolicy("mixed-case")
		noErr(t, err)
		same(t, "text", got, text)
		noErr(t, sys.DeletePolicy("mixed-case"))
		got, err = sys.GetPolicy("mixed-case")
		noErr(t, err)
		same(t, "text", got, "")
	})
	t.Run("nonsense", func(t *testing.T) {
		for _, text := range []string{`path "x" {`, `path "x" { capabilities = ["fly"] }`, `nonsense`, `path "x" { nope = 1 }`, `{"path":`} {
			status(t, sys.PutPolicy("bad", text), 400)
		}
	})
	t.Run("built-in ones", func(t *testing.T) {
		status(t, sys.PutPolicy("root", `path "*" { capabilities = ["read"] }`), 400)
		status(t, sys.DeletePolicy("root"), 400)
		status(t, sys.DeletePolicy("default"), 400)
	})
	t.Run("exact, star and plus", func(t *testing.T) {
		c := s.as(s.policy(t, "globs", `
path "pol/exact"   { capabilities = ["create", "update", "read"] }
path "pol/tree/*"  { capabilities = ["create", "update", "read"] }
path "pol/+/leaf"  { capabilities = ["create", "update", "read"] }`))
		for _, path := range []string{"exact", "tree/a", "tree/a/b/c", "x/leaf"} {
			allow(t, write(c, path))
			allow(t, read(c, path))
		}
		for _, path := range []string{"exact2", "exac", "tree", "x/y/leaf", "x/leaf2", "leaf"} {
			deny(t, write(c, path))
		}
	})
	t.Run("the closest rule wins", func(t *testing.T) {
		c := s.as(s.policy(t, "closest", `
path "pol/*"        { capabilities = ["create", "update", "read"] }
path "pol/locked/*" { capabilities = ["deny"] }
path "pol/locked/but-this" { capabilities = ["read"] }`))
		allow(t, write(c, "open"))
		deny(t, write(c, "locked/x"))
		deny(t, write(c, "locked/but-this"))
		allow(t, read(c, "locked/but-this"))
	})
	t.Run("deny wins between policies", func(t *testing.T) {
		noErr(t, sys.PutPolicy("yes", `path "pol/both" { capabilities = ["create", "update", "read"] }`))
		noErr(t, sys.PutPolicy("no", `path "pol/both" { capabilities = ["deny"] }`))
		deny(t, write(s.as(s.token(t, api.TokenCreateRequest{Policies: []string{"yes", "no"}})), "both"))
		allow(t, write(s.as(s.token(t, api.TokenCreateRequest{Policies: []string{"yes"}})), "both"))
	})
	t.Run("capabilities are separate", func(t *testing.T) {
		allow(t, write(s.root, "there"))
		for capability, allowed := range map[string]string{"read": "read", "update": "update", "create": "create", "delete": "delete", "list": "list"} {
			c := s.as(s.policy(t, "only-"+capability, `path "pol/*" { capabilities = ["`+allowed+`"] }`))
			_, lerr := c.Logical().List("pol/dir")
			_, derr := c.Logical().Delete("pol/absent")
			for op, err := range map[string]error{
				"read": read(c, "there"), "update": write(c, "there"), "create": write(c, "new-by-"+capability), "list": lerr, "delete": derr,
			} {
				if (err == nil) != (op == capability) {
					t.Errorf("with %q alone: %s gives %v", capability, op, err)
				}
			}
		}
	})
	t.Run("JSON", func(t *testing.T) {
		c := s.as(s.policy(t, "json", `{"path":{"pol/json":{"capabilities":["create","update","read"]}}}`))
		allow(t, write(c, "json"))
		deny(t, write(c, "other"))
	})
	t.Run("sudo", func(t *testing.T) {
		plain := s.as(s.policy(t, "plain", `path "sys/audit" { capabilities = ["read"] }`))
		_, err := plain.Sys().ListAudit()
		deny(t, err)
		super := s.as(s.policy(t, "super", `path "sys/audit" { capabilities = ["read", "sudo"] }`))
		_, err = super.Sys().ListAudit()
		allow(t, err)
	})
	t.Run("a change counts at once", func(t *testing.T) {
		token := s.policy(t, "moving", `path "pol/here" { capabilities = ["create", "update"] }`)
		allow(t, write(s.as(token), "here"))
		noErr(t, sys.PutPolicy("moving", `path "pol/elsewhere" { capabilities = ["create", "update"] }`))
		deny(t, write(s.as(token), "here"))
		allow(t, write(s.as(token), "elsewhere"))
		noErr(t, sys.DeletePolicy("moving"))
		deny(t, write(s.as(token), "elsewhere"))
	})
	t.Run("parameters", func(t *testing.T) {
		c := s.as(s.policy(t, "params", `path "pol/p" {
  capabilities = ["create", "update"]
  allowed_parameters = { "a" = ["b", "c"], "n" = [] }
  required_parameters = ["a"]
}`))
		put := func(data map[string]any) error {
			_, err := c.Logical().Write("pol/p", data)
			return err
		}
		allow(t, put(map[string]any{"a": "b"}))
		allow(t, put(map[string]any{"a": "c", "n": "any"}))
		for _, bad := range []map[string]any{{"a": "x"}, {"n": "1"}, {"a": "b", "z": "1"}} {
			deny(t, put(bad))
		}
	})
	t.Run("capabilities of a token", func(t *testing.T) {
		token := s.policy(t, "caps", `path "pol/caps" { capabilities = ["read", "list"] }
path "sys/capabilities-self" { capabilities = ["update"] }`)
		got, err := s.as(token).Sys().CapabilitiesSelf("pol/caps")
		noErr(t, err)
		slices.Sort(got)
		same(t, "own", got, []string{"list", "read"})
		got, err = sys.Capabilities(token, "pol/other")
		noErr(t, err)
		same(t, "elsewhere", got, []string{"deny"})
		got, err = sys.CapabilitiesSelf("anything")
		noErr(t, err)
		same(t, "root's", got, []string{"root"})
	})
	t.Run("capabilities by accessor", func(t *testing.T) {
		secret, err := s.root.Auth().Token().Create(&api.TokenCreateRequest{Policies: []string{"caps"}})
		noErr(t, err)
		r, err := s.root.Logical().Write("sys/capabilities-accessor", map[string]any{"accessor": secret.Auth.Accessor, "paths": []string{"pol/caps", "pol/x"}})
		noErr(t, err)
		same(t, "both paths", [][]string{texts(r.Data["pol/caps"]), texts(r.Data["pol/x"])}, [][]string{{"list", "read"}, {"deny"}})
	})
}

func (s *suite) cubbyhole(t *testing.T) {
	mine, other := s.token(t, api.TokenCreateRequest{}), s.token(t, api.TokenCreateRequest{})
	t.Run("own", func(t *testing.T) {
		_, err := s.as(mine).Logical().Write("cubbyhole/a/b", map[string]any{"x": "y"})
		noErr(t, err)
		r, err := s.as(mine).Logical().Read("cubbyhole/a/b")
		noErr(t, err)
		same(t, "data", r.Data, map[string]any{"x": "y"})
		l, err := s.as(mine).Logical().List("cubbyhole/")
		noErr(t, err)
		same(t, "keys", texts(l.Data["keys"]), []string{"a/"})
	})
	t.Run("nobody else's", func(t *testing.T) {
		for _, token := range []string{other, s.RootToken} {
			r, err := s.as(token).Logical().Read("cubbyhole/a/b")
			noErr(t, err)
			if r != nil {
				t.Errorf("another token reads it")
			}
		}
	})
	t.Run("delete", func(t *testing.T) {
		_, err := s.as(mine).Logical().Delete("cubbyhole/a/b")
		noErr(t, err)
		r, err := s.as(mine).Logical().Read("cubbyhole/a/b")
		noErr(t, err)
		if r != nil {
			t.Errorf("still there")
		}
	})
	t.Run("gone with the token", func(t *testing.T) {
		token := s.token(t, api.TokenCreateRequest{ID: "cubby-token"})
		_, err := s.as(token).Logical().Write("cubbyhole/left", map[string]any{"x": "y"})
		noErr(t, err)
		noErr(t, s.root.Auth().Token().RevokeTree(token))
		token = s.token(t, api.TokenCreateRequest{ID: "cubby-token"})
		r, err := s.as(token).Logical().Read("cubbyhole/left")
		noErr(t, err)
		if r != nil {
			t.Errorf("a new token with the same id finds the old one's data")
		}
	})
}
