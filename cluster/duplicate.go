package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/cluster/port"
)

// A copy of a member's data directory has the member's key, so the other nodes cannot tell a process that runs on it from the
// member, and both would vote in one term. Therefore each node checks that it is the one which answers at the address that the
// cluster has for it. Both sides find out: the one that answers sees its own key in a connection that it has not made.

// duplicate returns, as an error, that another process answers at this node's address with this node's key. No response is fine: a
// node may have moved.
func (n *Node) duplicate() error {
	for _, s := range n.raft.Servers() {
		if NodeID(s.ID) != n.opts.ID {
			continue
		}
		ctx, cancel := context.WithTimeout(n.ctx, n.opts.HeartbeatTimeout/2)
		defer cancel()
		n.port.MetSelf.Store(false)
		c, err := n.identity.Dial(ctx, n.opts.ID, string(s.Address), port.Forward)
		if err != nil {
			return nil
		}
		c.Close()
		if !n.port.MetSelf.Load() {
			return fmt.Errorf("another process runs as node %q at %s, with the same key: one of the two data directories is a copy. "+
				"Stop this node, and let the machine join with an empty directory and an id of its own", n.opts.ID, s.Address)
		}
	}
	return nil
}

// duplicateInterval is the time between two checks.
const duplicateInterval = 3 * time.Second

// watchDuplicate checks again while this node leads, or has no leader. A follower is the one that its leader sends entries to.
func (n *Node) watchDuplicate(checked *time.Time) {
	if n.duplicated.Load() != nil || time.Since(*checked) < duplicateInterval {
		return
	}
	*checked = time.Now()
	if err := n.duplicate(); err != nil {
		n.duplicated.Store(&err)
		n.raft.Roles.Signal()
	}
}
