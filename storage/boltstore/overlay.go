package boltstore

import "github.com/google/btree"

// item is one change in an overlay. A nil record is a deletion.
type item struct {
	key string
	rec []byte
}

type tree = btree.BTreeG[item]

// itemBytes is what an item costs beside its key and record, roughly.
const itemBytes = 64

// overlay is a tree and the memory it holds.
type overlay struct {
	tree  *tree
	bytes int
}

func newOverlay() overlay {
	return overlay{tree: btree.NewG(32, func(a, b item) bool { return a.key < b.key })}
}

func (o *overlay) set(it item) {
	old, replaced := o.tree.ReplaceOrInsert(it)
	if replaced {
		o.bytes -= len(old.key) + len(old.rec) + itemBytes
	}
	o.bytes += len(it.key) + len(it.rec) + itemBytes
}

// treeCursor walks a tree that does not change. It fetches a few items at a time.
type treeCursor struct {
	tree *tree // nil: nothing
	buf  []item
	i    int
}

const treeCursorItems = 32

func (c *treeCursor) seek(key string) {
	c.buf, c.i = c.buf[:0], 0
	if c.tree == nil {
		return
	}
	c.tree.AscendGreaterOrEqual(item{key: key}, func(it item) bool {
		c.buf = append(c.buf, it)
		return len(c.buf) < treeCursorItems
	})
}

func (c *treeCursor) item() (item, bool) {
	if c.i == len(c.buf) {
		return item{}, false
	}
	return c.buf[c.i], true
}

func (c *treeCursor) next() {
	if c.i++; c.i == treeCursorItems {
		c.seek(c.buf[c.i-1].key + "\x00") // the smallest key after it
	}
}
