package userpass

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/engines/fairqueue"
	"github.com/coffer-project/coffer/storage"
)

// TestEqualWork: the work of a rejected login does not depend on what is wrong with it, nor on the user's hash.
func TestEqualWork(t *testing.T) {
	type work struct{ argon, bcrypt int }
	var did work
	m := enginetest.New(t, func(engines.Mount) (engines.Engine, error) {
		e := newEngine()
		e.hasher.derive = func(password []byte, a argon) []byte {
			if a.memory != hashMemoryKiB || a.time != hashTime || a.threads != hashThreads || len(a.salt) != saltBytes {
				t.Errorf("an argon2 hash of another cost: %+v", a)
			}
			did.argon++
			return bytes.Repeat(password[:1], hashBytes)
		}
		e.hasher.bcrypt = func(hash, password []byte) error {
			cost, err := bcrypt.Cost(hash)
			if err != nil {
				t.Error(err)
			}
			did.bcrypt += 1 << cost
			if string(password) == "a" && bytes.HasSuffix(hash, []byte("W")) {
				return nil
			}
			return bcrypt.ErrMismatchedHashAndPassword
		}
		return e, nil
	}, enginetest.Options{})
	m.Must(engines.Update, "users/bob", `{"password":"a"}`)
	hashOf := func(cost int) string {
		return fmt.Sprintf("$2b$%02d$%sW", cost, strings.Repeat("a", 52))
	}
	for _, step := range []struct {
		write string // {"password_hash"} of the user
		cost  int
		most  int // of all users' then
	}{{"", 0, 0}, {"dora", 5, 5}, {"emil", 10, 10}, {"fay", 10, 10}} {
		if step.write != "" {
			m.Must(engines.Update, "users/"+step.write, `{"password_hash":"`+hashOf(step.cost)+`"}`)
		}
		want := work{argon: 1}
		if step.most > 0 {
			want.bcrypt = 1 << step.most
		}
		names := []string{"bob", "carol", "not a name"}
		for _, name := range []string{"dora", "emil", "fay"} {
			if m.Exists("users/" + name) {
				names = append(names, name)
			}
		}
		for _, name := range names {
			for _, password := range []string{"b", `\u0000`} { // "\x00" is what the hash of no user would accept
				did = work{}
				if _, err := m.Do(engines.Update, "login/"+name, `{"password":"`+password+`"}`); err == nil {
					t.Errorf("login of %q with a wrong password succeeded", name)
				}
				if did != want {
					t.Errorf("rejected login of %q with hashes of cost %d: work %+v, want %+v", name, step.most, did, want)
				}
			}
		}
		m.Engine.(*engine).locks = newLockout() // before any name is locked
	}

	// From an address that the user is not bound to, the right password costs as much as a wrong one.
	m.Must(engines.Update, "users/dora", `{"token_bound_cidrs":"192.0.2.0/24"}`)
	did = work{}
	m.Fails(engines.KindInvalid, engines.Update, "login/dora", `{"password":"a"}`)
	if want := (work{1, 1 << 10}); did != want {
		t.Errorf("the right password from elsewhere: work %+v, want %+v", did, want)
	}
	m.Must(engines.Update, "users/dora", `{"token_bound_cidrs":""}`)

	// A right login replaces the hash, and with the last one goes the padding.
	for _, name := range []string{"emil", "dora", "fay"} {
		m.Must(engines.Update, "login/"+name, `{"password":"a"}`)
		did = work{}
		m.Must(engines.Update, "login/"+name, `{"password":"a"}`)
		if want := (work{argon: 1}); did != want {
			t.Errorf("second right login of %s: work %+v, want %+v", name, did, want)
		}
	}
	did = work{}
	m.Fails(engines.KindInvalid, engines.Update, "login/nobody", `{"password":"b"}`)
	if want := (work{argon: 1}); did != want {
		t.Errorf("without imported hashes: work %+v, want %+v", did, want)
	}
}

// TestBoundedWork: logins wait for a slot, and stop waiting when the client is gone, or after a while.
func TestBoundedWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := enginetest.New(t, New, enginetest.Options{})
		for range hashSlots {
			release, err := hashing.Acquire(t.Context(), fairqueue.Source{})
			if err != nil {
				t.Fatal(err)
			}
			defer release()
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, path := range []string{"login/bob", "users/bob"} {
			if _, err := m.Handle(ctx, m.Request(engines.Update, path, `{"password":"a"}`)); !errors.Is(err, context.Canceled) {
				t.Errorf("%s without a free slot: %v", path, err)
			}
			m.Fails(engines.KindUnavailable, engines.Update, path, `{"password":"a"}`)
		}
	})
}

