// Package wal keeps what the state machine did to shared keys, as an ordered log of storage.Records in segment files of
// its own, for consumers that come later: other clusters.
//
// It promises that what Since returns is what was appended, in order and without a hole, or an error: a record is never
// wrong, and never missing between two others. It does not promise to have everything: the log is derived data, and
// a secondary that finds it truncated compares states instead. So it always prefers to forget over stopping the state machine:
// if the disk is full or fails, it goes on in memory alone, and starts over on disk when that is possible again.
//
// It assumes of disks that a file's content is durable once Sync returned without an error, that names are durable once
// the directory was synced, and that writing one part of a file harms no other sector. It does not assume that unsynced
// writes reach the disk in order, whole, or at all, nor that what was written is read back: everything has checksums.
//
// It assumes of its caller, the state machine, that records come in the order of their indexes; that Sync returned
// before any state which has them is durable; that after a crash everything behind the durable state is appended again;
// and that Reset returned before a state that came from elsewhere is durable. Let d be the index of the durable state:
//
//	crash                           what Open finds                            the log then
//	after Append, before Sync       some of the records behind the mark        has a prefix of them; the rest is > d, and appended again
//	within Sync, before the mark    the mark of the Sync before                the same: the fold did not happen
//	within the write of the mark    one of its two slots is torn               uses the other slot: the same
//	after Sync                      everything up to the mark                  has everything up to d
//	while a segment is begun        a last file without a whole header         cuts it off; nothing of it was synced
//	within Begin or Reset           the old log, or the new and empty one      one of these: no fold came between
//	within Trim                     some of the oldest files                   begins behind the last one that is missing
//	within End                      files without a mark                       is inactive, and removes them
//
//	damage                          what Open or a reader finds                the log then
//	behind the mark                 as a crash                                 ends before it; the rest is appended again
//	before the mark, last segment   less than the mark says                    is empty, complete from the mark's index on
//	in an older segment             a wrong checksum, length or link           begins behind that segment
//	in one slot of the mark         the older slot                             uses it if its segment is there, else is inactive
//	in both slots                   no mark                                    is inactive: it has to be begun again
//
// Start reading at Log, then Append and Sync, then recover.go.
package wal

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/wal/record"
)

// Sentinels. Use errors.Is.
var (
	// ErrTruncated says that the log is not complete from that index on, or not active.
	ErrTruncated = errors.New("these records are no longer kept")
	// ErrFormat says that a newer version of this program wrote the log.
	ErrFormat = record.ErrFormat
)

// Options of Open. The zero value works.
type Options struct {
	SegmentBytes int64         // size at which a new file is begun; default 64 MiB, and at most a quarter of MaxBytes
	MemoryBytes  int           // about how much of the newest records is served from memory; default 16 MiB
	MaxBytes     int64         // the oldest segments beyond it go, pinned or not; default 8 GiB or a tenth of the file system
	MaxAge       time.Duration // segments go that are older and not pinned; default 72 h
	CursorKey    storage.Key   // is kept besides the shared keys; "" for none
	Logger       *slog.Logger  // nil discards
	Now          func() time.Time

	open func(name string, flag int) (file, error) // replaced in tests
}

// file is what is written to. Reading goes through the os package.
type file interface {
	WriteAt(b []byte, off int64) (int, error)
	Sync() error
	Truncate(size int64) error
	Close() error
}

func openFile(name string, flag int) (file, error) { return os.OpenFile(name, flag, 0o600) }

