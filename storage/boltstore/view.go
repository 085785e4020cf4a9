package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"runtime/debug"
	"sync/atomic"

	"go.etcd.io/bbolt"

	"github.com/coffer-project/coffer/storage/boltpage"
	"github.com/coffer-project/coffer/storage/lthash"
	"github.com/coffer-project/coffer/storage/record"
)

// layers is the whole state: newest first, each one hides what is below it. Nothing in it ever changes.
type layers struct {
	active  *tree
	folding *tree // nil unless a fold is under way or failed
	base    *base
	pos     Position
}

// base is one state of the file, shared by all views taken until the next fold. The transaction is there for bbolt to
// leave the pages alone, which are read directly.
type base struct {
	s     *Store
	tx    *bbolt.Tx
	pages pages
	high  uint64 // pages at and above it are not in use
	txid  uint64
	root  uint64 // the page of the buckets
	data  uint64 // the root page of the records; 0: it is part of root
	top   uint64 // where the search for a record begins: data, or root
	state state
	sum   lthash.Sum   // of what has changed in the records since the file was opened
	refs  atomic.Int64 // views, and one for the store while the base is current

	headers map[string]record.Header // of records, and of keys without one, that writers have looked up; guarded by Store.writeMu
}

// openBase returns the state that the file has now, which follows old, if there was one. Only the flusher calls it, and
// Open.
func (s *Store) openBase(old *base) (b *base, err error) {
	defer s.guard(&err, debug.SetPanicOnFault(true))
	b = &base{s: s, pages: s.pages, headers: map[string]record.Header{}}
	m, err := b.pages.newestMeta()
	if err != nil {
		panic(err)
	}
	b.pages.grow(m.HighWater)
	b.high, b.root, b.txid = m.HighWater, m.Root, m.Tx
	if b.tx, err = s.db.Begin(false); err != nil {
		return nil, err
	}
	if uint64(b.tx.ID()) != m.Tx {
		panic(boltpage.Damagef("a transaction began at %d, not at %d", b.tx.ID(), m.Tx))
	}
	var oldRoot uint64
	if old != nil {
		oldRoot = old.root
	}
	b.pages.follow(&s.used, oldRoot, b.root, s.sums.Changed)
	s.pages = b.pages
	root := b.pages.page(b.root, false)
	data, meta, err := root.Buckets()
	if err != nil {
		panic(err)
	}
	b.data, b.top = binary.NativeEndian.Uint64(data), b.root
	if b.data != 0 {
		b.top = b.data
	}
	if b.state, err = stateOf(b.bucket(meta)); err != nil {
		panic(err)
	}
	b.refs.Store(1)
	s.bases.Add(1)
	s.open.Add(1)
	return b, nil
}

// bucket returns the root page of a bucket. It panics with a damage.
func (b *base) bucket(header []byte) *page {
	if id := binary.NativeEndian.Uint64(header); id != 0 {
		p := b.pages.page(id, false)
		return &p
	}
	p, err := boltpage.Inline(header)
	if err != nil {
		panic(err)
	}
	return &p
}

// inline returns the root page of the records that is part of root. It panics with a damage.
func (b *base) inline(root page) page {
	data, _, err := root.Buckets()
	if err != nil {
		panic(err)
	}
	return *b.bucket(data)
}

// get returns the record under key, or nil. It is valid as long as the base is not closed. It panics with a damage.
func (b *base) get(key string) []byte {
	p := b.pages.page(b.top, true)
	if b.data == 0 {
		p = b.inline(p)
	}
	for p.Kind == boltpage.BranchPage {
		_, id := p.ChildFor(key)
		p = b.pages.page(id, true)
	}
	if i, found := p.Search(key); found {
		_, rec := p.Record(i)
		return rec
	}
	return nil
}

func (b *base) close() {
	if b.refs.Add(-1) == 0 {
		_ = b.tx.Rollback() // of a read transaction: cannot fail
		b.s.open.Add(-1)
		b.s.bases.Done()
	}
}

// View is the state after one commit. Close it once, and soon: it keeps old pages of the file in use.
type View struct {
	layers
}

// View returns the state after the last commit.
func (s *Store) View() (View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return View{}, ErrClosed
	case s.damage != nil:
		return View{}, s.damage
	}
	s.cur.base.refs.Add(1)
	return View{s.cur}, nil
}

// DurableView returns the state as it is in the file.
func (s *Store) DurableView() (View, error) {
	v, err := s.View()
	if err != nil {
		return View{}, err
	}
	return View{layers{base: v.base, pos: v.base.state.Position}}, nil
}

// Close releases the view.
func (v View) Close() { v.base.close() }

