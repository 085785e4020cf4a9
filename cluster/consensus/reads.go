package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// rounds answers callers in rounds, one round at a time. All callers that wait share the next one; a round begins after its
// callers are fixed and takes its index after that, so the index covers whatever was acknowledged before each of them called.
type rounds struct {
	mu     sync.Mutex
	next   *round        // collects callers; nil: none waits
	closed bool          // no round will run any more
	wake   chan struct{} // capacity 1: there is a next
	count  atomic.Uint64
}

type round struct {
	done  chan struct{} // closed when index and err are set
	index storage.Index
	err   error
}

// reads are the two kinds of rounds that ReadIndex needs. A round of confirms asks only for heartbeats, and never waits
// for a round of another node: nodes that take each other for the leader would wait for each other.
type reads struct {
	confirms rounds // while this node leads: one confirmation of its leadership; also on behalf of other nodes
	seeks    rounds // on any node: from the leader, as soon as there is one
	confirm  confirmer
	requests atomic.Uint64
}

func (r *reads) init() {
	r.confirms.wake = make(chan struct{}, 1)
	r.seeks.wake = make(chan struct{}, 1)
	r.confirm.init()
}

// ReadIndex returns once local reads cover every write that was acknowledged anywhere in the cluster before
// the call, and the index they cover at least. It works on every node. storage.ErrUnavailable: there is no
// leader, or leadership could not be confirmed in time.
func (n *Runner) ReadIndex(ctx context.Context) (storage.Index, error) {
	n.reads.requests.Add(1)
	index, err := storage.Index(0), ErrNotLeading
	if n.leaderTerm.Load() != 0 { // it may lead: the round finds out
		index, err = n.reads.confirms.wait(ctx)
	}
	if err != nil {
		index, err = n.reads.seeks.wait(ctx)
	}
	if err != nil {
		return 0, err
	}
	if n.opts.Machine.AppliedIndex() < index {
		if err := n.opts.Machine.WaitApplied(ctx, index); err != nil {
			return 0, fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
		}
	}
	return index, nil
}

// wait returns what the next round finds.
func (r *rounds) wait(ctx context.Context) (storage.Index, error) {
	next := r.join()
	select {
	case <-next.done:
		return next.index, next.err
	case <-ctx.Done():
		return 0, Unavailable(ctx.Err())
	}
}

// join returns the next round.
func (r *rounds) join() *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next != nil {
		return r.next
	}
	next := &round{done: make(chan struct{})}
	if r.closed {
		next.fail()
		return next
	}
	r.next = next
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return next
}

// take fixes who is in the round that runs now. nil: there are none.
func (r *rounds) take(last bool) *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.next
	r.next, r.closed = nil, last
	return next
}

func (r *round) fail() {
	r.err = fmt.Errorf("%w: the node is closing", storage.ErrUnavailable)
	close(r.done)
}

// run runs the rounds until ctx ends.
func (r *rounds) run(ctx context.Context, do func() (storage.Index, error)) {
	for {
		select {
		case <-r.wake:
		case <-ctx.Done():
			if last := r.take(true); last != nil {
				last.fail()
			}
			return
		}
		if next := r.take(false); next != nil {
			r.count.Add(1)
			next.index, next.err = do()
			close(next.done)
		}
	}
}

// seekIndex gets an index from the leader, this node or another, within Options.ForwardWait. Each try ends when the
// leadership changes.
func (n *Runner) seekIndex() (storage.Index, error) {
	ctx, cancel := context.WithTimeout(n.ctx, n.opts.ForwardWait)
	defer cancel()
	for {
		changed := n.Roles.Next()
		index, err := n.LeaderIndex(ctx)
		if err == nil {
			return index, nil
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return 0, fmt.Errorf("%w: no confirmed leader: %w", storage.ErrUnavailable, err)
		}
	}
}

// LeaderIndex tries once to get an index from the leader, this node or another.
func (n *Runner) LeaderIndex(ctx context.Context) (storage.Index, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer n.Roles.Limit(n.opts.HeartbeatTimeout, cancel)()
	if n.IsLeader() {
		return n.reads.confirms.wait(ctx)
	}
	return n.leader.AskIndex(ctx)
}

// ErrNotLeading says that this node does not lead.
var ErrNotLeading = errors.New("this node does not lead")

