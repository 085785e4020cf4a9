package digest

import (
	"github.com/coffer-project/coffer/storage"
)

// denseFrom is the number of buckets in use from which on a tree keeps an array of all of them (1.5 MiB).
const denseFrom = 8192

// Tree is the sums of one unit's items. The zero Tree is not usable: see New.
type Tree struct {
	root   Sum
	sparse map[uint16]Sum // buckets that are not empty; nil once dense is there
	dense  *dense
}

type dense struct {
	groups  [Groups]Sum
	buckets [Groups * Groups]Sum
}

// New returns the tree of no items.
func New() *Tree { return &Tree{sparse: make(map[uint16]Sum)} }

// Add includes an item. It must not be included already.
func (t *Tree) Add(key storage.Key, mod storage.Position) {
	item := Of(key, mod)
	t.root.Add(item)
	t.change(Bucket(key), func(s *Sum) { s.Add(item) })
}

// Remove takes out an item that was included.
func (t *Tree) Remove(key storage.Key, mod storage.Position) {
	item := Of(key, mod)
	t.root.Sub(item)
	t.change(Bucket(key), func(s *Sum) { s.Sub(item) })
}

func (t *Tree) change(bucket int, f func(*Sum)) {
	if t.dense != nil {
		f(&t.dense.groups[bucket/Groups])
		f(&t.dense.buckets[bucket])
		return
	}
	s := t.sparse[uint16(bucket)]
	f(&s)
	if s == (Sum{}) {
		delete(t.sparse, uint16(bucket))
		return
	}
	t.sparse[uint16(bucket)] = s
	if len(t.sparse) >= denseFrom {
		t.spread()
	}
}

// spread makes a sparse tree dense.
func (t *Tree) spread() {
	t.dense = new(dense)
	for bucket, s := range t.sparse {
		t.dense.buckets[bucket] = s
		t.dense.groups[int(bucket)/Groups].Add(s)
	}
	t.sparse = nil
}

// Root returns the sum of all items.
func (t *Tree) Root() Sum { return t.root }

// Sums returns the sums of the groups if group is negative, else those of the buckets of that group: always Groups of
// them, the caller's own.
func (t *Tree) Sums(group int) []Sum {
	out := make([]Sum, Groups)
	switch {
	case t.dense != nil && group < 0:
		copy(out, t.dense.groups[:])
	case t.dense != nil:
		copy(out, t.dense.buckets[group*Groups:(group+1)*Groups])
	case group < 0:
		for bucket, s := range t.sparse {
			out[int(bucket)/Groups].Add(s)
		}
	default:
		for i := range out {
			out[i] = t.sparse[uint16(group*Groups+i)]
		}
	}
	return out
}
