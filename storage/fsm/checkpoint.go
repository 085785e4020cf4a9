package fsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/coffer-project/coffer/proto/logpb"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/storage/lthash"
)

// keptMarks is how many digests a replica remembers.
const keptMarks = 8

// checkpoints are entries of the log by which replicas compare their states. The first of a pair, a mark, has each replica
// compute the digest of its state as of that entry, beside applying what follows. The second says what the digest is at a
// majority: a replica that has another one is wrong.
type checkpoints struct {
	changed chan struct{} // capacity 1, level-triggered: a digest was computed or confirmed; never closed

	mu        sync.Mutex
	marks     []*mark // oldest first
	confirmed uint64  // the last mark at which this state was the majority's
}

// mark is one state that was marked. Each of digest and majority is nil until it is known.
type mark struct {
	index            uint64
	digest, majority []byte
}

// EncodeCheckpoint returns the log entry that has the replicas compute their digests, if index is 0, or else the one that
// says what a majority of the voters computed at the entry index. timeMS is the leader's clock, in Unix milliseconds.
func EncodeCheckpoint(timeMS int64, index storage.Index, digest []byte) ([]byte, error) {
	c := &logpb.Command{Format: formatCheckpoint, TimeMs: timeMS, Checkpoint: &logpb.Checkpoint{Index: uint64(index), Digest: digest}}
	if err := checkCommand(c); err != nil {
		return nil, fmt.Errorf("encoding a checkpoint: %w", err)
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(c)
}

func checkCheckpoint(c *logpb.Command) error {
	p := c.Checkpoint
	switch {
	case p == nil:
		return nil
	case len(c.Ops) > 0:
		return fmt.Errorf("a checkpoint has %d operations", len(c.Ops))
	case p.Index == 0 && len(p.Digest) > 0, p.Index > 0 && len(p.Digest) != lthash.Size:
		return fmt.Errorf("a checkpoint has a digest of %d bytes", len(p.Digest))
	}
	return nil
}

// Digest returns the last digest that this replica computed, and the entry at which its state had it; 0: none yet.
func (f *FSM) Digest() (storage.Index, []byte) {
	c := &f.checkpoints
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.marks) - 1; i >= 0; i-- {
		if m := c.marks[i]; m.digest != nil {
			return storage.Index(m.index), m.digest
		}
	}
	return 0, nil
}

// Confirmed returns the last entry at which the state was found to be the majority's; 0: none since Open.
func (f *FSM) Confirmed() storage.Index {
	f.checkpoints.mu.Lock()
	defer f.checkpoints.mu.Unlock()
	return storage.Index(f.checkpoints.confirmed)
}

// WaitConfirmed returns nil once Confirmed has reached i, ctx's error, or the reason why it never will.
func (f *FSM) WaitConfirmed(ctx context.Context, i storage.Index) error {
	return f.wait(ctx, func() bool { return f.Confirmed() >= i })
}

// DigestChanged signals, level-triggered with capacity 1, that Digest or Confirmed may have changed. The channel is never
// closed and has one consumer.
func (f *FSM) DigestChanged() <-chan struct{} { return f.checkpoints.changed }

// mark computes the digest of the state as of index, which is the current one: f.applying is held.
func (f *FSM) mark(index uint64) {
	view, err := f.store.Load().View()
	if err != nil {
		return // closed or damaged: there is nothing to compare
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		view.Close()
		return
	}
	c := &f.checkpoints
	m := &mark{index: index}
	c.mu.Lock()
	if c.marks = append(c.marks, m); len(c.marks) > keptMarks {
		c.marks = c.marks[1:]
	}
	c.mu.Unlock()
	f.old.Go(func() { f.compute(m, view) })
}

func (f *FSM) compute(m *mark, view boltstore.View) {
	sum, err := view.Sum()
	view.Close()
	if err != nil {
		if errors.Is(err, boltstore.ErrClosed) {
			return
		}
		f.log.Error("computing the digest of the state", "index", m.index, "err", err)
		return
	}
	digest := sum.Fingerprint()
	f.checkpoints.mu.Lock()
	m.digest = digest[:]
	f.checkpoints.mu.Unlock()
	f.compare(m)
}

// learn takes note of what a majority computed at a mark. A mark from before this process is not there to compare with.
func (f *FSM) learn(p *logpb.Checkpoint) {
	f.checkpoints.mu.Lock()
	var found *mark
	for _, m := range f.checkpoints.marks {
		if m.index == p.Index {
			m.majority, found = p.Digest, m
		}
	}
	f.checkpoints.mu.Unlock()
	if found != nil {
		f.compare(found)
	}
}

// compare acts upon what is known of a mark.
func (f *FSM) compare(m *mark) {
	c := &f.checkpoints
	c.mu.Lock()
	known := m.digest != nil && m.majority != nil
	same := bytes.Equal(m.digest, m.majority)
	if known && same {
		c.confirmed = max(c.confirmed, m.index)
	}
	c.mu.Unlock()
	if known && !same {
		f.Distrust(&storage.CorruptError{File: f.path(), Detail: fmt.Sprintf(
			"its records as of entry %d are not those of the majority of the voters", m.index)})
	}
	f.mu.Lock()
	f.wakeLocked()
	f.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}
