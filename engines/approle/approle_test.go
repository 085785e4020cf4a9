package approle_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/approle"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

func newMount(t testing.TB) *enginetest.Mount {
	return enginetest.New(t, approle.New, enginetest.Options{Type: "approle", Path: "auth/approle/"})
}

// field returns one field of an answer as plain Go values, nil if it is absent.
func field(m *enginetest.Mount, resp *engines.Response, name string) any {
	v := m.Data(resp)[name]
	if n, ok := v.(interface{ Int64() (int64, error) }); ok {
		v, _ = n.Int64()
	}
	return v
}

// wantData compares some of the fields that a read answers; absent ones are nil.
func wantData(t *testing.T, m *enginetest.Mount, path string, want map[string]any) {
	t.Helper()
	resp := m.Must(engines.Read, path, nil)
	for name, v := range want {
		if got := field(m, resp, name); !reflect.DeepEqual(got, v) {
			t.Errorf("%s: %s = %v, want %v", path, name, got, v)
		}
	}
}

func roleID(m *enginetest.Mount, role string) string {
	return field(m, m.Must(engines.Read, "role/"+role+"/role-id", nil), "role_id").(string)
}

// newSecret makes a secret id and returns it and its accessor.
func newSecret(m *enginetest.Mount, role, body string) (id, accessor string) {
	resp := m.Must(engines.Update, "role/"+role+"/secret-id", body)
	return field(m, resp, "secret_id").(string), field(m, resp, "secret_id_accessor").(string)
}

func credentials(role, secret string) map[string]any {
	return map[string]any{"role_id": role, "secret_id": secret}
}

// loginFrom logs in from an address.
func loginFrom(t *testing.T, m *enginetest.Mount, addr, role, secret string) (*engines.Login, error) {
	t.Helper()
	req := m.Request(engines.Update, "login", credentials(role, secret))
	req.RemoteIP = netip.MustParseAddr(addr)
	resp, err := m.Handle(t.Context(), req)
	if err != nil {
		return nil, err
	}
	return resp.Auth.Login, nil
}

const refused = "invalid role or secret ID"

func TestRoles(t *testing.T) {
	m := newMount(t)
	m.Fails(engines.KindNotFound, engines.List, "role", nil)
	if m.Exists("role/web") {
		t.Error("the role exists before it is written")
	}
	m.Must(engines.Update, "role/Web", `{"token_policies":"B,a","secret_id_ttl":"1h","secret_id_num_uses":3,"secret_id_bound_cidrs":"10.1.2.3/8"}`)
	if !m.Exists("role/web") {
		t.Error("the role does not exist after it was written")
	}
	m.Must(engines.Update, "role/WEB", `{"token_ttl":60}`)
	wantData(t, m, "role/web", map[string]any{
		"bind_secret_id": true, "local_secret_ids": false, "secret_id_ttl": int64(3600), "secret_id_num_uses": int64(3),
		"secret_id_bound_cidrs": []any{"10.0.0.0/8"}, "token_policies": []any{"a", "b"}, "token_ttl": int64(60),
		"token_type": "default", "policies": nil, "role_id": nil, "uid": nil,
	})
	m.Must(engines.Update, "role/web", `{"policies":["c"],"period":"30s","bound_cidr_list":["::1"]}`)
	wantData(t, m, "role/web", map[string]any{
		"policies": []any{"c"}, "token_policies": []any{"c"}, "period": int64(30), "token_period": int64(30),
		"bound_cidr_list": []any{"::1/128"}, "secret_id_bound_cidrs": []any{"::1/128"}, "secret_id_ttl": int64(3600),
	})
	m.Must(engines.Update, "role/web", `{"token_policies":["d"],"policies":["e"]}`)
	wantData(t, m, "role/web", map[string]any{"policies": nil, "token_policies": []any{"d"}})

	m.Must(engines.Update, "role/db", `{"role_id":"the-db"}`)
	if got := roleID(m, "db"); got != "the-db" {
		t.Errorf("role id = %q", got)
	}
	m.Must(engines.Update, "role/db", `{"token_ttl":60}`)
	if got := roleID(m, "db"); got != "the-db" {
		t.Errorf("role id = %q after an update of something else", got)
	}
	if got := field(m, m.Must(engines.List, "role/", nil), "keys"); !reflect.DeepEqual(got, []any{"db", "web"}) {
		t.Errorf("list = %v", got)
	}
	resp := m.Must(engines.Update, "role/db", `{"token_max_ttl":"48h"}`)
	if resp == nil || len(resp.Warnings) != 1 {
		t.Errorf("a lifetime beyond the mount's maximum answers %+v, want a warning", resp)
	}
	for _, path := range []string{"role/none", "role/none/role-id", "role/none/period", "role/none/local-secret-ids"} {
		if text := m.Fails(engines.KindNotFound, engines.Read, path, nil); text != "" {
			t.Errorf("%s: a missing role is explained: %q", path, text)
		}
	}
	for path, body := range map[string]string{
		"role-id": `{"role_id":"a"}`, "secret-id": ``, "custom-secret-id": `{"secret_id":"a"}`, "period": `{"period":1}`,
		"secret-id/lookup": `{"secret_id":"a"}`, "secret-id/destroy": `{"secret_id":"a"}`,
		"secret-id-accessor/lookup": `{"secret_id_accessor":"a"}`, "secret-id-accessor/destroy": `{"secret_id_accessor":"a"}`,
	} {
		m.Fails(engines.KindNotFound, engines.Update, "role/none/"+path, body)
	}
	m.Must(engines.Delete, "role/none", nil)
}

