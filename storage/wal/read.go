package wal

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"sort"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/wal/record"
)

// Since returns records with an index above after, oldest first, of about maxBytes and at least one if there is any, and
// the index through which the answer is complete: that of the last record returned, or Head if there is none. The
// records are shared: do not modify them. ErrTruncated: the log is not complete from after on, or inactive. Readers do
// not wait for disk syncs, nor Append for readers.
func (l *Log) Since(after storage.Index, maxBytes int) (records []storage.Record, through storage.Index, err error) {
	for {
		s, records, through, err := l.place(after, maxBytes)
		if err != nil || s == nil {
			return records, through, err
		}
		records, err = l.readAfter(s, after, maxBytes)
		if err == nil {
			return records, records[len(records)-1].Index, nil
		}
		if !isDamage(err) {
			return nil, 0, err
		}
		l.dropDamaged(s.number, err)
	}
}

// place answers from memory, or returns the segment that has the next record.
func (l *Log) place(after storage.Index, maxBytes int) (s *segment, records []storage.Record, through storage.Index, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch i := l.findLocked(after); {
	case l.closed:
		return nil, nil, 0, fmt.Errorf("reading the log: %w", os.ErrClosed)
	case !l.active.Load():
		return nil, nil, 0, ErrTruncated
	case after >= l.memory.base:
		if records = l.memory.since(after, maxBytes); len(records) == 0 {
			return nil, nil, l.head, nil
		}
		return nil, records, records[len(records)-1].Index, nil
	case i < 0:
		return nil, nil, 0, ErrTruncated
	default:
		found := l.segments[i] // its marks are only ever added to
		return &found, nil, 0, nil
	}
}

// readAfter returns what the segment has after an index, which is not nothing.
func (l *Log) readAfter(s *segment, after storage.Index, maxBytes int) (records []storage.Record, err error) {
	if err := l.fillMarks(s); err != nil {
		return nil, err
	}
	i := sort.Search(len(s.marks), func(i int) bool { return s.marks[i].index > after }) - 1
	for ; i < len(s.marks); i++ {
		chunk, err := l.readChunk(s, i)
		if err != nil {
			return nil, err
		}
		for _, r := range chunk {
			if r.Index <= after {
				continue
			}
			if maxBytes -= frameBytes + record.Size(&r); maxBytes < 0 && len(records) > 0 {
				return records, nil
			}
			records = append(records, r)
		}
	}
	if len(records) == 0 {
		return nil, damaged("records are missing at its end")
	}
	return records, nil
}

// fillMarks reads all of an older segment, at the first read of it.
func (l *Log) fillMarks(s *segment) error {
	if s.marks != nil {
		return nil
	}
	want := *s
	got, fileBytes, err := l.readHeader(s.number)
	if errors.Is(err, os.ErrNotExist) {
		return damaged("it is missing")
	}
	if err != nil {
		return err
	}
	f, err := os.Open(l.segmentPath(s.number))
	if err != nil {
		return fmt.Errorf("reading the log: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	if err := got.scan(io.NewSectionReader(f, got.end, fileBytes), fileBytes, nil); err != nil {
		return err
	}
	if got.base != want.base || got.last != want.last || got.chain != want.chain || got.end != want.end {
		return damaged("its end does not join the segment behind it")
	}
	s.marks = got.marks
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.segments {
		if l.segments[i].number == s.number {
			l.segments[i].marks = got.marks
		}
	}
	return nil
}

// dropDamaged forgets a segment and those before it, if it is still there. If it is the last one, that is all.
func (l *Log) dropDamaged(number uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.segments, func(s segment) bool { return s.number == number })
	if i < 0 {
		return
	}
	l.log.Warn("a segment of the log of changes is damaged: the log begins behind it", "file", segmentName(number), "err", err)
	if i == len(l.segments)-1 {
		l.dropFilesLocked()
		l.wakeLocked()
		return
	}
	for _, s := range l.segments[:i+1] {
		os.Remove(l.segmentPath(s.number)) //nolint:errcheck // Open finds it again, and then the damage
	}
	l.segments = slices.Delete(l.segments, 0, i+1)
	l.renamed = true
	l.writes++
	l.wakeLocked()
}

// chunkBytes is how much the iterators ask Since for.
const chunkBytes = 1 << 20

// Records yields what is after an index, oldest first, until it has reached Head. It ends with an error of Since.
func (l *Log) Records(after storage.Index) iter.Seq2[storage.Record, error] {
	return func(yield func(storage.Record, error) bool) {
		for {
			records, through, err := l.Since(after, chunkBytes)
			if err != nil {
				yield(storage.Record{}, err)
				return
			}
			for _, r := range records {
				if !yield(r, nil) {
					return
				}
			}
			if len(records) == 0 {
				return
			}
			after = through
		}
	}
}

// Backward yields everything that is there when the loop begins, newest first. It ends with ErrTruncated if what is next
// was removed meanwhile, or is damaged.
func (l *Log) Backward() iter.Seq2[storage.Record, error] {
	return func(yield func(storage.Record, error) bool) {
		l.mu.Lock()
		newest, upTo, segments := l.memory.clone(), l.memory.base, slices.Clone(l.segments)
		l.mu.Unlock()
		for _, r := range slices.Backward(newest) {
			if !yield(r.Record, nil) {
				return
			}
		}
		for i := len(segments) - 1; i >= 0; i-- {
			s := &segments[i]
			if s.base >= upTo {
				continue
			}
			if !l.backward(s, upTo, yield) {
				return
			}
		}
	}
}

// backward yields what a segment has up to an index. It returns false to stop.
func (l *Log) backward(s *segment, upTo storage.Index, yield func(storage.Record, error) bool) bool {
	err := l.fillMarks(s)
	for i := len(s.marks) - 1; i >= 0 && err == nil; i-- {
		if s.marks[i].index >= upTo {
			continue
		}
		var chunk []storage.Record
		if chunk, err = l.readChunk(s, i); err != nil {
			break
		}
		for _, r := range slices.Backward(chunk) {
			if r.Index <= upTo && !yield(r, nil) {
				return false
			}
		}
	}
	if isDamage(err) {
		l.dropDamaged(s.number, err)
		err = ErrTruncated
	}
	if err != nil {
		yield(storage.Record{}, err)
		return false
	}
	return true
}