// confirmedIndex returns the commit index of a moment at which this node was the leader beyond doubt: a
// quorum answered, as followers of its term, heartbeats that were sent after the index was read.
//
// Raft's VerifyLeader does not promise that. It counts answers to heartbeats that were sent before it was
// called (a stopped and continued leader reads those from its sockets), and it counts non-voters.
func (n *Runner) confirmedIndex() (storage.Index, error) {
	term, i := n.leaderTerm.Load(), n.instance.Load()
	if term == 0 || i.raft.State() != raft.Leader { // what else Leads asks is asked at the end
		return 0, ErrNotLeading
	}
	index := storage.Index(i.raft.CommitIndex())
	var others []raft.Server
	voters, self := 0, 0
	for _, s := range i.raft.GetConfiguration().Configuration().Servers {
		switch {
		case s.Suffrage != raft.Voter:
		case s.ID == raft.ServerID(n.opts.ID):
			voters, self = voters+1, 1
		default:
			voters++
			others = append(others, s)
		}
	}
	if need := voters/2 + 1 - self; need > 0 {
		ctx, cancel := context.WithTimeout(n.ctx, n.opts.HeartbeatTimeout)
		defer cancel()
		if err := n.reads.confirm.wait(ctx, n, i, term, others, need); err != nil {
			return 0, err
		}
	}
	if now, ok := n.Leads(); !ok || now != term {
		return 0, errors.New("leadership was lost")
	}
	return index, nil
}

// confirmer keeps, for each other voter, the newest round it answered. One heartbeat at a time is under way
// to each; a voter that is slow or gone costs nothing but its own.
type confirmer struct {
	answered chan struct{} // capacity 1: something changed for the round that waits

	mu    sync.Mutex
	term  uint64
	round uint64
	newer bool // a peer has a newer term
	peers map[raft.ServerID]*confirmation
}

type confirmation struct {
	round uint64 // newest one that the peer answered in this term
	busy  bool   // ask runs
}

func (c *confirmer) init() {
	c.answered = make(chan struct{}, 1)
	c.peers = map[raft.ServerID]*confirmation{}
}

// wait runs one round: it returns nil once need of the peers have answered it in this term.
func (c *confirmer) wait(ctx context.Context, n *Runner, i *instance, term uint64, peers []raft.Server, need int) error {
	number := c.begin(n, i, term, peers)
	for {
		c.mu.Lock()
		votes := 0
		for _, s := range peers {
			if p := c.peers[s.ID]; p != nil && p.round >= number {
				votes++
			}
		}
		newer := c.newer
		c.mu.Unlock()
		switch {
		case newer:
			return errors.New("another node has a newer term")
		case votes >= need:
			return nil
		}
		select {
		case <-c.answered:
		case <-i.stop:
			return raft.ErrRaftShutdown
		case <-ctx.Done():
			return errors.New("a quorum did not confirm leadership in time")
		}
	}
}

// begin starts a round and returns its number.
func (c *confirmer) begin(n *Runner, i *instance, term uint64, peers []raft.Server) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if term != c.term {
		// Those who are still being asked belong to the old term, and write into the old records.
		c.term, c.newer, c.peers = term, false, map[raft.ServerID]*confirmation{}
	}
	c.round++
	for _, s := range peers {
		p := c.peers[s.ID]
		if p == nil {
			p = &confirmation{}
			c.peers[s.ID] = p
		}
		if !p.busy {
			p.busy = true
			i.wg.Go(func() { c.ask(n, i, term, s, p) })
		}
	}
	return c.round
}

// ask sends heartbeats to one voter for as long as there are rounds it has not answered.
func (c *confirmer) ask(n *Runner, i *instance, term uint64, to raft.Server, p *confirmation) {
	req := &raft.AppendEntriesRequest{RPCHeader: n.rpcHeader(), Term: term, Leader: []byte(n.opts.Addr)}
	for {
		c.mu.Lock()
		number := c.round
		if p.round >= number || c.term != term {
			p.busy = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		var resp raft.AppendEntriesResponse
		err := i.transport.AppendEntries(to.ID, to.Address, req, &resp)
		c.mu.Lock()
		if err == nil && resp.Success && resp.Term == term {
			p.round = number
		} else if err == nil && resp.Term > term && c.term == term {
			c.newer = true
		}
		c.mu.Unlock()
		select {
		case c.answered <- struct{}{}:
		default:
		}
		if err == nil && resp.Success {
			continue
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-i.stop:
			c.mu.Lock()
			p.busy = false
			c.mu.Unlock()
			return
		}
	}
}
