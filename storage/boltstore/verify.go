package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltpage"
	"github.com/coffer-project/coffer/storage/lthash"
	"github.com/coffer-project/coffer/storage/record"
)

// The check reads the file with ordinary reads and knows bbolt's format (version 2, unchanged since 2013)
// well enough to decide that bbolt will find every record by every way it looks for one: both meta pages,
// every reachable page's number, kind and bounds, each page reachable once, all keys in order and within
// the bounds that branch pages give. What the records say is compared with the digest in the state record.
// What it does not read is not reachable, and so cannot change an answer.

type verifier struct {
	f         *os.File
	pageSize  int64
	highWater uint64
	seen      runs
	pages     pages // only the checksums
	trusted   bool  // pages and seen are from a file of checksums, and nothing is known of the records

	compare func(id uint64) bool  // pages that have a checksum already, which they must have; nil: none
	skip    func(id uint64) bool  // pages not to look at, nor at what is below them; nil: none
	pace    func(bytes int) error // called after each page; nil: go on
	alone   func() bool           // whether to use one goroutine; nil: several
	looked  atomic.Int64          // pages that were read

	group errgroup.Group
	mu    sync.Mutex
	total record.Digest
	sum   lthash.Sum // of all records, if they were all read
}

// verifyFile checks the whole file and returns what it has found of it: which pages it uses, and their checksums.
// Its errors are *storage.CorruptError, but for a disk that cannot be read.
func verifyFile(f *os.File, name string) (*verifier, error) {
	v := newVerifier(f)
	err := v.verify()
	if bad := (damage("")); errors.As(err, &bad) {
		return nil, &storage.CorruptError{File: name, Detail: string(bad)}
	}
	return v, err
}

func newVerifier(f *os.File) *verifier {
	v := &verifier{f: f}
	v.group.SetLimit(max(2, min(4, runtime.GOMAXPROCS(0))))
	return v
}

func (v *verifier) verify() error {
	m, err := v.open()
	if err != nil {
		return err
	}
	return v.addUp(m.Root)
}

// open reads the meta pages.
func (v *verifier) open() (boltpage.Meta, error) {
	m, _, err := boltpage.Metas(v.read)
	if err != nil {
		return m, err
	}
	v.pageSize = int64(m.PageSize)
	return m, v.setHighWater(m.HighWater)
}

// addUp checks everything below the page of the buckets, and that the records are those that the state record is about.
func (v *verifier) addUp(root uint64) error {
	st, err := v.walk(root)
	if err != nil {
		return err
	}
	if v.total != st.Digest {
		return boltpage.Damagef("it holds %d records of %d bytes that do not add up to the %d records of %d bytes last written",
			v.total.Count, v.total.Bytes, st.Count, st.Bytes)
	}
	return nil
}

// walk checks everything below the page of the buckets but for what is skipped, and returns the state record.
func (v *verifier) walk(root uint64) (st state, err error) {
	data, meta, err := v.readRoot(root)
	if err != nil {
		return st, err
	}
	var buf []byte
	p, err := v.bucketPage(meta, &buf)
	if err != nil {
		return st, err
	}
	if st, err = stateOf(&p); err != nil || v.skips(root) {
		return st, err
	}
	return st, errors.Join(v.walkData(data), v.group.Wait())
}

func (v *verifier) skips(id uint64) bool { return v.skip != nil && v.skip(id) }

func (v *verifier) read(b []byte, off int64) error {
	_, err := v.f.ReadAt(b, off)
	if errors.Is(err, io.EOF) {
		return boltpage.Damagef("it ends before byte %d", off+int64(len(b)))
	}
	return err
}

func (v *verifier) setHighWater(pages uint64) error {
	info, err := v.f.Stat()
	if err != nil {
		return err
	}
	if size := uint64(info.Size()); pages > size/uint64(v.pageSize) {
		return boltpage.Damagef("it has %d bytes and should have %d pages of %d", size, pages, v.pageSize)
	}
	v.highWater = pages
	v.seen = make(runs, pages/32+1)
	v.pages.grow(pages)
	return nil
}

// claim notes that page id is in use, which must be the first time.
func (v *verifier) claim(id uint64) error {
	if id < 2 || id >= v.highWater {
		return boltpage.Damagef("page %d is referred to but is not in use", id)
	}
	bit := uint32(1) << (id % 32)
	if atomic.OrUint32(&v.seen[id/32], bit)&bit != 0 {
		return boltpage.Damagef("page %d is referred to twice", id)
	}
	return nil
}

