package fsm

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/storage/fsm/stream"
)

// stateID is the ID of the one snapshot there always is.
const stateID = "state"

// SnapshotStore is the store to give to raft.NewRaft. Its only snapshot is the durable state, which costs
// nothing to take; a snapshot that Raft receives is built beside it and replaces it in Restore.
func (f *FSM) SnapshotStore() raft.SnapshotStore { return snapshotStore{f} }

type snapshotStore struct{ f *FSM }

// List implements raft.SnapshotStore. It is empty before the first entry: then the node can be bootstrapped.
func (s snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	pos := s.f.store.Load().DurablePosition()
	if pos.Index == 0 {
		return nil, nil
	}
	m, err := newMeta(stateID, pos, 0)
	if err != nil {
		return nil, err
	}
	return []*raft.SnapshotMeta{m}, nil
}

func newMeta(id string, pos boltstore.Position, size int64) (m *raft.SnapshotMeta, err error) {
	m = &raft.SnapshotMeta{
		Version: 1, ID: id, Index: pos.Index, Term: pos.Term, ConfigurationIndex: pos.ConfigIndex, Size: size,
	}
	if len(pos.Config) == 0 {
		return m, nil
	}
	defer func() {
		if p := recover(); p != nil { // raft's decoder has no error
			err = fmt.Errorf("decoding the Raft configuration of entry %d: %v", pos.ConfigIndex, p)
		}
	}()
	m.Configuration = raft.DecodeConfiguration(pos.Config)
	return m, nil
}

// Open implements raft.SnapshotStore. The state may have moved on since List: its meta goes with the stream.
func (s snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if id != stateID {
		s.f.mu.Lock()
		from := s.f.received
		s.f.mu.Unlock()
		if from == nil || from.id != id {
			return nil, nil, fmt.Errorf("opening snapshot %q: %w", id, storage.ErrNotFound)
		}
		m, err := newMeta(id, from.pos, from.bytes)
		return m, received{from}, err
	}
	state, err := s.f.openState()
	if err != nil {
		return nil, nil, fmt.Errorf("opening the state as a snapshot: %w", err)
	}
	m, err := newMeta(id, state.Header.Position, state.Header.Length())
	if err != nil {
		return nil, nil, errors.Join(err, state.Close())
	}
	return m, state, nil
}

// Create implements raft.SnapshotStore, for both of Raft's uses: Persist of our own snapshot goes into the
// sink without a Write, the stream of a leader or an operator is written to it.
func (s snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration,
	configIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if version != 1 {
		return nil, fmt.Errorf("creating a snapshot: version %d is not supported", version)
	}
	pos := boltstore.Position{Index: index, Term: term, ConfigIndex: configIndex, Config: raft.EncodeConfiguration(c)}
	return &sink{f: s.f, pos: pos}, nil
}

// sink is either the durable state itself (after Persist) or a snapshot being received.
type sink struct {
	f         *FSM
	pos       boltstore.Position // where in the log Raft puts the snapshot
	stateOnly bool

	// A received stream goes through a pipe to a goroutine that builds the new file while it arrives.
	id    string
	path  string
	pipe  *io.PipeWriter
	built chan error // capacity 1: the goroutine sends its result once and ends
	bytes int64
	ended bool
	store *boltstore.Store // the verified file, from Close to Restore
}

// ID implements raft.SnapshotSink.
func (s *sink) ID() string {
	if s.id == "" {
		return stateID
	}
	return s.id
}

// Write implements raft.SnapshotSink.
func (s *sink) Write(p []byte) (int, error) {
	if s.pipe == nil {
		if err := s.start(); err != nil {
			return 0, fmt.Errorf("receiving a snapshot: %w", err)
		}
	}
	n, err := s.pipe.Write(p)
	s.bytes += int64(n)
	return n, err
}

// start chooses a file and starts the goroutine that fills it.
func (s *sink) start() error {
	s.f.mu.Lock()
	s.f.sinks++
	s.id = fmt.Sprintf("install-%d", s.f.sinks)
	s.f.mu.Unlock()
	s.path = filepath.Join(s.f.dir, fmt.Sprintf(installTemp, s.id))
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	r, w := io.Pipe()
	s.pipe, s.built = w, make(chan error, 1)
	go func() {
		incarnation, node := s.f.owner.Mark()
		err := boltstore.BuildMarked(s.path, incarnation, node, s.source(r))
		r.CloseWithError(err) // a Write that still waits gets the reason
		s.built <- err
	}()
	return nil
}

// source decodes a stream for Build. The snapshot gets the place in the log that Raft gives it, or the
// one that it names itself if it did not come through Raft.
func (s *sink) source(r io.Reader) boltstore.Source {
	return func(add func(string, []byte) error) (boltstore.Position, error) {
		_, err := stream.Decode(r, func(h stream.Header) error {
			if s.pos.Index == 0 {
				s.pos = h.Position
			}
			if h.Index > s.pos.Index {
				return fmt.Errorf("the snapshot is of index %d and cannot become the state at %d", h.Index, s.pos.Index)
			}
			return nil
		}, add)
		if s.f.records != nil && s.f.records.Head() > 0 {
			s.pos.Logged = s.pos.Index // where Restore has the log go on
		}
		return s.pos, err
	}
}

// Close implements raft.SnapshotSink. What was received is verified and durable afterwards, and restoring it
// has little left that can fail: Raft gives up the process when that does.
func (s *sink) Close() error {
	switch {
	case s.ended:
		return nil
	case s.stateOnly:
		return s.f.persist(s.pos)
	case s.pipe == nil:
		return errors.New("receiving a snapshot: nothing was received")
	}
	s.ended = true
	_ = s.pipe.Close() // of the writing end: cannot fail
	if err := <-s.built; err != nil {
		return fmt.Errorf("receiving a snapshot: %w", err)
	}
	var err error
	if s.store, err = boltstore.Open(s.path, s.f.path(), s.f.storeOptions()); err != nil {
		return fmt.Errorf("verifying a received snapshot: %w", errors.Join(err, os.Remove(s.path)))
	}
	return s.f.keep(s)
}

// keep remembers a received snapshot until Restore, instead of any that came before it.
func (f *FSM) keep(s *sink) error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return errors.Join(storage.ErrUnavailable, s.discard())
	}
	before := f.received
	f.received = s
	f.mu.Unlock()
	if before != nil {
		return before.discard()
	}
	return nil
}

// discard removes a received snapshot that is not wanted.
func (s *sink) discard() error { return errors.Join(s.store.Discard(), os.Remove(s.path)) }

// Cancel implements raft.SnapshotSink.
func (s *sink) Cancel() error {
	if s.ended || s.pipe == nil {
		return nil
	}
	s.ended = true
	s.pipe.CloseWithError(errors.New("the transfer was cancelled"))
	<-s.built // Build has removed the file
	return nil
}

// received is a source that only Restore can use: it takes the file instead of reading.
type received struct{ *sink }

func (received) Read([]byte) (int, error) {
	return 0, errors.New("a received snapshot can only be restored")
}

func (received) Close() error { return nil }
