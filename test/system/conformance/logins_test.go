package conformance_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
	"golang.org/x/crypto/bcrypt"
)

func (x *tour) userpass(t *testing.T) {
	c, up := x.root, x.my("up")
	x.method(t, c, up, "userpass")
	at := "auth/" + up + "/"
	t.Run("create and read", func(t *testing.T) {
		user(t, c, up, "ann", map[string]any{"token_policies": "b,a", "token_ttl": "10m", "token_max_ttl": "1h"})
		d := data(t)(c.read(at + "users/ann"))
		fields(t, d, map[string]any{"token_policies": []string{"a", "b"}, "token_ttl": 600, "token_max_ttl": 3600})
		for name := range d {
			if name == "password" || name == "hash" || name == "password_hash" {
				t.Errorf("a read answers %q", name)
			}
		}
	})
	t.Run("partial update", func(t *testing.T) {
		done(t)(c.write(at+"users/ann", map[string]any{"token_ttl": "20m"}))
		fields(t, data(t)(c.read(at+"users/ann")), map[string]any{"token_policies": []string{"a", "b"}, "token_ttl": 1200})
	})
	t.Run("list", func(t *testing.T) {
		same(t, "users", texts(data(t)(c.list(at + "users"))["keys"]), []string{"ann"})
	})
	t.Run("a new user needs a password", func(t *testing.T) {
		_, err := c.write(at+"users/none", map[string]any{"token_ttl": "20m"})
		says(t, err, 400, "password")
	})
	t.Run("login", func(t *testing.T) {
		a := login(t, c, up, "ann")
		same(t, "policies", a.TokenPolicies, []string{"a", "b", "default"})
		same(t, "ttl, renewable", []any{a.LeaseDuration, a.Renewable}, []any{1200, true})
		same(t, "metadata", a.Metadata, map[string]string{"username": "ann"})
		if a.EntityID == "" || a.Accessor == "" {
			t.Errorf("no entity or accessor: %+v", a)
		}
		fields(t, data(t)(c.as(a.ClientToken).lookupSelf()), map[string]any{
			"display_name": up + "-ann", "path": at + "login/ann", "orphan": true, "entity_id": a.EntityID, "type": "service",
		})
	})
	t.Run("the name in any case", func(t *testing.T) {
		a := auth(t)(c.as("").write(at+"login/ANN", map[string]any{"password": "pw-ann"}))
		same(t, "metadata", a.Metadata["username"], "ann")
	})
	t.Run("wrong password and unknown user look the same", func(t *testing.T) {
		_, wrong := c.as("").write(at+"login/ann", map[string]any{"password": "x"})
		_, unknown := c.as("").write(at+"login/nobody", map[string]any{"password": "x"})
		_, a, _ := answerOf(wrong)
		_, b, _ := answerOf(unknown)
		refused(t, wrong, 400)
		refused(t, unknown, 400)
		same(t, "texts", a, b)
	})
	t.Run("change the password", func(t *testing.T) {
		done(t)(c.write(at+"users/ann/password", map[string]any{"password": "another"}))
		_, err := c.as("").write(at+"login/ann", map[string]any{"password": "pw-ann"})
		refused(t, err, 400)
		auth(t)(c.as("").write(at+"login/ann", map[string]any{"password": "another"}))
	})
	t.Run("change the policies", func(t *testing.T) {
		done(t)(c.write(at+"users/ann/policies", map[string]any{"token_policies": "c"}))
		a := auth(t)(c.as("").write(at+"login/ann", map[string]any{"password": "another"}))
		same(t, "policies", a.TokenPolicies, []string{"c", "default"})
	})
	t.Run("renew", func(t *testing.T) {
		token := auth(t)(c.as("").write(at+"login/ann", map[string]any{"password": "another"})).ClientToken
		same(t, "ttl", auth(t)(c.as(token).renewSelf(1800)).LeaseDuration, 1800)
		if d := auth(t)(c.as(token).renewSelf(99999)).LeaseDuration; d > 3600 || d < 3500 {
			t.Errorf("renewed to %d s, the end is at 3600 s", d)
		}
		done(t)(c.write(at+"users/ann/policies", map[string]any{"token_policies": "d"}))
		_, err := c.as(token).renewSelf(1800)
		says(t, err, 400, "policies have changed")
	})
	t.Run("an imported hash", func(t *testing.T) {
		hash, err := bcrypt.GenerateFromPassword([]byte("imported"), bcrypt.MinCost)
		noErr(t, err)
		done(t)(c.write(at+"users/imp", map[string]any{"password_hash": string(hash)}))
		auth(t)(c.as("").write(at+"login/imp", map[string]any{"password": "imported"}))
	})
	t.Run("bound addresses", func(t *testing.T) {
		user(t, c, up, "far", map[string]any{"token_bound_cidrs": "10.9.0.0/16"})
		_, err := c.as("").write(at+"login/far", map[string]any{"password": "pw-far"})
		refused(t, err, 400)
		user(t, c, up, "far", map[string]any{"token_bound_cidrs": "127.0.0.0/8"})
		a := login(t, c, up, "far")
		same(t, "bound", texts(data(t)(c.as(a.ClientToken).lookupSelf())["bound_cidrs"]), []string{"127.0.0.0/8"})
	})
	t.Run("batch tokens", func(t *testing.T) {
		user(t, c, up, "batch", map[string]any{"token_type": "batch"})
		a := login(t, c, up, "batch")
		same(t, "prefix", a.ClientToken[:4], "hvb.")
		same(t, "type", data(t)(c.as(a.ClientToken).lookupSelf())["type"], any("batch"))
	})
	t.Run("limited uses", func(t *testing.T) {
		user(t, c, up, "few", map[string]any{"token_num_uses": 2})
		me := c.as(login(t, c, up, "few").ClientToken)
		same(t, "uses", []bool{x.alive(t, me), x.alive(t, me), x.alive(t, me)}, []bool{true, true, false})
	})
	t.Run("no default policy", func(t *testing.T) {
		user(t, c, up, "bare", map[string]any{"token_no_default_policy": true, "token_policies": "a"})
		same(t, "policies", login(t, c, up, "bare").TokenPolicies, []string{"a"})
	})
	t.Run("root is no policy of a login", func(t *testing.T) {
		_, err := c.write(at+"users/king", map[string]any{"password": "pw-king", "token_policies": "root"})
		if err == nil {
			_, err = c.as("").write(at+"login/king", map[string]any{"password": "pw-king"})
		}
		refused(t, err, 400)
	})
	t.Run("lockout", func(t *testing.T) {
		user(t, c, up, "locked", nil)
		for range 5 {
			_, err := c.as("").write(at+"login/locked", map[string]any{"password": "x"})
			refused(t, err, 400)
		}
		_, err := c.as("").write(at+"login/locked", map[string]any{"password": "pw-locked"})
		refused(t, err, 403)
	})
	t.Run("delete", func(t *testing.T) {
		done(t)(c.remove(at + "users/ann"))
		absent(t)(c.read(at + "users/ann"))
		_, err := c.as("").write(at+"login/ann", map[string]any{"password": "another"})
		refused(t, err, 400)
	})
}

