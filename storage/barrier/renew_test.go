package barrier_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
)

// renew replaces the root key and returns the new one, and bytes that were sealed with the change.
func renew(t *testing.T, raw *storage.Memory, b *barrier.Barrier, followers ...[]byte) (root, sealed []byte) {
	t.Helper()
	root = barrier.NewRootKey()
	_, err := storage.Update(t.Context(), raw, func(txn *storage.Txn) error {
		seal, err := b.Renew(t.Context(), txn, root, followers)
		if err == nil {
			sealed, err = seal("test", []byte("with the change"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return root, sealed
}

func write(t *testing.T, b *barrier.Barrier, key storage.Key, value string) {
	t.Helper()
	if _, err := b.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: key, Value: []byte(value)}}}); err != nil {
		t.Fatal(err)
	}
}

func reads(t *testing.T, b *barrier.Barrier, key storage.Key, want string) {
	t.Helper()
	if e, err := b.Get(t.Context(), key); err != nil || string(e.Value) != want {
		t.Errorf("reading %s: %q, %v; want %q", key, e.Value, err, want)
	}
}

// The running nodes follow, several changes at once too; the former root key, and a process that only has that, open
// nothing.
func TestRenew(t *testing.T) {
	raw, root := newStore(t)
	leader, standby, late := open(t, raw, root), open(t, raw, root), open(t, raw, root)
	write(t, leader, "s/m/before", "old")
	derived, err := leader.DeriveKey("test")
	if err != nil {
		t.Fatal(err)
	}
	next, sealed := renew(t, raw, leader, standby.FollowKey())
	write(t, leader, "s/m/after", "new")
	for _, b := range []*barrier.Barrier{leader, standby} {
		reads(t, b, "s/m/before", "old")
		reads(t, b, "s/m/after", "new")
		if plain, err := b.OpenBytes("test", sealed); err != nil || string(plain) != "with the change" {
			t.Errorf("OpenBytes = %q, %v", plain, err)
		}
		if key, err := b.DeriveKey("test"); err != nil || !bytes.Equal(key, derived) {
			t.Errorf("the derived key has changed, %v", err)
		}
		if info := b.KeyInfo(); info.Term != 2 {
			t.Errorf("the active term is %d, want 2", info.Term)
		}
	}
	if _, err := late.Get(t.Context(), "s/m/before"); !errors.Is(err, storage.ErrSealed) {
		t.Errorf("a node that was not told the next root key: %v", err)
	}
	if err := barrier.New(raw).Unseal(t.Context(), root); !errors.Is(err, barrier.ErrWrongKey) {
		t.Errorf("the former root key: %v, want ErrWrongKey", err)
	}
	again := open(t, raw, next)
	reads(t, again, "s/m/after", "new")
	if key, err := again.DeriveKey("test"); err != nil || !bytes.Equal(key, derived) {
		t.Errorf("the derived key has changed after a start, %v", err)
	}

	// A standby that does nothing meanwhile follows two changes at once, the second one of another leader.
	third, _ := renew(t, raw, leader, standby.FollowKey(), again.FollowKey())
	fourth, _ := renew(t, raw, again, standby.FollowKey())
	reads(t, standby, "s/m/after", "new")
	if _, err := standby.Rotate(t.Context()); err != nil {
		t.Errorf("rotating on a node that has followed: %v", err)
	}
	for i, former := range [][]byte{root, next, third} {
		if err := barrier.New(raw).Unseal(t.Context(), former); !errors.Is(err, barrier.ErrWrongKey) {
			t.Errorf("root key %d: %v, want ErrWrongKey", i, err)
		}
	}
	reads(t, open(t, raw, fourth), "s/m/before", "old")
}

// A writer of the store that does not have the root key cannot make a node take another.
func TestRenewIsAuthentic(t *testing.T) {
	raw, root := newStore(t)
	b := open(t, raw, root)
	write(t, b, "s/m/a", "value")
	strange, strangeRoot := newStore(t)
	if _, err := strange.Get(t.Context(), "l/barrier/keyring"); err != nil {
		t.Fatal(err)
	}
	other := open(t, strange, strangeRoot)
	renew(t, strange, other, b.FollowKey())
	var batch storage.Batch
	for _, key := range []storage.Key{"l/barrier/keyring", "l/barrier/next"} {
		e, err := strange.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		batch.Puts = append(batch.Puts, storage.Put{Key: key, Value: e.Value})
	}
	if _, err := raw.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), "s/m/a"); !errors.Is(err, storage.ErrSealed) || !errors.Is(err, barrier.ErrWrongKey) {
		t.Errorf("with the ring and the copies of another cluster: %v", err)
	}
}

// Of two nodes that replace the root key at once, one does.
func TestRenewAtOnce(t *testing.T) {
	raw, root := newStore(t)
	a, b := open(t, raw, root), open(t, raw, root)
	first, second := storage.Begin(raw), storage.Begin(raw)
	rootA, rootB := barrier.NewRootKey(), barrier.NewRootKey()
	if _, err := a.Renew(t.Context(), first, rootA, [][]byte{b.FollowKey()}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Renew(t.Context(), second, rootB, [][]byte{a.FollowKey()}); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Commit(context.Background(), first.Batch()); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Commit(context.Background(), second.Batch()); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("the second one: %v, want a conflict", err)
	}
	write(t, b, "s/m/a", "value")
	reads(t, open(t, raw, rootA), "s/m/a", "value")
}
