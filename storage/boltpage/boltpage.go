// Package boltpage reads the pages of a bbolt file (format version 2, unchanged since 2013) that has two buckets, one of records and
// one of what is said about them. Whatever is in the bytes, it finds it or says what is wrong with them: a Damage. It does not read files.
// Start reading at Parse.
package boltpage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
)

// The two buckets at the root of the file.
var (
	DataBucket = []byte("data")
	MetaBucket = []byte("meta")
)

const (
	HeaderBytes  = 16
	ElementBytes = 16
	bucketBytes  = 16

	BranchPage = 0x01
	LeafPage   = 0x02
	metaPage   = 0x04

	bucketElement = 0x01
	NoFreelist    = ^uint64(0)

	// MaxBytes bounds one record: far more than the FSM ever stores.
	MaxBytes = 64 << 20
)

// Meta is what bbolt's meta page says.
type Meta struct {
	PageSize  uint32
	Root      uint64
	Freelist  uint64
	HighWater uint64 // pages at and above it are not in use
	Tx        uint64
}

// Damage is a finding.
type Damage string

// Error implements error.
func (d Damage) Error() string { return string(d) }

// Damagef returns a Damage.
func Damagef(format string, args ...any) error { return Damage(fmt.Sprintf(format, args...)) }

// Metas demands that both meta pages are whole, and returns the newer one and the other.
func Metas(read func(b []byte, off int64) error) (now, before Meta, err error) {
	if before, err = readMeta(read, 0); err != nil {
		return now, before, err
	}
	if s := before.PageSize; s < 512 || s > 1<<20 || s&(s-1) != 0 {
		return now, before, Damagef("its page size is %d", s)
	}
	if now, err = readMeta(read, int64(before.PageSize)); err != nil {
		return now, before, err
	}
	if now.PageSize != before.PageSize {
		return now, before, Damage("its meta pages disagree about the page size")
	}
	if now.Tx < before.Tx {
		now, before = before, now
	}
	return now, before, nil
}

func readMeta(read func(b []byte, off int64) error, off int64) (m Meta, err error) {
	b := make([]byte, HeaderBytes+64)
	if err := read(b, off); err != nil {
		return m, err
	}
	b = b[HeaderBytes:]
	ne := binary.NativeEndian
	h := fnv.New64a()
	h.Write(b[:56])
	switch {
	case ne.Uint32(b) != 0xED0CDAED || ne.Uint32(b[4:]) != 2:
		return m, Damagef("the meta page at %d is not one of a bbolt file of version 2", off)
	case h.Sum64() != ne.Uint64(b[56:]):
		return m, Damagef("the checksum of the meta page at %d is wrong", off)
	}
	return Meta{
		PageSize: ne.Uint32(b[8:]), Root: ne.Uint64(b[16:]), // 24: a sequence, not used
		Freelist: ne.Uint64(b[32:]), HighWater: ne.Uint64(b[40:]), Tx: ne.Uint64(b[48:]),
	}, nil
}

// Page is one parsed page, overflow included.
type Page struct {
	ID    uint64
	Kind  uint16
	Count int // elements
	B     []byte
}

// Parse checks the header of a page and that its element table fits.
func Parse(id uint64, b []byte) (Page, error) {
	ne := binary.NativeEndian
	p := Page{ID: id, Kind: ne.Uint16(b[8:]), Count: int(ne.Uint16(b[10:])), B: b}
	if p.Kind != LeafPage && p.Kind != BranchPage {
		return p, Damagef("page %d is of unknown kind %d", id, p.Kind)
	}
	if HeaderBytes+p.Count*ElementBytes > len(b) {
		return p, Damagef("page %d has %d elements, more than fit", id, p.Count)
	}
	if p.Kind == BranchPage && p.Count == 0 {
		return p, Damagef("branch page %d is empty", id)
	}
	return p, nil
}

// MustParse panics with a damage.
func MustParse(id uint64, b []byte) Page {
	page, err := Parse(id, b)
	if err == nil && binary.NativeEndian.Uint64(b) != id {
		err = Damagef("page %d says that it is page %d", id, binary.NativeEndian.Uint64(b))
	}
	if err != nil {
		panic(err)
	}
	return page
}

// Leaf returns element i of a leaf page.
func (p *Page) Leaf(i int) (flags uint32, key, value []byte, err error) {
	ne := binary.NativeEndian
	off := HeaderBytes + i*ElementBytes
	e := p.B[off:]
	at := uint64(off) + uint64(ne.Uint32(e[4:]))
	keyEnd := at + uint64(ne.Uint32(e[8:]))
	end := keyEnd + uint64(ne.Uint32(e[12:]))
	if at < uint64(HeaderBytes+p.Count*ElementBytes) || end > uint64(len(p.B)) {
		return 0, nil, nil, Damagef("element %d of page %d lies outside of it", i, p.ID)
	}
	return ne.Uint32(e), p.B[at:keyEnd], p.B[keyEnd:end], nil
}

// Branch returns element i of a branch page.
func (p *Page) Branch(i int) (child uint64, key []byte, err error) {
	ne := binary.NativeEndian
	off := HeaderBytes + i*ElementBytes
	e := p.B[off:]
	at := uint64(off) + uint64(ne.Uint32(e))
	end := at + uint64(ne.Uint32(e[4:]))
	if at < uint64(HeaderBytes+p.Count*ElementBytes) || end > uint64(len(p.B)) {
		return 0, nil, Damagef("element %d of page %d lies outside of it", i, p.ID)
	}
	return ne.Uint64(e[8:]), p.B[at:end], nil
}

