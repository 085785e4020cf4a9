package boltstore

import (
	"errors"
	"runtime"
)

// scrubPages is how many pages are compared at a time.
const scrubPages = 64

// Scrub compares every page of the file that is in use with its checksum, in pieces: it calls paused after each, with
// nothing held, and stops with its error. Damage is a *storage.CorruptError, and ends the use of the file.
func (s *Store) Scrub(paused func(bytes int) error) error {
	next, more := "", true
	for more {
		v, err := s.DurableView()
		if err != nil {
			return err
		}
		var bytes int
		err = v.Walk(func(*Cursor) error {
			c := pageCursor{base: v.base, compare: true}
			next, more = c.scrub(next)
			bytes = c.read
			return nil
		})
		v.Close()
		if err == nil {
			err = s.scrubMetas()
		}
		if err == nil {
			err = paused(bytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// scrub reads some leaves, from the one that has the first key at or after from on. It returns the key to go on with.
func (c *pageCursor) scrub(from string) (next string, more bool) {
	root := c.base.pages.compare(c.base.root)
	c.read += len(root.b)
	root.below(func(id uint64) {
		if id != c.base.data { // the bucket of the state record
			c.read += len(c.base.pages.compare(id).b)
		}
	})
	c.seek(from)
	for c.k != nil {
		leaf := &c.stack[len(c.stack)-1]
		last := leaf.page.key(leaf.page.count - 1)
		if c.read >= scrubPages*c.base.pages.size {
			return string(last) + "\x00", true
		}
		leaf.i = leaf.page.count - 1
		c.next()
	}
	return "", false
}

// scrubMetas checks the two meta pages. The flusher may be writing one of them.
func (s *Store) scrubMetas() (err error) {
	defer s.guard(&err)()
	s.mu.Lock()
	now := s.cur.base
	s.mu.Unlock()
	for range 1000 {
		if _, err = now.pages.newestMeta(); err == nil {
			return nil
		}
		runtime.Gosched()
	}
	if bad := damage(""); errors.As(err, &bad) {
		panic(bad)
	}
	return err
}

// ScrubBytes returns about how much Scrub reads.
func (s *Store) ScrubBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.cur.base.high) * int64(s.cur.base.pages.size)
}
