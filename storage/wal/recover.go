package wal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/wal/record"
)

// recover makes a log of what is in the directory. Only the last segment of the mark and what is behind it are read: the
// older ones are checked when they are read.
func (l *Log) recover() error {
	m, sure, none, err := readMark(filepath.Join(l.dir, markName))
	if err != nil {
		return fmt.Errorf("opening the log of changes: %w", err)
	}
	numbers, err := l.list()
	if err != nil {
		return fmt.Errorf("opening the log of changes: %w", err)
	}
	if none {
		return l.sweep(numbers)
	}
	l.id = m.id
	l.next = m.last + 1
	if len(numbers) > 0 {
		l.next = max(l.next, numbers[len(numbers)-1]+1)
	}
	end, err := l.load(m, numbers)
	if isDamage(err) {
		l.log.Warn("the log of changes is damaged and starts over: clusters that are behind will compare instead", "err", err)
		if l.segments = nil; !sure {
			// The lost slot may have said more, and so the index of this one nothing.
			return errors.Join(l.end(), l.sweep(numbers))
		}
		l.head, l.headMS = m.index, l.opts.Now().UnixMilli()
		l.memory.restart(l.head, l.headMS)
	} else if err != nil {
		return fmt.Errorf("opening the log of changes: %w", err)
	}
	return l.resume(m, end, numbers)
}

// resume makes the log ready for Append.
func (l *Log) resume(m synced, fileBytes int64, numbers []uint64) error {
	f, err := l.opts.open(filepath.Join(l.dir, markName), os.O_WRONLY)
	if err != nil {
		return fmt.Errorf("opening the log of changes: %w", err)
	}
	l.marks = &markFile{file: f, sequence: m.sequence}
	l.active.Store(true)
	l.checked = m.last
	l.writes++
	l.renamed = true
	if len(l.segments) > 0 {
		s := l.lastLocked()
		l.head, l.headMS = s.last, s.lastMS
		l.next = s.number + 1 // without a gap; what has that number now is swept
		if l.out, err = l.opts.open(l.segmentPath(s.number), os.O_WRONLY); err == nil && fileBytes > s.end {
			err = l.out.Truncate(s.end)
		}
		if err != nil {
			l.loseLocked(err)
		}
	}
	kept := func(n uint64) bool {
		return slices.ContainsFunc(l.segments, func(s segment) bool { return s.number == n })
	}
	if err := l.sweep(slices.DeleteFunc(numbers, kept)); err != nil {
		l.log.Warn("removing old files of the log of changes", "err", err)
	}
	if err := l.Sync(); err != nil {
		l.log.Warn("syncing the log of changes", "err", err) // the mark that is there is still right
	}
	return nil
}

// load finds the segments that belong together and reads the last ones. It returns the length of the last one's file.
// Damage means that something is missing that the mark promises.
func (l *Log) load(m synced, numbers []uint64) (fileBytes int64, err error) {
	s, fileBytes, err := l.readHeader(m.last)
	if errors.Is(err, os.ErrNotExist) {
		return 0, damaged("segment %d is missing", m.last)
	}
	if err != nil {
		return 0, err
	}
	l.memory.restart(s.base, s.baseMS)
	scanned := l.readLast(&s, fileBytes)
	switch {
	case scanned != nil && !isDamage(scanned):
		return 0, scanned
	case s.end < int64(m.offset) || s.last < m.index:
		return 0, damaged("segment %d should have %d bytes and has %d that are right", m.last, m.offset, s.end)
	}
	older, err := l.older(m, s)
	if err != nil {
		return 0, err
	}
	l.segments = append(older, s)
	// Behind the mark, and behind what was synced: full segments with others behind them.
	for number := m.last + 1; scanned == nil && slices.Contains(numbers, number); number++ {
		next, bytes, err := l.readHeader(number)
		if errors.Is(err, ErrFormat) {
			return 0, err
		}
		if last := l.lastLocked(); err != nil || next.base != last.last || next.before != last.chain {
			break
		}
		if scanned = l.readLast(&next, bytes); scanned != nil && !isDamage(scanned) {
			return 0, scanned
		}
		// It was full, so no later Sync has its file.
		if err := l.syncSegment(l.lastLocked().number); err != nil {
			return 0, damaged("syncing what was found: %v", err)
		}
		l.segments, fileBytes = append(l.segments, next), bytes
	}
	return fileBytes, nil
}

func (l *Log) syncSegment(number uint64) error {
	f, err := l.opts.open(l.segmentPath(number), os.O_WRONLY)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// older returns the segments before s that are joined to each other and to s, oldest first.
func (l *Log) older(m synced, s segment) (found []segment, err error) {
	for n := s.number; n > m.first; n-- {
		older, bytes, err := l.readHeader(n - 1)
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if errors.Is(err, ErrFormat) {
			return nil, err
		}
		if err == nil && older.base > s.base {
			err = damaged("it is out of order")
		}
		if err != nil {
			l.log.Warn("a segment of the log of changes is damaged: the log begins behind it", "file", segmentName(n-1), "err", err)
			break
		}
		older.end, older.last, older.lastMS, older.chain, older.marks = bytes, s.base, s.baseMS, s.before, nil
		found = append(found, older)
		s = older
	}
	slices.Reverse(found)
	return found, nil
}

// readLast reads a whole segment into s and memory. Damage is where it ends.
func (l *Log) readLast(s *segment, fileBytes int64) error {
	f, err := os.Open(l.segmentPath(s.number))
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	return s.scan(io.NewSectionReader(f, s.end, fileBytes), fileBytes, func(body []byte) error {
		r, err := record.Decode(slices.Clone(body))
		if errors.Is(err, record.ErrInvalid) {
			return damaged("%v", err)
		}
		if err != nil {
			return err
		}
		s.lastMS = r.TimeMS
		l.memory.add(r, frameBytes+len(body))
		return nil
	})
}

// list returns the numbers of the segments in the directory, ascending.
func (l *Log) list() ([]uint64, error) {
	entries, err := os.ReadDir(l.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var numbers []uint64
	for _, e := range entries {
		if n, ok := parseSegmentName(e.Name()); ok {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// sweep removes segments.
func (l *Log) sweep(numbers []uint64) error {
	var failed error
	for _, n := range numbers {
		if err := os.Remove(l.segmentPath(n)); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// findLocked returns the newest segment whose base is not above an index, or -1.
func (l *Log) findLocked(after storage.Index) int {
	for i := len(l.segments) - 1; i >= 0; i-- {
		if l.segments[i].base <= after {
			return i
		}
	}
	return -1
}
