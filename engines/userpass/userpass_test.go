package userpass_test

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/engines/userpass"
	"github.com/coffer-project/coffer/storage"
)

func newMount(t testing.TB) *enginetest.Mount {
	return enginetest.New(t, userpass.New, enginetest.Options{Type: "userpass", Path: "auth/userpass/"})
}

func password(text string) map[string]any { return map[string]any{"password": text} }

// wantData compares some of the fields that a read answers; absent ones are nil.
func wantData(t *testing.T, m *enginetest.Mount, path string, want map[string]any) {
	t.Helper()
	data := m.Data(m.Must(engines.Read, path, nil))
	for field, v := range want {
		got := data[field]
		if n, ok := got.(interface{ Int64() (int64, error) }); ok {
			got, _ = n.Int64()
		}
		if !reflect.DeepEqual(got, v) {
			t.Errorf("%s: %s = %v, want %v", path, field, got, v)
		}
	}
}

func TestUsers(t *testing.T) {
	m := newMount(t)
	m.Fails(engines.KindNotFound, engines.List, "users", nil)
	if m.Exists("users/bob") {
		t.Error("bob exists before he is written")
	}
	text := m.Fails(engines.KindInvalid, engines.Update, "users/bob", `{"token_ttl":"1h"}`)
	if !strings.Contains(text, "password") {
		t.Errorf("a user without a password is refused with %q", text)
	}
	m.Must(engines.Update, "users/Bob", `{"password":"correct horse","token_policies":"B,a","token_ttl":"1h"}`)
	if !m.Exists("users/BOB") {
		t.Error("bob does not exist after he was written")
	}
	wantData(t, m, "users/bOb", map[string]any{"token_policies": []any{"a", "b"}, "token_ttl": int64(3600), "policies": nil, "password": nil, "hash": nil})

	// Partial updates keep the rest, the password too.
	m.Must(engines.Update, "users/bob", `{"token_num_uses":3}`)
	wantData(t, m, "users/bob", map[string]any{"token_policies": []any{"a", "b"}, "token_ttl": int64(3600), "token_num_uses": int64(3)})
	m.Must(engines.Update, "login/bob", password("correct horse"))

	m.Must(engines.Update, "users/alice", password("other horse"))
	if got := m.Data(m.Must(engines.List, "users/", nil))["keys"]; !reflect.DeepEqual(got, []any{"alice", "bob"}) {
		t.Errorf("list = %v", got)
	}
	m.Must(engines.Delete, "users/alice", nil)
	m.Must(engines.Delete, "users/alice", nil)
	if text := m.Fails(engines.KindNotFound, engines.Read, "users/alice", nil); text != "" {
		t.Errorf("a missing user is explained: %q", text)
	}
}

func TestOlderNames(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "users/bob", `{"password":"p","policies":"a","ttl":60,"max_ttl":"2m","bound_cidrs":"10.0.0.0/8"}`)
	wantData(t, m, "users/bob", map[string]any{
		"token_policies": []any{"a"}, "policies": []any{"a"}, "token_ttl": int64(60), "ttl": int64(60),
		"max_ttl": int64(120), "token_bound_cidrs": []any{"10.0.0.0/8"}, "bound_cidrs": []any{"10.0.0.0/8"},
	})
	// The newer name wins, and takes over.
	m.Must(engines.Update, "users/bob", `{"token_policies":"b","policies":"c"}`)
	wantData(t, m, "users/bob", map[string]any{"token_policies": []any{"b"}, "policies": nil, "ttl": int64(60)})
	m.Must(engines.Update, "users/bob/policies", `{"policies":["d"]}`)
	wantData(t, m, "users/bob", map[string]any{"token_policies": []any{"d"}, "policies": []any{"d"}})
	m.Must(engines.Update, "users/bob/policies", `{"token_policies":["e"]}`)
	wantData(t, m, "users/bob", map[string]any{"token_policies": []any{"e"}, "policies": nil})
}

