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
		{"users/bob", `{"password_hash":"` + strings.Replace(hash, "$10$", "$13$", 1) + `"}`, "the limit is 12"},
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
		// From a network without access, the right password is answered like a wrong one.
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
				rejected(t, m, name, engines.KindInvalid)
			}
			if got := m.Fails(engines.KindDenied, engines.Update, "login/"+name, password("p")); got != "permission denied" {
				t.Errorf("locked %s gets %q", name, got)
			}
		}
		m.Fails(engines.KindDenied, engines.Update, "login/BOB", password("p"))
		m.Must(engines.Update, "login/alice", password("p"))
		// The locks are the cluster's.
		peer := m.Peer()
		peer.Fails(engines.KindDenied, engines.Update, "login/bob", password("p"))
		peer.Fails(engines.KindDenied, engines.Update, "login/nobody", password("p"))

		time.Sleep(15*time.Minute - time.Second)
		m.Fails(engines.KindDenied, engines.Update, "login/bob", password("p"))
		time.Sleep(time.Second)
		m.Must(engines.Update, "login/bob", password("p"))

		// A correct password, or time, forgets the wrong ones.
		for range 3 {
			for range 4 {
				rejected(t, m, "bob", engines.KindInvalid)
			}
			m.Must(engines.Update, "login/bob", password("p"))
			for range 4 {
				rejected(t, m, "bob", engines.KindInvalid)
			}
			time.Sleep(15 * time.Minute)
		}

		// What is stored goes.
		if err := m.Engine.(engines.Worker).Work(t.Context(), m.Mount, true); err != nil {
			t.Fatal(err)
		}
		for key := range m.Snapshot() {
			if strings.Contains(string(key), "locked") {
				t.Errorf("%s is still stored", key)
			}
		}
	})
}

// rejected sends a wrong password. Fails is for what writes nothing: the last of these may write a lock.
func rejected(t *testing.T, m *enginetest.Mount, name string, want engines.Kind) {
	t.Helper()
	if got := from(t, m, "127.0.0.1", name, "wrong"); got != want {
		t.Errorf("a wrong password for %s: kind %d, want %d", name, got, want)
	}
}

// from sends a login from an address, and returns the status of its failure, -1 for none.
func from(t *testing.T, m *enginetest.Mount, address, name, guess string) engines.Kind {
	t.Helper()
	req := m.Request(engines.Update, "login/"+name, password(guess))
	req.RemoteIP = netip.MustParseAddr(address)
	_, err := m.Handle(t.Context(), req)
	var e *engines.Error
	switch {
	case err == nil:
		return -1
	case !errors.As(err, &e):
		t.Fatalf("login of %s from %s: %v", name, address, err)
	}
	return e.Kind
}

// TestLockoutBySource: a stranger's wrong passwords do not lock the user where they log in from, unless there are very many.
func TestLockoutBySource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := enginetest.New(t, userpass.NewCheap, enginetest.Options{})
		m.Must(engines.Update, "users/bob", password("p"))
		const home = "192.0.2.1"
		expect := func(address, name, guess string, want engines.Kind) {
			t.Helper()
			if got := from(t, m, address, name, guess); got != want {
				t.Errorf("%s from %s with %q: kind %d, want %d", name, address, guess, got, want)
			}
		}
		for _, name := range []string{"bob", "nobody"} {
			for stranger := range 9 {
				for range 5 {
					expect(fmt.Sprint("198.51.100.", stranger), name, "wrong", engines.KindInvalid)
				}
				expect(fmt.Sprint("198.51.100.", stranger), name, "p", engines.KindDenied)
			}
		}
		locker := m.Engine.(engines.Locker)
		locked, err := locker.LockedUsers(t.Context(), m.Mount)
		if err != nil || len(locked) != 1 || locked[0].Name != "bob" || locked[0].Everywhere || len(locked[0].Sources) != 9 || locked[0].Sources[0] != "198.51.100.0" {
			t.Errorf("locked users: %+v, %v, want bob at nine addresses", locked, err)
		}
		expect(home, "bob", "p", -1) // and the count of all addresses begins again
		for range 4 {
			expect("2001:db8::1", "bob", "wrong", engines.KindInvalid)
		}
		expect("2001:db8::2:1", "bob", "wrong", engines.KindInvalid) // the same network
		expect("2001:db8::3:1", "bob", "p", engines.KindDenied)

		for _, name := range []string{"bob", "nobody"} { // 5 of each have been counted, or 45
			for i := 0; from(t, m, fmt.Sprint("203.0.113.", i), name, "wrong") == engines.KindInvalid; i++ {
				if i > 60 {
					t.Fatalf("%s is not locked everywhere", name)
				}
			}
			expect(home, name, "p", engines.KindDenied)
		}
		if locked, err := locker.LockedUsers(t.Context(), m.Mount); err != nil || len(locked) != 1 || !locked[0].Everywhere {
			t.Errorf("locked users: %+v, %v, want bob everywhere", locked, err)
		}
		if err := locker.UnlockUser(t.Context(), m.Mount, "BOB"); err != nil {
			t.Fatal(err)
		}
		expect("198.51.100.1", "bob", "p", -1)
		expect(home, "bob", "p", -1)
		expect(home, "nobody", "p", engines.KindDenied)

		// A new password unlocks, at the cluster that does not write it, too.
		for range 5 {
			expect(home, "bob", "wrong", engines.KindInvalid)
		}
		expect(home, "bob", "p", engines.KindDenied)
		m.Must(engines.Update, "users/bob/password", password("new"))
		if got := from(t, m.Peer(), home, "bob", "new"); got != -1 { // what is stored of the lock does not count
			t.Errorf("on another node, with the new password: kind %d", got)
		}
		expect(home, "bob", "p", engines.KindInvalid)
		expect(home, "bob", "new", -1)
		if locked, err := locker.LockedUsers(t.Context(), m.Mount); err != nil || len(locked) != 0 {
			t.Errorf("locked users: %+v, %v, want none", locked, err)
		}
	})
}

func TestLockoutSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := enginetest.New(t, userpass.NewCheap, enginetest.Options{})
		m.Must(engines.Update, "users/bob", password("p"))
		m.Mount.Lockout = engines.Lockout{Threshold: 2, Duration: time.Minute, CounterReset: 10 * time.Second}
		rejected(t, m, "bob", engines.KindInvalid)
		time.Sleep(10 * time.Second)
		for range 2 {
			rejected(t, m, "bob", engines.KindInvalid)
		}
		m.Fails(engines.KindDenied, engines.Update, "login/bob", password("p"))
		time.Sleep(time.Minute)
		m.Must(engines.Update, "login/bob", password("p"))

		m.Mount.Lockout = engines.Lockout{Disabled: true}
		for range 60 {
			rejected(t, m, "bob", engines.KindInvalid)
		}
		m.Must(engines.Update, "login/bob", password("p"))
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
