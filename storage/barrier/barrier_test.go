package barrier_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
	"github.com/coffer-project/coffer/storage/storagetest"
)

const ringKey = "l/barrier/keyring"

// newStore returns a raw store with a key ring, and its root key.
func newStore(t testing.TB) (*storage.Memory, []byte) {
	t.Helper()
	raw, root := &storage.Memory{}, barrier.NewRootKey()
	writeRing(t, raw, root)
	return raw, root
}

func writeRing(t testing.TB, raw storage.Store, root []byte) {
	t.Helper()
	ring, err := barrier.KeyringPut(root)
	if err != nil {
		t.Fatal(err)
	}
	mustCommit(t, raw, storage.Batch{Puts: []storage.Put{ring}})
}

// open returns an unsealed barrier that follows the feed of raw, as on every node of a cluster.
func open(t testing.TB, raw *storage.Memory, root []byte) *barrier.Barrier {
	t.Helper()
	b := barrier.New(raw)
	t.Cleanup(raw.OnChange(b.Changed))
	if err := b.Unseal(t.Context(), root); err != nil {
		t.Fatalf("Unseal: %v", err)
	}
	return b
}

func mustCommit(t testing.TB, s storage.Committer, b storage.Batch) storage.Index {
	t.Helper()
	idx, err := s.Commit(t.Context(), b)
	if err != nil {
		t.Fatalf("Commit: %v", err)
	}
	return idx
}

func mustPut(t testing.TB, s storage.Committer, key storage.Key, value string) {
	t.Helper()
	mustCommit(t, s, storage.Batch{Puts: []storage.Put{{Key: key, Value: []byte(value)}}})
}

func wantValue(t testing.TB, s storage.Reader, key storage.Key, want string) {
	t.Helper()
	if e, err := s.Get(t.Context(), key); err != nil || string(e.Value) != want {
		t.Errorf("Get(%q) = %.60q, %v; want %.60q", key, e.Value, err, want)
	}
}

func wantCorrupt(t testing.TB, err error, key storage.Key) {
	t.Helper()
	var corrupt *storage.CorruptError
	if !errors.As(err, &corrupt) || corrupt.File != "the replicated state" || !strings.Contains(corrupt.Detail, string(key)) {
		t.Errorf("error %v, want a CorruptError of the replicated state that names %q", err, key)
	}
}

func rotate(t testing.TB, b *barrier.Barrier) barrier.KeyInfo {
	t.Helper()
	info, err := b.Rotate(t.Context())
	if err != nil {
		t.Fatalf("Rotate: %v", err)
	}
	return info
}

func TestStore(t *testing.T) {
	storagetest.Run(t, func(t testing.TB) storage.Store {
		raw, root := newStore(t)
		return open(t, raw, root)
	})
}

func TestStoreAfterRotations(t *testing.T) {
	storagetest.Run(t, func(t testing.TB) storage.Store {
		raw, root := newStore(t)
		b := open(t, raw, root)
		return &rotating{Barrier: b, t: t}
	})
}

// rotating rotates before every eighth commit.
type rotating struct {
	*barrier.Barrier
	t       testing.TB
	mu      sync.Mutex
	commits int
}

func (r *rotating) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	r.mu.Lock()
	r.commits++
	due := r.commits%8 == 0
	r.mu.Unlock()
	if due {
		if _, err := r.Rotate(r.t.Context()); err != nil {
			return 0, err
		}
	}
	return r.Barrier.Commit(ctx, b)
}

