package wal

import (
	"fmt"
	"os"
	"slices"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/wal/record"
)

// keptBytes is how large a buffer may be that is kept for the next record. A secondary's usual batches, of 1 MiB, fit.
const keptBytes = 2 << 20

// Append adds a record, which the log keeps: do not modify it. One whose index is not above Head is ignored: it is there
// already. Nothing is durable before Sync. An inactive log ignores everything. The only error is that the log is closed:
// a disk that fails costs the log, but does not stop the caller.
func (l *Log) Append(r storage.Record) error {
	if !l.active.Load() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("appending to the log: %w", os.ErrClosed)
	}
	if r.Index <= l.head || !l.active.Load() {
		return nil
	}
	n := frameBytes + record.Size(&r)
	if l.out != nil {
		if err := l.writeLocked(&r, n); err != nil {
			l.loseLocked(err)
		}
	}
	l.memory.add(r, n)
	l.head, l.headMS = r.Index, r.TimeMS
	l.writes++
	l.wakeLocked()
	return nil
}

// writeLocked writes the record behind the last segment, or into a new one.
func (l *Log) writeLocked(r *storage.Record, n int) error {
	if int64(n) > record.MaxBytes {
		return fmt.Errorf("the record at index %d is too large", r.Index)
	}
	if s := l.lastLocked(); s.end >= l.opts.SegmentBytes && s.last > s.base {
		if err := l.rollLocked(); err != nil {
			return err
		}
	}
	s := l.lastLocked()
	b, chain := appendFrame(slices.Grow(l.buf[:0], n), s.chain, r)
	if _, err := l.out.WriteAt(b, s.end); err != nil {
		return err
	}
	s.extend(int64(len(b)), r.Index, chain)
	s.lastMS = r.TimeMS
	if l.buf = b; cap(b) > keptBytes {
		l.buf = nil
	}
	return nil
}

func (l *Log) lastLocked() *segment { return &l.segments[len(l.segments)-1] }

func (l *Log) rollLocked() error {
	s := l.lastLocked()
	l.full = append(l.full, open{s.number, l.out})
	l.out = nil
	return l.createLocked(s.last, s.lastMS, s.chain)
}

// createLocked begins a segment behind the others. Nothing of it is durable yet.
func (l *Log) createLocked(base storage.Index, baseMS int64, before uint32) error {
	s := segment{number: l.next, base: base, baseMS: baseMS, before: before}
	l.next++
	b := s.header(l.id)
	s, _, err := decodeHeader(b)
	if err != nil {
		panic(err) // it was encoded two lines above
	}
	name := l.segmentPath(s.number)
	f, err := l.opts.open(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		f.Close()       //nolint:errcheck // it is given up
		os.Remove(name) //nolint:errcheck // Open removes what is left
		return err
	}
	l.segments = append(l.segments, s)
	l.out, l.renamed = f, true
	l.writes++
	return nil
}

// loseLocked gives up the files, because one of them cannot be written. The log goes on in memory, and Sync will begin
// it again on disk.
func (l *Log) loseLocked(err error) {
	l.log.Warn("the log of changes could not be written and starts over: clusters that are behind will compare instead",
		"index", uint64(l.head), "err", err)
	l.dropFilesLocked()
}

// dropFilesLocked removes all segments.
func (l *Log) dropFilesLocked() {
	l.remove(l.forgetFilesLocked())
}

// forgetFilesLocked lets the next Sync begin without files and returns the segments there were.
func (l *Log) forgetFilesLocked() []segment {
	l.closeFilesLocked()
	old := l.segments
	l.segments = nil
	l.renamed = true
	l.writes++
	return old
}

// remove removes the files of segments that the log does not have any more. Open removes what is left.
func (l *Log) remove(segments []segment) {
	for _, s := range segments {
		os.Remove(l.segmentPath(s.number)) //nolint:errcheck // see above
	}
}

func (l *Log) closeFilesLocked() {
	if l.out != nil {
		l.out.Close() //nolint:errcheck // what counts is synced
	}
	for _, o := range l.full {
		o.file.Close() //nolint:errcheck // what counts is synced
	}
	l.out, l.full = nil, nil
}
