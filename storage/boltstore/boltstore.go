// Package boltstore keeps one ordered set of records in a bbolt file, behind an overlay in memory.
//
// It promises that what a Writer committed is visible to every later View at once and in one piece, that
// it becomes durable a moment later together with the log position that produced it, in one synced
// transaction, and that a file which Open accepts gives exactly the answers it gave when it was written.
// A crash loses the newest commits, never some of them: the caller replays its log from DurablePosition.
//
// It assumes that a disk writes a 512-byte sector whole or not at all, and that what was synced stays: then
// both meta pages of a bbolt file are valid after any crash, so one that is not valid is damage. (bbolt would
// silently fall back to the older one, which is a step back in time.)
//
// Damage that comes later, while the file is open, is found by the read that meets it: see pages.go. It ends the use of
// the file.
//
// Start reading at Store, then fold.go (durability), view.go (reading), verify.go and pages.go (damage).
package boltstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltfile"
	"github.com/coffer-project/coffer/storage/pagesums"
	"github.com/coffer-project/coffer/storage/scrub"
)

// ErrClosed is returned by everything that comes after Close.
var ErrClosed = errors.New("the state file is closed")

const pageSize = 4096

// Options of Open. The zero value has the defaults.
type Options struct {
	Logger       *slog.Logger  // nil discards
	FoldInterval time.Duration // from a commit to the start of its fold; default 100ms
	FoldBytes    int           // an overlay this big is folded at once; default 16 MiB
	CapBytes     int           // Begin blocks while the overlays hold this much; default 64 MiB
	// Incarnation and Node are the mark that the file has, or gets if it has none; 0: any mark is fine. A file with another
	// mark is a *MarkError.
	Incarnation, Node uint64
	// BeforeFold is called before what has been committed becomes durable; if it fails, that fails, and is tried again.
	BeforeFold func() error
	// Sums is where the checksums of pages are kept between two starts; "": nowhere. A file of more than WholeBytes, default 64 MiB, is
	// then not checked as a whole when it is opened, but while it is used: see trust.go.
	Sums       string
	WholeBytes int64
	// OnDamage is called once, in a goroutine of its own, when the open file turns out to be damaged; nil for none.
	OnDamage func(error)
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.BeforeFold == nil {
		o.BeforeFold = func() error { return nil }
	}
	if o.FoldInterval <= 0 {
		o.FoldInterval = 100 * time.Millisecond
	}
	if o.FoldBytes <= 0 {
		o.FoldBytes = 16 << 20
	}
	if o.WholeBytes == 0 {
		o.WholeBytes = 64 << 20
	}
	if o.CapBytes <= 0 {
		o.CapBytes = 64 << 20
	}
}

// Store is one open file. It has one writer at a time; everything else is safe for concurrent use.
type Store struct {
	path string // what errors call the file; it may have been built under another name
	opts Options
	db   *bbolt.DB
	file *os.File // bbolt's

	// pages of the file as the newest base has them, and which of them it uses. The flusher's, after Open.
	pages pages
	used  runs
	fold  func(*frozen) error  // write; tests of a full disk put themselves before it
	disk  func() (disk, error) // opens what the disk has of the file; tests put a disk with damage before it

	sums  pagesums.Keeper
	saved *base // the state that the checksums beside the file are of; nil: none. The flusher's
	pass  pass  // over all records, if Open made none

	// writeMu is held from Begin to Commit or Abort, and while the overlay is handed to the flusher.
	writeMu sync.Mutex
	work    overlay // the writer's own tree; readers see copies of it
	workPos Position

	mu      sync.Mutex
	room    sync.Cond // on mu: a fold made room, or the store closed or failed
	cur     layers
	frozen  *frozen // what the flusher is folding, nil if nothing
	bytes   int     // of the published overlay
	closed  bool
	damage  error // *storage.CorruptError, for good
	foldErr error // why the last fold failed, nil once one succeeded

	bases sync.WaitGroup // read transactions not yet rolled back
	open  atomic.Int64   // how many they are
	// reused: the last sync of a transaction failed, after which bbolt takes the pages that it replaced for free, also those that are read. The flusher's.
	reused bool

	dirty    chan struct{}   // capacity 1, level-triggered: there is something to fold; never closed
	full     chan struct{}   // capacity 1, level-triggered: fold at once; never closed
	flushReq chan chan error // unbuffered; the flusher answers each request once; never closed
	stop     chan struct{}   // closed by Close
	stopped  chan struct{}   // closed by the flusher when it ends
}

