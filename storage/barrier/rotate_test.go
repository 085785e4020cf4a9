package barrier_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
)

// storedTerm returns the key term that the raw value of key is sealed under.
func storedTerm(t testing.TB, raw storage.Reader, key storage.Key) uint32 {
	t.Helper()
	e, err := raw.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return binary.BigEndian.Uint32(e.Value[2:])
}

func TestRotate(t *testing.T) {
	raw, root := newStore(t)
	b := open(t, raw, root)
	first := b.KeyInfo()
	if first.Term != 1 || first.Encryptions != 0 || time.Since(first.InstalledAt) > time.Hour || time.Since(first.InstalledAt) < 0 {
		t.Errorf("KeyInfo of a new ring = %+v", first)
	}
	mustPut(t, b, "s/m/old", "under the first key")
	if n := b.KeyInfo().Encryptions; n != 1 {
		t.Errorf("Encryptions = %d after one, want 1", n)
	}
	old, err := b.SealBytes("aad", []byte("bytes"))
	if err != nil {
		t.Fatal(err)
	}

	info := rotate(t, b)
	if info.Term != 2 || info.Encryptions != 0 || info.InstalledAt.Before(first.InstalledAt) {
		t.Errorf("Rotate = %+v after %+v", info, first)
	}
	if got := b.KeyInfo(); got != info {
		t.Errorf("KeyInfo = %+v, want %+v", got, info)
	}
	mustPut(t, b, "s/m/new", "under the second key")
	if a, b := storedTerm(t, raw, "s/m/old"), storedTerm(t, raw, "s/m/new"); a != 1 || b != 2 {
		t.Errorf("stored under terms %d and %d, want 1 and 2", a, b)
	}
	for range 5 {
		rotate(t, b)
	}
	check := func(b *barrier.Barrier) {
		t.Helper()
		wantValue(t, b, "s/m/old", "under the first key")
		wantValue(t, b, "s/m/new", "under the second key")
		if plain, err := b.OpenBytes("aad", old); err != nil || string(plain) != "bytes" {
			t.Errorf("OpenBytes of what was sealed before = %q, %v", plain, err)
		}
		if got := b.KeyInfo().Term; got != 7 {
			t.Errorf("term %d, want 7", got)
		}
	}
	check(b)
	b.Seal()
	if err := b.Unseal(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	check(b)
}

// TestRotateElsewhere rotates on one node and watches another one, with and without the feed.
func TestRotateElsewhere(t *testing.T) {
	raw, root := newStore(t)
	active, follower, deaf := open(t, raw, root), open(t, raw, root), barrier.New(raw)
	if err := deaf.Unseal(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	mustPut(t, active, "s/m/a", "before")
	rotate(t, active)
	mustPut(t, active, "s/m/a", "after")
	sealed, err := active.SealBytes("aad", []byte("bytes"))
	if err != nil {
		t.Fatal(err)
	}

	if got := follower.KeyInfo().Term; got != 2 {
		t.Errorf("a node that follows the feed is at term %d, want 2", got)
	}
	mustPut(t, follower, "s/m/b", "by the other one")
	if got := storedTerm(t, raw, "s/m/b"); got != 2 {
		t.Errorf("it seals under term %d, want 2", got)
	}

	if got := deaf.KeyInfo().Term; got != 1 {
		t.Fatalf("a node without the feed is at term %d: the rest tests nothing", got)
	}
	if plain, err := deaf.OpenBytes("aad", sealed); err != nil || string(plain) != "bytes" {
		t.Errorf("without the feed: OpenBytes = %q, %v", plain, err)
	}
	wantValue(t, deaf, "s/m/a", "after")
	rotate(t, active)
	mustPut(t, active, "s/m/a", "after another one")
	wantValue(t, deaf, "s/m/a", "after another one")
	if entries, err := deaf.Scan(t.Context(), "s/m/", "", 0); err != nil || len(entries) != 2 {
		t.Errorf("Scan = %d entries, %v; want 2", len(entries), err)
	}
	// It rotates from what is stored, not from what it knows.
	rotate(t, active)
	if info := rotate(t, deaf); info.Term != 5 {
		t.Errorf("rotated to term %d, want 5", info.Term)
	}
	wantValue(t, active, "s/m/a", "after another one")
}

func TestRotateErrors(t *testing.T) {
	raw, root := newStore(t)
	b := barrier.New(&readOnly{raw})
	if err := b.Unseal(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Rotate(t.Context()); !errors.Is(err, storage.ErrReadOnly) {
		t.Errorf("Rotate on a standby = %v, want ErrReadOnly", err)
	}
	if got := b.KeyInfo().Term; got != 1 {
		t.Errorf("a failed rotation left term %d", got)
	}
}

// readOnly is the raw store of a standby.
type readOnly struct{ storage.Store }

func (*readOnly) Commit(context.Context, storage.Batch) (storage.Index, error) {
	return 0, storage.ErrReadOnly
}

// TestRotateUnderLoad rotates on two nodes while others read and write.
func TestRotateUnderLoad(t *testing.T) {
	raw, root := newStore(t)
	nodes := []*barrier.Barrier{open(t, raw, root), open(t, raw, root)}
	const rotations, keys, writes = 5, 3, 60
	errs := make(chan error, 8) // one for each goroutine
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() { errs <- rotateTimes(t.Context(), n, rotations) })
		wg.Go(func() { errs <- readTimes(t.Context(), n, keys, 200) })
		for k := range 2 {
			wg.Go(func() { errs <- writeTimes(t.Context(), n, k, writes) })
		}
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	fresh := open(t, raw, root)
	if got, want := fresh.KeyInfo().Term, uint32(1+rotations*len(nodes)); got != want {
		t.Errorf("term %d, want %d: a rotation was lost", got, want)
	}
	for k := range 2 {
		wantValue(t, fresh, storage.Key(fmt.Sprintf("s/m/%d", k)), strconv.Itoa(writes*len(nodes)))
	}
}

func rotateTimes(ctx context.Context, b *barrier.Barrier, n int) error {
	for range n {
		if _, err := b.Rotate(ctx); err != nil {
			return err
		}
	}
	return nil
}

func readTimes(ctx context.Context, b *barrier.Barrier, keys, n int) error {
	for i := range n {
		_, err := b.Get(ctx, storage.Key(fmt.Sprintf("s/m/%d", i%keys)))
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
	}
	return nil
}

// writeTimes counts up in one key.
func writeTimes(ctx context.Context, b *barrier.Barrier, key, n int) error {
	k := storage.Key(fmt.Sprintf("s/m/%d", key))
	for range n {
		_, err := storage.Update(ctx, b, func(txn *storage.Txn) error {
			e, err := txn.Get(ctx, k)
			if err != nil && !errors.Is(err, storage.ErrNotFound) {
				return err
			}
			count, _ := strconv.Atoi(string(e.Value))
			txn.Put(k, []byte(strconv.Itoa(count+1)))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// TestReplacedState gives the barrier another state below it, as restoring a snapshot does.
func TestReplacedState(t *testing.T) {
	ctx := t.Context()
	root := barrier.NewRootKey()
	// Two histories of one cluster that share term 1 and have different keys of term 2.
	var one, two storage.Memory
	writeRing(t, &one, root)
	ring, err := one.Get(ctx, ringKey)
	if err != nil {
		t.Fatal(err)
	}
	mustCommit(t, &two, storage.Batch{Puts: []storage.Put{{Key: ringKey, Value: ring.Value}}})
	for _, raw := range []*storage.Memory{&one, &two} {
		b := open(t, raw, root)
		rotate(t, b)
		mustPut(t, b, "s/m/a", "sealed by this history")
	}
	foreign, foreignRoot := newStore(t)
	mustPut(t, open(t, foreign, foreignRoot), "s/m/a", "of another cluster")
	empty := &storage.Memory{}
	reset := storage.Change{Index: 100, Reset: true}

	raw := &swapped{}
	raw.set(&one)
	b := barrier.New(raw)
	if err := b.Unseal(ctx, root); err != nil {
		t.Fatal(err)
	}
	wantValue(t, b, "s/m/a", "sealed by this history")
	raw.set(&two) // even before it is announced
	wantValue(t, b, "s/m/a", "sealed by this history")
	raw.set(&one)
	b.Changed(reset)
	mustPut(t, b, "s/m/b", "written after")
	wantValue(t, open(t, &one, root), "s/m/b", "written after")

	for name, replaced := range map[string]*storage.Memory{"another root key": foreign, "no ring": empty} {
		raw.set(replaced)
		b.Changed(reset)
		if _, err := b.Get(ctx, "s/m/a"); !errors.Is(err, storage.ErrSealed) || errors.Is(err, storage.ErrNotFound) {
			t.Errorf("%s: Get = %v, want ErrSealed and not ErrNotFound", name, err)
		}
		if _, err := b.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: "s/m/c"}}}); !errors.Is(err, storage.ErrSealed) {
			t.Errorf("%s: Commit = %v, want ErrSealed", name, err)
		}
		if _, err := b.Rotate(ctx); err == nil || errors.Is(err, storage.ErrNotFound) {
			t.Errorf("%s: Rotate = %v, want an error that is not ErrNotFound", name, err)
		}
	}
	raw.set(foreign)
	if err := b.Unseal(ctx, foreignRoot); err != nil {
		t.Fatalf("Unseal with the key of the replaced state: %v", err)
	}
	wantValue(t, b, "s/m/a", "of another cluster")
}

// swapped is a raw store that can be replaced.
type swapped struct {
	mu    sync.Mutex
	store storage.Store
}

func (s *swapped) set(store storage.Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store = store
}

func (s *swapped) now() storage.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store
}

func (s *swapped) Get(ctx context.Context, key storage.Key) (storage.Entry, error) {
	return s.now().Get(ctx, key)
}

func (s *swapped) List(ctx context.Context, prefix storage.Key, after string, limit int) ([]string, error) {
	return s.now().List(ctx, prefix, after, limit)
}

func (s *swapped) Scan(ctx context.Context, prefix, after storage.Key, limit int) ([]storage.Entry, error) {
	return s.now().Scan(ctx, prefix, after, limit)
}

func (s *swapped) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	return s.now().Commit(ctx, b)
}

