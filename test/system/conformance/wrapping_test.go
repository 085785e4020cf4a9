package conformance_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/openbao/openbao/api/v2"
)

// wrap wants an answer that is wrapped.
func wrap(t *testing.T) func(*api.Secret, error) *api.SecretWrapInfo {
	return func(s *api.Secret, err error) *api.SecretWrapInfo {
		t.Helper()
		noErr(t, err)
		if s == nil || s.WrapInfo == nil || s.WrapInfo.Token == "" || len(s.Data) > 0 || s.Auth != nil {
			t.Fatalf("the answer is not wrapped: %+v", s)
		}
		return s.WrapInfo
	}
}

func (x *tour) wrapping(t *testing.T) {
	c := x.root
	x.kv(t, c, x.my("wrapped"))
	path := x.my("wrapped") + "/a"
	done(t)(c.write(path, map[string]any{"x": "1"}))
	t.Run("wrap a read", func(t *testing.T) {
		w := wrap(t)(c.wrapped("5m").read(path))
		same(t, "ttl, creation path", []any{w.TTL, w.CreationPath}, []any{300, path})
		if w.Accessor == "" || w.CreationTime.IsZero() {
			t.Errorf("%+v", w)
		}
		same(t, "data", data(t)(c.as("").unwrap(w.Token)), map[string]any{"x": "1"})
	})
	t.Run("wrap and unwrap anything", func(t *testing.T) {
		w := wrap(t)(c.wrapped("60s").write("sys/wrapping/wrap", map[string]any{"a": "b", "n": 7}))
		d := data(t)(c.as("").unwrap(w.Token))
		fields(t, d, map[string]any{"a": "b", "n": 7})
	})
	t.Run("unwrap with one's own token", func(t *testing.T) {
		w := wrap(t)(c.wrapped("60s").read(path))
		same(t, "data", data(t)(c.unwrap(w.Token)), map[string]any{"x": "1"})
		w = wrap(t)(c.wrapped("60s").read(path))
		same(t, "data", data(t)(c.write("sys/wrapping/unwrap", map[string]any{"token": w.Token})), map[string]any{"x": "1"})
	})
	t.Run("lookup", func(t *testing.T) {
		w := wrap(t)(c.wrapped("60s").read(path))
		fields(t, data(t)(c.as("").write("sys/wrapping/lookup", map[string]any{"token": w.Token})), map[string]any{"creation_path": path, "creation_ttl": 60})
		fields(t, data(t)(c.as(w.Token).read("sys/wrapping/lookup")), map[string]any{"creation_path": path})
		same(t, "it is still good", data(t)(c.unwrap(w.Token)), map[string]any{"x": "1"})
	})
	t.Run("rewrap", func(t *testing.T) {
		w := wrap(t)(c.wrapped("60s").read(path))
		again := wrap(t)(c.write("sys/wrapping/rewrap", map[string]any{"token": w.Token}))
		same(t, "ttl", again.TTL, 60)
		_, err := c.unwrap(w.Token)
		refused(t, err, 400)
		same(t, "data", data(t)(c.unwrap(again.Token)), map[string]any{"x": "1"})
	})
	t.Run("replay", func(t *testing.T) {
		w := wrap(t)(c.wrapped("60s").read(path))
		data(t)(c.unwrap(w.Token))
		_, err := c.unwrap(w.Token)
		says(t, err, 400, "wrapping token is not valid or does not exist")
		_, err = c.write("sys/wrapping/lookup", map[string]any{"token": w.Token})
		refused(t, err, 400)
	})
	t.Run("one of many unwraps", func(t *testing.T) {
		w := wrap(t)(c.wrapped("60s").read(path))
		var got atomic.Int64
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				a := x.raw(t, x.Nodes[i%len(x.Nodes)], "POST", "/v1/sys/wrapping/unwrap", w.Token, nil)
				if a.Status == 200 {
					got.Add(1)
				} else if a.Status != 400 && a.Status != 403 {
					t.Errorf("status %d: %s", a.Status, a.Body)
				}
			})
		}
		all.Wait()
		same(t, "unwrapped", got.Load(), int64(1))
	})
	t.Run("a wrapping token is good for nothing else", func(t *testing.T) {
		w := wrap(t)(c.wrapped("60s").read(path))
		_, err := c.as(w.Token).read(path)
		refused(t, err, 403)
	})
	t.Run("an ordinary token wraps nothing", func(t *testing.T) {
		token := auth(t)(c.create(api.TokenCreateRequest{})).ClientToken
		_, err := c.unwrap(token)
		refused(t, err, 400)
		same(t, "alive", x.alive(t, c.as(token)), true)
	})
	t.Run("wrapped token", func(t *testing.T) {
		w := wrap(t)(c.wrapped("60s").create(api.TokenCreateRequest{Policies: []string{"default"}}))
		a := auth(t)(c.as("").unwrap(w.Token))
		same(t, "accessor", a.Accessor, w.WrappedAccessor)
		same(t, "alive", x.alive(t, c.as(a.ClientToken)), true)
	})
	t.Run("wrapped login", func(t *testing.T) {
		x.method(t, c, x.my("wrapped"), "userpass")
		user(t, c, x.my("wrapped"), "ann", nil)
		w := wrap(t)(c.as("").wrapped("60s").write("auth/"+x.my("wrapped")+"/login/ann", map[string]any{"password": "pw-ann"}))
		a := auth(t)(c.as("").unwrap(w.Token))
		same(t, "metadata", a.Metadata["username"], "ann")
		same(t, "alive", x.alive(t, c.as(a.ClientToken)), true)
	})
	t.Run("wrapped secret id", func(t *testing.T) {
		x.method(t, c, x.my("wrapar"), "approle")
		at := "auth/" + x.my("wrapar") + "/"
		id := role(t, c, at, "app", nil)
		w := wrap(t)(c.wrapped("60s").write(at+"role/app/secret-id", nil))
		same(t, "creation path", w.CreationPath, at+"role/app/secret-id")
		secret := data(t)(c.as("").unwrap(w.Token))["secret_id"]
		auth(t)(c.as("").write(at+"login", map[string]any{"role_id": id, "secret_id": secret}))
	})
	t.Run("in a namespace", func(t *testing.T) {
		ns := x.my("wrapns")
		x.namespace(t, c, ns)
		w := wrap(t)(c.in(ns).wrapped("60s").write("sys/wrapping/wrap", map[string]any{"a": "b"}))
		same(t, "data", data(t)(c.in(ns).as("").unwrap(w.Token)), map[string]any{"a": "b"})
	})
	t.Run("an error is not wrapped", func(t *testing.T) {
		_, err := c.wrapped("60s").write("sys/mounts/"+x.my("wrapped"), map[string]any{"type": "kv"})
		refused(t, err, 400)
	})
	t.Run("bad lifetimes", func(t *testing.T) {
		for _, ttl := range []string{"x", "-5s"} {
			_, err := c.wrapped(ttl).read(path)
			refused(t, err, 400)
		}
	})
	t.Run("a policy's limits of lifetimes", func(t *testing.T) {
		me := x.policy(t, c, "mustwrap", `path "`+path+`" {
  capabilities = ["read"]
  min_wrapping_ttl = "30s"
  max_wrapping_ttl = "2m"
}`)
		_, err := me.read(path)
		refused(t, err, 403)
		_, err = me.wrapped("10m").read(path)
		refused(t, err, 403)
		same(t, "data", data(t)(c.unwrap(wrap(t)(me.wrapped("60s").read(path)).Token)), map[string]any{"x": "1"})
	})
	t.Run("revoked by accessor", func(t *testing.T) {
		w := wrap(t)(c.wrapped("60s").read(path))
		noErr(t, c.revokeAccessor(w.Accessor))
		_, err := c.unwrap(w.Token)
		refused(t, err, 400)
	})
}