func TestSealed(t *testing.T) {
	ctx := t.Context()
	raw, root := newStore(t)
	b := barrier.New(raw)
	operations := map[string]func() error{
		"Get":         func() error { _, err := b.Get(ctx, "s/m/a"); return err },
		"Get raw":     func() error { _, err := b.Get(ctx, ringKey); return err },
		"List":        func() error { _, err := b.List(ctx, "s/m/", "", 0); return err },
		"Scan":        func() error { _, err := b.Scan(ctx, "s/m/", "", 0); return err },
		"Commit":      func() error { _, err := b.Commit(ctx, storage.Batch{Deletes: []storage.Key{"s/m/a"}}); return err },
		"Commit none": func() error { _, err := b.Commit(ctx, storage.Batch{}); return err },
		"Rotate":      func() error { _, err := b.Rotate(ctx); return err },
		"SealBytes":   func() error { _, err := b.SealBytes("aad", nil); return err },
		"OpenBytes":   func() error { _, err := b.OpenBytes("aad", nil); return err },
		"DeriveKey":   func() error { _, err := b.DeriveKey("purpose"); return err },
	}
	wantSealed := func(when string) {
		t.Helper()
		if !b.Sealed() {
			t.Errorf("%s: Sealed() = false", when)
		}
		if info := b.KeyInfo(); info != (barrier.KeyInfo{}) {
			t.Errorf("%s: KeyInfo() = %v, want nothing", when, info)
		}
		for name, op := range operations {
			if err := op(); !errors.Is(err, storage.ErrSealed) {
				t.Errorf("%s: %s = %v, want ErrSealed", when, name, err)
			}
		}
	}
	wantSealed("new")
	if err := b.Unseal(ctx, root); err != nil || b.Sealed() {
		t.Fatalf("Unseal = %v, sealed %v", err, b.Sealed())
	}
	mustPut(t, b, "s/m/a", "v")
	b.Seal()
	wantSealed("sealed")
	b.Seal()
	wantSealed("sealed twice")
	if err := b.Unseal(ctx, root); err != nil {
		t.Fatal(err)
	}
	wantValue(t, b, "s/m/a", "v")
}

func TestUnsealErrors(t *testing.T) {
	raw, root := newStore(t)
	stored, err := raw.Get(t.Context(), ringKey)
	if err != nil {
		t.Fatal(err)
	}
	changed := func(at int) []byte {
		v := bytes.Clone(stored.Value)
		v[at] ^= 1
		return v
	}
	var corrupt *storage.CorruptError
	tests := []struct {
		name string
		ring []byte // nil: none
		root []byte
		want func(error) bool
	}{
		{"right", stored.Value, root, func(err error) bool { return err == nil }},
		{"another key", stored.Value, barrier.NewRootKey(), is(barrier.ErrWrongKey)},
		{"short key", stored.Value, root[:31], is(barrier.ErrWrongKey)},
		{"no key", stored.Value, nil, is(barrier.ErrWrongKey)},
		{"no ring", nil, root, is(storage.ErrNotFound)},
		{"empty ring", []byte{}, root, func(err error) bool { return errors.As(err, &corrupt) }},
		{"changed magic", changed(0), root, func(err error) bool { return errors.As(err, &corrupt) }},
		{"only magic", stored.Value[:14], root, func(err error) bool { return errors.As(err, &corrupt) }},
		{"later format", changed(14), root, func(err error) bool { return err != nil && strings.Contains(err.Error(), "format") }},
		{"only a header", stored.Value[:15], root, is(barrier.ErrWrongKey)},
		{"changed nonce", changed(15), root, is(barrier.ErrWrongKey)},
		{"changed tag", changed(len(stored.Value) - 1), root, is(barrier.ErrWrongKey)},
		{"cut", stored.Value[:len(stored.Value)-1], root, is(barrier.ErrWrongKey)},
	}
	for _, tt := range tests {
		var raw storage.Memory
		if tt.ring != nil {
			mustCommit(t, &raw, storage.Batch{Puts: []storage.Put{{Key: ringKey, Value: tt.ring}}})
		}
		b := barrier.New(&raw)
		err := b.Unseal(t.Context(), tt.root)
		if !tt.want(err) || b.Sealed() != (err != nil) {
			t.Errorf("%s: Unseal = %v, sealed %v", tt.name, err, b.Sealed())
		}
	}
	if _, err := barrier.KeyringPut(root[:16]); err == nil {
		t.Error("KeyringPut took a root key of 16 bytes")
	}
}

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func TestFailedUnsealChangesNothing(t *testing.T) {
	raw, root := newStore(t)
	b := open(t, raw, root)
	mustPut(t, b, "s/m/a", "v")
	want, err := b.DeriveKey("p")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Unseal(t.Context(), barrier.NewRootKey()); !errors.Is(err, barrier.ErrWrongKey) {
		t.Fatalf("Unseal = %v, want ErrWrongKey", err)
	}
	wantValue(t, b, "s/m/a", "v")
	if got, err := b.DeriveKey("p"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("DeriveKey changed, %v", err)
	}
}