// role makes an approle and returns its role id.
func role(t *testing.T, c client, at, name string, more map[string]any) string {
	t.Helper()
	if more == nil {
		more = map[string]any{}
	}
	done(t)(c.write(at+"role/"+name, more))
	return data(t)(c.read(at + "role/" + name + "/role-id"))["role_id"].(string)
}

// secretID makes a secret id of a role.
func secretID(t *testing.T, c client, at, name string, more map[string]any) string {
	t.Helper()
	return data(t)(c.write(at+"role/"+name+"/secret-id", more))["secret_id"].(string)
}

func (x *tour) approle(t *testing.T) {
	c := x.root
	x.method(t, c, x.my("ar"), "approle")
	at := "auth/" + x.my("ar") + "/"
	enter := func(roleID, secretID string) (*api.Secret, error) {
		return c.as("").write(at+"login", map[string]any{"role_id": roleID, "secret_id": secretID})
	}
	t.Run("create and read", func(t *testing.T) {
		role(t, c, at, "app", map[string]any{"token_policies": "a", "token_ttl": "10m", "secret_id_ttl": "1h", "secret_id_num_uses": 5})
		fields(t, data(t)(c.read(at+"role/app")), map[string]any{
			"bind_secret_id": true, "token_policies": []string{"a"}, "token_ttl": 600, "secret_id_ttl": 3600, "secret_id_num_uses": 5,
			"local_secret_ids": false,
		})
	})
	t.Run("list", func(t *testing.T) {
		same(t, "roles", texts(data(t)(c.list(at + "role"))["keys"]), []string{"app"})
	})
	t.Run("login", func(t *testing.T) {
		id := role(t, c, at, "app", nil)
		d := data(t)(c.write(at+"role/app/secret-id", map[string]any{"metadata": `{"host":"h1"}`}))
		fields(t, d, map[string]any{"secret_id_ttl": 3600, "secret_id_num_uses": 5})
		a := auth(t)(enter(id, d["secret_id"].(string)))
		same(t, "policies", a.TokenPolicies, []string{"a", "default"})
		same(t, "metadata", a.Metadata, map[string]string{"role_name": "app", "host": "h1"})
		same(t, "ttl", a.LeaseDuration, 600)
		same(t, "renewed", auth(t)(c.as(a.ClientToken).renewSelf(900)).LeaseDuration, 900)
	})
	t.Run("wrong ids look the same", func(t *testing.T) {
		id := role(t, c, at, "app", nil)
		_, wrongRole := enter("no-such-role", secretID(t, c, at, "app", nil))
		_, wrongSecret := enter(id, "no-such-secret")
		refused(t, wrongRole, 400)
		refused(t, wrongSecret, 400)
		_, a, _ := answerOf(wrongRole)
		_, b, _ := answerOf(wrongSecret)
		same(t, "texts", a, b)
	})
	t.Run("another role's secret id", func(t *testing.T) {
		id := role(t, c, at, "other", nil)
		_, err := enter(id, secretID(t, c, at, "app", nil))
		refused(t, err, 400)
	})
	t.Run("lookup and destroy", func(t *testing.T) {
		id := role(t, c, at, "app", nil)
		d := data(t)(c.write(at+"role/app/secret-id", nil))
		secret, accessor := d["secret_id"].(string), d["secret_id_accessor"].(string)
		fields(t, data(t)(c.write(at+"role/app/secret-id/lookup", map[string]any{"secret_id": secret})), map[string]any{"secret_id_accessor": accessor, "secret_id_num_uses": 5})
		fields(t, data(t)(c.write(at+"role/app/secret-id-accessor/lookup", map[string]any{"secret_id_accessor": accessor})), map[string]any{"secret_id_accessor": accessor})
		contains(t, "accessors", texts(data(t)(c.list(at + "role/app/secret-id"))["keys"]), accessor)
		done(t)(c.write(at+"role/app/secret-id/destroy", map[string]any{"secret_id": secret}))
		_, err := enter(id, secret)
		refused(t, err, 400)
		absent(t)(c.write(at+"role/app/secret-id/lookup", map[string]any{"secret_id": secret}))
	})
	t.Run("destroy by accessor", func(t *testing.T) {
		id := role(t, c, at, "app", nil)
		d := data(t)(c.write(at+"role/app/secret-id", nil))
		done(t)(c.write(at+"role/app/secret-id-accessor/destroy", map[string]any{"secret_id_accessor": d["secret_id_accessor"]}))
		_, err := enter(id, d["secret_id"].(string))
		refused(t, err, 400)
		_, err = c.write(at+"role/app/secret-id-accessor/lookup", map[string]any{"secret_id_accessor": d["secret_id_accessor"]})
		refused(t, err, 404)
	})
	t.Run("custom secret id", func(t *testing.T) {
		id := role(t, c, at, "app", nil)
		done(t)(c.write(at+"role/app/custom-secret-id", map[string]any{"secret_id": "my-own-" + x.name}))
		auth(t)(enter(id, "my-own-"+x.name))
	})
	t.Run("a custom role id", func(t *testing.T) {
		done(t)(c.write(at+"role/other/role-id", map[string]any{"role_id": "known"}))
		auth(t)(enter("known", secretID(t, c, at, "other", nil)))
		_, err := c.write(at+"role/app/role-id", map[string]any{"role_id": "known"})
		refused(t, err, 400)
	})
	t.Run("one use", func(t *testing.T) {
		id := role(t, c, at, "once", map[string]any{"secret_id_num_uses": 1})
		secret := secretID(t, c, at, "once", nil)
		auth(t)(enter(id, secret))
		_, err := enter(id, secret)
		refused(t, err, 400)
	})
	t.Run("n uses are n logins from everywhere", func(t *testing.T) {
		id := role(t, c, at, "three", map[string]any{"secret_id_num_uses": 3})
		secret := secretID(t, c, at, "three", nil)
		var in atomic.Int64
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				a := x.raw(t, x.Nodes[i%len(x.Nodes)], "POST", "/v1/"+at+"login", "", map[string]any{"role_id": id, "secret_id": secret})
				if a.Status == 200 {
					in.Add(1)
				} else if a.Status != 400 {
					t.Errorf("status %d: %s", a.Status, a.Body)
				}
			})
		}
		all.Wait()
		same(t, "logins", in.Load(), int64(3))
	})
	t.Run("an expired secret id", func(t *testing.T) {
		id := role(t, c, at, "brief", map[string]any{"secret_id_ttl": "1s"})
		secret := secretID(t, c, at, "brief", nil)
		harness.Await(t, "the end of the secret id", patience, func() error {
			if _, err := enter(id, secret); err == nil {
				return fmt.Errorf("it still works")
			}
			return nil
		})
	})
	t.Run("a secret id's own limits", func(t *testing.T) {
		role(t, c, at, "limits", map[string]any{"secret_id_num_uses": 3, "secret_id_ttl": "1h"})
		fields(t, data(t)(c.write(at+"role/limits/secret-id", map[string]any{"num_uses": 2, "ttl": "10m"})), map[string]any{"secret_id_num_uses": 2, "secret_id_ttl": 600})
		for _, more := range []map[string]any{{"num_uses": 4}, {"num_uses": 0}, {"ttl": "2h"}, {"num_uses": -1}} {
			_, err := c.write(at+"role/limits/secret-id", more)
			refused(t, err, 400)
		}
	})
	t.Run("bound addresses of the role", func(t *testing.T) {
		id := role(t, c, at, "far", map[string]any{"secret_id_bound_cidrs": "10.9.0.0/16"})
		secret := secretID(t, c, at, "far", nil)
		_, err := enter(id, secret)
		refused(t, err, 400, 403)
		role(t, c, at, "far", map[string]any{"secret_id_bound_cidrs": "127.0.0.0/8"})
		auth(t)(enter(id, secret))
	})
	t.Run("bound addresses of a secret id", func(t *testing.T) {
		id := role(t, c, at, "net", map[string]any{"secret_id_bound_cidrs": "127.0.0.0/8,10.0.0.0/8"})
		_, err := c.write(at+"role/net/secret-id", map[string]any{"cidr_list": "192.168.0.0/16"})
		refused(t, err, 400)
		_, err = enter(id, secretID(t, c, at, "net", map[string]any{"cidr_list": "10.9.0.0/16"}))
		refused(t, err, 400, 403)
		auth(t)(enter(id, secretID(t, c, at, "net", map[string]any{"cidr_list": "127.0.0.1/32"})))
	})
	t.Run("bound addresses of the token", func(t *testing.T) {
		id := role(t, c, at, "tok", map[string]any{"token_bound_cidrs": "127.0.0.0/8"})
		a := auth(t)(enter(id, secretID(t, c, at, "tok", map[string]any{"token_bound_cidrs": "127.0.0.1/32"})))
		same(t, "bound", texts(data(t)(c.as(a.ClientToken).lookupSelf())["bound_cidrs"]), []string{"127.0.0.1/32"})
	})
	t.Run("without secret ids", func(t *testing.T) {
		_, err := c.write(at+"role/open", map[string]any{"bind_secret_id": false})
		says(t, err, 400, "constraint")
		id := role(t, c, at, "open", map[string]any{"bind_secret_id": false, "token_bound_cidrs": "127.0.0.0/8"})
		auth(t)(enter(id, ""))
	})
	t.Run("local secret ids", func(t *testing.T) {
		id := role(t, c, at, "local", map[string]any{"local_secret_ids": true})
		auth(t)(enter(id, secretID(t, c, at, "local", nil)))
		_, err := c.write(at+"role/local", map[string]any{"local_secret_ids": false})
		refused(t, err, 400)
	})
	t.Run("single fields", func(t *testing.T) {
		for field, value := range map[string]any{
			"policies": "p1", "secret-id-num-uses": 7, "secret-id-ttl": "2h", "token-ttl": "3m", "token-max-ttl": "4h", "token-num-uses": 9,
			"period": "5m", "bind-secret-id": true, "secret-id-bound-cidrs": "127.0.0.0/8", "token-bound-cidrs": "127.0.0.0/8",
		} {
			name := map[string]string{
				"policies": "token_policies", "secret-id-num-uses": "secret_id_num_uses", "secret-id-ttl": "secret_id_ttl", "token-ttl": "token_ttl",
				"token-max-ttl": "token_max_ttl", "token-num-uses": "token_num_uses", "period": "token_period", "bind-secret-id": "bind_secret_id",
				"secret-id-bound-cidrs": "secret_id_bound_cidrs", "token-bound-cidrs": "token_bound_cidrs",
			}[field]
			done(t)(c.write(at+"role/other/"+field, map[string]any{name: value}))
			if got := data(t)(c.read(at + "role/other/" + field))[name]; got == nil {
				t.Errorf("%s: nothing to read", field)
			}
			done(t)(c.remove(at + "role/other/" + field))
		}
		fields(t, data(t)(c.read(at+"role/other")), map[string]any{"token_policies": []string{}, "secret_id_num_uses": 0, "token_ttl": 0, "token_period": 0})
	})
	t.Run("periodic", func(t *testing.T) {
		id := role(t, c, at, "period", map[string]any{"token_period": "30m"})
		a := auth(t)(enter(id, secretID(t, c, at, "period", nil)))
		same(t, "ttl", a.LeaseDuration, 1800)
		same(t, "renewed", auth(t)(c.as(a.ClientToken).renewSelf(99999)).LeaseDuration, 1800)
	})
	t.Run("tidy", func(t *testing.T) {
		a := x.raw(t, x.node(), "POST", "/v1/"+at+"tidy/secret-id", x.RootToken, nil)
		same(t, "status", a.Status, 202)
	})
	t.Run("delete", func(t *testing.T) {
		id := role(t, c, at, "app", nil)
		secret := secretID(t, c, at, "app", nil)
		token := auth(t)(enter(id, secret)).ClientToken
		done(t)(c.remove(at + "role/app"))
		absent(t)(c.read(at + "role/app"))
		_, err := enter(id, secret)
		refused(t, err, 400)
		_, err = c.as(token).renewSelf(60)
		refused(t, err, 400)
	})
}

