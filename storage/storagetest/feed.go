package storagetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/storage"
)

// FeedStore is a Store that announces what it applies.
type FeedStore interface {
	storage.Store
	storage.Feed
}

// RunFeed checks that the stores open returns, each of them empty and with whole keys, keep the contract of
// storage.Feed. It expects the changes that the store announces to hold the values that Get returns.
func RunFeed(t *testing.T, open func(testing.TB) FeedStore) {
	tests := []struct {
		name string
		test func(*testing.T, FeedStore)
	}{
		{"announces what was applied", testAnnounced},
		{"two subscribers", testSubscribers},
		{"stop", testStop},
		{"replaying the feed gives the state", testReplay},
		{"reads that begin after the call see the change", testVisible},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, open(t)) })
	}
}

// recorder keeps changes. A change must have reached it when Commit returns.
type recorder struct {
	mu      sync.Mutex
	changes []storage.Change
}

func (r *recorder) add(ch storage.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes = append(r.changes, ch)
}

// take returns what was recorded since the last call, without changes that changed nothing.
func (r *recorder) take() []storage.Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.changes
	r.changes = nil
	return slices.DeleteFunc(out, func(ch storage.Change) bool {
		return len(ch.Entries) == 0 && !ch.Reset
	})
}

func testAnnounced(t *testing.T, s FeedStore) {
	mustPut(t, s, "s/m/early", "before anybody listens")
	var rec recorder
	stop := s.OnChange(rec.add)
	defer stop()

	idx := mustCommit(t, s, storage.Batch{Puts: []storage.Put{put("s/m/a", "1"), put("s/m/b", "2")}})
	got := rec.take()
	if len(got) != 1 || got[0].Index != idx || got[0].Reset {
		t.Fatalf("after one commit at %d: %d changes %v, want one", idx, len(got), got)
	}
	puts := slices.SortedFunc(slices.Values(got[0].Entries), func(a, b storage.Entry) int {
		return slices.Compare([]byte(a.Key), []byte(b.Key))
	})
	if want := mustScan(t, s, "s/m/", "s/m/", 2); !slices.EqualFunc(puts, want, sameEntry) {
		t.Errorf("announced %s, stored %s", describe(puts), describe(want))
	}

	idx = mustCommit(t, s, storage.Batch{Puts: []storage.Put{put("s/m/c", "3")}, Deletes: []storage.Key{"s/m/a"}})
	got = rec.take()
	deleted := func(e storage.Entry) bool { return e.Key == "s/m/a" && e.Version == 0 && e.Value == nil }
	if len(got) != 1 || got[0].Index != idx || len(got[0].Entries) != 2 || !slices.ContainsFunc(got[0].Entries, deleted) {
		t.Fatalf("after a put and a delete at %d: %v", idx, got)
	}

	conflict := storage.Batch{Reads: []storage.Read{{Key: "s/m/b"}}, Puts: []storage.Put{put("s/m/d", "4")}}
	if _, err := s.Commit(t.Context(), conflict); !errors.Is(err, storage.ErrConflict) {
		t.Fatalf("Commit = %v, want ErrConflict", err)
	}
	if got = rec.take(); len(got) != 0 {
		t.Errorf("a conflict was announced as %v", got)
	}
}

func testSubscribers(t *testing.T, s FeedStore) {
	var one, two recorder
	defer s.OnChange(one.add)()
	stopTwo := s.OnChange(two.add)
	mustPut(t, s, "s/m/a", "1")
	if a, b := len(one.take()), len(two.take()); a != 1 || b != 1 {
		t.Errorf("the subscribers saw %d and %d changes, want 1 and 1", a, b)
	}
	stopTwo()
	mustPut(t, s, "s/m/a", "2")
	if a, b := len(one.take()), len(two.take()); a != 1 || b != 0 {
		t.Errorf("after one stopped they saw %d and %d changes, want 1 and 0", a, b)
	}
	var of, all recorder
	defer s.OnChange(of.add, "n", "o")()
	defer s.OnChange(all.add)()
	mustPut(t, s, "s/m/a", "3")
	mustCommit(t, s, storage.Batch{Puts: []storage.Put{put("s/m/a", "4"), put("l/o/b", "4")}})
	if a, b := of.take(), all.take(); len(a) != 1 || len(b) != 2 || len(a[0].Entries) != 2 {
		t.Errorf("of two changes, one of them of the area o, a subscriber of the areas n and o saw %v, one of all %v", a, b)
	}
}

func testStop(t *testing.T, s FeedStore) {
	var rec recorder
	stop := s.OnChange(rec.add)
	mustPut(t, s, "s/m/a", "1")
	stop()
	stop() // stopping twice is fine
	mustPut(t, s, "s/m/a", "2")
	if got := rec.take(); len(got) != 1 {
		t.Errorf("%d changes, want only the one before stop", len(got))
	}
}

// testReplay commits from several goroutines and rebuilds the state from what the feed said.
func testReplay(t *testing.T, s FeedStore) {
	var rec recorder
	defer s.OnChange(rec.add)()
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for i := range 40 {
				b := storage.Batch{Puts: []storage.Put{
					put(storage.Key(fmt.Sprintf("s/m/shared-%d", i%5)), fmt.Sprintf("%d of %d", i, w)),
					put(storage.Key(fmt.Sprintf("s/m/own-%d-%d", w, i)), "x"),
				}}
				if i >= 10 {
					b.Deletes = []storage.Key{storage.Key(fmt.Sprintf("s/m/own-%d-%d", w, i-10))}
				}
				if _, err := s.Commit(t.Context(), b); err != nil {
					errs[w] = err
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	m := model{}
	last := storage.Index(0)
	for _, ch := range rec.take() {
		if ch.Index <= last {
			t.Fatalf("change at %d announced after the one at %d", ch.Index, last)
		}
		last = ch.Index
		for _, e := range ch.Entries {
			if m[e.Key] = e; e.Version == 0 {
				delete(m, e.Key)
			}
		}
	}
	wantSame(t, s, m.scan("s/", "", 0))
}

// testVisible starts reads inside the calls. A store that called first and changed its state afterwards
// would let a cache keep what it loaded in between.
func testVisible(t *testing.T, s FeedStore) {
	const rounds = 50
	type read struct {
		at    storage.Index
		entry storage.Entry
		err   error
	}
	reads := make(chan read, rounds) // every read of the test has room, so that no reader waits
	defer s.OnChange(func(ch storage.Change) {
		if !ch.Touches("s/m/a") {
			return
		}
		begun := make(chan struct{}) // closed when the reader runs
		go func() {
			close(begun)
			e, err := s.Get(t.Context(), "s/m/a")
			reads <- read{ch.Index, e, err}
		}()
		<-begun
	})()
	for i := range rounds {
		mustPut(t, s, "s/m/a", strconv.Itoa(i))
		if r := <-reads; r.err != nil || r.entry.Version < r.at {
			t.Fatalf("a read begun after the announcement of %d saw version %d, %v", r.at, r.entry.Version, r.err)
		}
	}
}
