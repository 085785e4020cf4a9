package boltstore

import (
	"hash/crc32"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/coffer-project/coffer/storage/boltpage"
)

// scrubPages is how many pages are compared at a time.
const scrubPages = 64

// disk is what the disk has of a file.
type disk interface {
	io.ReaderAt
	io.Closer
}

// Scrub compares every page of the file that is in use with its checksum, as it is in memory, and as it is on the disk where
// that can be read past the system's cache. It does so in pieces: it calls paused after each, with nothing held, and stops
// with its error. Damage is a *storage.CorruptError, and ends the use of the file.
func (s *Store) Scrub(paused func(bytes int) error) error {
	disk, err := s.openDisk()
	if err != nil {
		return err
	}
	if disk != nil {
		defer disk.Close() //nolint:errcheck // it was only read
	}
	next, more := "", true
	for more {
		v, err := s.DurableView()
		if err != nil {
			return err
		}
		var bytes int
		err = v.Walk(func(*Cursor) error {
			c := pageCursor{base: v.base, compare: true, disk: disk}
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

// openDisk returns nil if the disk cannot be read past the system's cache.
func (s *Store) openDisk() (disk, error) {
	v, err := s.DurableView() // so that the file is open
	if err != nil {
		return nil, err
	}
	defer v.Close()
	d, err := s.disk()
	if err != nil {
		s.opts.Logger.Debug("the state file is checked through the system's cache only", "err", err)
		return nil, nil
	}
	return d, nil
}

// compareDisk compares what the disk has of a page with its checksum. It panics with a damage. What a base has is synced.
func (c *pageCursor) compareDisk(p page) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	if len(*buf) < len(p.B) {
		*buf = make([]byte, len(p.B))
	}
	b := (*buf)[:len(p.B)]
	if _, err := c.disk.ReadAt(b, int64(p.ID)*int64(c.base.pages.size)); err != nil {
		panic(boltpage.Damagef("page %d cannot be read from the disk: %v", p.ID, err))
	}
	if crc32.Checksum(b, castagnoli) != c.base.pages.sum(p.ID).Load() {
		panic(boltpage.Damagef("the checksum of page %d is wrong on the disk", p.ID))
	}
}

// scrub reads some leaves, from the one that has the first key at or after from on. It returns the key to go on with.
func (c *pageCursor) scrub(from string) (next string, more bool) {
	root := c.page(c.base.root)
	root.Below(func(id uint64) {
		if id != c.base.data { // the bucket of the state record
			c.page(id)
		}
	})
	c.seek(from)
	for c.k != nil {
		leaf := &c.stack[len(c.stack)-1]
		last, _ := leaf.page.Record(leaf.page.Count - 1)
		if c.read >= scrubPages*c.base.pages.size {
			return string(last) + "\x00", true
		}
		leaf.i = leaf.page.Count - 1
		c.next()
	}
	return "", false
}

// scrubMetas checks the two meta pages. The flusher may be writing one of them.
func (s *Store) scrubMetas() (err error) {
	defer s.guard(&err, debug.SetPanicOnFault(true))
	s.mu.Lock()
	now := s.cur.base
	s.mu.Unlock()
	for range 1000 {
		if _, err = now.pages.newestMeta(); err == nil {
			return nil
		}
		runtime.Gosched()
	}
	panic(err)
}

// ScrubBytes returns about how much Scrub reads.
func (s *Store) ScrubBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.cur.base.high) * int64(s.cur.base.pages.size)
}