func TestRefused(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "users/bob", password("p"))
	hash := "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy"
	for _, tt := range []struct{ path, body, text string }{
		{"users/bob", `{"token_ttl":"2h","token_max_ttl":"1h"}`, "token_max_ttl"},
		{"users/bob", `{"ttl":"2h","max_ttl":"1h"}`, "token_max_ttl"},
		{"users/bob", `{"token_policies":"root"}`, "root"},
		{"users/bob", `{"policies":"root"}`, "root"},
		{"users/bob", `{"bound_cidrs":"here"}`, "cidrs"},
		{"users/bob", `{"password":"a","password_hash":"` + hash + `"}`, "one of them"},
		{"users/bob", `{"password_hash":"` + hash[:59] + `"}`, "60 characters"},
		{"users/bob", `{"password_hash":"` + hash[:59] + `="}`, "60 characters"},
		{"users/bob", `{"password_hash":"` + strings.Replace(hash, "$10$", "$31$", 1) + `"}`, "cost"},
		{"users/bob/password", `{}`, "missing password"},
		{"users/bob/policies", `{}`, "token_policies"},
		{"users/bob/policies", `{"policies":"root"}`, "root"},
		{"users/-bob", `{"password":"a"}`, "username"},
		{"users/bob.", `{"password":"a"}`, "username"},
		{"users/b ob", `{"password":"a"}`, "username"},
		{"users/bøb", `{"password":"a"}`, "username"},
		{"users/" + strings.Repeat("b", 129), `{"password":"a"}`, "username"},
	} {
		if text := m.Fails(engines.KindInvalid, engines.Update, tt.path, tt.body); !strings.Contains(text, tt.text) {
			t.Errorf("%s %s: %q does not say %q", tt.path, tt.body, text, tt.text)
		}
	}
	m.Fails(engines.KindNotFound, engines.Update, "users/carol/password", password("a"))
	m.Fails(engines.KindNotFound, engines.Update, "users/carol/policies", `{"policies":"a"}`)
	for _, name := range []string{"a", "_", "a.b-c_d@example.com", "a+b", "9", strings.Repeat("b", 128)} {
		m.Must(engines.Update, "users/"+name, `{"password_hash":"`+hash+`"}`)
	}
	resp := m.Must(engines.Update, "users/bob", `{"token_max_ttl":"48h"}`)
	if resp == nil || len(resp.Warnings) != 1 {
		t.Errorf("a lifetime beyond the mount's maximum answers %+v, want a warning", resp)
	}
}

func TestLogin(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "users/bob", `{"password":"correct horse","token_policies":"a","token_ttl":"1h"}`)
	login := m.Must(engines.Update, "login/BOB", password("correct horse")).Auth.Login
	if login.DisplayName != "bob" || login.Alias.Name != "bob" || login.Role != "bob" || login.Metadata["username"] != "bob" {
		t.Errorf("login = %+v", login)
	}
	if got := login.Token.Data(); got["token_ttl"] != int64(3600) || !reflect.DeepEqual(got["token_policies"], engines.StringList{"a"}) {
		t.Errorf("token fields = %v", got)
	}
	const text = "invalid username or password"
	for _, try := range [][2]string{{"bob", "wrong horse"}, {"carol", "correct horse"}, {"-b ", "correct horse"}, {strings.Repeat("b", 2000), "x"}} {
		if got := m.Fails(engines.KindInvalid, engines.Update, "login/"+try[0], password(try[1])); got != text {
			t.Errorf("login of %.10q: %q, want %q", try[0], got, text)
		}
	}
	m.Fails(engines.KindInvalid, engines.Update, "login/bob", `{}`)

	m.Must(engines.Update, "users/bob/password", password("new horse"))
	m.Must(engines.Update, "login/bob", password("new horse"))
	m.Fails(engines.KindInvalid, engines.Update, "login/bob", password("correct horse"))

	route, _, err := m.Engine.Router().Match(engines.Update, "login/bob")
	if err != nil || !route.Flags.Has(engines.Unauthenticated|engines.Active) {
		t.Errorf("login has flags %b: it needs no token, and the active node's counters", route.Flags)
	}
	for key, value := range m.Snapshot() {
		if strings.Contains(value, "horse") {
			t.Errorf("%s holds a password", key)
		}
	}
}