func TestRefused(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "role/a", `{"role_id":"id-a","secret_id_num_uses":5,"secret_id_ttl":"1h","secret_id_bound_cidrs":"10.0.0.0/8","token_bound_cidrs":"10.0.0.0/8,192.0.2.1"}`)
	m.Must(engines.Update, "role/open", `{"bind_secret_id":false,"token_bound_cidrs":"10.0.0.0/8"}`)
	for _, tt := range []struct{ path, body, text string }{
		{"role/b", `{"bind_secret_id":false}`, "at least one constraint"},
		{"role/open", `{"token_bound_cidrs":[]}`, "at least one constraint"},
		{"role/b", `{"role_id":"id-a"}`, "another role"},
		{"role/b", `{"role_id":"a\u0001"}`, "control character"},
		{"role/b", `{"token_ttl":"2h","token_max_ttl":"1h"}`, "token_max_ttl"},
		{"role/b", `{"token_policies":"root"}`, "root"},
		{"role/b", `{"secret_id_num_uses":-1}`, "secret_id_num_uses"},
		{"role/b", `{"secret_id_bound_cidrs":"10.0.0.0/33"}`, "secret_id_bound_cidrs"},
		{"role/b", `{"token_type":"batch","token_num_uses":1}`, "token_num_uses"},
		{"role/a", `{"local_secret_ids":true}`, "local_secret_ids"},
		{"role/a b", `{}`, "role_name"},
		{"role/.a", `{}`, "role_name"},
		{"role/" + strings.Repeat("a", 129), `{}`, "role_name"},
		{"role/open/role-id", `{"role_id":"id-a"}`, "another role"},
		{"role/open/secret-id", ``, "bind_secret_id"},
		{"role/a/secret-id", `{"num_uses":6}`, "num_uses"},
		{"role/a/secret-id", `{"num_uses":0}`, "num_uses"},
		{"role/a/secret-id", `{"num_uses":-1}`, "num_uses"},
		{"role/a/secret-id", `{"ttl":"2h"}`, `"ttl"`},
		{"role/a/secret-id", `{"ttl":0}`, `"ttl"`},
		{"role/a/secret-id", `{"cidr_list":"0.0.0.0/0"}`, "cidr_list"},
		{"role/a/secret-id", `{"cidr_list":"10.1.0.0/16,11.0.0.0/8"}`, "cidr_list"},
		{"role/a/secret-id", `{"cidr_list":"x"}`, "cidr_list"},
		{"role/a/secret-id", `{"token_bound_cidrs":"192.0.2.0/31"}`, "token_bound_cidrs"},
		{"role/a/secret-id", `{"token_bound_cidrs":"::/0"}`, "token_bound_cidrs"},
		{"role/a/secret-id", `{"metadata":7}`, "metadata"},
		{"role/a/secret-id", `{"metadata":["a=b"]}`, "metadata"},
		{"role/a/secret-id", `{"metadata":{"a":{"b":"c"}}}`, "metadata"},
		{"role/a/secret-id", `{"metadata":"{\"a\":1}"}`, "metadata"},
		{"role/a/secret-id", `{"metadata":"nonsense"}`, "metadata"},
		{"role/a/secret-id", `{"metadata":{"a":"` + strings.Repeat("b", 513) + `"}}`, "metadata"},
	} {
		if text := m.Fails(engines.KindInvalid, engines.Update, tt.path, tt.body); !strings.Contains(text, tt.text) {
			t.Errorf("%s %s: %q does not say %q", tt.path, tt.body, text, tt.text)
		}
	}
}

