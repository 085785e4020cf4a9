package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

const (
	maxEntryOps    = 128
	maxEntryBytes  = 256 << 10 // unless a single operation is bigger
	entriesAtOnce  = 2
	maxQueueBytes  = 64 << 20
	sealingSlack   = 256             // what encryption may add to a value
	proposeTimeout = 5 * time.Second // until Raft takes an entry
	opOverhead     = 64              // of an operation in the queue and in an entry
)

// op is one Commit on its way.
type op struct {
	batch storage.Batch
	bytes int
	taken bool          // guarded by queue.mu: it is in an entry, and its outcome is Raft's
	done  chan struct{} // closed when index and err are set
	index storage.Index
	err   error
}

func (o *op) finish(index storage.Index, err error) {
	o.index, o.err = index, err
	close(o.done)
}

// queue holds operations that wait for a place in an entry.
type queue struct {
	mu     sync.Mutex
	ops    []*op
	bytes  int
	closed bool
	held   bool          // see hold
	under  int           // entries that were taken and are not done
	idle   chan struct{} // nil without a waiter; closed when no entry is under way any more
	ready  chan struct{} // capacity entriesAtOnce: there may be work
}

func newQueue() *queue { return &queue{ready: make(chan struct{}, entriesAtOnce)} }

func (q *queue) put(o *op) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return fmt.Errorf("%w: the node is closing", storage.ErrUnavailable)
	case q.held:
		return errHeld
	case q.bytes+o.bytes > maxQueueBytes && len(q.ops) > 0:
		return fmt.Errorf("%w: too many writes are waiting", storage.ErrUnavailable)
	}
	q.ops = append(q.ops, o)
	q.bytes += o.bytes
	q.wake()
	return nil
}

func (q *queue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take returns the next entry's operations, nil if there are none. Call done when their outcome is known.
func (q *queue) take() []*op {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, bytes := 0, 0
	for n < len(q.ops) && n < maxEntryOps && (n == 0 || bytes+q.ops[n].bytes <= maxEntryBytes) {
		bytes += q.ops[n].bytes
		q.ops[n].taken = true
		n++
	}
	taken := slices.Clone(q.ops[:n])
	q.ops = slices.Delete(q.ops, 0, n)
	q.bytes -= bytes
	if n > 0 {
		q.under++
	}
	if len(q.ops) > 0 {
		q.wake()
	}
	return taken
}

func (q *queue) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.under--; q.under == 0 && q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}

// withdraw takes the operation back. It reports whether it was still in the queue.
func (q *queue) withdraw(o *op) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if o.taken {
		return false
	}
	if i := slices.Index(q.ops, o); i >= 0 {
		q.ops = slices.Delete(q.ops, i, i+1)
		q.bytes -= o.bytes
		return true
	}
	return false
}

// close refuses what comes and fails what waits.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	ops := q.emptyLocked()
	q.mu.Unlock()
	for _, o := range ops {
		o.finish(0, fmt.Errorf("%w: the node is closing", storage.ErrUnavailable))
	}
}

func (q *queue) emptyLocked() []*op {
	ops := q.ops
	q.ops, q.bytes = nil, 0
	for _, o := range ops {
		o.taken = true
	}
	return ops
}

// errHeld is storage.ErrUnavailable because nothing of such an operation has left this node: it has not happened.
var errHeld = fmt.Errorf("%w: a snapshot is being restored", storage.ErrUnavailable)

// hold refuses what comes and fails what waits, until release. The channel is closed when no entry is under way any
// more. It reports false if the queue is held already; then release must not be called.
func (q *queue) hold() (idle <-chan struct{}, ok bool) {
	q.mu.Lock()
	if q.held {
		q.mu.Unlock()
		return nil, false
	}
	q.held = true
	wait := make(chan struct{})
	if q.under == 0 {
		close(wait)
	} else {
		q.idle = wait
	}
	ops := q.emptyLocked()
	q.mu.Unlock()
	for _, o := range ops {
		o.finish(0, errHeld)
	}
	return wait, true
}