// Position returns the position of the commit that the view shows.
func (v View) Position() Position { return v.pos }

// Digest describes the records in the file: for a DurableView those of the view.
func (v View) Digest() record.Digest { return v.base.state.Digest }

// Sum describes all records of the view. It costs as much as what is not in the file yet, so it may take a while. After a start that did not
// check the whole file it waits until that is done.
func (v View) Sum() (sum lthash.Sum, err error) {
	defer v.base.s.guard(&err, debug.SetPanicOnFault(true))
	if sum, err = v.base.s.pass.wait(); err != nil {
		return sum, err
	}
	sum.Merge(&v.base.sum)
	change := func(name string, rec []byte) bool {
		key := []byte(name)
		if old := v.base.get(name); old != nil {
			sum.Remove(key, old)
		}
		if rec != nil {
			sum.Add(key, rec)
		}
		return true
	}
	if v.active != nil {
		v.active.Scan(change)
	}
	if v.folding != nil {
		v.folding.Scan(func(key string, rec []byte) bool {
			if v.active != nil {
				if _, newer := v.active.Get(key); newer {
					return true
				}
			}
			return change(key, rec)
		})
	}
	return sum, err
}

// Get returns the record under key, or nil. Do not modify it: views share what is not in the file yet.
func (v View) Get(key string) (rec []byte, err error) {
	if rec, written := v.overlaid(key); written {
		return rec, nil
	}
	return v.stored(key, math.MaxInt)
}

// overlaid returns the record that was written under key since the state of the file, nil if it was deleted, and whether any was.
func (l *layers) overlaid(key string) (rec []byte, written bool) {
	for _, t := range [...]*tree{l.active, l.folding} {
		if t != nil {
			if rec, written = t.Get(key); written {
				return rec, true
			}
		}
	}
	return nil, false
}

// stored returns the record that the file has under key, at most limit bytes of it, or nil.
func (l *layers) stored(key string, limit int) (rec []byte, err error) {
	defer l.base.s.guard(&err, debug.SetPanicOnFault(true))
	if found := l.base.get(key); found != nil {
		rec = bytes.Clone(found[:min(len(found), limit)]) // the memory map may change
	}
	return rec, nil
}

// Cursor walks a view in byte order of the keys. It reads the memory map: use it only inside View.Walk.
type Cursor struct {
	layers [2]treeCursor
	base   pageCursor
}

// Walk calls fn with a cursor over the view. Faults of the file while fn runs become its error.
func (v View) Walk(fn func(c *Cursor) error) (err error) {
	defer v.base.s.guard(&err, debug.SetPanicOnFault(true))
	return fn(v.newCursor())
}

func (v View) newCursor() *Cursor {
	return &Cursor{layers: [2]treeCursor{newTreeCursor(v.active), newTreeCursor(v.folding)}, base: pageCursor{base: v.base}}
}

// Seek goes to the first key that is at least key.
func (c *Cursor) Seek(key string) {
	for i := range c.layers {
		c.layers[i].ok = c.layers[i].Seek(key)
	}
	c.base.seek(key)
}

// Next returns the record the cursor is at and moves on; ok is false at the end. The record must not be
// modified, and is valid while Walk runs.
func (c *Cursor) Next() (key string, rec []byte, ok bool) {
	for {
		at := -1 // the layer with the smallest key; the newest of equals
		for i := range c.layers {
			if l := &c.layers[i]; l.ok && (at < 0 || l.Key() < key) {
				at, key, rec = i, l.Key(), l.Value()
			}
		}
		switch {
		case at < 0 && c.base.k == nil:
			return "", nil, false
		case at < 0 || c.base.k != nil && string(c.base.k) < key:
			key, rec = string(c.base.k), c.base.v
		}
		c.skip(key)
		if rec != nil {
			return key, rec, true
		}
	}
}

// skip moves every layer that is at key past it.
func (c *Cursor) skip(key string) {
	for i := range c.layers {
		if l := &c.layers[i]; l.ok && l.Key() == key {
			l.ok = l.Next()
		}
	}
	if c.base.k != nil && string(c.base.k) == key {
		c.base.next()
	}
}

// checkEvery is how many records are read between two looks at the context.
const checkEvery = 1024

// Scan calls fn with each record in [from, to), in byte order, until fn returns false; to "" is no bound.
// What fn is given is valid during the call.
func (v View) Scan(ctx context.Context, from, to string, fn func(key string, rec []byte) bool) error {
	return v.Walk(func(c *Cursor) error {
		c.Seek(from)
		for n := 0; ; n++ {
			if n%checkEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			key, rec, ok := c.Next()
			if !ok || to != "" && key >= to || !fn(key, rec) {
				return nil
			}
		}
	})
}
