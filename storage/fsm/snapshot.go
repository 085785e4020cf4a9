package fsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltfile"
	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/storage/fsm/stream"
	"github.com/coffer-project/coffer/storage/record"
)

// SnapshotInfo describes one snapshot stream.
type SnapshotInfo struct {
	Index   storage.Index // of the last entry it contains
	Term    uint64        // of that entry
	Entries uint64        // keys
	Bytes   int64         // of the whole stream
}

func infoOf(h stream.Header) SnapshotInfo {
	return SnapshotInfo{Index: storage.Index(h.Index), Term: h.Term, Entries: h.Count, Bytes: h.Length()}
}

// stateStream is the durable state of an FSM as a stream.
type stateStream struct {
	*stream.Reader
	f *FSM
}

// openState returns a stream of the durable state.
func (f *FSM) openState() (*stateStream, error) {
	v, err := f.store.Load().DurableView()
	if err != nil {
		return nil, err
	}
	return &stateStream{stream.NewReader(v, f.isClosed), f}, nil
}

func (f *FSM) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// WriteSnapshot makes the current state durable and writes it to w as one self-checking stream. It fails
// while the state cannot be made durable. A slow w delays no writer, but the file grows meanwhile.
func (f *FSM) WriteSnapshot(ctx context.Context, w io.Writer) (SnapshotInfo, error) {
	if err := f.store.Load().Flush(); err != nil {
		return SnapshotInfo{}, fmt.Errorf("writing a snapshot: %w", err)
	}
	s, err := f.openState()
	if err != nil {
		return SnapshotInfo{}, fmt.Errorf("writing a snapshot: %w", err)
	}
	defer s.Close()
	if _, err := io.Copy(w, &contextReader{ctx, s}); err != nil {
		return SnapshotInfo{}, fmt.Errorf("writing a snapshot: %w", err)
	}
	return infoOf(s.Header), nil
}

// contextReader ends with ctx. It lives as long as one copy.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// VerifySnapshot reads a whole stream, up to the end of r, and returns what it holds, with the value of one key; nil: there is
// none. A stream that is damaged, truncated or followed by anything is a *storage.CorruptError.
func VerifySnapshot(r io.Reader, key storage.Key) (info SnapshotInfo, value []byte, err error) {
	h, err := stream.Decode(r, func(stream.Header) error { return nil }, func(k string, rec []byte) error {
		if k != string(key) {
			return nil
		}
		_, v, err := record.Parse(rec)
		value = bytes.Clone(v)
		return err
	})
	if err != nil {
		return SnapshotInfo{}, nil, fmt.Errorf("verifying a snapshot: %w", err)
	}
	return infoOf(h), value, nil
}

// Snapshot implements raft.FSM. Nothing is copied: persisting it makes everything applied so far durable,
// and only then does Raft remove log entries.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.Err(); err != nil {
		return nil, err
	}
	return &snapshot{f}, nil
}

type snapshot struct{ f *FSM }

// Persist implements raft.FSMSnapshot. Into a sink of our own it writes nothing: closing it is enough.
func (s *snapshot) Persist(to raft.SnapshotSink) error {
	if own, ok := to.(*sink); ok {
		own.stateOnly = true
		return nil
	}
	_, err := s.f.WriteSnapshot(context.Background(), to)
	return err
}

func (s *snapshot) Release() {}

// persist makes everything up to pos durable. Raft removes log entries up to pos.Index next, some of which
// (no-ops and barriers) the FSM has never seen: the file must say that it is past them.
func (f *FSM) persist(pos boltstore.Position) error {
	s := f.store.Load()
	s.Advance(pos)
	if err := s.Flush(); err != nil {
		return fmt.Errorf("making the state durable: %w", err)
	}
	f.setApplied(pos)
	return nil
}

// Restore implements raft.FSM: it replaces the state by the snapshot's, in one rename.
func (f *FSM) Restore(r io.ReadCloser) error {
	for {
		wrapped, ok := r.(raft.ReadCloserWrapper)
		if !ok {
			break
		}
		r = wrapped.WrappedReadCloser()
	}
	switch from := r.(type) {
	case received:
		return f.adopt(from.sink)
	case *stateStream:
		if from.f == f {
			return nil // the state is its own snapshot
		}
	}
	s := &sink{f: f} // a snapshot from somewhere else
	if _, err := io.Copy(s, r); err != nil {
		return errors.Join(err, s.Cancel())
	}
	if err := s.Close(); err != nil {
		return err
	}
	return f.adopt(s)
}

// adopt puts a received file in the place of the state file and lets readers go on with it.
func (f *FSM) adopt(s *sink) error {
	f.applying.Lock()
	defer f.applying.Unlock()
	f.mu.Lock()
	known := f.received == s
	if known {
		f.received = nil
	}
	f.mu.Unlock()
	if !known {
		return errors.New("restoring a snapshot: it was given up meanwhile")
	}
	// First: after a crash in between, the entries before the snapshot are applied again or skipped with it, and the log
	// skips them in any case. The other way round it would have a gap.
	if err := f.resetLog(s.store); err != nil {
		return fmt.Errorf("restoring a snapshot: %w", errors.Join(err, s.discard()))
	}
	f.store.Load().DropSums() // they are of the file that is about to lose its name
	if err := os.Rename(s.path, f.path()); err != nil {
		return fmt.Errorf("restoring a snapshot: %w", errors.Join(err, s.discard()))
	}
	synced := boltfile.SyncDir(f.dir) // the old file has no name any more: there is no way back
	if err := f.switchTo(s.store); err != nil {
		return errors.Join(err, s.store.Close())
	}
	s.store.KeepSums(f.sums())
	f.feed.Announce(storage.Change{Index: storage.Index(s.pos.Index), Reset: true})
	f.mu.Lock()
	f.setAppliedLocked(s.pos)
	f.mu.Unlock()
	f.log.Info("the state was replaced by a snapshot", "index", s.pos.Index)
	return synced
}

// switchTo lets readers go on with another file, and closes the old one when the last one has left it.
func (f *FSM) switchTo(s *boltstore.Store) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return storage.ErrUnavailable
	}
	f.failed = nil
	old := f.store.Swap(s)
	f.old.Go(func() {
		if err := old.Discard(); err != nil {
			f.log.Warn("closing the replaced state file", "err", err)
		}
	})
	return nil
}

// StoreConfiguration implements raft.ConfigurationStore. Raft does not call it on a BatchingFSM, which gets
// configurations as entries; it is what marks the FSM as one that keeps them.
func (f *FSM) StoreConfiguration(index uint64, c raft.Configuration) {
	f.ApplyBatch([]*raft.Log{{Type: raft.LogConfiguration, Index: index, Term: f.LastTerm(), Data: raft.EncodeConfiguration(c)}})
}
