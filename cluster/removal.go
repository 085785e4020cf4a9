package cluster

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/port"
)

// How long a node goes without a leader before it asks the others whether it is still a member, in echo intervals, and
// how long each may take to answer.
const (
	askAfter   = 3
	askTimeout = 5 * time.Second
)

// Removed reports whether this node has been told that it is not a member any more: most of the voters that it knew
// do not accept its certificate, and none does. LeaderChanges signals when that becomes known.
func (n *Node) Removed() bool { return n.removed.Load() }

// watchRemoval asks the others, while there is no leader, whether this node is still a member. A node that is removed
// would otherwise never hear of it: no member talks to it.
func (n *Node) watchRemoval() {
	without, checked := 0, time.Now()
	n.each(func() {
		_, leader := n.raft.Raft().LeaderWithID()
		if leader == "" || NodeID(leader) == n.opts.ID {
			n.watchDuplicate(&checked)
		}
		if leader != "" || n.removed.Load() {
			without = 0
			return
		}
		if without++; without < askAfter {
			return
		}
		without = 0
		if n.rejected() {
			n.removed.Store(true)
			n.log.Error("this node is no longer a member of its cluster: it was removed, or its key is not the registered one", "node", string(n.opts.ID))
			n.raft.Roles.Signal()
		}
	})
}

// rejected asks every other voter.
func (n *Node) rejected() bool {
	ctx, cancel := context.WithTimeout(n.ctx, askTimeout)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	voters, rejections, admissions := 0, 0, 0
	for _, s := range n.raft.Servers() {
		if s.Suffrage != raft.Voter || NodeID(s.ID) == n.opts.ID {
			continue
		}
		voters++
		wg.Go(func() {
			answered, admitted := n.ask(ctx, NodeID(s.ID), string(s.Address))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case admitted:
				admissions++
			case answered:
				rejections++
			}
		})
	}
	wg.Wait()
	return admissions == 0 && rejections > voters/2
}

// ask reports whether a node, which has shown its own certificate, says anything to this one, and whether it accepts
// this node's certificate. In TLS 1.3 a client learns that with the first bytes it reads.
func (n *Node) ask(ctx context.Context, id NodeID, addr string) (answered, admitted bool) {
	c, err := n.identity.Dial(ctx, id, addr, port.Forward)
	if err != nil {
		return false, false
	}
	defer c.NetConn().Close()
	if deadline, ok := ctx.Deadline(); ok {
		c.SetReadDeadline(deadline)
	}
	_, err = c.Read(make([]byte, 1)) // the server of gRPC speaks first
	if err == nil {
		return true, true
	}
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && alert.Op == "remote error", false
}
