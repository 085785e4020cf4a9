package cluster

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/health"
	"github.com/coffer-project/coffer/storage"
)

const (
	// stallLimit is how long a local write may take before W1 stops this node from leading.
	stallLimit = 3 * time.Second
	// stuckLimit is how long a follower that is behind may stand still before W2 cuts its pipeline.
	stuckLimit = 10 * time.Second
	// handOverPause is the least time between two transfers of leadership by W2: a follower that stands still
	// for reasons of its own must not make leadership wander.
	handOverPause = 5 * time.Minute
)

// each calls do once in each echo interval until the node closes.
func (n *Node) each(do func()) {
	tick := time.NewTicker(n.opts.EchoInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			do()
		case <-n.ctx.Done():
			return
		}
	}
}

// watch runs the watchdogs. None of them waits long for anything.
func (n *Node) watch() {
	var d dutyState
	n.each(func() {
		n.raft.WatchMachine()
		n.watchStall(&d)
		n.watchDisk(&d)
		n.watchCurrent(&d)
		n.raft.Watch()
		if n.IsLeader() {
			n.watchFollowers(&d)
			n.watchRoom(&d)
		}
	})
}

// maintain does what may take long: it keeps the log small and, as leader, the membership in order.
func (n *Node) maintain() {
	n.each(func() {
		n.raft.GovernLog()
		if n.IsLeader() {
			n.registry.Tend()
			nodes := n.Nodes()
			n.updateHealth(nodes)
			n.withdrawVotes(nodes)
			n.promote(nodes)
			n.removeDeadServers(nodes)
		}
	})
}

// dutyState is what watch remembers from one round to the next.
type dutyState struct {
	stalled      bool
	failedAt     time.Time // the disk took no writes; zero: it does
	roomAt       time.Time // leadership was handed over for want of room
	late         bool      // this node was not current
	handedOverAt time.Time
}

// Distrusted returns why this node must not go on with its data, or nil: the data must be moved aside and fetched again, see
// fsm.FSM.Distrust, or it is a copy of a member's that runs. LeaderChanges signals when that becomes known.
func (n *Node) Distrusted() error {
	if err := n.duplicated.Load(); err != nil {
		return *err
	}
	return n.opts.Machine.Distrusted()
}

// watchStall reports W1; the transport acts on it.
func (n *Node) watchStall(d *dutyState) {
	now := n.raft.Stalled()
	if now && !d.stalled {
		n.stalls.Add(1)
		n.log.Error("the local log does not answer: not leading until it does", "node", string(n.opts.ID))
	}
	if now != d.stalled {
		d.stalled = now
		n.raft.Roles.Signal()
	}
}

// watchFollowers is W2: a follower that answers but does not move.
func (n *Node) watchFollowers(d *dutyState) {
	t := n.raft.Transport()
	last := storage.Index(n.raft.Raft().LastIndex())
	for _, info := range n.Nodes() {
		id := raft.ServerID(info.ID)
		switch {
		case info.Leader:
		case t.IsInstalling(id), info.Disk == health.DiskFailing: // the cause is at its side
			n.health.Moving(info.ID)
		default:
			times := n.health.Stuck(info.ID, last, n.opts.stuckAfter)
			if times > 0 {
				n.resets.Add(1)
				n.log.Warn("a follower answers but does not move: cutting its pipeline", "node", string(info.ID), "index", uint64(info.LastIndex))
				t.Reset(id)
			}
			if times > 1 && info.Voter && time.Since(d.handedOverAt) > handOverPause {
				d.handedOverAt = time.Now()
				n.raft.HandOver("a follower does not move")
				return
			}
		}
	}
}