func TestLoginImportedHash(t *testing.T) {
	m := newMount(t)
	hash, err := bcrypt.GenerateFromPassword([]byte("imported horse"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	m.Must(engines.Update, "users/bob", map[string]string{"password_hash": string(hash)})
	m.Must(engines.Update, "login/bob", password("imported horse"))
	m.Fails(engines.KindInvalid, engines.Update, "login/bob", password("another horse"))
	m.Must(engines.Update, "users/bob/password", map[string]string{"password_hash": string(hash)})
	m.Must(engines.Update, "login/bob", password("imported horse"))
}

func TestLoginBoundAddresses(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "users/bob", `{"password":"p","token_bound_cidrs":"10.1.0.0/16"}`)
	for addr, ok := range map[string]bool{"10.1.2.3": true, "10.2.0.1": false, "::ffff:10.1.2.3": true, "::1": false} {
		// Where nobody may log in from, the right password is answered like a wrong one.
		var answers []string
		for _, guess := range []string{"p", "wrong"} {
			req := m.Request(engines.Update, "login/bob", password(guess))
			req.RemoteIP = netip.MustParseAddr(addr)
			_, err := m.Handle(t.Context(), req)
			answers = append(answers, fmt.Sprint(err))
		}
		if ok != (answers[0] == "<nil>") || !ok && answers[0] != answers[1] {
			t.Errorf("login from %s: %q, want success %v", addr, answers, ok)
		}
	}
}

func TestLockout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := enginetest.New(t, userpass.NewCheap, enginetest.Options{})
		m.Must(engines.Update, "users/bob", password("p"))
		m.Must(engines.Update, "users/alice", password("p"))
		for _, name := range []string{"bob", "nobody"} {
			for range 5 {
				m.Fails(engines.KindInvalid, engines.Update, "login/"+name, password("wrong"))
			}
			if got := m.Fails(engines.KindDenied, engines.Update, "login/"+name, password("p")); got != "permission denied" {
				t.Errorf("locked %s gets %q", name, got)
			}
		}
		m.Fails(engines.KindDenied, engines.Update, "login/BOB", password("p"))
		m.Must(engines.Update, "login/alice", password("p"))
		// The counters are the node's.
		m.Peer().Must(engines.Update, "login/bob", password("p"))

		time.Sleep(15*time.Minute - time.Second)
		m.Fails(engines.KindDenied, engines.Update, "login/bob", password("p"))
		time.Sleep(time.Second)
		m.Must(engines.Update, "login/bob", password("p"))

		// A correct password, or time, forgets the wrong ones.
		for range 3 {
			for range 4 {
				m.Fails(engines.KindInvalid, engines.Update, "login/bob", password("wrong"))
			}
			m.Must(engines.Update, "login/bob", password("p"))
			for range 4 {
				m.Fails(engines.KindInvalid, engines.Update, "login/bob", password("wrong"))
			}
			time.Sleep(15 * time.Minute)
		}
	})
}

func TestRenew(t *testing.T) {
	m := newMount(t)
	renewer := m.Engine.(engines.Renewer)
	renew := func(policies ...string) (engines.TokenFields, error) {
		return renewer.RenewLogin(t.Context(), m.Mount, engines.RenewedLogin{Role: "bob", Policies: policies})
	}
	m.Must(engines.Update, "users/bob", `{"password":"p","token_policies":"a,b","token_ttl":"1h"}`)
	m.Must(engines.Update, "users/bob", `{"token_ttl":"2h"}`)
	fields, err := renew("default", "b", "a")
	if err != nil || fields.TokenTTL.Seconds() != 7200 {
		t.Errorf("renew = %+v, %v, want the user's present fields", fields, err)
	}
	if _, err := renew("a", "b"); err != nil {
		t.Errorf("renew of a token without the default policy: %v", err)
	}
	for _, policies := range [][]string{{"default", "a"}, {"a", "b", "c"}, nil} {
		if _, err := renew(policies...); err == nil || !strings.Contains(err.Error(), "policies have changed") {
			t.Errorf("renew with policies %v: %v", policies, err)
		}
	}
	m.Must(engines.Delete, "users/bob", nil)
	if _, err := renew("a", "b"); err == nil || !strings.Contains(err.Error(), "user does not exist") {
		t.Errorf("renew without a user: %v", err)
	}
}

// TestConcurrentUpdates: partial updates of one user do not undo each other.
func TestConcurrentUpdates(t *testing.T) {
	m := newMount(t)
	m.Must(engines.Update, "users/bob", password("p"))
	var wg sync.WaitGroup
	for _, body := range []string{`{"token_ttl":1}`, `{"token_num_uses":2}`, `{"token_period":3}`, `{"token_max_ttl":4}`, `{"policies":"a"}`, `{"token_type":"service"}`} {
		wg.Go(func() {
			if _, err := m.Do(engines.Update, "users/bob", body); err != nil {
				t.Errorf("%s: %v", body, err)
			}
		})
	}
	wg.Wait()
	wantData(t, m, "users/bob", map[string]any{"token_ttl": int64(1), "token_num_uses": int64(2), "token_period": int64(3),
		"token_max_ttl": int64(4), "token_policies": []any{"a"}, "token_type": "service"})
}

func TestDamagedRecords(t *testing.T) {
	m := newMount(t)
	for _, value := range []string{``, `{`, `{"format":2}`, `{"format":1,"hash":"plain"}`, `{"format":1,"hash":"$argon2id$v=19$m=1,t=0,p=1$$"}`} {
		if _, err := m.Mount.Storage.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: "users/bob", Value: []byte(value)}}}); err != nil {
			t.Fatal(err)
		}
		resp, err := m.Do(engines.Update, "login/bob", password("plain"))
		var e *engines.Error
		if err == nil || errors.As(err, &e) {
			t.Errorf("login with the record %s: %+v, %v, want an internal error", value, resp, err)
		}
	}
}

func TestHostile(t *testing.T) {
	m := enginetest.New(t, userpass.NewCheap, enginetest.Options{})
	m.Must(engines.Update, "users/x", password("p"))
	enginetest.Documented(t, m)
	enginetest.Hostile(t, m)
}