// Open opens the file at path after checking all of it, or what Options.Sums does not vouch for, or creates an empty one. Damage of any kind is a
// *storage.CorruptError that calls the file name, or path if name is "".
func Open(path, name string, o Options) (*Store, error) {
	o.setDefaults()
	if name == "" {
		name = path
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if err := create(path, o); err != nil {
			return nil, fmt.Errorf("creating %s: %w", name, err)
		}
	}
	db, found, err := openMarked(path, name, &o)
	if err != nil {
		return nil, err
	}
	s := &Store{
		path: name, opts: o, db: db, file: found.f, pages: found.pages, used: found.seen, work: newOverlay(),
		dirty: make(chan struct{}, 1), full: make(chan struct{}, 1),
		flushReq: make(chan chan error), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	s.room.L = &s.mu
	if o.Sums != "" {
		s.KeepSums(o.Sums)
	}
	s.fold = s.write
	s.disk = func() (disk, error) { return scrub.OpenDisk(s.file) }
	base, err := s.openBase(nil)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.workPos = base.state.Position
	s.cur = layers{active: s.work.tree.Copy(), base: base, pos: s.workPos}
	s.beginPass(found)
	go s.flusher()
	return s, nil
}

// create makes an empty file under another name first, so that an empty or half-made file at path is damage.
func create(path string, o Options) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	empty := func(func(string, []byte) error) (Position, error) { return Position{}, nil }
	if err := BuildMarked(tmp, o.Incarnation, o.Node, empty); err != nil {
		return err
	}
	return boltfile.Rename(tmp, path)
}

// openDB locks, verifies and opens the file. The check runs on the descriptor bbolt goes on to use, because
// bbolt itself panics on damaged pages, partly in goroutines of its own where nothing can recover.
func openDB(path, name string, o *Options) (db *bbolt.DB, found *verifier, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &storage.CorruptError{File: name, Detail: fmt.Sprint("opening it failed: ", p)}
		}
	}()
	var size int64
	if info, err := os.Stat(path); err == nil {
		size = info.Size()
	}
	opts := boltfile.Options(size)
	opts.PageSize = pageSize
	opts.OpenFile = func(path string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(path, flag&^os.O_CREATE, mode)
		if err != nil {
			return nil, err
		}
		if err := boltfile.Lock(f, time.Second); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if found, err = o.check(f, path, name); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}
	db, err = bbolt.Open(path, 0o600, opts)
	if err == nil && found.trusted {
		if err = db.Update(func(*bbolt.Tx) error { return nil }); err != nil { // from here on the file has no list, as other versions have it
			err = errors.Join(err, db.Close())
		}
	}
	if err != nil {
		if c := (*storage.CorruptError)(nil); errors.As(err, &c) {
			return nil, nil, c
		}
		return nil, nil, fmt.Errorf("opening %s: %w", name, err)
	}
	db.MaxSize = opts.InitialMmapSize
	sums := found.pages.sums
	found.pages = mapped(db, opts)
	found.pages.sums = sums
	return db, found, nil
}

// Path returns the name of the file.
func (s *Store) Path() string { return s.path }

// Position returns the position of the last commit.
func (s *Store) Position() Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur.pos
}

// DurablePosition returns the position that the file would have after a crash now.
func (s *Store) DurablePosition() Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur.base.state.Position
}

// Damage returns the *storage.CorruptError that ended the use of the file, or nil.
func (s *Store) Damage() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.damage
}

// Health returns Damage, or why the last fold failed, or nil.
func (s *Store) Health() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.damage != nil {
		return s.damage
	}
	return s.foldErr
}

// Close folds what is left, once, waits for all Views to be closed, and closes the file. If that fold
// fails, Close says so; the caller's log still has what it would have held. Twice is fine.
func (s *Store) Close() error {
	if !s.shut() {
		return nil
	}
	err := s.flush() // the flusher has ended: no other goroutine folds
	s.saveSums(err == nil)
	return errors.Join(err, s.release())
}

// Discard is Close without the fold, for a file that has been replaced.
func (s *Store) Discard() error {
	if !s.shut() {
		return nil
	}
	return s.release()
}

// shut ends the flusher and wakes all waiters. It reports whether this was the first call.
func (s *Store) shut() bool {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.room.Broadcast()
	s.mu.Unlock()
	if first {
		close(s.stop)
	}
	<-s.stopped
	return first
}

func (s *Store) release() error {
	s.mu.Lock()
	base, damaged := s.cur.base, s.damage != nil
	s.mu.Unlock()
	if damaged {
		s.sums.Drop() // if the one who found it has not come to it yet
	}
	s.sums.Close()
	if s.saved != nil {
		s.saved.close()
	}
	base.close()
	s.bases.Wait()
	if damaged {
		// bbolt may have panicked with its locks held, and closing it would wait for them for ever.
		return nil
	}
	return s.db.Close()
}

// guard turns a panic of bbolt, or a fault in its memory map, into a *storage.CorruptError, and ends the
// use of the file. Call it as defer s.guard(&err, debug.SetPanicOnFault(true)).
func (s *Store) guard(err *error, before bool) {
	debug.SetPanicOnFault(before)
	if p := recover(); p != nil {
		*err = s.damaged(damageText(p))
	}
}

func (s *Store) damaged(detail string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.damage == nil {
		s.damage = &storage.CorruptError{File: s.path, Detail: detail}
		s.opts.Logger.Error("the state file is damaged", "err", s.damage)
		damage := s.damage
		go func() {
			s.sums.Drop() // the next start checks everything
			if s.opts.OnDamage != nil {
				s.opts.OnDamage(damage)
			}
		}()
	}
	s.room.Broadcast()
	return s.damage
}
