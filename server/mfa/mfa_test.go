package mfa_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pquerna/otp"
	"github.com/pquerna/otp/totp"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/server/mfa"
	"github.com/coffer-project/coffer/storage"
)

// routed is an engine of nothing but a router.
type routed struct{ router *engines.Router }

func (r routed) Router() *engines.Router { return r.router }

// late is a store whose memory comes later than what uses it.
type late struct{ *storage.Memory }

type house struct {
	*enginetest.Mount // the identity paths
	sys               *engines.Router
	store             *mfa.Store
	people            map[string]identity.Entity
	redeemed          []string // logins that were finished
}

// newHouse has the entities "bob", in the group "ops", and "eve"; the namespace "a" is below root.
func newHouse(t testing.TB) *house {
	t.Helper()
	memory := &late{}
	h := &house{sys: engines.NewRouter(), people: map[string]identity.Entity{
		"bob": {ID: "bob", Name: "Bob"}, "eve": {ID: "eve", Name: "Eve"},
		"bob-before-merge": {ID: "bob", Name: "Bob"},
	}}
	h.store = mfa.New(mfa.Options{Store: memory, Identity: h, Mounts: accessors{}, Namespaces: spaces{}})
	r := engines.NewRouter()
	h.store.Routes(r)
	h.store.Validate(h.sys, func(_ context.Context, _ *engines.Request, login []byte) (*engines.Response, error) {
		h.redeemed = append(h.redeemed, string(login))
		return &engines.Response{Auth: &engines.Auth{Accessor: string(login)}}, nil
	})
	h.Mount = enginetest.New(t, func(engines.Mount) (engines.Engine, error) { return routed{r}, nil },
		enginetest.Options{Type: "identity", Path: "identity/", Caller: engines.Caller{Accessor: "x", EntityID: "bob"}})
	memory.Memory = h.Memory
	return h
}

// Effective implements mfa.Identity.
func (h *house) Effective(_ context.Context, id, _ string) (*identity.Effective, error) {
	if e, ok := h.people[id]; ok {
		return &identity.Effective{Entity: e}, nil
	}
	return nil, storage.ErrNotFound
}

func (*house) InGroup(_ context.Context, entity, group string) (bool, error) {
	return entity == "bob" && group == "ops", nil
}

func (*house) HasGroup(_ context.Context, id string) (bool, error) { return id == "ops", nil }

// accessors are those of auth methods.
type accessors struct{}

func (accessors) HasAccessor(_ context.Context, _, id string) (bool, error) {
	return strings.HasPrefix(id, "auth_"), nil
}

// spaces are the root and, below it, "a".
type spaces struct{}

func (spaces) Above(_ context.Context, ns string) []string {
	if ns == "a" {
		return []string{"root"}
	}
	return nil
}

func (spaces) Path(id string) string { return map[string]string{"a": "a/"}[id] }

var userpass = engines.Mount{Accessor: "auth_userpass_1", Type: "userpass"}

// method makes a method and returns its id.
func (h *house) method(fields string) string {
	id, _ := h.Data(h.Must(engines.Update, "mfa/method/totp", fields))["method_id"].(string)
	return id
}

// enforce makes logins by userpass need a code of one of the methods.
func (h *house) enforce(name string, methods ...string) {
	h.Must(engines.Update, "mfa/login-enforcement/"+name, map[string]any{"mfa_method_ids": methods, "auth_method_types": "userpass"})
}

// app is an authenticator app.
type app struct{ *otp.Key }

func newApp(t testing.TB, h *house, method string) app {
	t.Helper()
	url, _ := h.Data(h.Must(engines.Update, "mfa/method/totp/generate", map[string]any{"method_id": method}))["url"].(string)
	key, err := otp.NewKeyFromURL(url)
	if err != nil {
		t.Fatalf("the url is none of a key: %v", err)
	}
	return app{key}
}

func (a app) code(t testing.TB) string { return a.codeAt(t, time.Now()) }

