// Package fsm is the replicated state machine: it applies committed Raft log entries to one durable file and
// serves reads, changes and snapshots from it.
//
// It is pure: it has no clock, no randomness and no network, so every node that applied the same entries
// holds the same state. It assumes that Raft calls it as documented in hashicorp/raft, from one goroutine, and
// that NoSnapshotRestoreOnStart is set: the file is the state, nothing has to be restored at start. The file
// itself is package boltstore's. Start reading at ApplyBatch, then at SnapshotStore; DESIGN.md has the
// invariants.
package fsm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltfile"
	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/storage/record"
)

// fileName is the state file in the data directory; installTemp are snapshots on their way to replace it.
const (
	fileName    = "fsm.db"
	sumsName    = "fsm.sums" // checksums of the pages of the state file
	installTemp = "fsm-%s.tmp"
	distrusted  = "distrusted" // why the files must be moved aside although each of them is whole
)

// Options of Open. The zero value works.
type Options struct {
	Logger *slog.Logger // nil discards
	Log    Log          // nil: none. It must be open until the FSM is closed.
	// Identity is the one that the state file must have; a file without one gets it. Zero: any.
	Identity storage.FileIdentity
	// WholeBytes is how large a state file may be for Open to check all of it; a larger one is checked while it is used. 0: 64 MiB,
	// negative: none is small enough.
	WholeBytes int64
}

// FSM implements raft.FSM, raft.BatchingFSM, raft.ConfigurationStore, storage.Reader and storage.Feed. Values
// are raw: what was in the log entry. Safe for concurrent use, except that Raft's methods have one caller.
type FSM struct {
	dir     string
	log     *slog.Logger
	records Log // nil: none
	owner   storage.FileIdentity
	whole   int64 // Options.WholeBytes
	feed    storage.Subscribers

	// applying is held while entries are applied, also while that waits for the disk, and while the state is replaced.
	applying sync.Mutex

	store   atomic.Pointer[boltstore.Store] // replaced when a snapshot is installed
	applied atomic.Uint64
	term    atomic.Uint64

	mu       sync.Mutex
	wake     chan struct{} // closed when applied, confirmed or failed changes; nil if nothing waits
	failed   error         // why nothing is applied any more
	distrust error         // why the files must not be used again
	closed   bool
	received *sink // verified, not yet restored
	sinks    int   // numbers what is received

	checkpoints checkpoints

	old sync.WaitGroup // replaced stores that are waiting for their last reader, and digests that are being computed
}

var (
	_ raft.BatchingFSM        = (*FSM)(nil)
	_ raft.ConfigurationStore = (*FSM)(nil)
	_ storage.Reader          = (*FSM)(nil)
	_ storage.Feed            = (*FSM)(nil)
)

// Open opens the state in dir, or creates an empty one, and the directory too. A damaged file is a
// *storage.CorruptError, and a file that another process holds is refused.
func Open(dir string, o Options) (*FSM, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := boltfile.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("opening the state: %w", err)
	}
	f := &FSM{dir: dir, log: o.Logger, records: o.Log, owner: o.Identity, whole: o.WholeBytes}
	f.checkpoints.changed = make(chan struct{}, 1)
	if why, err := os.ReadFile(filepath.Join(dir, distrusted)); err == nil {
		return nil, &storage.CorruptError{File: f.path(), Detail: string(why)}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("opening the state: %w", err)
	}
	options := f.storeOptions()
	options.Sums = f.sums()
	s, err := boltstore.Open(f.path(), "", options)
	if err != nil {
		return nil, f.foreign(err)
	}
	if err := errors.Join(f.removeLeftovers(), f.checkLog(s)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	f.store.Store(s)
	f.setApplied(s.Position())
	return f, nil
}

func (f *FSM) storeOptions() boltstore.Options {
	o := boltstore.Options{Logger: f.log, OnDamage: f.Damaged, WholeBytes: f.whole}
	o.Incarnation, o.Node = f.owner.Mark()
	if f.records != nil {
		o.BeforeFold = f.records.Sync
	}
	return o
}

func (f *FSM) path() string { return filepath.Join(f.dir, fileName) }

func (f *FSM) sums() string { return filepath.Join(f.dir, sumsName) }

