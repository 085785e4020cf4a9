// Package storagetest holds the conformance suites of the storage contract. Every Store runs Run, or RunView
// if its keys are relative, and every Feed runs RunFeed: a test is here when callers rely on what it shows,
// whatever the store is made of.
//
// The suites wait for no clock. They commit a few thousand small batches and some of several MiB.
package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/storage"
)

// Run checks that the stores open returns, each of them empty, keep the contract of storage.Store with whole
// keys. open registers its own cleanup.
func Run(t *testing.T, open func(testing.TB) storage.Store) {
	runRelative(t, open)
	t.Run("keys", func(t *testing.T) { testWholeKeys(t, open(t)) })
}

// RunView is Run for stores whose keys are relative, so that any text can be a key.
func RunView(t *testing.T, open func(testing.TB) storage.Store) { runRelative(t, open) }

func runRelative(t *testing.T, open func(testing.TB) storage.Store) {
	tests := []struct {
		name string
		test func(*testing.T, storage.Store)
	}{
		{"get put delete", testGetPutDelete},
		{"versions", testVersions},
		{"origins", testOrigins},
		{"preconditions", testPreconditions},
		{"all or nothing", testAllOrNothing},
		{"batches are seen whole", testWholeBatches},
		{"list", testList},
		{"scan", testScan},
		{"limits", testLimits},
		{"refused batches", testRefused},
		{"update under contention", testUpdate},
		{"delete prefix", testDeletePrefix},
		{"ended context", testContext},
		{"random operations", testRandom},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, open(t)) })
	}
}

func testGetPutDelete(t *testing.T, s storage.Store) {
	ctx := t.Context()
	wantAbsent(t, s, "s/m/a")
	if entries := mustScan(t, s, "s/", "", 0); len(entries) != 0 {
		t.Fatalf("a new store holds %d entries, want none", len(entries))
	}
	mustPut(t, s, "s/m/a", "one")
	mustPut(t, s, "l/m/a", "local")
	wantValue(t, s, "s/m/a", "one")
	wantValue(t, s, "l/m/a", "local")
	wantAbsent(t, s, "s/m")
	wantAbsent(t, s, "s/m/")
	wantAbsent(t, s, "s/m/a/")

	mustPut(t, s, "s/m/a", "two")
	wantValue(t, s, "s/m/a", "two")
	mustPut(t, s, "s/m/empty", "")
	wantValue(t, s, "s/m/empty", "")

	mustCommit(t, s, storage.Batch{Deletes: []storage.Key{"s/m/a", "s/m/never-was"}})
	wantAbsent(t, s, "s/m/a")
	wantValue(t, s, "l/m/a", "local")
	mustPut(t, s, "s/m/a", "three")
	wantValue(t, s, "s/m/a", "three")

	// Any bytes may be a value.
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	mustPut(t, s, "s/m/bytes", string(all))
	wantValue(t, s, "s/m/bytes", string(all))

	if _, err := s.Commit(ctx, storage.Batch{}); err != nil {
		t.Errorf("Commit of an empty batch: %v", err)
	}
}

func testVersions(t *testing.T, s storage.Store) {
	first := mustPut(t, s, "s/m/a", "one")
	if first == 0 {
		t.Fatal("Commit answered index 0, which is before the first entry")
	}
	if e := mustGet(t, s, "s/m/a"); e.Version != first || e.Key != "s/m/a" {
		t.Errorf("Get = key %q version %d, want key %q version %d", e.Key, e.Version, "s/m/a", first)
	}
	second := mustCommit(t, s, storage.Batch{Puts: []storage.Put{put("s/m/b", "b"), put("s/m/c", "c")}})
	if second <= first {
		t.Errorf("the second commit has index %d, the first one %d", second, first)
	}
	for _, e := range mustScan(t, s, "s/m/", "", 0) {
		want := second
		if e.Key == "s/m/a" {
			want = first
		}
		if e.Version != want {
			t.Errorf("Scan: %s has version %d, want %d", e.Key, e.Version, want)
		}
	}
	// The same value again is a new version, and so is a key that comes back.
	third := mustPut(t, s, "s/m/a", "one")
	if e := mustGet(t, s, "s/m/a"); e.Version != third || third <= second {
		t.Errorf("rewritten at %d after %d, Get has version %d", third, second, e.Version)
	}
	mustCommit(t, s, storage.Batch{Deletes: []storage.Key{"s/m/a"}})
	back := mustPut(t, s, "s/m/a", "one")
	if e := mustGet(t, s, "s/m/a"); e.Version != back || back <= third {
		t.Errorf("recreated at %d after %d, Get has version %d", back, third, e.Version)
	}
}