func (a app) codeAt(t testing.TB, at time.Time) string {
	t.Helper()
	code, err := totp.GenerateCodeCustom(a.Secret(), at, totp.ValidateOpts{Period: uint(a.Period()), Digits: a.Digits(), Algorithm: a.Algorithm()})
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// wrong returns a code that is not valid now.
func (a app) wrong(t testing.TB) string {
	t.Helper()
	valid := []string{}
	for i := -2; i <= 2; i++ {
		valid = append(valid, a.codeAt(t, time.Now().Add(time.Duration(i)*30*time.Second)))
	}
	for i := 0; ; i++ {
		if code := fmt.Sprintf("%06d", i); !slices.Contains(valid, code) {
			return code
		}
	}
}

func mustRequire(t testing.TB, h *house, entity string) *mfa.Requirement {
	t.Helper()
	r, err := h.store.Required(t.Context(), userpass, entity)
	if err != nil || r == nil {
		t.Fatalf("Required = %v, %v", r, err)
	}
	return r
}

// hold holds a login and returns its id.
func hold(t testing.TB, h *house, entity string) string {
	t.Helper()
	id, err := h.store.Hold(t.Context(), mustRequire(t, h, entity), []byte("login of "+entity))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func isKind(err error, kind engines.Kind) bool {
	var e *engines.Error
	return errors.As(err, &e) && e.Kind == kind
}

func codes(method string, list ...string) map[string][]string {
	return map[string][]string{method: list}
}

func TestMethods(t *testing.T) {
	h := newHouse(t)
	id := h.method(`{"issuer":"Coffer","method_name":"phone"}`)
	for _, path := range []string{"mfa/method/totp/" + id, "mfa/method/" + id} {
		got := fmt.Sprint(h.Data(h.Must(engines.Read, path, nil)))
		for _, want := range []string{"type:totp", "id:" + id, "name:phone", "issuer:Coffer", "period:30", "key_size:20", "qr_size:200",
			"algorithm:SHA1", "digits:6", "skew:1", "max_validation_attempts:5", "namespace_id:root"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s = %s, want %s", path, got, want)
			}
		}
	}
	h.Must(engines.Update, "mfa/method/totp/"+id, `{"period":60,"skew":0,"method_name":"app"}`)
	got := h.Data(h.Must(engines.Read, "mfa/method/totp/"+id, nil))
	if fmt.Sprintf("%v %v %v %v", got["period"], got["skew"], got["name"], got["issuer"]) != "60 0 app Coffer" {
		t.Errorf("after the update: %v", got)
	}
	other := h.method(`{"issuer":"x","method_name":"phone"}`) // the name is free again
	h.Fails(engines.KindInvalid, engines.Update, "mfa/method/totp/"+other, `{"method_name":"APP"}`)
	for _, path := range []string{"mfa/method", "mfa/method/totp"} {
		if keys, _ := h.Data(h.Must(engines.List, path, nil))["keys"].([]any); len(keys) != 2 {
			t.Errorf("LIST %s = %v", path, keys)
		}
	}
	for field, bad := range map[string]string{
		"issuer": `{}`, "period": `{"issuer":"x","period":5}`, "key_size": `{"issuer":"x","key_size":8}`, "qr_size": `{"issuer":"x","qr_size":9999}`,
		"algorithm": `{"issuer":"x","algorithm":"MD5"}`, "digits": `{"issuer":"x","digits":7}`, "skew": `{"issuer":"x","skew":2}`,
		"max_validation_attempts": `{"issuer":"x","max_validation_attempts":0}`, "method_name": `{"issuer":"x","method_name":"a:b"}`,
	} {
		if text := h.Fails(engines.KindInvalid, engines.Update, "mfa/method/totp", bad); !strings.Contains(text, `"`+field+`"`) {
			t.Errorf("%s: %s", bad, text)
		}
	}
	h.Fails(engines.KindNotFound, engines.Update, "mfa/method/totp/nobody", `{"issuer":"x"}`)
	h.enforce("all", id)
	h.Fails(engines.KindInvalid, engines.Delete, "mfa/method/totp/"+id, nil)
	h.enforce("all", other)
	newApp(t, h, id)
	h.Must(engines.Delete, "mfa/method/totp/"+id, nil)
	h.Must(engines.Delete, "mfa/method/totp/"+id, nil)
	h.Fails(engines.KindNotFound, engines.Read, "mfa/method/totp/"+id, nil)
	h.Must(engines.Delete, "mfa/login-enforcement/all", nil)
	h.Must(engines.Delete, "mfa/login-enforcement/all", nil)
	h.Must(engines.Delete, "mfa/method/totp/"+other, nil)
	if left := h.Snapshot(); len(left) != 0 {
		t.Errorf("left behind: %v", slices.Collect(maps.Keys(left)))
	}
}

func TestSecrets(t *testing.T) {
	h := newHouse(t)
	id := h.method(`{"issuer":"Coffer","algorithm":"SHA256","digits":8}`)
	data := h.Data(h.Must(engines.Update, "mfa/method/totp/generate", map[string]any{"method_id": id}))
	key, err := otp.NewKeyFromURL(data["url"].(string))
	if err != nil || key.Issuer() != "Coffer" || key.AccountName() != "Bob" || key.Algorithm() != otp.AlgorithmSHA256 || key.Digits() != otp.DigitsEight {
		t.Errorf("the url's key is not as asked for: %v", err)
	}
	image, err := base64.StdEncoding.DecodeString(data["barcode"].(string))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(image)); err != nil {
		t.Errorf("the barcode is no PNG: %v", err)
	}
	// It is shown once, and a user with only the first factor cannot replace it.
	before := h.Snapshot()
	resp := h.Must(engines.Update, "mfa/method/totp/generate", map[string]any{"method_id": id})
	if resp.Data != nil || len(resp.Warnings) != 1 || !maps.Equal(before, h.Snapshot()) {
		t.Errorf("generate again = %+v", resp)
	}
	for _, path := range []string{"mfa/method/totp/" + id, "mfa/method/" + id} {
		if strings.Contains(fmt.Sprint(h.Data(h.Must(engines.Read, path, nil))), key.Secret()) {
			t.Errorf("%s shows a secret", path)
		}
	}
	h.Must(engines.Update, "mfa/method/totp/admin-destroy", map[string]any{"method_id": id, "entity_id": "bob"})
	h.Must(engines.Update, "mfa/method/totp/"+id, `{"qr_size":0}`)
	data = h.Data(h.Must(engines.Update, "mfa/method/totp/admin-generate", map[string]any{"method_id": id, "entity_id": "bob"}))
	if data["barcode"] != "" || strings.Contains(fmt.Sprint(data), key.Secret()) {
		t.Error("there is a barcode, or the secret is the old one")
	}
	h.Fails(engines.KindInvalid, engines.Update, "mfa/method/totp/admin-generate", map[string]any{"method_id": id, "entity_id": "a/b"})
	h.Fails(engines.KindInvalid, engines.Update, "mfa/method/totp/admin-generate", map[string]any{"method_id": "x", "entity_id": "bob"})
	h.Fails(engines.KindInvalid, engines.Update, "mfa/method/totp/admin-destroy", map[string]any{"method_id": "x", "entity_id": "bob"})
	h.Caller.EntityID = ""
	h.Fails(engines.KindInvalid, engines.Update, "mfa/method/totp/generate", map[string]any{"method_id": id})
}