func TestParts(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "role/a", `{"token_bound_cidrs":"10.0.0.0/8"}`)
	for _, tt := range []struct {
		path, field string
		write       string
		want, unset any
	}{
		{"policies", "token_policies", `{"token_policies":"b,A"}`, []any{"a", "b"}, []any{}},
		{"policies", "policies", `{"policies":["c"]}`, []any{"c"}, []any{}},
		{"bind-secret-id", "bind_secret_id", `{"bind_secret_id":false}`, false, true},
		{"secret-id-bound-cidrs", "secret_id_bound_cidrs", `{"secret_id_bound_cidrs":"10.0.0.1"}`, []any{"10.0.0.1/32"}, []any{}},
		{"bound-cidr-list", "bound_cidr_list", `{"bound_cidr_list":"10.0.0.1"}`, []any{"10.0.0.1/32"}, []any{}},
		{"secret-id-num-uses", "secret_id_num_uses", `{"secret_id_num_uses":"4"}`, int64(4), int64(0)},
		{"secret-id-ttl", "secret_id_ttl", `{"secret_id_ttl":"1m"}`, int64(60), int64(0)},
		{"period", "token_period", `{"token_period":"1m"}`, int64(60), int64(0)},
		{"period", "period", `{"period":61}`, int64(61), int64(0)},
		{"token-ttl", "token_ttl", `{"token_ttl":"1m"}`, int64(60), int64(0)},
		{"token-max-ttl", "token_max_ttl", `{"token_max_ttl":"1m"}`, int64(60), int64(0)},
		{"token-num-uses", "token_num_uses", `{"token_num_uses":2}`, int64(2), int64(0)},
		{"token-bound-cidrs", "token_bound_cidrs", `{"token_bound_cidrs":"::1"}`, []any{"::1"}, []any{}},
	} {
		path := "role/a/" + tt.path
		m.Must(engines.Update, path, tt.write)
		wantData(t, m, path, map[string]any{tt.field: tt.want})
		if text := m.Fails(engines.KindInvalid, engines.Update, path, `{}`); !strings.Contains(text, "is required") {
			t.Errorf("%s: an empty write is refused with %q", path, text)
		}
		m.Must(engines.Delete, path, nil)
		wantData(t, m, path, map[string]any{tt.field: tt.unset})
	}
	wantData(t, m, "role/a/local-secret-ids", map[string]any{"local_secret_ids": false})
	m.Fails(engines.KindUnsupported, engines.Update, "role/a/local-secret-ids", `{"local_secret_ids":true}`)
	m.Fails(engines.KindInvalid, engines.Update, "role/a/bind-secret-id", `{"bind_secret_id":false}`)
	m.Fails(engines.KindInvalid, engines.Update, "role/a/policies", `{"policies":"root"}`)
}