// Buckets returns the headers (and inline pages) of the two buckets in a root leaf.
func (p *Page) Buckets() (data, meta []byte, err error) {
	if p.Kind != LeafPage || p.Count != 2 {
		return nil, nil, Damage("its root page does not hold two buckets")
	}
	var found [2][]byte
	for i, name := range [][]byte{DataBucket, MetaBucket} {
		flags, key, value, err := p.Leaf(i)
		switch {
		case err != nil:
			return nil, nil, err
		case flags != bucketElement || !bytes.Equal(key, name) || len(value) < bucketBytes:
			return nil, nil, Damagef("its root page does not hold the bucket %s", name)
		}
		found[i] = value
	}
	return found[0], found[1], nil
}

// Inline returns the page in a bucket that has no other.
func Inline(bucket []byte) (Page, error) {
	if len(bucket) < bucketBytes+HeaderBytes {
		return Page{}, Damage("an inline bucket is too short")
	}
	b := bucket[bucketBytes:]
	p, err := Parse(0, b)
	if err == nil && (p.Kind != LeafPage || binary.NativeEndian.Uint64(b) != 0 || binary.NativeEndian.Uint32(b[12:]) != 0) {
		err = Damage("the page header of an inline bucket is wrong") // bbolt would free the page it names
	}
	return p, err
}

// EachLeaf calls fn with each record of a leaf. Keys must ascend within [lo, hi); hi nil is no bound.
func (p *Page) EachLeaf(lo, hi []byte, fn func(key, value []byte) error) error {
	var last []byte
	for i := range p.Count {
		flags, key, value, err := p.Leaf(i)
		switch {
		case err != nil:
			return err
		case flags != 0:
			return Damagef("element %d of page %d has unknown flags", i, p.ID)
		case bytes.Compare(key, lo) < 0 || hi != nil && bytes.Compare(key, hi) >= 0 || i > 0 && bytes.Compare(key, last) <= 0:
			return Damagef("element %d of page %d is out of order", i, p.ID)
		}
		if err := fn(key, value); err != nil {
			return err
		}
		last = key
	}
	return nil
}

// Search returns the first element whose key is at least key, p.Count if there is none. It panics if a key that it compares
// lies outside of the page.
func (p *Page) Search(key string) (i int, found bool) {
	field := 0 // of an element: where its key begins, and how long it is
	if p.Kind == LeafPage {
		field = 4 // after the flags
	}
	lo, hi := 0, p.Count
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		e := HeaderBytes + mid*ElementBytes
		begin := e + int(binary.NativeEndian.Uint32(p.B[e+field:]))
		switch at := p.B[begin : begin+int(binary.NativeEndian.Uint32(p.B[e+field+4:]))]; {
		case string(at) == key:
			return mid, true
		case string(at) < key:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return lo, false
}

// ChildFor returns the element of a branch page whose subtree has key, if any has, and the page there. It panics with a damage.
func (p *Page) ChildFor(key string) (i int, id uint64) {
	i, found := p.Search(key)
	if !found && i > 0 {
		i--
	}
	id, _, err := p.Branch(i)
	if err != nil {
		panic(err)
	}
	return i, id
}

// Child returns the page below element i of a branch page. It panics with a damage.
func (p *Page) Child(i int) uint64 {
	id, _, err := p.Branch(i)
	if err != nil {
		panic(err)
	}
	return id
}

// Record returns the key and the record at element i of a leaf page. It panics with a damage.
func (p *Page) Record(i int) (key, value []byte) {
	_, key, value, err := p.Leaf(i)
	if err != nil {
		panic(err)
	}
	return key, value[:len(value):len(value)]
}

// Below calls fn with each page that this one refers to: children, and the roots of buckets.
func (p *Page) Below(fn func(id uint64)) {
	for i := range p.Count {
		if p.Kind == BranchPage {
			fn(p.Child(i))
			continue
		}
		flags, _, value, err := p.Leaf(i)
		switch {
		case err != nil:
			panic(err)
		case flags&bucketElement == 0:
		case len(value) < bucketBytes:
			panic(Damagef("element %d of page %d is no bucket", i, p.ID))
		default:
			if root := binary.NativeEndian.Uint64(value); root != 0 { // 0: inline
				fn(root)
			}
		}
	}
}

// Runs are the pages that a state of the file uses, one bit for each, overflow pages included.
type Runs []uint32

// Has reports whether a page is in use.
func (r Runs) Has(id uint64) bool { return id/32 < uint64(len(r)) && r[id/32]&(1<<(id%32)) != 0 }

// Set has a page of a file with pages of so many bytes be in use.
func (r *Runs) Set(p Page, size int) {
	for id := p.ID; id < p.ID+uint64(len(p.B)/size); id++ {
		for id/32 >= uint64(len(*r)) {
			*r = append(*r, 0)
		}
		(*r)[id/32] |= 1 << (id % 32)
	}
}

// Clear has a page be free.
func (r Runs) Clear(p Page, size int) {
	for id := p.ID; id < p.ID+uint64(len(p.B)/size); id++ {
		r[id/32] &^= 1 << (id % 32)
	}
}
