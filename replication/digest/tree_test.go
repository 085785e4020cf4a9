package digest_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// slow computes what a Tree should say, from a list.
func slow(items map[storage.Key]storage.Position, group int) []digest.Sum {
	out := make([]digest.Sum, digest.Groups)
	for key, mod := range items {
		switch b := digest.Bucket(key); {
		case group < 0:
			out[b/digest.Groups].Add(digest.Of(key, mod))
		case b/digest.Groups == group:
			out[b%digest.Groups].Add(digest.Of(key, mod))
		}
	}
	return out
}

func check(t *testing.T, tree *digest.Tree, items map[storage.Key]storage.Position) {
	t.Helper()
	var root digest.Sum
	for key, mod := range items {
		root.Add(digest.Of(key, mod))
	}
	if tree.Root() != root {
		t.Fatalf("the root of %d items is %v, want %v", len(items), tree.Root(), root)
	}
	for _, group := range []int{-1, 0, 17, digest.Groups - 1} {
		got, want := tree.Sums(group), slow(items, group)
		if len(got) != len(want) {
			t.Fatalf("group %d has %d sums", group, len(got))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("with %d items, sum %d of group %d is %v, want %v", len(items), i, group, got[i], want[i])
			}
		}
	}
}

// TestTree grows a tree from nothing over the size at which its form changes, and shrinks it to nothing again.
func TestTree(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	tree, items := digest.New(), map[storage.Key]storage.Position{}
	check(t, tree, items)
	for i := range 20_000 {
		key := storage.Key(fmt.Sprintf("s/a/%d", i))
		mod := storage.Position{Epoch: 1, Index: storage.Index(rnd.Uint64N(1000) + 1)}
		tree.Add(key, mod)
		items[key] = mod
		if i%4 == 0 { // overwritten
			later := storage.Position{Epoch: 2, Index: mod.Index}
			tree.Remove(key, mod)
			tree.Add(key, later)
			items[key] = later
		}
		if i%5000 == 100 {
			check(t, tree, items)
		}
	}
	check(t, tree, items)
	for key, mod := range items {
		tree.Remove(key, mod)
		delete(items, key)
		if n := len(items); n == 15_000 || n == 3 {
			check(t, tree, items)
		}
	}
	check(t, tree, items)
	if tree.Root() != (digest.Sum{}) {
		t.Errorf("an empty tree has the root %v", tree.Root())
	}
}

func TestTreeTellsPositionsApart(t *testing.T) {
	a, b := digest.New(), digest.New()
	a.Add("s/a/x", storage.Position{Epoch: 1, Index: 7})
	b.Add("s/a/x", storage.Position{Epoch: 2, Index: 7})
	if a.Root() == b.Root() {
		t.Error("one key from two epochs has one digest")
	}
	var buckets digest.Buckets
	buckets.Add(digest.Bucket("s/a/x"))
	if !buckets.Has("s/a/x") || buckets.Has("s/a/y") || !(*digest.Buckets)(nil).Has("s/a/y") {
		t.Error("Buckets has what was not added, or not what was")
	}
}

func BenchmarkTreeOverwrite(b *testing.B) {
	tree := digest.New()
	for i := range 100_000 {
		tree.Add(storage.Key(fmt.Sprint("s/a/", i)), storage.Position{Epoch: 1, Index: 1})
	}
	for b.Loop() {
		tree.Remove("s/a/77", storage.Position{Epoch: 1, Index: 1})
		tree.Add("s/a/77", storage.Position{Epoch: 1, Index: 1})
	}
}