func TestRoleID(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "role/a", `{}`)
	m.Must(engines.Update, "role/b", `{}`)
	first := roleID(m, "a")
	secret, _ := newSecret(m, "a", ``)
	m.Must(engines.Update, "login", credentials(first, secret))

	m.Must(engines.Update, "role/a/role-id", `{"role_id":"Any text/at all"}`)
	m.Must(engines.Update, "role/a/role-id", `{"role_id":"Any text/at all"}`)
	m.Must(engines.Update, "login", credentials("Any text/at all", secret))
	m.Fails(engines.KindInvalid, engines.Update, "login", credentials(first, secret))
	// The first id is free now.
	m.Must(engines.Update, "role/b/role-id", map[string]string{"role_id": first})
	m.Fails(engines.KindInvalid, engines.Update, "login", credentials(first, secret))
	// So is that of a deleted role.
	m.Must(engines.Delete, "role/a", nil)
	m.Must(engines.Update, "role/c", `{"role_id":"Any text/at all"}`)
	m.Fails(engines.KindInvalid, engines.Update, "login", credentials("Any text/at all", secret))
}

// TestRoleIDsAreUnique: of many roles that want one id at once, one gets it.
func TestRoleIDsAreUnique(t *testing.T) {
	m := newMount(t)
	var wg sync.WaitGroup
	var won atomic.Int32
	for i := range 20 {
		wg.Go(func() {
			if _, err := m.Do(engines.Update, fmt.Sprint("role/r", i), `{"role_id":"wanted"}`); err == nil {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d roles have one id", won.Load())
	}
}

func TestLogin(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "role/web", `{"token_policies":"a","token_ttl":"1h","role_id":"rid"}`)
	m.Must(engines.Update, "role/db", `{"role_id":"other"}`)
	secret, _ := newSecret(m, "web", `{"metadata":"{\"team\":\"one\",\"role_name\":\"forged\"}"}`)
	login := m.Must(engines.Update, "login", credentials("rid", secret)).Auth.Login
	if login.Alias.Name != "rid" || login.Role != "web" || login.NotRenewable {
		t.Errorf("login = %+v", login)
	}
	if want := map[string]string{"team": "one", "role_name": "web"}; !reflect.DeepEqual(login.Metadata, want) {
		t.Errorf("metadata = %v, want %v", login.Metadata, want)
	}
	if !maps.Equal(login.Alias.Metadata, login.Metadata) {
		t.Errorf("the alias has the metadata %v, for templates of policies", login.Alias.Metadata)
	}
	if got := login.Token.Data(); got["token_ttl"] != int64(3600) || !reflect.DeepEqual(got["token_policies"], engines.StringList{"a"}) {
		t.Errorf("token fields = %v", got)
	}
	for _, try := range [][2]string{{"rid", ""}, {"rid", "wrong"}, {"rid", strings.ToUpper(secret)}, {"nobody", secret}, {"other", secret}, {secret, "rid"}} {
		if got := m.Fails(engines.KindInvalid, engines.Update, "login", credentials(try[0], try[1])); got != refused {
			t.Errorf("login refused with %q, want %q", got, refused)
		}
	}
	route, _, err := m.Engine.Router().Match(engines.Update, "login")
	if err != nil || !route.Flags.Has(engines.Unauthenticated|engines.Active) {
		t.Errorf("login has flags %b: it needs no token, and current data", route.Flags)
	}
	for key, value := range m.Snapshot() {
		if strings.Contains(string(key)+value, secret) {
			t.Errorf("%s holds a secret id", key)
		}
	}
}

func TestLoginWithoutSecretID(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "role/open", `{"role_id":"open","bind_secret_id":false,"secret_id_bound_cidrs":"10.0.0.0/8","token_bound_cidrs":"10.1.0.0/16"}`)
	for addr, ok := range map[string]bool{"10.1.0.1": true, "10.2.0.1": false, "192.0.2.1": false} {
		_, err := loginFrom(t, m, addr, "open", "")
		var e *engines.Error
		if ok && err != nil || !ok && (!errors.As(err, &e) || e.Detail != refused) {
			t.Errorf("login from %s: %v, want success %v", addr, err, ok)
		}
	}
}

func TestAddresses(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "role/a", `{"role_id":"a","secret_id_bound_cidrs":"10.0.0.0/8","token_bound_cidrs":"10.0.0.0/9","secret_id_num_uses":2}`)
	secret, _ := newSecret(m, "a", `{"cidr_list":"10.1.0.0/16","token_bound_cidrs":"10.1.2.0/24"}`)
	wide, _ := newSecret(m, "a", ``)
	denied := func(addr, secret string) {
		t.Helper()
		_, err := loginFrom(t, m, addr, "a", secret)
		var e *engines.Error
		if !errors.As(err, &e) || e.Kind != engines.KindDenied {
			t.Errorf("login from %s: %v, want it denied", addr, err)
		}
	}
	for _, addr := range []string{"192.0.2.1", "10.200.0.1", "10.2.0.1", "10.1.3.1", "::1"} {
		denied(addr, secret) // and takes no use
	}
	denied("10.200.0.1", wide)
	login, err := loginFrom(t, m, "10.1.2.3", "a", secret)
	if err != nil || !reflect.DeepEqual(login.Token.TokenBoundCIDRs, engines.StringList{"10.1.2.0/24"}) {
		t.Fatalf("login = %+v, %v, want a token bound as the secret id says", login, err)
	}
	fields, err := m.Engine.(engines.Renewer).RenewLogin(t.Context(), m.Mount, engines.RenewedLogin{Role: "a", Internal: login.Internal})
	if err != nil || !reflect.DeepEqual(fields.TokenBoundCIDRs, engines.StringList{"10.1.2.0/24"}) {
		t.Errorf("renewal = %+v, %v, want the token bound as before", fields, err)
	}
	if login, err = loginFrom(t, m, "10.99.0.1", "a", wide); err != nil || !reflect.DeepEqual(login.Token.TokenBoundCIDRs, engines.StringList{"10.0.0.0/9"}) {
		t.Errorf("login = %+v, %v, want a token bound as the role says", login, err)
	}
	// A role that is narrowed later holds for its secret ids, too.
	m.Must(engines.Update, "role/a", `{"secret_id_bound_cidrs":"10.1.2.0/24"}`)
	if _, err := loginFrom(t, m, "10.1.2.3", "a", secret); err == nil || !strings.Contains(err.Error(), "not within") {
		t.Errorf("login with a secret id that is wider than its role: %v", err)
	}
}

func TestSecretIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time begins at 2000-01-01T00:00:00Z
		for _, body := range []string{`{}`, `{"local_secret_ids":true}`} {
			m := newMount(t)
			m.Must(engines.Update, "role/a", body)
			m.Must(engines.Update, "role/a", `{"role_id":"a","secret_id_ttl":"1h","secret_id_num_uses":5}`)
			m.Must(engines.Update, "role/b", `{"role_id":"b"}`)
			m.Fails(engines.KindNotFound, engines.List, "role/a/secret-id", nil)
			resp := m.Must(engines.Update, "role/a/secret-id", `{"metadata":{"k":"v"},"ttl":"10m","num_uses":2,"cidr_list":["127.0.0.0/8"]}`)
			if field(m, resp, "secret_id_ttl") != int64(600) || field(m, resp, "secret_id_num_uses") != int64(2) {
				t.Errorf("secret id = %v", m.Data(resp))
			}
			id, accessor := field(m, resp, "secret_id").(string), field(m, resp, "secret_id_accessor").(string)
			time.Sleep(time.Minute)
			m.Must(engines.Update, "login", credentials("a", id))

			want := map[string]any{
				"secret_id_accessor": accessor, "secret_id_num_uses": int64(1), "secret_id_ttl": int64(600), "metadata": map[string]any{"k": "v"},
				"creation_time": "2000-01-01T00:00:00Z", "last_updated_time": "2000-01-01T00:01:00Z", "expiration_time": "2000-01-01T00:10:00Z",
				"cidr_list": []any{"127.0.0.0/8"}, "token_bound_cidrs": []any{},
			}
			for path, in := range map[string]any{
				"secret-id/lookup": map[string]string{"secret_id": id}, "secret-id-accessor/lookup": map[string]string{"secret_id_accessor": accessor},
			} {
				resp := m.Must(engines.Update, "role/a/"+path, in)
				for name, v := range want {
					if got := field(m, resp, name); body == `{}` && !reflect.DeepEqual(got, v) {
						t.Errorf("%s: %s = %v, want %v", path, name, got, v)
					}
				}
			}
			// Another role knows nothing of it.
			if resp := m.Must(engines.Update, "role/b/secret-id/lookup", map[string]string{"secret_id": id}); resp != nil {
				t.Errorf("another role finds %+v", resp)
			}
			m.Fails(engines.KindNotFound, engines.Update, "role/b/secret-id-accessor/lookup", map[string]string{"secret_id_accessor": accessor})
			m.Fails(engines.KindNotFound, engines.Update, "role/b/secret-id-accessor/destroy", map[string]string{"secret_id_accessor": accessor})
			m.Must(engines.Update, "role/b/secret-id/destroy", map[string]string{"secret_id": id})

			local := false
			for key := range m.Snapshot() {
				local = local || key.Class() == storage.Local
			}
			if local != (body != `{}`) {
				t.Errorf("%s: something is stored locally: %v", body, local)
			}

			if got := field(m, m.Must(engines.List, "role/a/secret-id", nil), "keys"); !reflect.DeepEqual(got, []any{accessor}) {
				t.Errorf("list = %v", got)
			}
			m.Must(engines.Update, "login", credentials("a", id)) // the last use
			m.Fails(engines.KindInvalid, engines.Update, "login", credentials("a", id))
			m.Fails(engines.KindNotFound, engines.List, "role/a/secret-id", nil)

			for _, op := range []engines.Operation{engines.Update, engines.Delete} {
				id, accessor := newSecret(m, "a", ``)
				m.Must(op, "role/a/secret-id/destroy", map[string]string{"secret_id": id})
				m.Must(op, "role/a/secret-id/destroy", map[string]string{"secret_id": id})
				m.Fails(engines.KindInvalid, engines.Update, "login", credentials("a", id))
				m.Fails(engines.KindNotFound, engines.Update, "role/a/secret-id-accessor/lookup", map[string]string{"secret_id_accessor": accessor})
				id, accessor = newSecret(m, "a", ``)
				m.Must(op, "role/a/secret-id-accessor/destroy", map[string]string{"secret_id_accessor": accessor})
				m.Fails(engines.KindInvalid, engines.Update, "login", credentials("a", id))
				m.Fails(engines.KindNotFound, op, "role/a/secret-id-accessor/destroy", map[string]string{"secret_id_accessor": accessor})
			}
			// What a role leaves behind is no later role's.
			id, _ = newSecret(m, "a", ``)
			m.Must(engines.Delete, "role/a", nil)
			m.Must(engines.Update, "role/a", `{"role_id":"a"}`)
			m.Fails(engines.KindInvalid, engines.Update, "login", credentials("a", id))
			for key := range m.Snapshot() {
				if strings.HasPrefix(key.Path(), "secret/") || strings.HasPrefix(key.Path(), "accessor/") {
					t.Errorf("%s is left after its role was deleted", key)
				}
			}
		}
	})
}