func TestDeriveKey(t *testing.T) {
	raw, root := newStore(t)
	b := open(t, raw, root)
	derive := func(b *barrier.Barrier, purpose string) []byte {
		t.Helper()
		key, err := b.DeriveKey(purpose)
		if err != nil || len(key) != 32 {
			t.Fatalf("DeriveKey = %d bytes, %v; want 32", len(key), err)
		}
		return key
	}
	want := derive(b, "audit")
	if bytes.Equal(want, derive(b, "tokens")) || bytes.Equal(want, derive(b, "")) {
		t.Error("two purposes have the same key")
	}
	rotate(t, b)
	if !bytes.Equal(want, derive(b, "audit")) {
		t.Error("the key changed with a rotation")
	}
	if !bytes.Equal(want, derive(open(t, raw, root), "audit")) {
		t.Error("another node has another key")
	}
	raw2, root2 := newStore(t)
	if bytes.Equal(want, derive(open(t, raw2, root2), "audit")) {
		t.Error("another cluster has the same key")
	}
}

// hooked does something before a commit gets through.
type hooked struct {
	storage.Store
	before func()
}

func (h *hooked) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if before := h.before; before != nil {
		h.before = nil
		before()
	}
	return h.Store.Commit(ctx, b)
}

// A write that is on its way while the key ring changes, by a rotation or because a snapshot is restored that is older
// than the last one, must not end up sealed under a key that no longer exists.
func TestRingChangesUnderAWrite(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(t *testing.T, raw *storage.Memory, other *barrier.Barrier, old []byte)
		want   uint32
	}{
		"rotated elsewhere": {func(t *testing.T, _ *storage.Memory, other *barrier.Barrier, _ []byte) { rotate(t, other) }, 3},
		"restored": {func(t *testing.T, raw *storage.Memory, _ *barrier.Barrier, old []byte) {
			mustCommit(t, raw, storage.Batch{Puts: []storage.Put{{Key: ringKey, Value: old}}})
		}, 1},
	} {
		for _, follows := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, follows the feed: %v", name, follows), func(t *testing.T) {
				raw, root := newStore(t)
				old, err := raw.Get(t.Context(), ringKey)
				if err != nil {
					t.Fatal(err)
				}
				other := open(t, raw, root)
				rotate(t, other)
				store := &hooked{Store: raw}
				b := barrier.New(store)
				if follows {
					t.Cleanup(raw.OnChange(b.Changed))
				}
				if err := b.Unseal(t.Context(), root); err != nil {
					t.Fatal(err)
				}
				store.before = func() { tt.change(t, raw, other, old.Value) }
				mustPut(t, b, "s/m/a", "x")
				if term := storedTerm(t, raw, "s/m/a"); term != tt.want {
					t.Errorf("sealed under term %d, want %d", term, tt.want)
				}
				wantValue(t, b, "s/m/a", "x")
				wantValue(t, open(t, raw, root), "s/m/a", "x")
				// A precondition that does not hold is still the caller's to know.
				stale := storage.Batch{Reads: []storage.Read{{Key: "s/m/a", Version: 1}}, Puts: []storage.Put{{Key: "s/m/a"}}}
				if _, err := b.Commit(t.Context(), stale); !errors.Is(err, storage.ErrConflict) {
					t.Errorf("Commit = %v, want ErrConflict", err)
				}
			})
		}
	}
}