func (q *queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held, q.idle = false, nil
}

// Commit implements storage.Committer on the leader: see there for the errors. It returns when the local
// state machine has applied the batch.
func (n *Runner) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if err := b.Validate(sealingSlack); err != nil {
		return 0, err
	}
	if err := n.MustLead(); err != nil {
		return 0, err
	}
	o := &op{batch: b, bytes: b.Bytes() + opOverhead, done: make(chan struct{})}
	if err := n.queue.put(o); err != nil {
		return 0, err
	}
	select {
	case <-o.done:
		return o.index, o.err
	case <-ctx.Done():
	}
	if n.queue.withdraw(o) {
		return 0, fmt.Errorf("%w: %w", storage.ErrUnavailable, ctx.Err())
	}
	select {
	case <-o.done: // it was just being answered
		return o.index, o.err
	default:
		return 0, fmt.Errorf("%w: %w", storage.ErrOutcomeUnknown, ctx.Err())
	}
}

// MustLead returns why this node takes no writes, or nil.
func (n *Runner) MustLead() error {
	switch _, leads := n.Leads(); {
	case leads:
		return nil
	case n.Raft().State() == raft.Leader:
		return fmt.Errorf("%w: this node has just been elected", storage.ErrUnavailable)
	default:
		return storage.ErrReadOnly
	}
}

// propose turns waiting operations into entries until the node closes. entriesAtOnce of it run.
func (n *Runner) propose() {
	for {
		select {
		case <-n.queue.ready:
		case <-n.ctx.Done():
			return
		}
		if ops := n.queue.take(); len(ops) > 0 {
			n.proposeEntry(ops)
		}
	}
}

func (n *Runner) proposeEntry(ops []*op) {
	batches := make([]storage.Batch, len(ops))
	for i, o := range ops {
		batches[i] = o.batch
	}
	command, err := fsm.EncodeCommand(time.Now().UnixMilli(), batches)
	var result fsm.Result
	if err == nil {
		result, err = n.apply(command)
	}
	if err == nil && len(result.Errs) != len(ops) {
		err = storage.ErrOutcomeUnknown // the entry was applied before this node restarted Raft
	}
	n.queue.done()
	n.entries.Add(1)
	n.ops.Add(uint64(len(ops)))
	for i, o := range ops {
		switch {
		case err != nil:
			o.finish(0, err)
		case result.Errs[i] != nil:
			o.finish(0, result.Errs[i])
		default:
			o.finish(result.Index, nil)
		}
	}
}

// apply runs one command through Raft. While a transfer of leadership is under way it waits for its end: then
// either this node still leads, or it learns that it does not.
func (n *Runner) apply(command []byte) (fsm.Result, error) {
	deadline := time.Now().Add(proposeTimeout)
	for {
		i := n.instance.Load()
		future := i.raft.Apply(command, proposeTimeout)
		err := i.await(future)
		if errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			n.transferSeen()
			if time.Now().Before(deadline) && n.pause(10*time.Millisecond) {
				continue
			}
		}
		if err != nil {
			return fsm.Result{}, commitError(err)
		}
		n.transferSince.Store(0)
		switch r := future.Response().(type) {
		case fsm.Result:
			return r, nil
		case error:
			// Committed, and other nodes have applied it or will.
			return fsm.Result{}, fmt.Errorf("%w: %w", storage.ErrOutcomeUnknown, r)
		default:
			return fsm.Result{}, nil
		}
	}
}

// pause waits a moment. It reports false when the node closes.
func (n *Runner) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-n.ctx.Done():
		return false
	}
}

// commitError says in storage's words what an error of Raft's Apply means for the write.
func commitError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return storage.ErrReadOnly // refused before it was proposed
	case errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
	default:
		return fmt.Errorf("%w: %w", storage.ErrOutcomeUnknown, err)
	}
}

// Unavailable says that nothing was done, and why.
func Unavailable(err error) error { return fmt.Errorf("%w: %w", storage.ErrUnavailable, err) }