// Log is the log in one directory. Safe for concurrent use; records are appended by one caller at a time.
type Log struct {
	dir    string
	opts   Options
	log    *slog.Logger
	active atomic.Bool

	// syncMu makes Sync, Begin, Reset, End, Trim and Close happen one after the other. It is above mu, and is held across
	// disk syncs: neither Append nor readers take it.
	syncMu  sync.Mutex
	marks   *markFile
	checked uint64 // the segment in the last mark that was written

	mu       sync.Mutex
	closed   bool
	id       uint64    // of this log, in all its files
	next     uint64    // number of the next segment
	segments []segment // oldest first, each joined to the one before; the last is the one being written
	out      file      // of the last segment; nil: the log is in memory only
	full     []open    // segments that are full and were not synced
	renamed  bool      // the directory was not synced
	writes   uint64    // counts what Sync has to make durable
	synced   uint64    // writes as of the last Sync
	head     storage.Index
	headMS   int64 // time of the record at head, or when the log began
	memory   memory
	pins     map[string]storage.Index
	wake     chan struct{} // closed at the next change; nil without waiters
	buf      []byte
}

// open is a segment's file that is open for writing.
type open struct {
	number uint64
	file   file
}

// Open opens the log in dir, which need not exist: then it is inactive until Begin. It repairs what a crash or a damaged
// disk left behind, as the table above says.
func Open(dir string, o Options) (*Log, error) {
	l := &Log{dir: dir, opts: o.withDefaults(dir), pins: map[string]storage.Index{}}
	l.log = l.opts.Logger
	l.memory.limit = l.opts.MemoryBytes
	if err := l.recover(); err != nil {
		return nil, err
	}
	return l, nil
}

func (o Options) withDefaults(dir string) Options {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 8 << 30
		if n := fileSystemBytes(filepath.Dir(dir)); n > 0 {
			o.MaxBytes = min(o.MaxBytes, n/10)
		}
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = 64 << 20
	}
	o.SegmentBytes = min(o.SegmentBytes, o.MaxBytes/4)
	if o.MemoryBytes <= 0 {
		o.MemoryBytes = 16 << 20
	}
	if o.MaxAge <= 0 {
		o.MaxAge = 72 * time.Hour
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.open == nil {
		o.open = openFile
	}
	return o
}

// Keeps reports whether the log wants what happens to key. It is cheap.
func (l *Log) Keeps(key string) bool {
	return l.active.Load() && (strings.HasPrefix(key, "s/") || key == string(l.opts.CursorKey) && key != "")
}

// Active reports whether the log was begun, and not ended.
func (l *Log) Active() bool { return l.active.Load() }

// Base returns the index from which on the log is complete: Since of it, and of everything after it, has an answer.
func (l *Log) Base() storage.Index {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.baseLocked()
}

func (l *Log) baseLocked() storage.Index {
	if len(l.segments) > 0 {
		return min(l.segments[0].base, l.memory.base)
	}
	return l.memory.base
}

// Head returns the index of the last record, or Base if there is none.
func (l *Log) Head() storage.Index {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// Oldest returns since when the log is complete, the zero time if it is inactive.
func (l *Log) Oldest() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	ms := l.memory.baseMS
	if len(l.segments) > 0 && l.segments[0].base <= l.memory.base {
		ms = l.segments[0].baseMS
	}
	if !l.active.Load() {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// Bytes returns the size of the files.
func (l *Log) Bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytesLocked()
}

func (l *Log) bytesLocked() (n int64) {
	for i := range l.segments {
		n += l.segments[i].end
	}
	return n
}

// Changed returns a channel that is closed when the next record is appended, or when the log is begun, ended, reset or
// closed. Take it first, then read, then wait for it.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	return l.wake
}

func (l *Log) wakeLocked() {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// Wait blocks until Since(after) has something to say: records, or an error. It returns the context's error if that ends
// first.
func (l *Log) Wait(ctx context.Context, after storage.Index) error {
	for {
		changed := l.Changed()
		l.mu.Lock()
		ready := l.closed || !l.active.Load() || l.head > after || l.baseLocked() > after
		l.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close makes everything durable that was appended and ends all use of the log.
func (l *Log) Close() error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	err := l.sync()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.closeFilesLocked()
	if l.marks != nil {
		err = errors.Join(err, l.marks.file.Close())
	}
	l.wakeLocked()
	return err
}