func TestCustomSecretID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMount(t)
		m.Must(engines.Update, "role/a", `{"role_id":"a"}`)
		m.Must(engines.Update, "role/b", `{"role_id":"b"}`)
		body := `{"secret_id":"my own","ttl":"1m","metadata":"k=v, l=w"}`
		resp := m.Must(engines.Update, "role/a/custom-secret-id", body)
		if field(m, resp, "secret_id") != "my own" {
			t.Errorf("custom secret id = %v", m.Data(resp))
		}
		login := m.Must(engines.Update, "login", credentials("a", "my own")).Auth.Login
		if login.Metadata["k"] != "v" || login.Metadata["l"] != "w" {
			t.Errorf("metadata = %v", login.Metadata)
		}
		m.Fails(engines.KindInvalid, engines.Update, "role/a/custom-secret-id", body)
		m.Must(engines.Update, "role/b/custom-secret-id", body)
		time.Sleep(time.Minute)
		m.Must(engines.Update, "role/a/custom-secret-id", body)
		if keys := field(m, m.Must(engines.List, "role/a/secret-id", nil), "keys"); len(keys.([]any)) != 1 {
			t.Errorf("after an expired one was replaced, the role has %v", keys)
		}
	})
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMount(t)
		m.Must(engines.Update, "role/a", `{"role_id":"a","secret_id_ttl":"10s"}`)
		id, accessor := newSecret(m, "a", ``)
		time.Sleep(10*time.Second - time.Nanosecond)
		m.Must(engines.Update, "login", credentials("a", id))
		time.Sleep(time.Nanosecond)
		if resp := m.Must(engines.Update, "role/a/secret-id/lookup", map[string]string{"secret_id": id}); resp != nil {
			t.Errorf("lookup of an expired secret id answers %+v", resp)
		}
		m.Fails(engines.KindNotFound, engines.Update, "role/a/secret-id-accessor/lookup", map[string]string{"secret_id_accessor": accessor})
		_, err := m.Do(engines.Update, "login", credentials("a", id))
		var e *engines.Error
		if !errors.As(err, &e) || e.Detail != refused {
			t.Errorf("login with an expired secret id: %v", err)
		}
		m.Fails(engines.KindNotFound, engines.List, "role/a/secret-id", nil) // the login removed it
	})
}

