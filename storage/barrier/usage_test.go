package barrier_test

import (
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
)

// The count of encryptions is that of all nodes, and outlives them.
func TestSaveCount(t *testing.T) {
	raw, root := newStore(t)
	count := func(b *barrier.Barrier, want, unsaved uint64) {
		t.Helper()
		if info := b.KeyInfo(); info.Encryptions != want || info.Unsaved != unsaved {
			t.Errorf("%d encryptions, %d unsaved, want %d and %d", info.Encryptions, info.Unsaved, want, unsaved)
		}
	}
	save := func(b *barrier.Barrier) {
		t.Helper()
		if err := b.SaveCount(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	first := open(t, raw, root)
	for range 5 {
		mustPut(t, first, "s/m/a", "v")
	}
	count(first, 5, 5)
	save(first)
	count(first, 6, 1) // the count itself is sealed, too
	save(first)
	count(first, 6, 1) // which alone is not worth another write

	second := open(t, raw, root)
	count(second, 5, 0)
	for range 3 {
		mustPut(t, second, "s/m/a", "v")
	}
	save(second)
	count(second, 9, 1)
	count(first, 9, 1)

	rotate(t, second)
	count(second, 0, 0)
	mustPut(t, second, "s/m/a", "v")
	mustPut(t, second, "s/m/a", "v")
	save(second)
	count(second, 3, 1)
	count(open(t, raw, root), 2, 0)

	second.Seal()
	count(second, 0, 0)
	if err := second.SaveCount(t.Context()); err != storage.ErrSealed {
		t.Errorf("SaveCount of a sealed barrier = %v", err)
	}
}