func TestEnforcements(t *testing.T) {
	h := newHouse(t)
	id := h.method(`{"issuer":"x","method_name":"phone"}`)
	for name, body := range map[string]map[string]any{
		"no method":      {"auth_method_types": "userpass"},
		"unknown method": {"mfa_method_ids": "nobody", "auth_method_types": "userpass"},
		"no target":      {"mfa_method_ids": id},
		"entity":         {"mfa_method_ids": id, "identity_entity_ids": "nobody"},
		"group":          {"mfa_method_ids": id, "identity_group_ids": "nobody"},
		"accessor":       {"mfa_method_ids": id, "auth_method_accessors": "nobody"},
	} {
		h.Fails(engines.KindInvalid, engines.Update, "mfa/login-enforcement/"+strings.ReplaceAll(name, " ", "-"), body)
	}
	ldap := engines.Mount{Accessor: "auth_ldap_1", Type: "ldap"}
	for _, tt := range []struct {
		name      string
		field     string
		value     string
		mount     engines.Mount
		entity    string
		concerned bool
	}{
		{"by type", "auth_method_types", "userpass", userpass, "eve", true},
		{"by another type", "auth_method_types", "ldap", userpass, "eve", false},
		{"by accessor", "auth_method_accessors", "auth_ldap_1", ldap, "eve", true},
		{"by another accessor", "auth_method_accessors", "auth_ldap_1", userpass, "eve", false},
		{"by group", "identity_group_ids", "ops", ldap, "bob", true},
		{"by another group", "identity_group_ids", "ops", ldap, "eve", false},
		{"by entity", "identity_entity_ids", "eve", ldap, "eve", true},
		{"by another entity", "identity_entity_ids", "eve", ldap, "bob", false},
	} {
		h.Must(engines.Update, "mfa/login-enforcement/one", map[string]any{"mfa_method_ids": id, tt.field: tt.value})
		r, err := h.store.Required(t.Context(), tt.mount, tt.entity)
		if err != nil || (r != nil) != tt.concerned {
			t.Errorf("%s: Required = %v, %v, want one: %v", tt.name, r, err, tt.concerned)
		}
		h.Must(engines.Delete, "mfa/login-enforcement/one", nil)
		if r, err := h.store.Required(t.Context(), tt.mount, tt.entity); r != nil || err != nil {
			t.Errorf("%s: without the enforcement: %v, %v", tt.name, r, err)
		}
	}
	h.enforce("one", id)
	got := fmt.Sprint(h.Data(h.Must(engines.Read, "mfa/login-enforcement/one", nil)))
	for _, want := range []string{"name:one", "mfa_method_ids:[" + id + "]", "auth_method_types:[userpass]", "auth_method_accessors:[]", "identity_group_ids:[]", "identity_entity_ids:[]"} {
		if !strings.Contains(got, want) {
			t.Errorf("read = %s, want %s", got, want)
		}
	}
	if keys := fmt.Sprint(h.Data(h.Must(engines.List, "mfa/login-enforcement", nil))["keys"]); keys != "[one]" {
		t.Errorf("list = %s", keys)
	}
	r := mustRequire(t, h, "eve")
	text, err := json.Marshal(r)
	want := `{"mfa_request_id":"` + r.RequestID + `","mfa_constraints":{"one":{"any":[{"type":"totp","id":"` + id + `","uses_passcode":true,"name":"phone"}]}}}`
	if err != nil || string(text) != want {
		t.Errorf("the requirement reads %s, want %s", text, want)
	}
	if r, err := h.store.Required(t.Context(), userpass, ""); r != nil || !isKind(err, engines.KindDenied) {
		t.Errorf("a login without an entity: %v, %v", r, err)
	}
	// What is enforced above counts below, not the other way round.
	below := userpass
	below.NamespaceID = "a"
	if r, err := h.store.Required(t.Context(), below, "eve"); r == nil || err != nil || len(r.Constraints["/one"].Any) != 1 {
		t.Errorf("below: %v, %v", r, err)
	}
	h.Must(engines.Delete, "mfa/login-enforcement/one", nil)
	h.Mount.Mount.NamespaceID = "a"
	h.enforce("one", h.method(`{"issuer":"x"}`))
	if r, err := h.store.Required(t.Context(), userpass, "eve"); r != nil || err != nil {
		t.Errorf("above: %v, %v", r, err)
	}
}

func TestTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		method := h.method(`{"issuer":"x","method_name":"phone"}`)
		h.enforce("one", method)
		phone := newApp(t, h, method)
		id := hold(t, h, "bob-before-merge")
		for name, bad := range map[string]map[string][]string{
			"nothing": {}, "empty": codes(method), "wrong": codes(method, phone.wrong(t)), "of another method": codes("x", phone.code(t)),
			"two": codes(method, phone.code(t), phone.wrong(t)), "too early": codes(method, phone.codeAt(t, time.Now().Add(90*time.Second))),
		} {
			if login, err := h.store.Take(t.Context(), id, bad); login != nil || !isKind(err, engines.KindDenied) {
				t.Errorf("%s: %q, %v", name, login, err)
			}
		}
		if login, err := h.store.Take(t.Context(), id, codes("phone", phone.code(t))); string(login) != "login of bob-before-merge" || err != nil {
			t.Fatalf("Take = %q, %v", login, err)
		}
		if _, err := h.store.Take(t.Context(), id, codes(method, phone.code(t))); !isKind(err, engines.KindInvalid) {
			t.Errorf("a login redeemed twice: %v", err)
		}
		// The code is used up, here and for logins that bring it along; the next one is not.
		id = hold(t, h, "bob")
		if _, err := h.store.Take(t.Context(), id, codes(method, phone.code(t))); !isKind(err, engines.KindDenied) || !strings.Contains(err.Error(), "used already") {
			t.Errorf("a code used twice: %v", err)
		}
		if err := h.store.Check(t.Context(), mustRequire(t, h, "bob"), []string{"phone:" + phone.code(t)}); !isKind(err, engines.KindDenied) {
			t.Errorf("a code used twice, in a header: %v", err)
		}
		time.Sleep(30 * time.Second)
		if _, err := h.store.Take(t.Context(), id, codes(method, phone.codeAt(t, time.Now().Add(-30*time.Second)))); !isKind(err, engines.KindDenied) {
			t.Errorf("the used code a period later: %v", err)
		}
		if _, err := h.store.Take(t.Context(), id, codes(method, phone.code(t))); err != nil {
			t.Errorf("the next code: %v", err)
		}
		// It waits for five minutes.
		id = hold(t, h, "bob")
		time.Sleep(5 * time.Minute)
		if _, err := h.store.Take(t.Context(), id, codes(method, phone.code(t))); !isKind(err, engines.KindInvalid) {
			t.Errorf("after five minutes: %v", err)
		}
		fresh := hold(t, h, "bob")
		if err := h.store.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left, _ := h.Memory.List(t.Context(), "l/mfa/pending/", "", 0); len(left) != 1 {
			t.Errorf("%d held logins after the sweep, want the fresh one", len(left))
		}
		if _, err := h.store.Take(t.Context(), fresh, codes(method, phone.code(t))); err != nil {
			t.Error(err)
		}
	})
}

func TestWrongCodesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		method := h.method(`{"issuer":"x","max_validation_attempts":3}`)
		h.enforce("one", method)
		phone := newApp(t, h, method)
		id := hold(t, h, "bob")
		for range 3 {
			if err := h.store.Check(t.Context(), mustRequire(t, h, "bob"), []string{method + ":" + phone.wrong(t)}); !isKind(err, engines.KindDenied) {
				t.Fatalf("a wrong code: %v", err)
			}
		}
		if _, err := h.store.Take(t.Context(), id, codes(method, phone.code(t))); !isKind(err, engines.KindDenied) || !strings.Contains(err.Error(), "too many") {
			t.Errorf("the right code after too many wrong ones: %v", err)
		}
		time.Sleep(5 * time.Minute)
		if _, err := h.store.Take(t.Context(), hold(t, h, "bob"), codes(method, phone.code(t))); err != nil {
			t.Errorf("after the window: %v", err)
		}
		// Eve has no secret: her logins tell so, and nothing is counted.
		if _, err := h.store.Take(t.Context(), hold(t, h, "eve"), codes(method, "000000")); !isKind(err, engines.KindDenied) || !strings.Contains(err.Error(), "no secret") {
			t.Errorf("without a secret: %v", err)
		}
	})
}

func TestSeveralConstraints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		first, second := h.method(`{"issuer":"x"}`), h.method(`{"issuer":"y"}`)
		h.enforce("either", first, second)
		h.enforce("second", second)
		a, b := newApp(t, h, first), newApp(t, h, second)
		id := hold(t, h, "bob")
		if _, err := h.store.Take(t.Context(), id, codes(first, a.code(t))); !isKind(err, engines.KindDenied) || !strings.Contains(err.Error(), `"second"`) {
			t.Errorf("half of it: %v", err)
		}
		if _, err := h.store.Take(t.Context(), id, map[string][]string{first: {a.code(t)}, second: {b.wrong(t)}}); !isKind(err, engines.KindDenied) {
			t.Errorf("one of them wrong: %v", err)
		}
		// A code that was right beside a wrong one is not used up, and one code can satisfy both constraints.
		if err := h.store.Check(t.Context(), mustRequire(t, h, "bob"), []string{first + ":" + a.code(t), second + ":passcode=" + b.code(t)}); err != nil {
			t.Errorf("both: %v", err)
		}
		time.Sleep(time.Minute)
		if _, err := h.store.Take(t.Context(), id, codes(second, b.code(t))); err != nil {
			t.Errorf("one code for both: %v", err)
		}
	})
}