// leases are those of nothing yet: no engine of the binary issues any.
func (x *tour) leases(t *testing.T) {
	c := x.root
	t.Run("lookup", func(t *testing.T) {
		_, err := c.lease("none/creds/app/0123456789abcdefghijklmn")
		says(t, err, 400, "invalid lease")
	})
	t.Run("renew", func(t *testing.T) {
		_, err := c.renewLease("none/creds/app/0123456789abcdefghijklmn", 60)
		refused(t, err, 400)
	})
	t.Run("revoke", func(t *testing.T) {
		noErr(t, c.revokeLease("none/creds/app/0123456789abcdefghijklmn"))
		_, err := c.write("sys/leases/revoke", map[string]any{})
		says(t, err, 400, "lease_id")
	})
	t.Run("list", func(t *testing.T) {
		absent(t)(c.list("sys/leases/lookup/none/"))
	})
	t.Run("counts", func(t *testing.T) {
		fields(t, data(t)(c.query("sys/leases/count", map[string][]string{"type": {"irrevocable"}})), map[string]any{"lease_count": 0})
		fields(t, data(t)(c.query("sys/leases", map[string][]string{"type": {"irrevocable"}})), map[string]any{"lease_count": 0, "leases": []string{}})
	})
	t.Run("revoke the logins of a method", func(t *testing.T) {
		up := x.my("revoked")
		x.method(t, c, up, "userpass")
		user(t, c, up, "ann", nil)
		user(t, c, up, "bob", nil)
		a, b := login(t, c, up, "ann"), login(t, c, up, "bob")
		noErr(t, c.revokePrefix("auth/"+up+"/login/ann"))
		same(t, "alive", []bool{x.alive(t, c.as(a.ClientToken)), x.alive(t, c.as(b.ClientToken))}, []bool{false, true})
		noErr(t, c.revokeForce("auth/"+up))
		same(t, "alive", x.alive(t, c.as(b.ClientToken)), false)
	})
	t.Run("revoking a prefix needs sudo", func(t *testing.T) {
		me := x.policy(t, c, "revoker", `path "sys/leases/*" { capabilities = ["create", "update"] }`)
		refused(t, me.revokePrefix("none/"), 403)
	})
	t.Run("tidy", func(t *testing.T) {
		a := x.raw(t, x.node(), "POST", "/v1/sys/leases/tidy", x.RootToken, nil)
		same(t, "status", a.Status, 202)
	})
	t.Run("in a namespace", func(t *testing.T) {
		ns := x.my("leases")
		x.namespace(t, c, ns)
		fields(t, data(t)(c.in(ns).query("sys/leases/count", nil)), map[string]any{"lease_count": 0})
	})
}
