package saml

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

func testEngine() *engine { return newEngine(slog.New(slog.DiscardHandler), new(Counts), newQueue()) }

func testStore() storage.Store { return storage.NewView(new(storage.Memory), "l/m/") }

var nearby = netip.MustParseAddr("192.0.2.1")

// fill stores pending logins, each with its RelayState.
func fill(t *testing.T, s storage.Store, name string, n int) {
	t.Helper()
	for i := 0; i < n; {
		_, err := storage.Update(t.Context(), s, func(txn *storage.Txn) error {
			for end := min(n, i+500); i < end; i++ {
				id := fmt.Sprint(name, i)
				l := &login{id: pollLogin(id), State: pendingState, Role: "dev", ExpiresAt: time.Now().Add(loginTTL)}
				if err := l.create(txn, relayKey(id)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func keys(t *testing.T, s storage.Reader, prefix storage.Key) int {
	t.Helper()
	entries, err := s.Scan(t.Context(), prefix, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestPendingLoginsExpire starts more logins than one start removes, and finishes none. Later starts remove them, a bounded number each.
func TestPendingLoginsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = sweepPage*sweepPages + 500 // more than one start removes
		s, e := testStore(), testEngine()
		fill(t, s, "old", n)
		time.Sleep(loginTTL - time.Minute)
		fill(t, s, "young", 10)
		time.Sleep(time.Minute + 2*time.Second)
		before := keys(t, s, "")
		if err := roomFor(e, t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if removed, most := before-keys(t, s, ""), 3*sweepPage*sweepPages; removed == 0 || removed > most {
			t.Errorf("one start removed %d keys, want some and at most %d", removed, most)
		}
		for range n / (sweepPage * sweepPages) {
			if err := roomFor(e, t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		if left := keys(t, s, ""); left != 3*10 {
			t.Errorf("%d keys are left, want those of 10 logins", left)
		}
		for i := range 10 {
			if l, err := getLogin(t.Context(), s, pollLogin(fmt.Sprint("young", i))); err != nil || l == nil {
				t.Errorf("a login that has time left is gone (%v)", err)
			}
		}
	})
}

func TestPendingLoginsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := new(storage.Memory), testEngine()
		var b storage.Batch
		for i := range maxPending - 1 {
			b.Puts = append(b.Puts, storage.Put{Key: storage.NewKey(storage.Local, "m", fmt.Sprintf("login/%05d", i)), Value: []byte("{}")})
		}
		if _, err := s.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		view := storage.NewView(s, "l/m/")
		if err := roomFor(e, t.Context(), view); err != nil {
			t.Fatal(err)
		}
		e.pending.started = nil // as if another node had been the active one
		err := roomFor(e, t.Context(), view)
		var refused *engines.Error
		if !errors.As(err, &refused) || refused.Kind != engines.KindLimited || refused.Header.Get("Retry-After") != "300" {
			t.Fatalf("one login too many: %v", err)
		}
		// Room is found when the next count comes, not before.
		if _, err := s.Commit(t.Context(), storage.Batch{Deletes: []storage.Key{"l/m/login/00000", "l/m/login/00001"}}); err != nil {
			t.Fatal(err)
		}
		if roomFor(e, t.Context(), view) == nil {
			t.Error("each start counts")
		}
		time.Sleep(sweepInterval)
		if err := roomFor(e, t.Context(), view); err != nil {
			t.Errorf("after some were redeemed: %v", err)
		}
	})
}

// TestStrangersDoNotFillTheHouse starts as many logins as there is room for from one site: others still get in.
func TestStrangersDoNotFillTheHouse(t *testing.T) {
	p, now, started := new(pending), time.Now(), 0
	from := func(addr string) (evicted string) {
		t.Helper()
		started++
		evicted, ok := p.add(now, netip.MustParseAddr(addr), fmt.Sprint(started))
		if !ok {
			t.Fatalf("the start %d from %s is rejected", started, addr)
		}
		return evicted
	}
	for n := range crowded { // an IPv6 user has 2^64 addresses
		if evicted := from(fmt.Sprintf("2001:db8:1:2::%x", n)); evicted != "" {
			t.Fatalf("the start %d takes the place of %s", n, evicted)
		}
	}
	// From here on the client with many pending logins loses its oldest, and no other client loses any.
	if evicted := from("192.0.2.1"); evicted != "" {
		t.Errorf("another client's first start takes the place of %s", evicted)
	}
	for want := 1; want < 4; want++ {
		if evicted := from("2001:db8:1:2::"); evicted != fmt.Sprint(want) {
			t.Errorf("a further start takes the place of %q, want %d", evicted, want)
		}
	}
	// A full mount: those of the largest site go.
	for p.count < maxPending {
		from(fmt.Sprintf("10.%d.%d.%d", started>>16, started>>8&255, started&255))
	}
	if evicted := from("192.0.2.9"); evicted != "4" {
		t.Errorf("in a full mount a start takes the place of %q, want 4", evicted)
	}
	// After a change of the active node the new node does not know who started what.
	unknown := &pending{count: maxPending}
	if _, ok := unknown.add(now, netip.MustParseAddr("192.0.2.1"), "x"); ok {
		t.Error("a full mount has room")
	}
	now = now.Add(loginTTL)
	p.endSweep(now, 0, false)
	if len(p.started) != 0 {
		t.Errorf("%d sites are never forgotten", len(p.started))
	}
}

// TestCrowdedAddressesLoseTheirOldest: the login that makes room is gone, unless its user has answered.
func TestCrowdedAddressesLoseTheirOldest(t *testing.T) {
	m := enginetest.New(t, New(Options{}), enginetest.Options{Type: "saml", Path: "auth/saml/"})
	s := m.Mount.ClusterStorage
	now := time.Now()
	for _, state := range []string{pendingState, confirmingState, completedState} {
		l := &login{id: "of-" + state, State: state, ExpiresAt: now.Add(loginTTL)}
		_, err := storage.Update(t.Context(), s, func(txn *storage.Txn) error { return l.create(txn) })
		if err == nil {
			_, err = storage.Update(t.Context(), s, func(txn *storage.Txn) error { return makeRoom(t.Context(), txn, l.id) })
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := getLogin(t.Context(), s, l.id)
		if gone := got == nil; err != nil || gone != (state == pendingState) {
			t.Errorf("a login that is %s: gone %t, %v", state, gone, err)
		}
	}
}

func roomFor(e *engine, ctx context.Context, s storage.Store) error {
	_, err := e.checkPendingLimit(ctx, s, nearby, "x")
	return err
}

// leaving is a store whose client hangs up when it sweeps.
type leaving struct {
	storage.Store
	hangUp func()
}

func (s leaving) Scan(ctx context.Context, prefix, after storage.Key, limit int) ([]storage.Entry, error) {
	s.hangUp()
	return s.Store.Scan(ctx, prefix, after, limit)
}

// TestSweepOutlivesItsRequest hangs up while a request sweeps: no client may keep expired logins there that way, nor make
// the node forget how many there are.
func TestSweepOutlivesItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := testStore(), testEngine()
		fill(t, s, "old", 10)
		time.Sleep(loginTTL + 2*time.Second)
		fill(t, s, "young", 5)
		ctx, cancel := context.WithCancel(t.Context())
		_ = roomFor(e, ctx, leaving{s, cancel})
		if left := keys(t, s, loginPrefix); left != 5 {
			t.Errorf("%d logins are left, want 5", left)
		}
		if e.pending.count < 5 {
			t.Errorf("the node counts %d pending logins, want 5 at least", e.pending.count)
		}
	})
}

// broken is a store that cannot be listed.
type broken struct{ storage.Store }

func (broken) List(context.Context, storage.Key, string, int) ([]string, error) {
	return nil, storage.ErrUnavailable
}

// TestFailedCountChangesNothing checks that a count that fails does not make room.
func TestFailedCountChangesNothing(t *testing.T) {
	s, e := testStore(), testEngine()
	e.pending.count = maxPending
	if roomFor(e, t.Context(), broken{s}) == nil {
		t.Error("there is room for another login after a count that failed")
	}
}

// TestAssertionsAreRemembered checks that an assertion stays used for longer than it is acceptable, and not for ever.
func TestAssertionsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := testStore(), testEngine()
		once := func() (fresh bool) {
			t.Helper()
			if _, err := storage.Update(t.Context(), s, func(txn *storage.Txn) (err error) {
				fresh, err = use(t.Context(), txn, assertionKey("idp", "_1"), time.Now().Add(time.Minute))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return fresh
		}
		if !once() || once() {
			t.Error("a new assertion must be fresh, once")
		}
		for range 6 { // a minute of its own, five more for clocks that differ
			time.Sleep(59 * time.Second)
			if err := roomFor(e, t.Context(), s); err != nil || once() {
				t.Fatalf("forgotten too early (%v)", err)
			}
		}
		time.Sleep(10 * time.Second)
		if err := roomFor(e, t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if left := keys(t, s, ""); left != 0 {
			t.Errorf("%d keys are left", left)
		}
	})
}

// TestKeysAreApart checks that nothing stands for something else whose text is the same.
func TestKeysAreApart(t *testing.T) {
	seen := map[storage.Key]bool{}
	for _, key := range []storage.Key{
		loginKey(pollLogin("A")), loginKey(codeLogin("A")), relayKey("A"), linkKey("A"),
		assertionKey("a", "bc"), assertionKey("ab", "c"), assertionKey("", "abc"), assertionKey("1:a", "bc"),
	} {
		_, name, _ := strings.Cut(string(key), "/")
		if seen[storage.Key(name)] {
			t.Errorf("%s names two things", key)
		}
		seen[storage.Key(name)] = true
	}
}

func TestExpirySortsByTime(t *testing.T) {
	at := time.Unix(999_999_998, 0)
	if a, b := expiryKey(at, "b"), expiryKey(at.Add(time.Second), "a"); a >= b {
		t.Errorf("%s is not before %s", a, b)
	}
}

func TestCodes(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		code := newCode(4, 5)
		if seen[code] || len(code) != 23 || strings.Trim(code, alphabet+"-") != "" {
			t.Fatalf("the code %q", code)
		}
		seen[code] = true
		if plainCode(" "+strings.ToLower(code)) != strings.ReplaceAll(code, "-", "") {
			t.Errorf("%q typed in lower case is %q", code, plainCode(strings.ToLower(code)))
		}
	}
}

// TestMountsShareAQueue makes sure that mounts, which tenants make, are no way to more processors.
func TestMountsShareAQueue(t *testing.T) {
	mount := New(Options{})
	a, err := mount(engines.Mount{Path: "auth/a/"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := mount(engines.Mount{Path: "auth/b/"})
	if err != nil {
		t.Fatal(err)
	}
	if a.(*engine).queue != b.(*engine).queue {
		t.Error("each mount verifies as much as a node may")
	}
}

func TestStoredPath(t *testing.T) {
	e := new(engine)
	for path, want := range map[string]string{
		"role/Dev":           "role/dev",
		"role/Dev/explain":   "role/dev/explain",
		"role/DEV/Explain":   "role/dev/Explain",
		"role/":              "role/",
		"role":               "role",
		"Role/Dev":           "Role/Dev",
		"config/Verify":      "config/Verify",
		"token":              "token",
		"role/\u212aelvin/x": "role/kelvin/x", // as normalName does, which then takes it
	} {
		if got := e.StoredPath(path); got != want {
			t.Errorf("StoredPath(%q) = %q, want %q", path, got, want)
		}
	}
}
