package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// bbolt protects its two meta pages with a checksum and nothing else. It also takes a damaged newer meta page
// for a torn write, and then silently goes back to the transaction before: an acknowledged entry would be
// gone. walker reads a closed bbolt file without bbolt, so that nothing in it can crash the process, and
// vouches for the structure: both metas are whole and adjacent, every page that can be reached says it is
// the page that was meant, lies inside the file and belongs to one parent, and every key is where a search
// finds it. What keys and values say is the visitor's business.
type walker struct {
	f        *os.File
	pageSize int64
	high     uint64 // pages at and above were never used
	seen     []bool // pages reached so far

	last []byte // greatest key so far in the bucket being walked; nil at its start
}

const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	pageHeaderSize = 16
	metaSize       = 64
	elementSize    = 16 // of leaves and branches alike
	bucketSize     = 16 // root page and sequence
	branchFlag     = 1
	leafFlag       = 2
	bucketFlag     = 1
	maxDepth       = 64
)

var native = binary.NativeEndian

// meta is what matters of a meta page.
type meta struct{ pageSize, root, list, high, tx uint64 }

func parseMeta(page []byte) (meta, error) {
	m := page[pageHeaderSize:]
	if native.Uint32(m) != boltMagic || native.Uint32(m[4:]) != boltVersion {
		return meta{}, errors.New("a meta page is not one")
	}
	sum := fnv.New64a()
	sum.Write(m[:metaSize-8])
	if native.Uint64(m[metaSize-8:]) != sum.Sum64() {
		return meta{}, errors.New("a meta page has a wrong checksum")
	}
	if size := native.Uint32(m[8:]); size < 1024 || size > 1<<16 {
		return meta{}, errors.New("a meta page has an impossible page size")
	}
	return meta{uint64(native.Uint32(m[8:])), native.Uint64(m[16:]), native.Uint64(m[32:]), native.Uint64(m[40:]), native.Uint64(m[48:])}, nil
}

// newestMeta returns the newer meta page, if both are whole.
func newestMeta(f *os.File) (meta, error) {
	first := make([]byte, pageHeaderSize+metaSize)
	if _, err := f.ReadAt(first, 0); err != nil {
		return meta{}, readError("meta page 0", err)
	}
	m0, err := parseMeta(first)
	if err != nil {
		return meta{}, err
	}
	if _, err := f.ReadAt(first, int64(m0.pageSize)); err != nil {
		return meta{}, readError("meta page 1", err)
	}
	m1, err := parseMeta(first)
	if err != nil {
		return meta{}, err
	}
	now, before := m0, m1
	if m1.tx > m0.tx {
		now, before = m1, m0
	}
	if now.tx != before.tx+1 || now.pageSize != before.pageSize {
		return meta{}, errors.New("the meta pages do not follow each other")
	}
	return now, nil
}

// CheckMetas reports, as an error, that one of the two meta pages is damaged, in which case bbolt would go back to the other one. No
// transaction may be writing one of them.
func CheckMetas(f *os.File) error {
	_, err := newestMeta(f)
	return err
}

// Walk calls visit for every key of every bucket at the root of the file, buckets and keys in order.
func Walk(f *os.File, visit func(bucket string, key, value []byte) error) error {
	now, err := newestMeta(f)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if now.high > uint64(info.Size())/now.pageSize {
		return fmt.Errorf("the file is cut short: %d bytes, %d pages of %d are in use", info.Size(), now.high, now.pageSize)
	}
	b := &walker{f: f, pageSize: int64(now.pageSize), high: now.high, seen: make([]bool, now.high)}
	return b.bucket(now.root, func(flags uint32, name, value []byte) error {
		if flags != bucketFlag || len(value) < bucketSize {
			return errors.New("the root holds something that is not a bucket")
		}
		inside := func(flags uint32, key, value []byte) error {
			if flags != 0 {
				return errors.New("a key is marked as something else")
			}
			return visit(string(name), key, value)
		}
		outer := b.last
		defer func() { b.last = outer }()
		if root := native.Uint64(value); root != 0 {
			return b.bucket(root, inside)
		}
		b.last = nil
		return b.leaf(value[bucketSize:], inside)
	})
}

func readError(what string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file ends before %s", what)
	}
	return err
}

