package conformance_test

import (
	"encoding/base64"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openbao/openbao/api/v2"
	"github.com/pquerna/otp"
	"github.com/pquerna/otp/totp"
)

// app is an authenticator app with one secret.
type app struct {
	key  *otp.Key
	used int64 // codes asked for
}

// code returns a code that has not been used. There are two: that of now and that of the next period, both of which
// stay good if the period ends meanwhile.
func (a *app) code(t *testing.T) string {
	t.Helper()
	if a.used++; a.used > 2 {
		t.Fatalf("the third code would not be good yet")
	}
	code, err := totp.GenerateCodeCustom(a.key.Secret(), time.Now().Add(time.Duration(a.used-1)*time.Duration(a.key.Period())*time.Second), totp.ValidateOpts{
		Period: uint(a.key.Period()), Digits: a.key.Digits(), Algorithm: a.key.Algorithm(),
	})
	noErr(t, err)
	return code
}

func (x *tour) mfa(t *testing.T) {
	c, up := x.root, x.my("second")
	accessor := x.method(t, c, up, "userpass")
	at := "identity/mfa/method/totp"
	var method string
	// register makes a user and their secret.
	register := func(t *testing.T, name string) (entity string, phone *app) {
		t.Helper()
		user(t, c, up, name, nil)
		login(t, c, up, name)
		entity = data(t)(c.write("identity/lookup/entity", map[string]any{"alias_name": name, "alias_mount_accessor": accessor}))["id"].(string)
		key, err := otp.NewKeyFromURL(data(t)(c.write(at+"/admin-generate", map[string]any{"method_id": method, "entity_id": entity}))["url"].(string))
		noErr(t, err)
		return entity, &app{key: key}
	}
	// ask logs in and wants to be asked for a code.
	ask := func(t *testing.T, name string) *api.MFARequirement {
		t.Helper()
		a := login(t, c, up, name)
		if a.ClientToken != "" || a.MFARequirement == nil {
			t.Fatalf("a login without a code got a token or no requirement")
		}
		return a.MFARequirement
	}
	answer := func(need *api.MFARequirement, code string) (*api.Secret, error) {
		return c.as("").mfaValidate(need.MFARequestID, map[string]any{method: []string{code}})
	}
	t.Run("create a method", func(t *testing.T) {
		method, _ = data(t)(c.write(at, map[string]any{"method_name": x.my("app"), "issuer": "coffer", "period": 120, "algorithm": "SHA256", "digits": 8}))["method_id"].(string)
		fields(t, data(t)(c.read(at+"/"+method)), map[string]any{"id": method, "issuer": "coffer", "period": 120, "algorithm": "SHA256", "digits": 8, "type": "totp"})
	})
	t.Run("list methods", func(t *testing.T) {
		contains(t, "methods", texts(data(t)(c.list(at))["keys"]), method)
		contains(t, "all methods", texts(data(t)(c.list("identity/mfa/method"))["keys"]), method)
	})
	t.Run("a method needs an issuer", func(t *testing.T) {
		_, err := c.write(at, map[string]any{"period": 5})
		says(t, err, 400, "issuer", "period")
	})
	t.Run("generate a secret", func(t *testing.T) {
		user(t, c, up, "ann", nil)
		id := login(t, c, up, "ann").EntityID
		d := data(t)(c.write(at+"/admin-generate", map[string]any{"method_id": method, "entity_id": id}))
		if image, err := base64.StdEncoding.DecodeString(d["barcode"].(string)); err != nil || len(image) == 0 {
			t.Errorf("no barcode: %v", err)
		}
		s, err := c.write(at+"/admin-generate", map[string]any{"method_id": method, "entity_id": id})
		noErr(t, err)
		if s == nil || len(s.Warnings) == 0 || s.Data["url"] != nil {
			t.Errorf("a second secret: %+v", s)
		}
	})
	t.Run("enforce", func(t *testing.T) {
		done(t)(c.write("identity/mfa/login-enforcement/"+x.my("all"), map[string]any{"mfa_method_ids": []string{method}, "auth_method_accessors": []string{accessor}}))
		fields(t, data(t)(c.read("identity/mfa/login-enforcement/"+x.my("all"))), map[string]any{
			"name": x.my("all"), "mfa_method_ids": []string{method}, "auth_method_accessors": []string{accessor},
		})
		contains(t, "enforcements", texts(data(t)(c.list("identity/mfa/login-enforcement"))["keys"]), x.my("all"))
	})
	t.Run("two steps", func(t *testing.T) {
		entity, phone := register(t, "bob")
		need := ask(t, "bob")
		methods := need.MFAConstraints[x.my("all")].Any
		if len(methods) != 1 || methods[0].ID != method || methods[0].Type != "totp" || !methods[0].UsesPasscode {
			t.Fatalf("constraints: %+v", need.MFAConstraints)
		}
		a := auth(t)(answer(need, phone.code(t)))
		same(t, "entity", a.EntityID, entity)
		same(t, "alive", x.alive(t, c.as(a.ClientToken)), true)
		_, err := answer(need, phone.code(t))
		refused(t, err, 400, 403)
	})
	t.Run("one step", func(t *testing.T) {
		_, phone := register(t, "carl")
		for _, name := range []string{method, x.my("app")} {
			a := auth(t)(c.as("").with("X-Vault-MFA", name+":"+phone.code(t)).write("auth/"+up+"/login/carl", map[string]any{"password": "pw-carl"}))
			same(t, "alive", x.alive(t, c.as(a.ClientToken)), true)
		}
	})
	t.Run("a used code", func(t *testing.T) {
		_, phone := register(t, "dora")
		code := phone.code(t)
		auth(t)(answer(ask(t, "dora"), code))
		_, err := answer(ask(t, "dora"), code)
		refused(t, err, 403)
	})
	t.Run("one of many redeems a code", func(t *testing.T) {
		_, phone := register(t, "eve")
		code := phone.code(t)
		var in atomic.Int64
		var all sync.WaitGroup
		for range 6 {
			id := ask(t, "eve").MFARequestID
			all.Go(func() {
				a := x.raw(t, x.node(), "POST", "/v1/sys/mfa/validate", "", map[string]any{"mfa_request_id": id, "mfa_payload": map[string]any{method: []string{code}}})
				if a.Status == 200 {
					in.Add(1)
				}
			})
		}
		all.Wait()
		same(t, "logins", in.Load(), int64(1))
	})
	t.Run("wrong codes", func(t *testing.T) {
		_, phone := register(t, "fred")
		need := ask(t, "fred")
		for range 5 {
			_, err := answer(need, "00000000")
			refused(t, err, 403)
		}
		_, err := answer(need, phone.code(t))
		says(t, err, 403, "too many")
	})
	t.Run("a wrong password asks for no code", func(t *testing.T) {
		_, err := c.as("").write("auth/"+up+"/login/bob", map[string]any{"password": "x"})
		refused(t, err, 400)
	})
	t.Run("somebody without a secret", func(t *testing.T) {
		user(t, c, up, "gina", nil)
		_, err := answer(ask(t, "gina"), "12345678")
		refused(t, err, 403)
	})
	t.Run("a login whose answer is wrapped", func(t *testing.T) {
		_, phone := register(t, "hans")
		need := auth(t)(c.as("").wrapped("60s").write("auth/"+up+"/login/hans", map[string]any{"password": "pw-hans"})).MFARequirement
		if need == nil {
			t.Fatalf("whoever is asked does not see the question")
		}
		w := wrap(t)(c.as("").wrapped("60s").mfaValidate(need.MFARequestID, map[string]any{method: []string{phone.code(t)}}))
		same(t, "alive", x.alive(t, c.as(auth(t)(c.as("").unwrap(w.Token)).ClientToken)), true)
	})
	t.Run("a method in use", func(t *testing.T) {
		_, err := c.remove(at + "/" + method)
		refused(t, err, 400)
	})
	t.Run("destroy and delete", func(t *testing.T) {
		entity, _ := register(t, "ida")
		done(t)(c.write(at+"/admin-destroy", map[string]any{"method_id": method, "entity_id": entity}))
		done(t)(c.remove("identity/mfa/login-enforcement/" + x.my("all")))
		done(t)(c.remove(at + "/" + method))
		absent(t)(c.read(at + "/" + method))
		same(t, "alive", x.alive(t, c.as(login(t, c, up, "ida").ClientToken)), true)
	})
}