// One code and one held login must not make two tokens, however the requests fall.
func TestTakeAtOnce(t *testing.T) {
	h := newHouse(t)
	method := h.method(`{"issuer":"x","period":300}`)
	h.enforce("one", method)
	phone := newApp(t, h, method)
	ids := []string{hold(t, h, "bob"), hold(t, h, "bob")}
	code := phone.code(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for i := range 16 {
		wg.Go(func() {
			login, err := h.store.Take(t.Context(), ids[i%2], codes(method, code))
			mu.Lock()
			defer mu.Unlock()
			if err == nil && login != nil {
				taken++
			}
		})
	}
	wg.Wait()
	if taken != 1 {
		t.Errorf("%d logins by one code", taken)
	}
}

func TestCheckHeader(t *testing.T) {
	h := newHouse(t)
	method := h.method(`{"issuer":"x"}`)
	h.enforce("one", method)
	r := mustRequire(t, h, "bob")
	for _, bad := range []string{"", method, method + ":"} {
		if err := h.store.Check(t.Context(), r, []string{bad}); !isKind(err, engines.KindInvalid) {
			t.Errorf("header %q: %v", bad, err)
		}
	}
	if err := h.store.Check(t.Context(), r, nil); !isKind(err, engines.KindDenied) {
		t.Errorf("without codes: %v", err)
	}
}

func TestSelfGenerateForAbove(t *testing.T) {
	h := newHouse(t)
	method := h.method(`{"issuer":"x"}`)
	h.Mount.Mount.NamespaceID = "a"
	newApp(t, h, method)
	h.Fails(engines.KindInvalid, engines.Update, "mfa/method/totp/admin-generate", map[string]any{"method_id": method, "entity_id": "eve"})
	h.Fails(engines.KindNotFound, engines.Read, "mfa/method/totp/"+method, nil)
	own := h.method(`{"issuer":"x"}`)
	h.Mount.Mount.NamespaceID = "root"
	h.Fails(engines.KindInvalid, engines.Update, "mfa/method/totp/generate", map[string]any{"method_id": own})
}

func TestValidate(t *testing.T) {
	h := newHouse(t)
	method := h.method(`{"issuer":"x"}`)
	h.enforce("one", method)
	phone := newApp(t, h, method)
	send := func(body any) (*engines.Response, error) {
		req := h.Request(engines.Update, "mfa/validate", body)
		req.Caller = engines.Caller{}
		return h.sys.Handle(t.Context(), req)
	}
	id := hold(t, h, "bob")
	for _, bad := range []any{`{}`, map[string]any{"mfa_request_id": id, "mfa_payload": map[string]any{method: 7}},
		map[string]any{"mfa_request_id": "nobody", "mfa_payload": map[string]any{method: []string{"1"}}}} {
		if _, err := send(bad); !isKind(err, engines.KindInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	resp, err := send(map[string]any{"mfa_request_id": id, "mfa_payload": map[string]any{method: []string{phone.code(t)}}})
	if err != nil || resp.Auth == nil || resp.Auth.Accessor != "login of bob" || len(h.redeemed) != 1 {
		t.Errorf("validate = %+v, %v", resp, err)
	}
	route, _, err := h.sys.Match(engines.Update, "mfa/validate")
	if err != nil || !route.Flags.Has(engines.Unauthenticated) {
		t.Errorf("the route needs a token: %v", err)
	}
}

func TestHostile(t *testing.T) {
	h := newHouse(t)
	id := h.method(`{"issuer":"x","method_name":"x"}`)
	newApp(t, h, id)
	h.enforce("x", id)
	enginetest.Documented(t, h.Mount)
	enginetest.Hostile(t, h.Mount)
	sys := *h.Mount
	sys.Engine = routed{h.sys}
	enginetest.Documented(t, &sys)
	enginetest.Hostile(t, &sys)
}
