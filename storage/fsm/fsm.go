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
	"io"
	"log/slog"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

var errTODO = errors.New("not written yet")

// Options of Open. The zero value works.
type Options struct {
	Logger *slog.Logger // nil discards
}

// Result is what ApplyBatch answers for one command: the future's Response on the leader. An entry that was
// not applied is answered with an error instead, one that was applied before with nil.
type Result struct {
	Index storage.Index // the entry's index, the Version of everything it wrote
	Errs  []error       // one for each batch, in order: nil or storage.ErrConflict
}

// FSM implements raft.FSM, raft.BatchingFSM, raft.ConfigurationStore, storage.Reader and storage.Feed. Values
// are raw: what was in the log entry. Safe for concurrent use, except that Raft's methods have one caller.
type FSM struct{}

// Open opens the state in dir, or creates an empty one. A damaged file is a *storage.CorruptError, and a file
// that another process holds is refused.
func Open(dir string, o Options) (*FSM, error) { return nil, errTODO }

// Close folds what is in memory into the file and closes it. It may be called while Raft still runs: a
// waiting ApplyBatch then returns errors and applies nothing more. Twice is fine.
func (f *FSM) Close() error { return errTODO }

// Apply implements raft.FSM.
func (f *FSM) Apply(l *raft.Log) any { return errTODO }

// ApplyBatch implements raft.BatchingFSM. For each entry it answers a Result, nil (a configuration, or an
// entry applied before), or an error (the replica has stopped, see Err). It blocks while the file cannot keep
// up. It never skips an entry: after one that it cannot apply, it applies nothing more.
func (f *FSM) ApplyBatch(logs []*raft.Log) []any { return nil }

// StoreConfiguration implements raft.ConfigurationStore.
func (f *FSM) StoreConfiguration(index uint64, c raft.Configuration) {}

// Snapshot implements raft.FSM. Nothing is copied: persisting it makes everything applied so far durable.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) { return nil, errTODO }

// Restore implements raft.FSM: it replaces the state by the snapshot's.
func (f *FSM) Restore(r io.ReadCloser) error { return errTODO }

// SnapshotStore is the store to give to raft.NewRaft. Its only snapshot is the durable state.
func (f *FSM) SnapshotStore() raft.SnapshotStore { return nil }

// Get implements storage.Reader.
func (f *FSM) Get(ctx context.Context, key storage.Key) (storage.Entry, error) {
	return storage.Entry{}, errTODO
}

// List implements storage.Reader.
func (f *FSM) List(ctx context.Context, prefix storage.Key, after string, limit int) ([]string, error) {
	return nil, errTODO
}

// Scan implements storage.Reader.
func (f *FSM) Scan(ctx context.Context, prefix, after storage.Key, limit int) ([]storage.Entry, error) {
	return nil, errTODO
}

// OnChange implements storage.Feed.
func (f *FSM) OnChange(fn func(storage.Change)) (stop func()) { return func() {} }

// AppliedIndex returns the index of the last command or configuration that was applied and announced. Raft's
// own entries (no-ops, barriers) never reach the FSM: do not wait for a commit index here, it may be one.
func (f *FSM) AppliedIndex() storage.Index { return 0 }

// LastTerm returns the term of the entry at AppliedIndex.
func (f *FSM) LastTerm() uint64 { return 0 }

// WaitApplied returns nil once AppliedIndex has reached i, ctx's error, or the reason why it never will.
func (f *FSM) WaitApplied(ctx context.Context, i storage.Index) error { return errTODO }

// Err returns why the replica stopped applying for good, or nil.
func (f *FSM) Err() error { return nil }

// Health returns Err, or why the state cannot be made durable at the moment (a full disk, say), or nil.
func (f *FSM) Health() error { return nil }