// testOrigins: where a value comes from is kept with it, goes with it, and does not count as its version.
func testOrigins(t *testing.T, s storage.Store) {
	here, there := storage.Position{}, storage.Position{Epoch: 7, Index: 1 << 40}
	copied := storage.Put{Key: "s/m/a", Value: []byte("one"), Origin: there}
	at := mustCommit(t, s, storage.Batch{Puts: []storage.Put{copied, put("s/m/b", "one"), {Key: "s/m/c", Origin: there}}})
	want := []storage.Entry{
		{Key: "s/m/a", Value: []byte("one"), Version: at, Origin: there},
		{Key: "s/m/b", Value: []byte("one"), Version: at},
		{Key: "s/m/c", Version: at, Origin: there},
	}
	wantSame(t, s, want)
	for _, e := range want {
		if got := mustGet(t, s, e.Key); !sameEntry(got, e) {
			t.Errorf("Get = %s, want %s", describe([]storage.Entry{got}), describe([]storage.Entry{e}))
		}
	}
	for _, origin := range []storage.Position{{Epoch: 1, Index: 1}, here, {Epoch: ^uint32(0), Index: ^storage.Index(0)}, here} {
		copied.Origin = origin
		batch := storage.Batch{Reads: []storage.Read{{Key: "s/m/a", Version: at}}, Puts: []storage.Put{copied}}
		at = mustCommit(t, s, batch)
		if got := mustGet(t, s, "s/m/a"); got.Origin != origin || got.Version != at {
			t.Errorf("rewritten at %d with the origin %s, Get has version %d, origin %s", at, origin, got.Version, got.Origin)
		}
	}
}

func testPreconditions(t *testing.T, s storage.Store) {
	here := mustPut(t, s, "s/m/here", "v")
	old := mustPut(t, s, "s/m/changed", "v")
	now := mustPut(t, s, "s/m/changed", "w")
	gone := mustPut(t, s, "s/m/gone", "v")
	mustCommit(t, s, storage.Batch{Deletes: []storage.Key{"s/m/gone"}})

	tests := []struct {
		name  string
		reads []storage.Read
		want  error
	}{
		{"none", nil, nil},
		{"unchanged", []storage.Read{{Key: "s/m/here", Version: here}}, nil},
		{"absent", []storage.Read{{Key: "s/m/nowhere"}}, nil},
		{"absent again", []storage.Read{{Key: "s/m/gone"}}, nil},
		{"several", []storage.Read{{Key: "s/m/here", Version: here}, {Key: "s/m/changed", Version: now}, {Key: "s/m/gone"}}, nil},
		{"changed", []storage.Read{{Key: "s/m/changed", Version: old}}, storage.ErrConflict},
		{"from the future", []storage.Read{{Key: "s/m/here", Version: now + 1000}}, storage.ErrConflict},
		{"not absent", []storage.Read{{Key: "s/m/here"}}, storage.ErrConflict},
		{"never existed", []storage.Read{{Key: "s/m/nowhere", Version: here}}, storage.ErrConflict},
		{"deleted since", []storage.Read{{Key: "s/m/gone", Version: gone}}, storage.ErrConflict},
		{"the last of several", []storage.Read{{Key: "s/m/here", Version: here}, {Key: "s/m/changed", Version: old}}, storage.ErrConflict},
		{"the first of several", []storage.Read{{Key: "s/m/changed", Version: old}, {Key: "s/m/here", Version: here}}, storage.ErrConflict},
	}
	for i, tt := range tests {
		_, err := s.Commit(t.Context(), storage.Batch{Reads: tt.reads})
		if !errors.Is(err, tt.want) {
			t.Errorf("%s, only checked: Commit = %v, want %v", tt.name, err, tt.want)
		}
		key := storage.Key("s/out/" + strconv.Itoa(i))
		_, err = s.Commit(t.Context(), storage.Batch{Reads: tt.reads, Puts: []storage.Put{put(key, "x")}})
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: Commit = %v, want %v", tt.name, err, tt.want)
		}
		if tt.want == nil {
			wantValue(t, s, key, "x")
		} else {
			wantAbsent(t, s, key)
		}
	}
	// A precondition on a key that the batch itself writes looks at the state before the batch.
	if _, err := s.Commit(t.Context(), storage.Batch{
		Reads: []storage.Read{{Key: "s/m/new"}}, Puts: []storage.Put{put("s/m/new", "x")},
	}); err != nil {
		t.Errorf("creating a key that must be absent: %v", err)
	}
	if _, err := s.Commit(t.Context(), storage.Batch{
		Reads: []storage.Read{{Key: "s/m/here", Version: here}}, Deletes: []storage.Key{"s/m/here"},
	}); err != nil {
		t.Errorf("deleting a key that must be unchanged: %v", err)
	}
	wantAbsent(t, s, "s/m/here")
}

