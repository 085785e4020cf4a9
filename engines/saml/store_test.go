package saml

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

func testEngine() *engine { return newEngine(slog.New(slog.DiscardHandler), new(Counts)) }

func testStore() storage.Store { return storage.NewView(new(storage.Memory), "l/m/") }

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
		if err := e.room(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if removed, most := before-keys(t, s, ""), 3*sweepPage*sweepPages; removed == 0 || removed > most {
			t.Errorf("one start removed %d keys, want some and at most %d", removed, most)
		}
		for range 10_000 / (sweepPage * sweepPages) {
			if err := e.room(t.Context(), s); err != nil {
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
		if err := e.room(t.Context(), view); err != nil {
			t.Fatal(err)
		}
		err := e.room(t.Context(), view)
		var refused *engines.Error
		if !errors.As(err, &refused) || refused.Kind != engines.KindLimited || refused.Header.Get("Retry-After") != "10" {
			t.Fatalf("one login too many: %v", err)
		}
		// Room is found when the next count comes, not before.
		if _, err := s.Commit(t.Context(), storage.Batch{Deletes: []storage.Key{"l/m/login/0", "l/m/login/1"}}); err != nil {
			t.Fatal(err)
		}
		if e.room(t.Context(), view) == nil {
			t.Error("each start counts")
		}
		time.Sleep(sweepInterval)
		if err := e.room(t.Context(), view); err != nil {
			t.Errorf("after some were redeemed: %v", err)
		}
	})
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
			if err := e.room(t.Context(), s); err != nil || once() {
				t.Fatalf("forgotten too early (%v)", err)
			}
		}
		time.Sleep(10 * time.Second)
		if err := e.room(t.Context(), s); err != nil {
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

func TestSlots(t *testing.T) {
	s := make(slots, 1)
	release, err := s.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.take(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a slot that is taken was given away: %v", err)
	}
	release()
	if _, err := s.take(t.Context()); err != nil {
		t.Error(err)
	}
}
