package boltstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"sync/atomic"
	"unsafe"

	"github.com/coffer-project/coffer/storage/boltfile"
	"github.com/coffer-project/coffer/storage/boltpage"
	"go.etcd.io/bbolt"
)

// bbolt's pages carry no checksums, and a flipped bit in one of them makes a key that exists look as if it did
// not, or leads to a page that is no longer in use and has an older value. So the store keeps a checksum of every
// page in memory. Open computes them from what it has verified, follow from what each transaction wrote, and every
// read compares each page on the way from the root to its record before it looks into it. That is why the store
// searches the tree itself, in bbolt's memory map, and leaves to bbolt what bbolt is good at: transactions.

type (
	page   = boltpage.Page
	runs   = boltpage.Runs
	damage = boltpage.Damage
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pages are the checksummed pages of one state of the file. It shares the chunks with those of later states: a page
// is never written while a state that has it can be read.
type pages struct {
	data []byte // bbolt's memory map, which is larger than the file
	size int    // of a page
	sums []*sumChunk
	kept *kept
}

// sumChunk is about consecutive pages.
type sumChunk struct {
	sums [sumChunkPages]atomic.Uint32 // overflow pages are included in that of the page they belong to
	// copies are of pages that many reads pass, taken when they were compared: comparing them each time would cost more than
	// the search. Nil: none.
	copies [sumChunkPages]atomic.Pointer[page]
}

// kept bounds the copies. It is shared by all states of the file.
type kept struct {
	branchBytes atomic.Int64 // of copies of branch pages, which are there as long as the page is in use
	// leaves are where copies of leaf pages are, or were. A new one takes the place of the oldest.
	leaves  [maxLeafCopies]atomic.Pointer[atomic.Pointer[page]]
	next    atomic.Uint64
	scanned atomic.Uint64 // pages that cursors have read
}

const (
	sumChunkPages  = 1 << 12
	maxBranchBytes = 16 << 20
	maxLeafCopies  = 1 << 11 // 8 MiB: only leaves without overflow pages are copied
	unmapAfter     = 1 << 14 // pages that cursors have read, 64 MiB: then the map is given back to the system, or a scan would leave all of the file in memory
	leafCopyChance = 16      // one in so many reads of a leaf copies it, so that mostly those that are read often are there
)

// mapped returns the pages of a file that bbolt has opened with the given options, without checksums.
func mapped(db *bbolt.DB, o *bbolt.Options) pages {
	info := db.Info()
	start := *(*unsafe.Pointer)(unsafe.Pointer(&info.Data)) // bbolt gives the address as a number
	return pages{kept: new(kept), data: unsafe.Slice((*byte)(start), o.InitialMmapSize), size: info.PageSize}
}

// grow makes room for the checksums of n pages.
func (p *pages) grow(n uint64) {
	for uint64(len(p.sums))*sumChunkPages < n {
		p.sums = append(p.sums[:len(p.sums):len(p.sums)], new(sumChunk))
	}
}

func (p *pages) sum(id uint64) *atomic.Uint32 {
	return &p.sums[id/sumChunkPages].sums[id%sumChunkPages]
}

func (p *pages) copied(id uint64) *atomic.Pointer[page] {
	return &p.sums[id/sumChunkPages].copies[id%sumChunkPages]
}

// raw returns page id with its overflow pages. It panics with a damage if there is no such page.
func (p *pages) raw(id uint64) []byte {
	limit := min(uint64(len(p.sums))*sumChunkPages, uint64(len(p.data)/p.size))
	if id < 2 || id >= limit {
		panic(boltpage.Damagef("page %d is referred to but is not in use", id))
	}
	at := int(id) * p.size
	run := 1 + uint64(binary.NativeEndian.Uint32(p.data[at+12:]))
	if run > limit-id || run*uint64(p.size) > boltpage.MaxBytes {
		panic(boltpage.Damagef("page %d has %d overflow pages", id, run-1))
	}
	return p.data[at : at+int(run)*p.size]
}

// page returns page id if it is what was written. Else it panics with a damage. leaves says that copies of leaves that are read
// often are kept, too: for reads of single records.
func (p *pages) page(id uint64, leaves bool) page {
	if chunk := id / sumChunkPages; chunk < uint64(len(p.sums)) {
		if c := p.sums[chunk].copies[id%sumChunkPages].Load(); c != nil {
			return *c
		}
	}
	found := p.compare(id)
	switch {
	case found.Kind == boltpage.BranchPage && p.kept.branchBytes.Load() < maxBranchBytes:
		if p.keep(found) {
			p.kept.branchBytes.Add(int64(len(found.B)))
		}
	case found.Kind == boltpage.LeafPage && leaves && len(found.B) == p.size && rand.Uint32N(leafCopyChance) == 0 && p.keep(found):
		place, copied := p.kept.next.Add(1)%maxLeafCopies, p.copied(id)
		if old := p.kept.leaves[place].Swap(copied); old != nil && old != copied {
			p.kept.drop(old)
		}
	}
	return found
}

// keep makes a copy of a page, which is compared as well, and reports whether there was none.
func (p *pages) keep(found page) bool {
	c := p.checked(found.ID, bytes.Clone(found.B))
	return p.copied(found.ID).CompareAndSwap(nil, &c)
}

// drop forgets the copy of a page.
func (k *kept) drop(copied *atomic.Pointer[page]) {
	if c := copied.Swap(nil); c != nil && c.Kind == boltpage.BranchPage {
		k.branchBytes.Add(-int64(len(c.B)))
	}
}

// compare is page, without a copy.
func (p *pages) compare(id uint64) page { return p.checked(id, p.raw(id)) }

func (p *pages) checked(id uint64, b []byte) page {
	if crc32.Checksum(b, castagnoli) != p.sum(id).Load() {
		panic(boltpage.Damagef("the checksum of page %d is wrong", id))
	}
	return boltpage.MustParse(id, b)
}

// newestMeta returns what bbolt's next transaction begins with. Both meta pages must be valid, because bbolt
// would go back to the other one. Only for the goroutine that writes, or the pages may be half-written.
func (p *pages) newestMeta() (boltpage.Meta, error) {
	now, _, err := boltpage.Metas(func(b []byte, off int64) error {
		copy(b, p.data[off:])
		return nil
	})
	return now, err
}

// follow goes from the state of the file that used has the pages of to the one below root: it computes the checksums
// of the pages that are new, and compares those of the pages that are gone a last time, so that nothing that bbolt
// has copied from a damaged page passes for what was written. oldRoot is 0 if there was no state before. It panics
// with a damage. It calls changed with each of them, and how many pages it has. The cost is that of the pages written and replaced.
func (p *pages) follow(used *runs, oldRoot, root uint64, changed func(id, n uint64)) {
	kept := map[uint64]bool{}
	var added []page
	var add func(id uint64)
	add = func(id uint64) {
		if used.Has(id) { // it cannot have been written again: the old state could be read all the time
			kept[id] = true
			return
		}
		page := boltpage.MustParse(id, p.raw(id))
		p.sum(id).Store(crc32.Checksum(page.B, castagnoli))
		p.kept.drop(p.copied(id))
		added = append(added, page)
		page.Below(add)
	}
	add(root)
	var remove func(id uint64)
	remove = func(id uint64) {
		if !kept[id] {
			page := p.compare(id)
			p.kept.drop(p.copied(id))
			used.Clear(page, p.size)
			changed(id, uint64(len(page.B)/p.size))
			page.Below(remove)
		}
	}
	if oldRoot != 0 {
		remove(oldRoot)
	}
	for _, page := range added {
		used.Set(page, p.size)
		changed(page.ID, uint64(len(page.B)/p.size))
	}
}

// pageCursor walks the records of a base.
type pageCursor struct {
	base    *base
	compare bool // also pages that there are copies of
	disk    disk // to compare what it has as well; nil: not
	read    int  // bytes of pages
	stack   []pagePlace
	k, v    []byte // where it is; nil: at the end
}

type pagePlace struct {
	page page
	i    int
}

func (c *pageCursor) page(id uint64) (p page) {
	if c.compare {
		p = c.base.pages.compare(id)
		if c.disk != nil {
			c.compareDisk(p)
		}
	} else {
		p = c.base.pages.page(id, false)
	}
	c.read += len(p.B)
	if c.base.pages.kept.scanned.Add(1)%unmapAfter == 0 {
		_ = boltfile.Unmap(c.base.pages.data) // that it stays is no harm
	}
	return p
}

// seek goes to the first key that is at least key. It panics with a damage, as does next.
func (c *pageCursor) seek(key string) {
	c.stack = c.stack[:0]
	p := c.page(c.base.top)
	if c.base.data == 0 {
		p = c.base.inline(p)
	}
	for p.Kind == boltpage.BranchPage {
		i, id := p.ChildFor(key)
		c.stack = append(c.stack, pagePlace{p, i})
		p = c.page(id)
	}
	i, _ := p.Search(key)
	c.stack = append(c.stack, pagePlace{p, i})
	c.settle()
}

func (c *pageCursor) next() {
	c.stack[len(c.stack)-1].i++
	c.settle()
}

// settle reads the record at the cursor, after going on to the next leaf that has one if need be.
func (c *pageCursor) settle() {
	for {
		top := &c.stack[len(c.stack)-1]
		switch {
		case top.i >= top.page.Count:
			if len(c.stack) == 1 {
				c.k, c.v = nil, nil
				return
			}
			c.stack = c.stack[:len(c.stack)-1]
			c.stack[len(c.stack)-1].i++
		case top.page.Kind == boltpage.BranchPage:
			c.stack = append(c.stack, pagePlace{page: c.page(top.page.Child(top.i))})
		default:
			c.k, c.v = top.page.Record(top.i)
			return
		}
	}
}

// damageText is what a panic of the store's own code, of bbolt, or a fault in the memory map says.
func damageText(p any) string {
	if d, ok := p.(damage); ok {
		return string(d)
	}
	return fmt.Sprint("reading it failed: ", p)
}