type visitLeaf func(flags uint32, key, value []byte) error

func (b *walker) bucket(root uint64, visit visitLeaf) error {
	b.last = nil
	return b.tree(root, nil, 0, visit)
}

// tree walks the pages below id, whose keys must all be at least low.
func (b *walker) tree(id uint64, low []byte, depth int, visit visitLeaf) error {
	page, err := b.page(id)
	if err != nil {
		return err
	}
	if depth > maxDepth {
		return errors.New("the pages are nested too deep")
	}
	count := int(native.Uint16(page[10:]))
	switch flags := native.Uint16(page[8:]); {
	case flags == leafFlag && (count > 0 || depth == 0):
		if count > 0 {
			if _, key, _, err := element(page, 0, leafFlag); err != nil || bytes.Compare(key, low) < 0 {
				return fmt.Errorf("page %d is not where its keys belong", id)
			}
		}
		return b.leaf(page, visit)
	case flags == branchFlag && count > 0:
		return b.branch(page, count, low, depth, visit)
	default:
		return fmt.Errorf("page %d has flags %#x and %d elements", id, flags, count)
	}
}

func (b *walker) branch(page []byte, count int, low []byte, depth int, visit visitLeaf) error {
	for i := range count {
		_, key, _, err := element(page, i, branchFlag)
		if err != nil {
			return err
		}
		if bytes.Compare(key, low) < 0 || i > 0 && bytes.Compare(key, b.last) <= 0 {
			return errors.New("a branch page is out of order")
		}
		child := native.Uint64(page[pageHeaderSize+i*elementSize+8:])
		if err := b.tree(child, key, depth+1, visit); err != nil {
			return err
		}
	}
	return nil
}

func (b *walker) leaf(page []byte, visit visitLeaf) error {
	if len(page) < pageHeaderSize || native.Uint16(page[8:]) != leafFlag {
		return errors.New("a leaf page is not one")
	}
	for i := range int(native.Uint16(page[10:])) {
		flags, key, value, err := element(page, i, leafFlag)
		if err != nil {
			return err
		}
		if b.last != nil && bytes.Compare(key, b.last) <= 0 {
			return errors.New("a leaf page is out of order")
		}
		if err := visit(flags, key, value); err != nil {
			return err
		}
		b.last = key
	}
	return nil
}

// element returns the i-th element of a page. A branch's has no value; its child is read by the caller.
func element(page []byte, i int, kind uint16) (flags uint32, key, value []byte, err error) {
	at := pageHeaderSize + i*elementSize
	if at+elementSize > len(page) {
		return 0, nil, nil, errors.New("a page claims more elements than it can hold")
	}
	e := page[at:]
	var pos, keySize, valueSize uint64
	if kind == branchFlag {
		pos, keySize = uint64(native.Uint32(e)), uint64(native.Uint32(e[4:]))
	} else {
		flags = native.Uint32(e)
		pos, keySize, valueSize = uint64(native.Uint32(e[4:])), uint64(native.Uint32(e[8:])), uint64(native.Uint32(e[12:]))
	}
	if pos < elementSize || pos+keySize+valueSize > uint64(len(e)) {
		return 0, nil, nil, errors.New("an element reaches out of its page")
	}
	return flags, e[pos : pos+keySize : pos+keySize], e[pos+keySize : pos+keySize+valueSize], nil
}

// page reads one page with its overflow, and marks it as reached.
func (b *walker) page(id uint64) ([]byte, error) {
	header := make([]byte, pageHeaderSize)
	if id < 2 || id >= b.high {
		return nil, fmt.Errorf("page %d is not one of %d", id, b.high)
	}
	if _, err := b.f.ReadAt(header, int64(id)*b.pageSize); err != nil {
		return nil, readError("a page", err)
	}
	overflow := uint64(native.Uint32(header[12:]))
	if native.Uint64(header) != id || id+overflow >= b.high {
		return nil, fmt.Errorf("page %d says it is another", id)
	}
	for i := id; i <= id+overflow; i++ {
		if b.seen[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		b.seen[i] = true
	}
	page := make([]byte, int64(overflow+1)*b.pageSize)
	if _, err := b.f.ReadAt(page, int64(id)*b.pageSize); err != nil {
		return nil, readError("a page", err)
	}
	return page, nil
}
