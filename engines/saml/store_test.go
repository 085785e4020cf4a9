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

// TestPendingLoginsExpire starts 10,000 logins that nobody follows up. Later starts remove them, a bounded number each.
func TestPendingLoginsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := testStore(), testEngine()
		fill(t, s, "old", 10_000)
		time.Sleep(loginTTL - time.Minute)
		fill(t, s, "young", 10)
		time.Sleep(time.Minute + 2*time.Second)
		before := keys(t, s, "")
		if err := e.room(t.Context(), s, nearby); err != nil {
			t.Fatal(err)
		}
		if removed, most := before-keys(t, s, ""), 3*sweepPage*sweepPages; removed == 0 || removed > most {
			t.Errorf("one start removed %d keys, want some and at most %d", removed, most)
		}
		for range 10_000 / (sweepPage * sweepPages) {
			if err := e.room(t.Context(), s, nearby); err != nil {
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
			b.Puts = append(b.Puts, storage.Put{Key: storage.NewKey(storage.Local, "m", fmt.Sprintf("login/%d", i)), Value: []byte("{}")})
		}
		if _, err := s.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		view := storage.NewView(s, "l/m/")
		if err := e.room(t.Context(), view, nearby); err != nil {
			t.Fatal(err)
		}
		err := e.room(t.Context(), view, nearby)
		var refused *engines.Error
		if !errors.As(err, &refused) || refused.Kind != engines.KindLimited || refused.Header.Get("Retry-After") != "10" {
			t.Fatalf("one login too many: %v", err)
		}
		// Room is found when the next count comes, not before.
		if _, err := s.Commit(t.Context(), storage.Batch{Deletes: []storage.Key{"l/m/login/0", "l/m/login/1"}}); err != nil {
			t.Fatal(err)
		}
		if e.room(t.Context(), view, nearby) == nil {
			t.Error("each start counts")
		}
		time.Sleep(sweepInterval)
		if err := e.room(t.Context(), view, nearby); err != nil {
			t.Errorf("after some were redeemed: %v", err)
		}
	})
}

// TestStrangersDoNotFillTheHouse starts as many logins as there is room for from one site: others still get in.
func TestStrangersDoNotFillTheHouse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, now := new(pending), time.Now()
		from := func(addr string) bool { return p.take(now, netip.MustParseAddr(addr)) }
		n := 0
		for n < maxPending && from(fmt.Sprintf("2001:db8:1:2::%x", n)) { // an IPv6 user has 2^64 addresses
			n++
		}
		if n != crowded {
			t.Errorf("one site may start %d logins, want %d", n, crowded)
		}
		for i := range maxOfOne {
			if !from("192.0.2.1") || !from(fmt.Sprintf("2001:db8:1:%x::1", 10+i)) {
				t.Fatalf("somebody else is refused the %dth time", i)
			}
		}
		if from("192.0.2.1") || from("::ffff:192.0.2.1") || from("2001:db8:1:2::") {
			t.Error("there is still room for those who have started many")
		}
		now = now.Add(loginTTL)
		if from("2001:db8:1:2::") {
			t.Error("it is forgotten at once")
		}
		if p.take(now, netip.Addr{}); !from("192.0.2.2") {
			t.Error("somebody else is refused")
		}
		if now = now.Add(loginTTL); !from("2001:db8:1:2::") {
			t.Error("it is never forgotten")
		}
	})
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

// TestSweepOutlivesItsRequest hangs up while a request sweeps: nobody may keep expired logins there that way, nor make
// the node forget how many there are.
func TestSweepOutlivesItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := testStore(), testEngine()
		fill(t, s, "old", 10)
		time.Sleep(loginTTL + 2*time.Second)
		fill(t, s, "young", 5)
		ctx, cancel := context.WithCancel(t.Context())
		_ = e.room(ctx, leaving{s, cancel}, nearby)
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
	if e.room(t.Context(), broken{s}, nearby) == nil {
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
			if err := e.room(t.Context(), s, nearby); err != nil || once() {
				t.Fatalf("forgotten too early (%v)", err)
			}
		}
		time.Sleep(10 * time.Second)
		if err := e.room(t.Context(), s, nearby); err != nil {
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