func TestUnsealCopiesItsKey(t *testing.T) {
	raw, root := newStore(t)
	mine := bytes.Clone(root)
	b := open(t, raw, mine)
	clear(mine)
	rotate(t, b)
	b.Seal()
	if err := b.Unseal(t.Context(), root); err != nil {
		t.Errorf("Unseal after the caller wiped its copy: %v", err)
	}
}

// TestNothingReadable looks at what reaches the raw store.
func TestNothingReadable(t *testing.T) {
	raw, root := newStore(t)
	b := open(t, raw, root)
	const plain = "a plaintext long enough to be found"
	mustPut(t, b, "s/m/a", plain)
	mustPut(t, b, "s/m/b", plain)
	rotate(t, b)
	sealed, err := b.SealBytes("aad", []byte(plain))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := raw.Scan(t.Context(), "", "", 0)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d raw entries, %v; want 3", len(entries), err)
	}
	values := [][]byte{sealed}
	for _, e := range entries {
		values = append(values, e.Value)
	}
	for i, v := range values {
		for at := range len(plain) - 7 {
			if bytes.Contains(v, []byte(plain[at:at+8])) {
				t.Errorf("value %d holds plaintext", i)
				break
			}
		}
		for at := range len(root) - 7 {
			if bytes.Contains(v, root[at:at+8]) {
				t.Errorf("value %d holds a part of the root key", i)
				break
			}
		}
	}
	if a, b := entries[1].Value, entries[2].Value; bytes.Equal(a[6:18], b[6:18]) || bytes.Equal(a[18:], b[18:]) {
		t.Error("two values share a nonce or a ciphertext")
	}
	if want := len(plain) + barrier.Overhead; len(entries[1].Value) != want || len(sealed) != want {
		t.Errorf("sealed lengths %d and %d, want %d", len(entries[1].Value), len(sealed), want)
	}
}

