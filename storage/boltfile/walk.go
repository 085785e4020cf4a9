package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/coffer-project/coffer/storage/boltpage"
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

	last  []byte   // greatest key so far in the bucket being walked; nil at its start
	spare [][]byte // buffers of pages that were left
}

const (
	bucketFlag = 1
	bucketSize = 16 // root page and sequence
	maxDepth   = 64
)

var native = binary.NativeEndian

// newestMeta returns the newer meta page, if both are whole.
func newestMeta(f *os.File) (boltpage.Meta, error) {
	now, before, err := boltpage.Metas(func(b []byte, off int64) error {
		_, err := f.ReadAt(b, off)
		return readError("its meta pages", err)
	})
	if err == nil && now.Tx != before.Tx+1 {
		err = errors.New("the meta pages do not follow each other")
	}
	return now, err
}

// CheckMetas reports, as an error, that one of the two meta pages is damaged, in which case bbolt would go back to the other one. No
// transaction may be writing one of them.
func CheckMetas(f *os.File) error {
	_, err := newestMeta(f)
	return err
}

// Walk calls visit for every key of every bucket at the root of the file, buckets and keys in order. What visit gets is valid until
// it returns. used tells which pages the walk has come to.
func Walk(f *os.File, visit func(bucket string, key, value []byte) error) (used func(id uint64) bool, err error) {
	now, err := newestMeta(f)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if now.HighWater > uint64(info.Size())/uint64(now.PageSize) {
		return nil, fmt.Errorf("the file is cut short: %d bytes, %d pages of %d are in use", info.Size(), now.HighWater, now.PageSize)
	}
	b := &walker{f: f, pageSize: int64(now.PageSize), high: now.HighWater, seen: make([]bool, now.HighWater)}
	err = b.bucket(now.Root, func(flags uint32, name, value []byte) error {
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
		p, err := boltpage.Inline(value)
		if err != nil {
			return err
		}
		return b.leaf(p, inside)
	})
	return func(id uint64) bool { return b.seen[id] }, err
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
	content, err := b.page(id)
	if err != nil {
		return err
	}
	defer func() { b.spare = append(b.spare, content) }()
	page, err := boltpage.Parse(id, content)
	switch {
	case err != nil:
		return err
	case depth > maxDepth:
		return errors.New("the pages are nested too deep")
	case page.Kind == boltpage.BranchPage:
		return b.branch(page, low, depth, visit)
	case page.Count == 0 && depth > 0:
		return fmt.Errorf("page %d is empty", id)
	case page.Count > 0:
		if _, key, _, err := page.Leaf(0); err != nil || bytes.Compare(key, low) < 0 {
			return fmt.Errorf("page %d is not where its keys belong", id)
		}
	}
	return b.leaf(page, visit)
}

func (b *walker) branch(page boltpage.Page, low []byte, depth int, visit visitLeaf) error {
	for i := range page.Count {
		child, key, err := page.Branch(i)
		if err != nil {
			return err
		}
		if bytes.Compare(key, low) < 0 || i > 0 && bytes.Compare(key, b.last) <= 0 {
			return errors.New("a branch page is out of order")
		}
		if err := b.tree(child, key, depth+1, visit); err != nil {
			return err
		}
	}
	return nil
}

func (b *walker) leaf(page boltpage.Page, visit visitLeaf) error {
	for i := range page.Count {
		flags, key, value, err := page.Leaf(i)
		if err != nil {
			return err
		}
		if b.last != nil && bytes.Compare(key, b.last) <= 0 {
			return errors.New("a leaf page is out of order")
		}
		if err := visit(flags, key, value); err != nil {
			return err
		}
		b.last = append(b.last[:0], key...)
	}
	return nil
}

// page reads one page with its overflow, and marks it as reached.
func (b *walker) page(id uint64) ([]byte, error) {
	if id < 2 || id >= b.high {
		return nil, fmt.Errorf("page %d is not one of %d", id, b.high)
	}
	page := b.buffer()
	if _, err := b.f.ReadAt(page, int64(id)*b.pageSize); err != nil {
		return nil, readError("a page", err)
	}
	overflow := uint64(native.Uint32(page[12:]))
	if native.Uint64(page) != id || id+overflow >= b.high {
		return nil, fmt.Errorf("page %d says it is another", id)
	}
	for i := id; i <= id+overflow; i++ {
		if b.seen[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		b.seen[i] = true
	}
	page = slices.Grow(page, int(int64(overflow)*b.pageSize))[:int64(overflow+1)*b.pageSize]
	if _, err := b.f.ReadAt(page[b.pageSize:], int64(id+1)*b.pageSize); overflow > 0 && err != nil {
		return nil, readError("a page", err)
	}
	return page, nil
}

// buffer returns one of the size of a page.
func (b *walker) buffer() []byte {
	n := len(b.spare)
	if n == 0 {
		return make([]byte, b.pageSize)
	}
	page := b.spare[n-1]
	b.spare = b.spare[:n-1]
	return page[:b.pageSize]
}