// TestRightLoginGoesFirst: among very many wrong logins from the same address, one that was right before is hashed next,
// unless it would be rejected whatever the password.
func TestRightLoginGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hashed []string
		m := enginetest.New(t, func(engines.Mount) (engines.Engine, error) {
			e := newEngine()
			e.hasher.derive = func(password []byte, a argon) []byte {
				hashed = append(hashed, string(password))
				sum := sha256.Sum256(append(password, a.salt...))
				return sum[:]
			}
			return e, nil
		}, enginetest.Options{})
		m.Must(engines.Update, "users/bob", `{"password":"right"}`)
		m.Must(engines.Update, "users/carol", `{"password":"elsewhere","token_bound_cidrs":"192.0.2.0/24"}`)
		m.Must(engines.Update, "users/dora", `{"password":"locked"}`)
		if _, err := m.Engine.(*engine).locks.failed(t.Context(), attempt{
			mount: engines.Mount{ClusterStorage: m.Mount.ClusterStorage, Lockout: engines.Lockout{Threshold: 1}},
			name:  "dora", source: "127.0.0.1", known: true, now: time.Now(), password: fingerprint(userOf(t, m, "dora").Hash),
		}); err != nil {
			t.Fatal(err)
		}
		var releases []func()
		for range hashSlots {
			release, err := hashing.Acquire(t.Context(), fairqueue.Source{})
			if err != nil {
				t.Fatal(err)
			}
			releases = append(releases, release)
		}
		hashed = nil
		login := func(name, password string) {
			go func() { _, _ = m.Do(engines.Update, "login/"+name, `{"password":"`+password+`"}`) }()
			synctest.Wait()
		}
		login("carol", "elsewhere")
		login("dora", "locked")
		login("bob", "right")
		for i := range 150 {
			login(fmt.Sprint("name", i), "wrong")
		}
		releases[0]() // one slot serves them all, in turn
		synctest.Wait()
		for _, release := range releases[1:] {
			release()
		}
		time.Sleep(time.Minute) // of the bubble's clock: held responses
		if len(hashed) != 152 || hashed[0] != "right" || hashed[151] != "elsewhere" || slices.Contains(hashed, "locked") {
			t.Errorf("%d were hashed, the first was %q, the last %q; want 152, the right one first, carol's last", len(hashed), hashed[0], hashed[len(hashed)-1])
		}
	})
}

func userOf(t *testing.T, m *enginetest.Mount, name string) *user {
	t.Helper()
	u, err := getUser(t.Context(), m.Mount.Storage, name)
	if err != nil || u == nil {
		t.Fatalf("user %s: %v", name, err)
	}
	return u
}

// TestUnknownNamesStoreLittle: what strangers can have stored is bounded, and does not put out the locks of users.
func TestUnknownNamesStoreLittle(t *testing.T) {
	m := enginetest.New(t, NewCheap, enginetest.Options{})
	m.Mount.Lockout.Threshold = 1
	l := newLockout()
	try := func(name string, u *user) {
		req := m.Request(engines.Update, "login/"+name, nil)
		req.RemoteIP = netip.MustParseAddr("192.0.2.1")
		a := newAttempt(req, name, u)
		if locked, err := l.locked(t.Context(), a); err != nil || locked {
			t.Fatalf("%s is locked too early (%v)", name, err)
		}
		if _, err := l.failed(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if locked, err := l.locked(t.Context(), a); err != nil || !locked {
			t.Fatalf("%s is not locked (%v)", name, err)
		}
	}
	try("bob", &user{Hash: unknownUser})
	// Names that share one record: about one of unknownSlots does.
	keyOf := func(name string) storage.Key { return (&attempt{mount: m.Mount, name: name}).key() }
	for i, found := 0, 0; found < 2*maxSlotLocks; i++ {
		if name := fmt.Sprint("name", i); keyOf(name) == keyOf("name0") {
			try(name, nil)
			found++
		}
	}
	names, err := m.Mount.ClusterStorage.List(t.Context(), unknownPrefix, "", 0)
	if err != nil || len(names) != 1 {
		t.Errorf("%d records, %v, want one", len(names), err)
	}
	for _, name := range names {
		r, err := getLocks(t.Context(), m.Mount.ClusterStorage, unknownPrefix+storage.Key(name))
		if err != nil || len(r.Locks) != maxSlotLocks {
			t.Errorf("%d locks in a record, %v, want the limit, %d", len(r.Locks), err, maxSlotLocks)
		}
	}
	if r, err := getLocks(t.Context(), m.Mount.ClusterStorage, lockedPrefix+"bob"); err != nil || len(r.Locks) != 1 {
		t.Errorf("locks of a user: %+v, %v, want one", r, err)
	}
}

func TestCountersAreBounded(t *testing.T) {
	l := newLockout()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	l.add(counter{"first", anywhere}, now, time.Hour)
	l.add(counter{"second", anywhere}, now, time.Hour)
	l.add(counter{"first", anywhere}, now, time.Hour)
	for i := range maxCounted - 1 {
		l.add(counter{fmt.Sprint("name", i), anywhere}, now, time.Hour)
	}
	if len(l.counters) != maxCounted || l.byAge.Len() != maxCounted {
		t.Errorf("%d and %d counters, the limit is %d", len(l.counters), l.byAge.Len(), maxCounted)
	}
	if n := l.count(counter{"second", anywhere}, now, time.Hour); n != 0 {
		t.Error("the counter that was not used for the longest time is not the one dropped")
	}
	if n := l.count(counter{"first", anywhere}, now, time.Hour); n != 2 {
		t.Errorf("the other one counts %d, want 2", n)
	}
}

func FuzzParseArgon(f *testing.F) {
	f.Add(unknownUser)
	f.Add("$argon2id$v=19$m=19456,t=2,p=1$$")
	f.Add("$argon2id$v=19$m=1,t=0,p=256$AAAA$AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		if a, err := parseArgon(text); err == nil && a.String() != text {
			t.Errorf("parseArgon(%q) is %q", text, a)
		}
	})
}

// FuzzCheckBcrypt: what is imported can be compared with.
func FuzzCheckBcrypt(f *testing.F) {
	f.Add("$2a$04$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy")
	f.Add("$2x$04$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy")
	f.Add("$2b$04$N9qo8uLOickgx2ZMRZoMye!")
	f.Fuzz(func(t *testing.T, hash string) {
		if checkBcrypt(hash) != nil {
			return
		}
		if cost, err := bcrypt.Cost([]byte(hash)); err != nil || cost > 5 {
			return // too slow for here
		}
		if _, err := newHasher().matches(hash, "p"); err != nil {
			t.Errorf("a hash that was accepted cannot be used: %v", err)
		}
	})
}