// methods are the effects of tuning auth methods and of disabling them.
func (x *tour) methods(t *testing.T) {
	c, up := x.root, x.my("tuned")
	x.method(t, c, up, "userpass")
	user(t, c, up, "ann", nil)
	t.Run("lifetimes", func(t *testing.T) {
		noErr(t, c.tune("auth/"+up, api.MountConfigInput{DefaultLeaseTTL: "7m", MaxLeaseTTL: "14m"}))
		got, err := c.mountConfig("auth/" + up)
		noErr(t, err)
		same(t, "ttls", []int{got.DefaultLeaseTTL, got.MaxLeaseTTL}, []int{420, 840})
		a := login(t, c, up, "ann")
		same(t, "ttl", a.LeaseDuration, 420)
		if d := auth(t)(c.as(a.ClientToken).renewSelf(99999)).LeaseDuration; d > 840 || d < 780 {
			t.Errorf("renewed to %d s, the end is at 840 s", d)
		}
	})
	t.Run("batch by default", func(t *testing.T) {
		noErr(t, c.tune("auth/"+up, api.MountConfigInput{TokenType: "default-batch"}))
		same(t, "type", data(t)(c.as(login(t, c, up, "ann").ClientToken).lookupSelf())["type"], any("batch"))
		user(t, c, up, "svc", map[string]any{"token_type": "service"})
		same(t, "the user's own", data(t)(c.as(login(t, c, up, "svc").ClientToken).lookupSelf())["type"], any("service"))
	})
	t.Run("always batch", func(t *testing.T) {
		noErr(t, c.tune("auth/"+up, api.MountConfigInput{TokenType: "batch"}))
		same(t, "type", data(t)(c.as(login(t, c, up, "svc").ClientToken).lookupSelf())["type"], any("batch"))
	})
	t.Run("always service", func(t *testing.T) {
		noErr(t, c.tune("auth/"+up, api.MountConfigInput{TokenType: "service"}))
		user(t, c, up, "bat", map[string]any{"token_type": "batch"})
		same(t, "type", data(t)(c.as(login(t, c, up, "bat").ClientToken).lookupSelf())["type"], any("service"))
	})
	t.Run("listed to everybody", func(t *testing.T) {
		noErr(t, c.tune("auth/"+up, api.MountConfigInput{ListingVisibility: "unauth"}))
		if got := data(t)(c.as("").read("sys/internal/ui/mounts"))["auth"].(map[string]any)[up+"/"]; got == nil {
			t.Errorf("the method is not listed")
		}
	})
	t.Run("an unknown type", func(t *testing.T) {
		refused(t, c.enableAuth(x.my("nothing"), "no-such-method"), 400)
	})
	t.Run("twice at one path", func(t *testing.T) {
		refused(t, c.enableAuth(up, "userpass"), 400)
	})
	t.Run("in a namespace", func(t *testing.T) {
		ns := x.my("logins")
		x.namespace(t, c, ns)
		in := c.in(ns)
		noErr(t, in.enableAuth("userpass", "userpass"))
		user(t, in, "userpass", "ann", nil)
		a := login(t, in, "userpass", "ann")
		fields(t, data(t)(in.as(a.ClientToken).lookupSelf()), map[string]any{"namespace_path": ns + "/", "entity_id": a.EntityID})
		same(t, "entity", data(t)(in.read("identity/entity/id/" + a.EntityID))["id"], any(a.EntityID))
		// The holder's own paths are those of the token's namespace, whatever the request names.
		fields(t, data(t)(c.as(a.ClientToken).lookupSelf()), map[string]any{"namespace_path": ns + "/"})
		same(t, "by path", auth(t)(c.as("").write(ns+"/auth/userpass/login/ann", map[string]any{"password": "pw-ann"})).EntityID, a.EntityID)
	})
	t.Run("disabling ends its tokens", func(t *testing.T) {
		noErr(t, c.enableAuth(x.my("brief"), "userpass"))
		user(t, c, x.my("brief"), "ann", nil)
		a := login(t, c, x.my("brief"), "ann")
		noErr(t, c.disableAuth(x.my("brief")))
		same(t, "alive", x.alive(t, c.as(a.ClientToken)), false)
		same(t, "aliases", len(data(t)(c.read("identity/entity/id/" + a.EntityID))["aliases"].([]any)), 0)
		noErr(t, c.enableAuth(x.my("brief"), "userpass"))
		absent(t)(c.read("auth/" + x.my("brief") + "/users/ann"))
		noErr(t, c.disableAuth(x.my("brief")))
	})
}
