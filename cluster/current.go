package cluster

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// CurrentWithin is how old the state of a node may be: one that has not applied what the leader had this long ago is not
// current. It is longer than an election.
const CurrentWithin = 10 * time.Second

// freshness tells how old the state of a node is. It remembers when the leader was known to have which entries; once the node
// has applied them, its state is not older than that moment. The clock is monotonic.
type freshness struct {
	asOf    time.Time // the state is not older; zero: nothing is known
	pending []moment  // oldest first; not applied yet
}

type moment struct {
	at    time.Time
	index storage.Index
}

// note records that the leader had no more than the entries up to index at a moment.
func (f *freshness) note(at time.Time, index, applied storage.Index) {
	f.settle(applied)
	for len(f.pending) > 0 && at.Sub(f.pending[0].at) > CurrentWithin {
		f.pending = f.pending[1:] // once applied, it would not make the node current
	}
	f.pending = append(f.pending, moment{at, index})
	f.settle(applied)
}

// settle takes note of what the node has applied.
func (f *freshness) settle(applied storage.Index) {
	for len(f.pending) > 0 && f.pending[0].index <= applied {
		f.asOf, f.pending = f.pending[0].at, f.pending[1:]
	}
}

// currency is the freshness of this node's own state.
type currency struct {
	recent atomic.Pointer[time.Time] // the latest asOf that is known to readers, which have no time for mu

	mu sync.Mutex
	freshness
}

// age returns how old the state is, as far as it is known; negative if nothing is.
func (c *currency) age(applied storage.Index) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle(applied)
	if c.asOf.IsZero() {
		return -1
	}
	at := c.asOf
	c.recent.Store(&at)
	return time.Since(at)
}

func (c *currency) noted(at time.Time, index, applied storage.Index) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(at, index, applied)
}

// Behind returns how old this node's state may be: the leader had no more than this node has applied so long ago. It is
// negative if nothing is known yet.
func (n *Node) Behind() time.Duration {
	return n.currency.age(n.opts.Machine.AppliedIndex())
}

// Current reports whether this node has applied what the leader had less than CurrentWithin ago. One that is cut off, or does
// not get what it receives onto its disk, does not hear of tokens that are revoked and policies that are changed.
func (n *Node) Current() bool {
	if at := n.currency.recent.Load(); at != nil && time.Since(*at) < min(n.opts.currentFor, 2*time.Second) {
		return true
	}
	age := n.Behind()
	return age >= 0 && age < n.opts.currentFor
}

// followLeader keeps asking for the position of the leader, which a majority has confirmed, until the node closes.
func (n *Node) followLeader() {
	for {
		changed := n.roles.next()
		wait := n.opts.EchoInterval
		if !n.askPosition() {
			wait = min(wait, 50*time.Millisecond) // and no less often than it takes
		}
		select {
		case <-time.After(wait):
		case <-changed:
		case <-n.ctx.Done():
			return
		}
	}
}

func (n *Node) askPosition() bool {
	at := time.Now()
	index, err := n.leaderIndex(n.ctx)
	if err != nil {
		return false
	}
	n.currency.noted(at, index, n.opts.Machine.AppliedIndex())
	return true
}
