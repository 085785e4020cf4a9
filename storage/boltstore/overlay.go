package boltstore

import "github.com/tidwall/btree"

// tree has the changes of an overlay, records by key. A nil record is a deletion.
type tree = btree.Map[string, []byte]

// itemBytes is what a change costs beside its key and record, roughly.
const itemBytes = 64

// overlay is a tree and the memory it holds.
type overlay struct {
	tree  *tree
	bytes int
}

func newOverlay() overlay { return overlay{tree: new(tree)} }

// treeCursor walks a tree that does not change.
type treeCursor struct {
	btree.MapIter[string, []byte]
	ok bool // it is at a change, and not at the end
}

func newTreeCursor(t *tree) (c treeCursor) {
	if t != nil {
		c.MapIter = t.Iter()
	}
	return c
}