// TestLimitedUses: n uses are n logins, whatever arrives at once and on which node.
func TestLimitedUses(t *testing.T) {
	m := newMount(t)
	nodes := []*enginetest.Mount{m, m.Peer()}
	const uses, tries = 7, 30
	m.Must(engines.Update, "role/a", map[string]any{"role_id": "a", "secret_id_num_uses": uses})
	id, _ := newSecret(m, "a", ``)
	var wg sync.WaitGroup
	var won atomic.Int32
	for i := range tries {
		wg.Go(func() {
			_, err := nodes[i%2].Do(engines.Update, "login", credentials("a", id))
			var e *engines.Error
			switch {
			case err == nil:
				won.Add(1)
			case !errors.As(err, &e) || e.Detail != refused:
				t.Errorf("login: %v", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != uses {
		t.Errorf("%d uses were %d logins", uses, won.Load())
	}
	m.Fails(engines.KindNotFound, engines.List, "role/a/secret-id", nil)
}

func TestTidy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMount(t)
		m.Must(engines.Update, "role/a", `{"role_id":"a"}`)
		m.Must(engines.Update, "role/local", `{"local_secret_ids":true}`)
		m.Must(engines.Update, "role/gone", `{}`)
		kept, _ := newSecret(m, "a", `{"ttl":"1h"}`)
		for range 300 { // more than a page
			newSecret(m, "a", `{"ttl":"1m"}`)
		}
		newSecret(m, "local", `{"ttl":"1m"}`)
		newSecret(m, "gone", ``)
		// The node ends between deleting the role and its secret ids.
		if _, err := m.Mount.Storage.Commit(t.Context(), storage.Batch{Deletes: []storage.Key{"role/gone"}}); err != nil {
			t.Fatal(err)
		}
		m.Must(engines.Update, "role/gone", `{"role_id":"again"}`)
		young, _ := newSecret(m, "gone", ``)
		time.Sleep(time.Minute)
		resp := m.Must(engines.Update, "tidy/secret-id", nil)
		if resp.Status != 202 || len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], " 302 ") {
			t.Errorf("tidy answers %+v", resp)
		}
		left := 0
		for key := range m.Snapshot() {
			if strings.HasPrefix(key.Path(), "secret/") || strings.HasPrefix(key.Path(), "accessor/") {
				left++
			}
		}
		if left != 4 {
			t.Errorf("%d keys are left, want those of two secret ids", left)
		}
		m.Must(engines.Update, "login", credentials("a", kept))
		m.Must(engines.Update, "login", credentials("again", young))
	})
}