// removeLeftovers removes snapshots whose installation was interrupted. The state file must be locked.
func (f *FSM) removeLeftovers() error {
	names, err := filepath.Glob(filepath.Join(f.dir, fmt.Sprintf(installTemp, "*")))
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// Close folds what is in memory into the file and closes it. It may be called while Raft still runs: a
// waiting ApplyBatch then returns errors and applies nothing more. Streams of snapshots must be closed by
// their readers: Close waits for them, and their next Read fails. Twice is fine.
func (f *FSM) Close() error {
	f.mu.Lock()
	first := !f.closed
	f.closed = true
	unused := f.received
	f.received = nil
	f.mu.Unlock()
	if !first {
		return nil
	}
	f.fail(fmt.Errorf("the state is closed: %w", storage.ErrUnavailable))
	var err error
	if unused != nil {
		err = unused.discard()
	}
	err = errors.Join(err, f.store.Load().Close())
	f.old.Wait()
	return err
}

// AppliedIndex returns the index of the last command or configuration that was applied and announced. Raft's
// own entries (no-ops, barriers) never reach the FSM: do not wait for a commit index here, it may be one.
func (f *FSM) AppliedIndex() storage.Index { return storage.Index(f.applied.Load()) }

// DurableIndex returns the index that the state file would have after a crash now. A node that has not opened its log
// has nothing newer.
func (f *FSM) DurableIndex() storage.Index {
	return storage.Index(f.store.Load().DurablePosition().Index)
}

// Pending returns about how many bytes are applied and not in the state file yet.
func (f *FSM) Pending() int64 { return f.store.Load().Pending() }

// Flush makes everything applied so far durable in the state file before it returns.
func (f *FSM) Flush() error {
	for {
		s := f.store.Load()
		err := s.Flush()
		if errors.Is(err, boltstore.ErrClosed) && f.store.Load() != s {
			continue // it was replaced by one that is durable
		}
		return err
	}
}

// LastTerm returns the term of the entry at AppliedIndex.
func (f *FSM) LastTerm() uint64 { return f.term.Load() }

// Applied returns index and term of the entry at AppliedIndex.
func (f *FSM) Applied() (index, term uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applied.Load(), f.term.Load()
}

// setApplied makes pos visible to waiters, unless they already see a later one.
func (f *FSM) setApplied(pos boltstore.Position) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if pos.Index >= f.applied.Load() {
		f.setAppliedLocked(pos)
	}
}

func (f *FSM) setAppliedLocked(pos boltstore.Position) {
	f.term.Store(pos.Term)
	f.applied.Store(pos.Index)
	f.wakeLocked()
}

func (f *FSM) wakeLocked() {
	if f.wake != nil {
		close(f.wake)
		f.wake = nil
	}
}

// WaitApplied returns nil once AppliedIndex has reached i, ctx's error, or the reason why it never will.
func (f *FSM) WaitApplied(ctx context.Context, i storage.Index) error {
	return f.wait(ctx, func() bool { return f.applied.Load() >= uint64(i) })
}

// wait returns nil once reached does, which wakeLocked must follow.
func (f *FSM) wait(ctx context.Context, reached func() bool) error {
	for {
		f.mu.Lock()
		done, failed := reached(), f.failed
		if f.wake == nil {
			f.wake = make(chan struct{})
		}
		wake := f.wake
		f.mu.Unlock()
		switch {
		case done:
			return nil
		case failed != nil:
			return failed
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fail stops applying, for good unless a snapshot replaces the state.
func (f *FSM) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return
	}
	f.failed = err
	if !f.closed {
		f.log.Error("this replica stopped applying log entries", "index", f.applied.Load(), "err", err)
	}
	f.wakeLocked()
}

// Distrust stops applying, because the other members show that the state or the log of this node is not theirs, which the
// files themselves do not show. It lasts: Open fails with a *storage.CorruptError until Quarantine has moved the files.
func (f *FSM) Distrust(why error) {
	if !f.stopTrusting(why) {
		return
	}
	detail := why.Error()
	if c, ok := errors.AsType[*storage.CorruptError](why); ok {
		detail = c.Detail
	}
	if err := f.writeDistrust(detail); err != nil {
		f.log.Error("noting that the state must not be used again", "err", err)
	}
}

// Damaged stops applying, because a file of this node is damaged. The next start checks all of them.
func (f *FSM) Damaged(why error) { f.stopTrusting(why) }

// stopTrusting reports whether this was the first reason.
func (f *FSM) stopTrusting(why error) bool {
	f.mu.Lock()
	first := f.distrust == nil
	if first {
		f.distrust = why
	}
	f.mu.Unlock()
	f.fail(why)
	return first
}

// writeDistrust makes the note complete before it gets its name.
func (f *FSM) writeDistrust(detail string) error {
	return boltfile.Replace(filepath.Join(f.dir, distrusted), func(f *os.File) error {
		_, err := f.WriteString(detail)
		return err
	})
}

// Distrusted returns what Distrust or Damaged was called with first, or nil.
func (f *FSM) Distrusted() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.distrust
}

// Err returns why the replica stopped applying, or nil. Only installing a snapshot of a later state, or
// a restart with the cause removed, makes it go on.
func (f *FSM) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// Health returns Err, or why the state cannot be made durable at the moment (a full disk, say), or nil.
func (f *FSM) Health() error {
	if err := f.Err(); err != nil {
		return err
	}
	return f.store.Load().Health()
}

// Scrub compares every page of the state file that is in use with its checksum: see boltstore.Store.Scrub.
func (f *FSM) Scrub(paused func(bytes int) error) error {
	s := f.store.Load()
	err := s.Scrub(paused)
	if errors.Is(err, boltstore.ErrClosed) && f.store.Load() != s {
		return nil // the state was replaced: the next pass reads the new one
	}
	return err
}

