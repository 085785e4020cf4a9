package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/lthash"
)

// The check reads the file with ordinary reads and knows bbolt's format (version 2, unchanged since 2013)
// well enough to decide that bbolt will find every record by every way it looks for one: both meta pages,
// every reachable page's number, kind and bounds, each page reachable once, all keys in order and within
// the bounds that branch pages give. What the records say is compared with the digest in the state record.
// What it does not read is not reachable, and so cannot change an answer.

const (
	pageHeaderBytes = 16
	elementBytes    = 16
	bucketBytes     = 16

	branchPage = 0x01
	leafPage   = 0x02
	metaPage   = 0x04

	bucketElement = 0x01
	noFreelist    = ^uint64(0)

	// maxPageBytes bounds one record: far more than the FSM ever stores.
	maxPageBytes = 64 << 20
)

// boltMeta is what bbolt's meta page says.
type boltMeta struct {
	pageSize  uint32
	root      uint64
	freelist  uint64
	highWater uint64 // pages at and above it are not in use
	txid      uint64
}

type verifier struct {
	f         *os.File
	pageSize  int64
	highWater uint64
	seen      runs
	pages     pages // only the checksums
	trusted   bool  // pages and seen are from a file of checksums, and nothing is known of the records
	freed     bool  // the file has been given a list of its free pages

	compare func(id uint64) bool  // pages that have a checksum already, which they must have; nil: none
	skip    func(id uint64) bool  // pages not to look at, nor at what is below them; nil: none
	pace    func(bytes int) error // called after each page; nil: go on
	alone   func() bool           // whether to use one goroutine; nil: several
	looked  atomic.Int64          // pages that were read

	group errgroup.Group
	mu    sync.Mutex
	total Digest
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

// damage is a finding.
type damage string

func (d damage) Error() string { return string(d) }

func damagef(format string, args ...any) error { return damage(fmt.Sprintf(format, args...)) }

func (v *verifier) verify() error {
	m, err := v.open()
	if err != nil {
		return err
	}
	return v.addUp(m.root)
}

// open reads the meta pages.
func (v *verifier) open() (boltMeta, error) {
	m, err := newestMeta(v.read)
	if err != nil {
		return m, err
	}
	v.pageSize = int64(m.pageSize)
	return m, v.setHighWater(m.highWater)
}

// addUp checks everything below the page of the buckets, and that the records are those that the state record is about.
func (v *verifier) addUp(root uint64) error {
	st, err := v.walk(root)
	if err != nil {
		return err
	}
	if v.total != st.Digest {
		return damagef("it holds %d records of %d bytes that do not add up to the %d records of %d bytes last written",
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
	if st, err = p.state(); err != nil || v.skips(root) {
		return st, err
	}
	return st, errors.Join(v.walkData(data), v.group.Wait())
}

func (v *verifier) skips(id uint64) bool { return v.skip != nil && v.skip(id) }

// newestMeta demands that both meta pages are whole, and returns the newer one.
func newestMeta(read func(b []byte, off int64) error) (boltMeta, error) {
	first, err := readMeta(read, 0)
	if err != nil {
		return first, err
	}
	if s := first.pageSize; s < 512 || s > 1<<20 || s&(s-1) != 0 {
		return first, damagef("its page size is %d", s)
	}
	second, err := readMeta(read, int64(first.pageSize))
	if err != nil {
		return second, err
	}
	if second.pageSize != first.pageSize {
		return second, damage("its meta pages disagree about the page size")
	}
	if second.txid > first.txid {
		first = second
	}
	return first, nil
}

func readMeta(read func(b []byte, off int64) error, off int64) (m boltMeta, err error) {
	b := make([]byte, pageHeaderBytes+64)
	if err := read(b, off); err != nil {
		return m, err
	}
	b = b[pageHeaderBytes:]
	ne := binary.NativeEndian
	h := fnv.New64a()
	h.Write(b[:56])
	switch {
	case ne.Uint32(b) != 0xED0CDAED || ne.Uint32(b[4:]) != 2:
		return m, damagef("the meta page at %d is not one of a bbolt file of version 2", off)
	case h.Sum64() != ne.Uint64(b[56:]):
		return m, damagef("the checksum of the meta page at %d is wrong", off)
	}
	return boltMeta{
		pageSize: ne.Uint32(b[8:]), root: ne.Uint64(b[16:]), // 24: a sequence, not used
		freelist: ne.Uint64(b[32:]), highWater: ne.Uint64(b[40:]), txid: ne.Uint64(b[48:]),
	}, nil
}

func (v *verifier) read(b []byte, off int64) error {
	_, err := v.f.ReadAt(b, off)
	if errors.Is(err, io.EOF) {
		return damagef("it ends before byte %d", off+int64(len(b)))
	}
	return err
}

func (v *verifier) setHighWater(pages uint64) error {
	info, err := v.f.Stat()
	if err != nil {
		return err
	}
	if size := uint64(info.Size()); pages > size/uint64(v.pageSize) {
		return damagef("it has %d bytes and should have %d pages of %d", size, pages, v.pageSize)
	}
	v.highWater = pages
	v.seen = make(runs, pages/32+1)
	v.pages.grow(pages)
	return nil
}

// claim notes that page id is in use, which must be the first time.
func (v *verifier) claim(id uint64) error {
	if id < 2 || id >= v.highWater {
		return damagef("page %d is referred to but is not in use", id)
	}
	bit := uint32(1) << (id % 32)
	if atomic.OrUint32(&v.seen[id/32], bit)&bit != 0 {
		return damagef("page %d is referred to twice", id)
	}
	return nil
}

// page is one parsed page, overflow included.
type page struct {
	id    uint64
	kind  uint16
	count int
	b     []byte
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
		return page{}, damagef("page %d says that it is page %d", id, got)
	}
	if overflow := uint64(ne.Uint32(b[12:])); overflow > 0 {
		size := (int64(overflow) + 1) * v.pageSize
		if overflow >= v.highWater || size > maxPageBytes {
			return page{}, damagef("page %d has %d overflow pages", id, overflow)
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
		return page{}, damagef("the checksum of page %d is wrong", id)
	}
	p, err := parsePage(id, b)
	if err == nil && v.pace != nil {
		err = v.pace(len(b))
	}
	return p, err
}

// parsePage checks the header of a page and that its element table fits.
func parsePage(id uint64, b []byte) (page, error) {
	ne := binary.NativeEndian
	p := page{id: id, kind: ne.Uint16(b[8:]), count: int(ne.Uint16(b[10:])), b: b}
	if p.kind != leafPage && p.kind != branchPage {
		return p, damagef("page %d is of unknown kind %d", id, p.kind)
	}
	if pageHeaderBytes+p.count*elementBytes > len(b) {
		return p, damagef("page %d has %d elements, more than fit", id, p.count)
	}
	if p.kind == branchPage && p.count == 0 {
		return p, damagef("branch page %d is empty", id)
	}
	return p, nil
}

// leaf returns element i of a leaf page.
func (p *page) leaf(i int) (flags uint32, key, value []byte, err error) {
	ne := binary.NativeEndian
	off := pageHeaderBytes + i*elementBytes
	e := p.b[off:]
	at := uint64(off) + uint64(ne.Uint32(e[4:]))
	keyEnd := at + uint64(ne.Uint32(e[8:]))
	end := keyEnd + uint64(ne.Uint32(e[12:]))
	if at < uint64(pageHeaderBytes+p.count*elementBytes) || end > uint64(len(p.b)) {
		return 0, nil, nil, damagef("element %d of page %d lies outside of it", i, p.id)
	}
	return ne.Uint32(e), p.b[at:keyEnd], p.b[keyEnd:end], nil
}

// branch returns element i of a branch page.
func (p *page) branch(i int) (child uint64, key []byte, err error) {
	ne := binary.NativeEndian
	off := pageHeaderBytes + i*elementBytes
	e := p.b[off:]
	at := uint64(off) + uint64(ne.Uint32(e))
	end := at + uint64(ne.Uint32(e[4:]))
	if at < uint64(pageHeaderBytes+p.count*elementBytes) || end > uint64(len(p.b)) {
		return 0, nil, damagef("element %d of page %d lies outside of it", i, p.id)
	}
	return ne.Uint64(e[8:]), p.b[at:end], nil
}

// readRoot returns the headers (and inline pages) of the two buckets in the root leaf.
func (v *verifier) readRoot(id uint64) (data, meta []byte, err error) {
	var buf []byte
	p, err := v.readPage(id, &buf)
	if err != nil {
		return nil, nil, err
	}
	return p.buckets()
}

// buckets returns the headers (and inline pages) of the two buckets in a root leaf.
func (p *page) buckets() (data, meta []byte, err error) {
	if p.kind != leafPage || p.count != 2 {
		return nil, nil, damage("its root page does not hold two buckets")
	}
	var found [2][]byte
	for i, name := range [][]byte{dataBucket, metaBucket} {
		flags, key, value, err := p.leaf(i)
		switch {
		case err != nil:
			return nil, nil, err
		case flags != bucketElement || !bytes.Equal(key, name) || len(value) < bucketBytes:
			return nil, nil, damagef("its root page does not hold the bucket %s", name)
		}
		found[i] = value
	}
	return found[0], found[1], nil
}

// bucketPage returns the root page of a bucket, which may be inline.
func (v *verifier) bucketPage(bucket []byte, buf *[]byte) (page, error) {
	if root := binary.NativeEndian.Uint64(bucket); root != 0 {
		return v.readPage(root, buf)
	}
	return inlinePage(bucket)
}

// inlinePage returns the page in a bucket that has no other.
func inlinePage(bucket []byte) (page, error) {
	if len(bucket) < bucketBytes+pageHeaderBytes {
		return page{}, damage("an inline bucket is too short")
	}
	b := bucket[bucketBytes:]
	p, err := parsePage(0, b)
	if err == nil && (p.kind != leafPage || binary.NativeEndian.Uint64(b) != 0 || binary.NativeEndian.Uint32(b[12:]) != 0) {
		err = damage("the page header of an inline bucket is wrong") // bbolt would free the page it names
	}
	return p, err
}

// state returns the state record, which must be all that the root page of the meta bucket has.
func (p *page) state() (st state, err error) {
	if p.kind != leafPage || p.count > 1 {
		return st, damage("its meta bucket holds something else than the state record")
	}
	found := false
	err = p.eachLeaf(nil, nil, func(key, value []byte) error {
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

// eachLeaf calls fn with each record of a leaf. Keys must ascend within [lo, hi); hi nil is no bound.
func (p *page) eachLeaf(lo, hi []byte, fn func(key, value []byte) error) error {
	var last []byte
	for i := range p.count {
		flags, key, value, err := p.leaf(i)
		switch {
		case err != nil:
			return err
		case flags != 0:
			return damagef("element %d of page %d has unknown flags", i, p.id)
		case bytes.Compare(key, lo) < 0 || hi != nil && bytes.Compare(key, hi) >= 0 || i > 0 && bytes.Compare(key, last) <= 0:
			return damagef("element %d of page %d is out of order", i, p.id)
		}
		if err := fn(key, value); err != nil {
			return err
		}
		last = key
	}
	return nil
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
	if p.kind == branchPage {
		return v.walkBranch(p, lo, hi)
	}
	var total Digest
	var sum lthash.Sum
	err := p.eachLeaf(lo, hi, func(key, rec []byte) error {
		if _, _, err := ParseRecord(rec); err != nil {
			return damagef("page %d: %v", p.id, err)
		}
		total.Add(key, rec)
		sum.Add(key, rec)
		return nil
	})
	v.mu.Lock()
	v.total.merge(total)
	v.sum.Merge(&sum)
	v.mu.Unlock()
	return err
}

// walkBranch checks each child within the bounds of its key and the next one, some of them in parallel.
func (v *verifier) walkBranch(p page, lo, hi []byte) error {
	p.b = bytes.Clone(p.b) // the keys are the bounds of goroutines that outlive the buffer
	for i := range p.count {
		child, key, err := p.branch(i)
		if err != nil {
			return err
		}
		next := hi
		if i+1 < p.count {
			if _, next, err = p.branch(i + 1); err != nil {
				return err
			}
		}
		if bytes.Compare(key, lo) < 0 || next != nil && bytes.Compare(key, next) >= 0 {
			return damagef("element %d of page %d is out of order", i, p.id)
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