func TestRenew(t *testing.T) {
	m := newMount(t)
	renew := func(internal string) (engines.TokenFields, error) {
		return m.Engine.(engines.Renewer).RenewLogin(t.Context(), m.Mount, engines.RenewedLogin{Role: "a", Internal: []byte(internal)})
	}
	m.Must(engines.Update, "role/a", `{"token_ttl":"1h"}`)
	m.Must(engines.Update, "role/a", `{"token_ttl":"2h"}`)
	if fields, err := renew(""); err != nil || fields.TokenTTL.Seconds() != 7200 {
		t.Errorf("renew = %+v, %v, want the role's present fields", fields, err)
	}
	if _, err := renew(`{"format":2}`); err == nil {
		t.Error("what a later version kept is understood")
	}
	m.Must(engines.Delete, "role/a", nil)
	if _, err := renew(""); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("renew without a role: %v", err)
	}
}

// TestInitialize: the key of the hashes stays when the mount is initialized again.
func TestInitialize(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "role/a", `{"role_id":"a"}`)
	id, _ := newSecret(m, "a", ``)
	if err := m.Engine.(engines.Initializer).Initialize(t.Context(), m.Mount); err != nil {
		t.Fatal(err)
	}
	m.Must(engines.Update, "login", credentials("a", id))
	if newMount(t).Snapshot()["s/"+storage.Key(m.Mount.UUID)+"/key"] == m.Snapshot()["s/"+storage.Key(m.Mount.UUID)+"/key"] {
		t.Error("two mounts have one key")
	}
}

func TestHostile(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "role/x", `{"secret_id_num_uses":5}`)
	newSecret(m, "x", ``)
	enginetest.Documented(t, m)
	enginetest.Hostile(t, m)
}

// TestWaitingLogin: a login that waits for its second factor is one of the role as it is by then.
func TestWaitingLogin(t *testing.T) {
	m := enginetest.New(t, approle.New, enginetest.Options{Type: "approle", Path: "auth/approle/"})
	m.Must(engines.Update, "role/a", `{"token_policies":"reader"}`)
	renewer := m.Engine.(engines.Renewer)
	login := engines.RenewedLogin{Role: "a", Policies: []string{"reader"}, Waiting: true}
	if _, err := renewer.RenewLogin(t.Context(), m.Mount, login); err != nil {
		t.Errorf("a login of an unchanged role: %v", err)
	}
	m.Must(engines.Update, "role/a", `{"token_policies":"other"}`)
	if _, err := renewer.RenewLogin(t.Context(), m.Mount, login); err == nil || !strings.Contains(err.Error(), "log in again") {
		t.Errorf("a login of a role with other policies by now: %v", err)
	}
	login.Waiting = false
	if _, err := renewer.RenewLogin(t.Context(), m.Mount, login); err != nil {
		t.Errorf("a token of a role with other policies by now is renewed: %v", err)
	}
}
