// Package pagesums keeps the checksums of the pages of a file beside it, so that the file can be read again without a pass over all of it.
//
// It promises that Read returns one state of the file as a whole, or an error: a record that was being written when the process
// ended does not count. It knows nothing of what is in the pages. The checksums are of one state, which may be older than the file:
// the owner sees to it that the pages of that state are not written until a newer one is durable here. Start reading at Keeper.
package pagesums

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/coffer-project/coffer/storage/boltfile"
)

// State says which state of the file the checksums are of.
type State struct {
	Tx, Root, High     uint64 // the transaction, the page that the others are found from, and the first page that was never in use
	Sum, Count, Bytes  uint64 // of the records
	Incarnation, Owner uint64 // the mark of the file
}

// A record is, in little endian: what it is (8 bytes), the state (8 for each number), the length of the runs (8), the runs, and
// two checksums of all that (4 each). A run is of consecutive pages: the first one (4), how many (4), and the checksum of each
// (4); with freeRun in the number they are not in use, and have none. The first record has all pages, the others what has changed.
const (
	recordAll     = "CofSums1"
	recordChanges = "CofSums+"
	freeRun       = 1 << 31
	stateNumbers  = 8
	headBytes     = 8 + 8*stateNumbers + 8
	maxPages      = freeRun
)

func (s *State) numbers() [stateNumbers]*uint64 {
	return [...]*uint64{&s.Tx, &s.Root, &s.High, &s.Sum, &s.Count, &s.Bytes, &s.Incarnation, &s.Owner}
}

// Page is one page in a record.
type Page struct {
	ID   uint64
	Used bool
	Sum  uint32 // of a page that is in use
}

// encode returns a record. Pages come in ascending order.
func encode(kind string, s State, pages func(yield func(Page) bool)) ([]byte, error) {
	le := binary.LittleEndian
	size := uint64(64 << 10)
	if kind == recordAll {
		size += 4 * min(s.High, maxPages)
	}
	b := append(make([]byte, 0, size), kind...)
	for _, n := range s.numbers() {
		b = le.AppendUint64(b, *n)
	}
	b = le.AppendUint64(b, 0)
	run, next, used := 0, uint64(0), false // where the run's header is; 0: none
	for p := range pages {
		if p.ID >= maxPages {
			return nil, fmt.Errorf("page %d is one too many for checksums beside the file", p.ID)
		}
		if run == 0 || p.ID != next || p.Used != used {
			run, used = len(b), p.Used
			b = le.AppendUint32(b, uint32(p.ID))
			b = le.AppendUint32(b, 0)
			if !used {
				le.PutUint32(b[run+4:], freeRun)
			}
		}
		le.PutUint32(b[run+4:], le.Uint32(b[run+4:])+1)
		if used {
			b = le.AppendUint32(b, p.Sum)
		}
		next = p.ID + 1
	}
	le.PutUint64(b[headBytes-8:], uint64(len(b)-headBytes))
	return appendSums(b), nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendSums(b []byte) []byte {
	whole := len(b)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[:whole], castagnoli))
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b[:whole]))
}

// readRecord returns io.EOF at the end, and io.ErrUnexpectedEOF for a record that is not whole. limit bounds its length.
func readRecord(r io.Reader, kind string, limit int64) (s State, runs []byte, err error) {
	le := binary.LittleEndian
	b := make([]byte, headBytes)
	if _, err := io.ReadFull(r, b); err != nil {
		return s, nil, err
	}
	length := le.Uint64(b[headBytes-8:])
	if string(b[:8]) != kind || length > uint64(max(0, limit)) {
		return s, nil, io.ErrUnexpectedEOF
	}
	b = append(b, make([]byte, length+8)...)
	if _, err := io.ReadFull(r, b[headBytes:]); err != nil {
		return s, nil, io.ErrUnexpectedEOF
	}
	end := len(b) - 8
	if string(appendSums(b[:end:end])[end:]) != string(b[end:]) {
		return s, nil, io.ErrUnexpectedEOF
	}
	for i, n := range s.numbers() {
		*n = le.Uint64(b[8+8*i:])
	}
	return s, b[headBytes:end], nil
}

// eachPage calls fn with the pages in runs.
func eachPage(runs []byte, high uint64, fn func(Page)) error {
	le := binary.LittleEndian
	for len(runs) > 0 {
		if len(runs) < 8 {
			return errors.New("a run of pages is cut short")
		}
		id, n := uint64(le.Uint32(runs)), uint64(le.Uint32(runs[4:]))
		used := n&freeRun == 0
		n &^= freeRun
		runs = runs[8:]
		if id+n > high || used && uint64(len(runs)) < 4*n {
			return errors.New("a run of pages is longer than it can be")
		}
		for i := range n {
			p := Page{ID: id + i, Used: used}
			if used {
				p.Sum = le.Uint32(runs[4*i:])
			}
			fn(p)
		}
		if used {
			runs = runs[4*n:]
		}
	}
	return nil
}

// Read calls fn with pages of the newest state in the file, a later call for the same page taking the place of an earlier one, and
// returns that state. fs.ErrNotExist: there is no file. begin is called before fn, with each state that pages follow of.
func Read(path string, begin func(State) error, fn func(Page)) (last State, err error) {
	f, err := os.Open(path)
	if err != nil {
		return last, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return last, err
	}
	r, kind := bufio.NewReaderSize(f, 1<<20), recordAll
	for {
		s, runs, err := readRecord(r, kind, info.Size())
		switch {
		case kind == recordChanges && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
			return last, nil // what came after the last whole record is what a crash has left
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return last, fmt.Errorf("%s is not whole", path)
		case err != nil:
			return last, err
		}
		if err := begin(s); err != nil {
			return last, err
		}
		if err := eachPage(runs, s.High, fn); err != nil {
			return last, fmt.Errorf("%s: %w", path, err)
		}
		last, kind = s, recordChanges
	}
}

// file is one that records are added to.
type file struct {
	f            *os.File
	first, since int64 // bytes of the first record, and of those after it
}

// create makes a file with its first record, which takes the place of one that is there.
func create(path string, record []byte) (*file, error) {
	err := boltfile.Replace(path, func(f *os.File) error {
		_, err := f.Write(record)
		return err
	})
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	return &file{f: f, first: int64(len(record))}, err
}

func (f *file) add(record []byte) error {
	if _, err := f.f.Write(record); err != nil {
		return err
	}
	f.since += int64(len(record))
	return f.f.Sync()
}

// remove removes the file at path, and one that was being made, and makes that durable.
func remove(path string) error {
	var failed error
	for _, name := range []string{path, path + ".new"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return errors.Join(failed, boltfile.SyncDir(filepath.Dir(path)))
}