func TestRawPrefixes(t *testing.T) {
	ctx := t.Context()
	raw, root := newStore(t)
	mustPut(t, raw, "l/seal/config", "readable")
	mustPut(t, raw, "l/seal/root", "wrapped")
	b := open(t, raw, root)
	before, err := raw.Scan(ctx, "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []storage.Key{ringKey, "l/barrier/x", "l/seal/config", "l/seal/x/y"} {
		other := storage.Put{Key: "s/m/a", Value: []byte("v")}
		refused := map[string]error{}
		_, refused["Get"] = b.Get(ctx, key)
		_, refused["put"] = b.Commit(ctx, storage.Batch{Puts: []storage.Put{other, {Key: key}}})
		_, refused["delete"] = b.Commit(ctx, storage.Batch{Puts: []storage.Put{other}, Deletes: []storage.Key{key}})
		_, refused["read"] = b.Commit(ctx, storage.Batch{Puts: []storage.Put{other}, Reads: []storage.Read{{Key: key}}})
		_, refused["List"] = b.List(ctx, key+"/", "", 0)
		_, refused["Scan"] = b.Scan(ctx, key, "", 0)
		for name, err := range refused {
			if err == nil || errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrConflict) {
				t.Errorf("%s of %q = %v, want a refusal", name, key, err)
			}
		}
	}
	after, err := raw.Scan(ctx, "", "", 0)
	if err != nil || len(after) != len(before) {
		t.Errorf("%d raw entries, %v; want %d as before", len(after), err, len(before))
	}

	// A wide scan leaves them out and still fills its limit.
	for _, k := range []storage.Key{"l/a/1", "l/m/2", "l/z/3", "s/m/4", "l/sealed/5"} {
		mustPut(t, b, k, "v")
	}
	want := []storage.Key{"l/a/1", "l/m/2", "l/sealed/5", "l/z/3"}
	for limit := range len(want) + 2 {
		entries, err := b.Scan(ctx, "l/", "", limit)
		if err != nil {
			t.Fatal(err)
		}
		var got []storage.Key
		for _, e := range entries {
			got = append(got, e.Key)
		}
		expect := want
		if limit > 0 {
			expect = want[:min(limit, len(want))]
		}
		if !slices.Equal(got, expect) {
			t.Errorf("Scan with limit %d = %q, want %q", limit, got, expect)
		}
	}
	if entries, err := b.Scan(ctx, "l/seal", "", 0); err != nil || len(entries) != 1 {
		t.Errorf("Scan of a part of the prefix = %d entries, %v; want the one behind the barrier", len(entries), err)
	}
}

func TestLimits(t *testing.T) {
	raw, root := newStore(t)
	b := open(t, raw, root)
	full := storage.Batch{} // as large as a batch may be
	size := 0
	for i := range 8 {
		key := storage.Key(fmt.Sprintf("s/m/%d", i))
		value := make([]byte, min(storage.MaxValueBytes, storage.MaxBatchBytes-size-len(key)))
		full.Puts = append(full.Puts, storage.Put{Key: key, Value: value})
		size += len(key) + len(value)
	}
	if size != storage.MaxBatchBytes {
		t.Fatalf("the test's batch is %d bytes", size)
	}
	mustCommit(t, b, full)
	full.Puts[7].Value = append(full.Puts[7].Value, 0)
	if _, err := b.Commit(t.Context(), full); !errors.Is(err, storage.ErrTooLarge) {
		t.Errorf("Commit of a batch one byte too large = %v, want ErrTooLarge", err)
	}
	large := storage.Batch{Puts: []storage.Put{{Key: "s/m/a", Value: make([]byte, storage.MaxValueBytes+1)}}}
	if _, err := b.Commit(t.Context(), large); !errors.Is(err, storage.ErrTooLarge) {
		t.Errorf("Commit of a value one byte too large = %v, want ErrTooLarge", err)
	}
}

func TestGetAllocations(t *testing.T) {
	raw, root := newStore(t)
	b := open(t, raw, root)
	mustPut(t, b, "s/m/a", strings.Repeat("v", 1024))
	ctx := t.Context()
	got := testing.AllocsPerRun(200, func() {
		if _, err := b.Get(ctx, "s/m/a"); err != nil {
			t.Error(err)
		}
	})
	if got > 2 {
		t.Errorf("Get allocates %v times, want 2: the plaintext and one more", got)
	}
}

func BenchmarkGet(b *testing.B) {
	raw, root := newStore(b)
	bar := open(b, raw, root)
	mustPut(b, bar, "s/m/secret/data/app", strings.Repeat("v", 1024))
	b.ReportAllocs()
	b.SetBytes(1024)
	for b.Loop() {
		if _, err := bar.Get(b.Context(), "s/m/secret/data/app"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCommit(b *testing.B) {
	raw, root := newStore(b)
	bar := open(b, raw, root)
	batch := storage.Batch{Puts: []storage.Put{{Key: "s/m/secret/data/app", Value: make([]byte, 1024)}}}
	b.ReportAllocs()
	b.SetBytes(1024)
	for b.Loop() {
		if _, err := bar.Commit(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
}