func testAllOrNothing(t *testing.T, s storage.Store) {
	v := mustPut(t, s, "s/m/a", "a")
	mustPut(t, s, "s/m/b", "b")
	before := mustScan(t, s, "s/", "", 0)
	batch := storage.Batch{
		Reads:   []storage.Read{{Key: "s/m/a", Version: v}, {Key: "s/m/b", Version: v}},
		Puts:    []storage.Put{put("s/m/a", "changed"), put("s/m/c", "created")},
		Deletes: []storage.Key{"s/m/b"},
	}
	if _, err := s.Commit(t.Context(), batch); !errors.Is(err, storage.ErrConflict) {
		t.Fatalf("Commit with a stale precondition = %v, want ErrConflict", err)
	}
	wantSame(t, s, before)

	batch.Reads = batch.Reads[:1]
	idx := mustCommit(t, s, batch)
	wantValue(t, s, "s/m/a", "changed")
	wantValue(t, s, "s/m/c", "created")
	wantAbsent(t, s, "s/m/b")
	if a, c := mustGet(t, s, "s/m/a").Version, mustGet(t, s, "s/m/c").Version; a != idx || c != idx {
		t.Errorf("one batch at %d left versions %d and %d", idx, a, c)
	}
}

// testWholeBatches reads while batches that keep two keys equal are committed.
func testWholeBatches(t *testing.T, s storage.Store) {
	const rounds = 100
	done := make(chan struct{}) // closed when the writer has finished
	var writeErr error
	go func() {
		defer close(done)
		for i := range rounds {
			v := strconv.Itoa(i)
			_, writeErr = s.Commit(context.Background(), storage.Batch{Puts: []storage.Put{put("s/m/a", v), put("s/m/b", v)}})
			if writeErr != nil {
				return
			}
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		entries := mustScan(t, s, "s/m/", "", 0)
		switch {
		case len(entries) == 0 && running:
		case len(entries) != 2 || !bytes.Equal(entries[0].Value, entries[1].Value) || entries[0].Version != entries[1].Version:
			t.Fatalf("Scan saw part of a batch: %s", describe(entries))
		}
	}
	if writeErr != nil {
		t.Fatal(writeErr)
	}
	wantValue(t, s, "s/m/a", strconv.Itoa(rounds-1))
}

func testLimits(t *testing.T, s storage.Store) {
	largest := strings.Repeat("v", storage.MaxValueBytes)
	mustPut(t, s, "s/m/large", largest)
	wantValue(t, s, "s/m/large", largest)
	if n := len(mustScan(t, s, "s/m/", "", 0)[0].Value); n != len(largest) {
		t.Errorf("Scan returned %d bytes of %d", n, len(largest))
	}

	before := mustScan(t, s, "s/", "", 0)
	tooLarge := put("s/m/larger", strings.Repeat("v", storage.MaxValueBytes+1024))
	many := storage.Batch{}
	for i := range storage.MaxBatchBytes/storage.MaxValueBytes + 1 {
		many.Puts = append(many.Puts, put(storage.Key("s/m/"+strconv.Itoa(i)), largest))
	}
	long := storage.Key("s/m/" + strings.Repeat("k", storage.MaxKeyBytes))
	for name, b := range map[string]storage.Batch{
		"value":           {Puts: []storage.Put{put("s/m/small", "x"), tooLarge}},
		"batch":           many,
		"key of a put":    {Puts: []storage.Put{put("s/m/small", "x"), put(long, "x")}},
		"key of a delete": {Puts: []storage.Put{put("s/m/small", "x")}, Deletes: []storage.Key{long}},
	} {
		if _, err := s.Commit(t.Context(), b); !errors.Is(err, storage.ErrTooLarge) {
			t.Errorf("%s beyond the limit: Commit = %v, want ErrTooLarge", name, err)
		}
	}
	wantSame(t, s, before)
}

// refusedKeys are keys that no store takes, relative or not.
var refusedKeys = []storage.Key{"s/m/nul\x00", "s/m/\xff", "s/m/a\xc3"}

func testRefused(t *testing.T, s storage.Store) {
	v := mustPut(t, s, "s/m/a", "a")
	before := mustScan(t, s, "s/", "", 0)
	refused := map[string]storage.Batch{
		"put twice":      {Puts: []storage.Put{put("s/m/b", "1"), put("s/m/b", "2")}},
		"put and delete": {Puts: []storage.Put{put("s/m/a", "1")}, Deletes: []storage.Key{"s/m/a"}},
		"deleted twice":  {Deletes: []storage.Key{"s/m/a", "s/m/a"}},
		"no epoch":       {Puts: []storage.Put{put("s/m/b", "1"), {Key: "s/m/c", Origin: storage.Position{Index: 1}}}},
		"no index":       {Puts: []storage.Put{put("s/m/b", "1"), {Key: "s/m/c", Origin: storage.Position{Epoch: 1}}}},
	}
	for _, k := range refusedKeys {
		addKey(refused, k, storage.Read{Key: "s/m/a", Version: v})
	}
	wantRefused(t, s, refused)
	wantSame(t, s, before)
}

func testWholeKeys(t *testing.T, s storage.Store) {
	v := mustPut(t, s, "s/m/a", "a")
	longest := storage.Key("s/m/" + strings.Repeat("k", storage.MaxKeyBytes-4))
	mustPut(t, s, longest, "v")
	wantValue(t, s, longest, "v")
	mustCommit(t, s, storage.Batch{Deletes: []storage.Key{longest}})

	before := mustScan(t, s, "s/", "", 0)
	refused := map[string]storage.Batch{}
	for _, k := range []storage.Key{"", "s", "s/", "s/m", "s//a", "n/m/a", "x/m/a", "S/m/a", "/m/a", "sm/a", "ss/m/a"} {
		addKey(refused, k, storage.Read{Key: "s/m/a", Version: v})
	}
	wantRefused(t, s, refused)
	wantSame(t, s, before)
}

// addKey adds batches that are fine but for one key.
func addKey(batches map[string]storage.Batch, k storage.Key, fine storage.Read) {
	name := fmt.Sprintf("key %q ", k)
	puts := []storage.Put{put("s/m/fine", "x")}
	batches[name+"put"] = storage.Batch{Puts: append(slices.Clone(puts), put(k, "x"))}
	batches[name+"deleted"] = storage.Batch{Puts: puts, Deletes: []storage.Key{k}}
	batches[name+"read"] = storage.Batch{Reads: []storage.Read{fine, {Key: k}}, Puts: puts}
}

func wantRefused(t *testing.T, s storage.Store, batches map[string]storage.Batch) {
	t.Helper()
	for name, b := range batches {
		if _, err := s.Commit(t.Context(), b); err == nil {
			t.Errorf("%s: Commit took the batch", name)
		} else if errors.Is(err, storage.ErrConflict) || errors.Is(err, storage.ErrOutcomeUnknown) {
			t.Errorf("%s: Commit = %v, which a caller would try again", name, err)
		}
	}
}

func testUpdate(t *testing.T, s storage.Store) {
	const writers, rounds = 8, 25
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for range rounds {
				if _, err := storage.Update(t.Context(), s, increment); err != nil {
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
	wantValue(t, s, "s/m/counter", strconv.Itoa(writers*rounds))

	refusal := errors.New("refused")
	before := mustScan(t, s, "s/", "", 0)
	_, err := storage.Update(t.Context(), s, func(txn *storage.Txn) error {
		txn.Put("s/m/counter", []byte("lost"))
		return refusal
	})
	if !errors.Is(err, refusal) {
		t.Errorf("Update = %v, want the function's error", err)
	}
	wantSame(t, s, before)
}

func increment(txn *storage.Txn) error {
	n := 0
	switch e, err := txn.Get(context.Background(), "s/m/counter"); {
	case errors.Is(err, storage.ErrNotFound):
	case err != nil:
		return err
	default:
		if n, err = strconv.Atoi(string(e.Value)); err != nil {
			return err
		}
	}
	txn.Put("s/m/counter", []byte(strconv.Itoa(n+1)))
	return nil
}

func testDeletePrefix(t *testing.T, s storage.Store) {
	for i := range 12 {
		var b storage.Batch
		for j := range 100 {
			b.Puts = append(b.Puts, put(storage.Key(fmt.Sprintf("s/m/%d/%d", i, j)), "x"))
		}
		mustCommit(t, s, b)
	}
	keep := mustScan(t, s, "s/m/1/", "", 0)
	for i := range 12 {
		if i == 1 {
			continue // "s/m/1" would be a prefix of the tenth and eleventh
		}
		if err := storage.DeletePrefix(t.Context(), s, storage.Key(fmt.Sprintf("s/m/%d/", i))); err != nil {
			t.Fatal(err)
		}
	}
	wantSame(t, s, keep)
	if err := storage.DeletePrefix(t.Context(), s, "s/m"); err != nil {
		t.Fatal(err)
	}
	wantSame(t, s, nil)
}

func testContext(t *testing.T, s storage.Store) {
	mustPut(t, s, "s/m/a", "a")
	before := mustScan(t, s, "s/", "", 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	calls := map[string]func() error{
		"Get":  func() error { _, err := s.Get(ctx, "s/m/a"); return err },
		"List": func() error { _, err := s.List(ctx, "s/m/", "", 0); return err },
		"Scan": func() error { _, err := s.Scan(ctx, "s/m/", "", 0); return err },
		"Commit": func() error {
			_, err := s.Commit(ctx, storage.Batch{Puts: []storage.Put{put("s/m/b", "b")}})
			return err
		},
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with an ended context = %v, want context.Canceled", name, err)
		}
	}
	wantSame(t, s, before)
}
