package wal

import (
	"errors"
	"io"
	"os"
	"slices"

	"github.com/coffer-project/coffer/storage/scrub"
)

// scrubBytes is how much is read at a time.
const scrubBytes = 256 << 10

// Scrub reads every segment, from the disk where that can be read past the system's cache, in pieces, and calls paused after each; it stops with its error. What is damaged is
// forgotten, as when a reader finds it: the log is derived, and the records are not. The error is then the damage.
func (l *Log) Scrub(paused func(bytes int) error) error {
	l.mu.Lock()
	segments, log := slices.Clone(l.segments), l.id
	l.mu.Unlock()
	var found error
	for i := range segments {
		err := l.scrubSegment(log, &segments[i], paused)
		switch {
		case errors.Is(err, errTrimmed):
		case isDamage(err):
			found = err
			l.dropDamaged(segments[i].number, err)
		case err != nil:
			return err
		}
	}
	return found
}

// ScrubBytes returns about how much Scrub reads.
func (l *Log) ScrubBytes() int64 { return l.Bytes() }

// errTrimmed says that a segment was removed meanwhile, as old ones are.
var errTrimmed = errors.New("the segment is no longer kept")

// scrubSegment reads what a segment of the log with that id had when s was taken.
func (l *Log) scrubSegment(log uint64, s *segment, paused func(bytes int) error) error {
	f, err := os.Open(l.segmentPath(s.number))
	if err != nil {
		if !l.keepsSegment(log, s.number) {
			return errTrimmed
		}
		return damaged("%v", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	b := make([]byte, 512)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return damaged("reading its header: %v", err)
	}
	got, id, err := decodeHeader(b[:n])
	switch {
	case (err != nil || id != log) && !l.keepsSegment(log, s.number):
		return errTrimmed // another log has begun in its place
	case err != nil:
		return damaged("%v", err)
	case id != log || got.number != s.number || got.base != s.base:
		return damaged("it belongs to another log or place")
	}
	var content io.ReaderAt = f
	if disk, err := scrub.OpenDisk(f); err == nil {
		defer disk.Close() //nolint:errcheck // it was only read
		content = disk
	}
	in := &pacedReader{r: io.NewSectionReader(content, got.end, s.end-got.end), paused: paused}
	err = got.scan(in, s.end, nil)
	switch {
	case in.stopped != nil:
		return in.stopped
	case err != nil && !l.keepsSegment(log, s.number):
		return errTrimmed
	case err != nil:
		return err
	case got.last != s.last || got.chain != s.chain:
		return damaged("its end is not what was written")
	}
	return paused(headerBytes + in.read)
}

func (l *Log) keepsSegment(log, number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.id == log && slices.ContainsFunc(l.segments, func(s segment) bool { return s.number == number })
}

// pacedReader pauses after each piece.
type pacedReader struct {
	r       io.Reader
	paused  func(bytes int) error
	read    int
	stopped error // of paused
}

func (p *pacedReader) Read(b []byte) (int, error) {
	if p.read >= scrubBytes {
		if p.stopped = p.paused(p.read); p.stopped != nil {
			return 0, p.stopped
		}
		p.read = 0
	}
	n, err := p.r.Read(b[:min(len(b), scrubBytes)])
	p.read += n
	return n, err
}