// readPage reads page id into buf, which it grows if need be, and checks its header.
func (v *verifier) readPage(id uint64, buf *[]byte) (page, error) {
	if err := v.claim(id); err != nil {
		return page{}, err
	}
	if int64(len(*buf)) < v.pageSize {
		*buf = make([]byte, v.pageSize)
	}
	b := (*buf)[:v.pageSize]
	if err := v.read(b, int64(id)*v.pageSize); err != nil {
		return page{}, err
	}
	ne := binary.NativeEndian
	if got := ne.Uint64(b); got != id {
		return page{}, boltpage.Damagef("page %d says that it is page %d", id, got)
	}
	if overflow := uint64(ne.Uint32(b[12:])); overflow > 0 {
		size := (int64(overflow) + 1) * v.pageSize
		if overflow >= v.highWater || size > boltpage.MaxBytes {
			return page{}, boltpage.Damagef("page %d has %d overflow pages", id, overflow)
		}
		for i := range overflow {
			if err := v.claim(id + 1 + i); err != nil {
				return page{}, err
			}
		}
		if int64(len(*buf)) < size {
			*buf = append(make([]byte, 0, size), b...)[:size]
		}
		b = (*buf)[:size]
		if err := v.read(b[v.pageSize:], (int64(id)+1)*v.pageSize); err != nil {
			return page{}, err
		}
	}
	v.looked.Add(1)
	sum, place := crc32.Checksum(b, castagnoli), v.pages.sum(id)
	if v.compare == nil || !v.compare(id) {
		place.Store(sum)
	} else if place.Load() != sum {
		return page{}, boltpage.Damagef("the checksum of page %d is wrong", id)
	}
	p, err := boltpage.Parse(id, b)
	if err == nil && v.pace != nil {
		err = v.pace(len(b))
	}
	return p, err
}

// readRoot returns the headers (and inline pages) of the two buckets in the root leaf.
func (v *verifier) readRoot(id uint64) (data, meta []byte, err error) {
	var buf []byte
	p, err := v.readPage(id, &buf)
	if err != nil {
		return nil, nil, err
	}
	return p.Buckets()
}

// bucketPage returns the root page of a bucket, which may be inline.
func (v *verifier) bucketPage(bucket []byte, buf *[]byte) (page, error) {
	if root := binary.NativeEndian.Uint64(bucket); root != 0 {
		return v.readPage(root, buf)
	}
	return boltpage.Inline(bucket)
}

// state returns the state record, which must be all that the root page of the meta bucket has.
func stateOf(p *page) (st state, err error) {
	if p.Kind != boltpage.LeafPage || p.Count > 1 {
		return st, damage("its meta bucket holds something else than the state record")
	}
	found := false
	err = p.EachLeaf(nil, nil, func(key, value []byte) error {
		if found = bytes.Equal(key, stateKey); !found {
			return damage("its meta bucket holds something else than the state record")
		}
		if st, err = decodeState(value); err != nil {
			return damage(err.Error())
		}
		return nil
	})
	if err == nil && !found {
		err = damage("it has no state record")
	}
	return st, err
}

func (v *verifier) walkData(bucket []byte) error {
	if root := binary.NativeEndian.Uint64(bucket); root != 0 && v.skips(root) {
		return nil
	}
	var buf []byte
	p, err := v.bucketPage(bucket, &buf)
	if err != nil {
		return err
	}
	return v.walkPage(p, nil, nil)
}

// buffers recycles the memory of pages that have been checked.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// walkTree checks the tree below page id, whose keys lie in [lo, hi).
func (v *verifier) walkTree(id uint64, lo, hi []byte) error {
	if v.skips(id) {
		return nil
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	p, err := v.readPage(id, buf)
	if err != nil {
		return err
	}
	return v.walkPage(p, lo, hi)
}

func (v *verifier) walkPage(p page, lo, hi []byte) error {
	if p.Kind == boltpage.BranchPage {
		return v.walkBranch(p, lo, hi)
	}
	var total record.Digest
	var sum lthash.Sum
	err := p.EachLeaf(lo, hi, func(key, rec []byte) error {
		if _, _, err := record.Parse(rec); err != nil {
			return boltpage.Damagef("page %d: %v", p.ID, err)
		}
		total.Add(key, rec)
		sum.Add(key, rec)
		return nil
	})
	v.mu.Lock()
	v.total.Merge(total)
	v.sum.Merge(&sum)
	v.mu.Unlock()
	return err
}

// walkBranch checks each child within the bounds of its key and the next one, some of them in parallel.
func (v *verifier) walkBranch(p page, lo, hi []byte) error {
	p.B = bytes.Clone(p.B) // the keys are the bounds of goroutines that outlive the buffer
	for i := range p.Count {
		child, key, err := p.Branch(i)
		if err != nil {
			return err
		}
		next := hi
		if i+1 < p.Count {
			if _, next, err = p.Branch(i + 1); err != nil {
				return err
			}
		}
		if bytes.Compare(key, lo) < 0 || next != nil && bytes.Compare(key, next) >= 0 {
			return boltpage.Damagef("element %d of page %d is out of order", i, p.ID)
		}
		if (v.alone == nil || !v.alone()) && v.group.TryGo(func() error { return v.walkTree(child, key, next) }) {
			continue
		}
		if err := v.walkTree(child, key, next); err != nil {
			return err
		}
	}
	return nil
}
