package cluster

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/cluster/health"
	"github.com/coffer-project/coffer/storage"
)

// currency is the freshness of this node's own state.
type currency struct {
	recent atomic.Pointer[time.Time] // the latest asOf that is known to readers, which have no time for mu

	mu sync.Mutex
	health.Freshness
}

// age returns how old the state is, as far as it is known; negative if nothing is.
func (c *currency) age(applied storage.Index) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Settle(applied)
	if c.AsOf.IsZero() {
		return -1
	}
	at := c.AsOf
	c.recent.Store(&at)
	return time.Since(at)
}

func (c *currency) noted(at time.Time, index, applied storage.Index) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Note(at, index, applied)
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
		changed := n.raft.Roles.Next()
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
	index, err := n.raft.LeaderIndex(n.ctx)
	if err != nil {
		return false
	}
	n.currency.noted(at, index, n.opts.Machine.AppliedIndex())
	return true
}