// Unverified returns how many bytes of the state file have not been read since it was opened, 0 once all of it is known to be right, and how
// many there were.
func (f *FSM) Unverified() (left, total int64) { return f.store.Load().Unverified() }

// ScrubBytes returns about how much Scrub reads.
func (f *FSM) ScrubBytes() int64 { return f.store.Load().ScrubBytes() }

// view returns the current state. A store that has just been replaced is closed: then there is a new one.
func (f *FSM) view(ctx context.Context) (boltstore.View, error) {
	for {
		if err := ctx.Err(); err != nil {
			return boltstore.View{}, err
		}
		s := f.store.Load()
		v, err := s.View()
		if errors.Is(err, boltstore.ErrClosed) {
			if f.store.Load() != s {
				continue
			}
			err = fmt.Errorf("the state is closed: %w", storage.ErrUnavailable)
		}
		return v, err
	}
}

// Get implements storage.Reader.
func (f *FSM) Get(ctx context.Context, key storage.Key) (storage.Entry, error) {
	v, err := f.view(ctx)
	if err != nil {
		return storage.Entry{}, err
	}
	defer v.Close()
	rec, err := v.Get(string(key))
	if err != nil {
		return storage.Entry{}, err
	}
	return f.entry(key, rec)
}

// entry returns what a record says, storage.ErrNotFound if there is none.
func (f *FSM) entry(key storage.Key, rec []byte) (storage.Entry, error) {
	if rec == nil {
		return storage.Entry{}, storage.ErrNotFound
	}
	h, value, err := record.Parse(rec)
	if err != nil {
		return storage.Entry{}, &storage.CorruptError{File: f.path(), Detail: err.Error()}
	}
	return storage.Entry{Key: key, Value: value, Version: storage.Index(h.Version), Origin: h.Origin}, nil
}

// OnChange implements storage.Feed.
func (f *FSM) OnChange(fn func(storage.Change), areas ...string) (stop func()) {
	return f.feed.OnChange(fn, areas...)
}

// checkEvery is how many names are listed between two looks at the context.
const checkEvery = 1024

// List implements storage.Reader. A folder costs one seek however much it holds.
func (f *FSM) List(ctx context.Context, prefix storage.Key, after string, limit int) ([]string, error) {
	v, err := f.view(ctx)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	var names []string
	err = v.Walk(func(c *boltstore.Cursor) error {
		c.Seek(string(prefix) + after)
		for n := 1; ; n++ {
			if n%checkEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			key, _, ok := c.Next()
			if !ok || !strings.HasPrefix(key, string(prefix)) {
				return nil
			}
			name := key[len(prefix):]
			if folder, _, ok := strings.Cut(name, "/"); ok {
				name = folder + "/"
				c.Seek(string(prefix) + folder + "0") // '0' follows '/': the first key after the folder
			}
			if name <= after { // also the empty name of a key equal to prefix
				continue
			}
			if names = append(names, name); limit > 0 && len(names) == limit {
				return nil
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return names, nil
}

// Scan implements storage.Reader.
func (f *FSM) Scan(ctx context.Context, prefix, after storage.Key, limit int) ([]storage.Entry, error) {
	v, err := f.view(ctx)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	from := string(max(prefix, after))
	var entries []storage.Entry
	var bad error
	err = v.Scan(ctx, from, "", func(key string, rec []byte) bool {
		if !strings.HasPrefix(key, string(prefix)) {
			return false
		}
		if key == string(after) {
			return true
		}
		var e storage.Entry
		if e, bad = f.entry(storage.Key(key), append([]byte(nil), rec...)); bad != nil {
			return false
		}
		entries = append(entries, e)
		return limit <= 0 || len(entries) < limit
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return nil, err
	}
	return entries, nil
}

// Quarantine moves the database files of a data directory (*.db, *.journal, checksums, wal, what was left unfinished, the identity, the note of Distrust
// last) into its subdirectory name, which the caller chooses (corrupt-<unix nanoseconds>), and returns that directory. The
// Raft log goes along with the state, and so does the log of changes (wal): none is of use without the others.
func Quarantine(dir, name string) (string, error) {
	return SetAside(dir, name, "*.db", "*.db.new", "*.journal", "*.journal.new", sumsName+"*", "wal", fmt.Sprintf(installTemp, "*"), IdentityFile, distrusted)
}

// SetAside moves the files in dir that match the patterns into its subdirectory name, in this order, and returns that directory.
func SetAside(dir, name string, patterns ...string) (string, error) {
	to := filepath.Join(dir, name)
	if err := os.Mkdir(to, 0o700); err != nil {
		return "", fmt.Errorf("moving files aside: %w", err)
	}
	for _, pattern := range patterns {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", fmt.Errorf("moving files aside: %w", err)
		}
		for _, from := range names {
			if err := boltfile.Rename(from, filepath.Join(to, filepath.Base(from))); err != nil {
				return "", fmt.Errorf("moving files aside: %w", err)
			}
		}
	}
	return to, boltfile.SyncDir(dir)
}
