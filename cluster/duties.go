package cluster

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

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
	// minTrailing is the least number of entries kept behind a snapshot, whatever their size.
	minTrailing = 1024
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
		n.watchMachine()
		n.watchStall(&d)
		n.watchDisk(&d)
		n.watchCurrent(&d)
		n.watchTransfer()
		n.watchLostSuffix(&d)
		if n.IsLeader() {
			n.watchFollowers(&d)
			n.watchRoom(&d)
		}
	})
}

// care does what may take long: it keeps the log small and, as leader, the membership in order.
func (n *Node) care() {
	n.each(func() {
		n.governLog()
		if n.IsLeader() {
			n.tendTrust()
			nodes := n.Nodes()
			n.judge(nodes)
			n.withdrawVotes(nodes)
			n.promote(nodes)
			n.bury(nodes)
		}
	})
}

// dutyState is what watch remembers from one round to the next.
type dutyState struct {
	stalled      bool
	failedAt     time.Time // the disk took no writes; zero: it does
	roomAt       time.Time // leadership was handed over for want of room
	late         bool      // this node was not current
	lost         int       // rounds in a row in which the log was behind Raft's memory
	handedOverAt time.Time
}

// awaitFailure acts at once when the state machine stops.
func (n *Node) awaitFailure() {
	if n.opts.Machine.WaitApplied(n.ctx, math.MaxUint64) != nil && n.ctx.Err() == nil {
		n.watchMachine()
	}
}

// watchMachine gives leadership up when the state machine has stopped.
func (n *Node) watchMachine() {
	err := n.opts.Machine.Err()
	if err == nil || n.broken.Swap(true) {
		return
	}
	n.log.Error("the state machine has stopped: this node can neither lead nor serve", "node", string(n.opts.ID), "err", err)
	n.roles.signal()
	n.handOver("the state machine has stopped")
}

// Distrusted returns why this node must not go on with its data, or nil: the data must be moved aside and fetched again, see
// fsm.FSM.Distrust, or it is a copy of a member's that runs. LeaderChanges signals when that becomes known.
func (n *Node) Distrusted() error {
	if err := n.duplicated.Load(); err != nil {
		return *err
	}
	return n.opts.Machine.Distrusted()
}

func (n *Node) handOver(why string) {
	if n.raft().State() != raft.Leader || n.otherVoters() == 0 {
		return
	}
	n.log.Warn("handing leadership over", "reason", why)
	ctx, cancel := context.WithTimeout(n.ctx, 2*n.opts.ElectionTimeout)
	defer cancel()
	if err := n.TransferLeadership(ctx); err != nil {
		n.log.Warn("handing leadership over failed", "err", err)
	}
}

// watchStall reports W1; safeTransport acts on it.
func (n *Node) watchStall(d *dutyState) {
	now := n.stalled()
	if now && !d.stalled {
		n.stalls.Add(1)
		n.log.Error("the local log does not answer: not leading until it does", "node", string(n.opts.ID))
	}
	if now != d.stalled {
		d.stalled = now
		n.roles.signal()
	}
}

// transferSeen notes that Raft refused a write because leadership is being transferred.
func (n *Node) transferSeen() { n.transferSince.CompareAndSwap(0, time.Now().UnixNano()) }

// watchTransfer is W3: Raft can forget to take back the flag that a transfer is under way, and then refuses
// every write for as long as it leads.
func (n *Node) watchTransfer() {
	since := n.transferSince.Load()
	if since == 0 || time.Since(time.Unix(0, since)) < 2*n.opts.ElectionTimeout {
		return
	}
	if n.raft().State() != raft.Leader {
		n.transferSince.Store(0)
		return
	}
	n.restartRaft("a transfer of leadership does not end")
}

// watchLostSuffix restarts a follower whose log lost its tail to a failed append: Raft truncates first and
// remembers the old end when the append then fails (a full disk), and refuses everything from there on.
func (n *Node) watchLostSuffix(d *dutyState) {
	r := n.raft()
	_, last, _ := n.logs.size()
	if index := r.LastIndex(); index <= last || r.State() != raft.Follower {
		d.lost = 0
		return
	}
	snapshot, err := strconv.ParseUint(r.Stats()["last_snapshot_index"], 10, 64)
	if err != nil || r.LastIndex() <= snapshot {
		d.lost = 0
		return
	}
	if d.lost++; d.lost >= 3 {
		d.lost = 0
		n.restartRaft("the log ends before Raft thinks it does")
	}
}

// governLog keeps fewer entries behind a snapshot when they are big, and takes one when the log is.
func (n *Node) governLog() {
	first, last, bytes := n.logs.size()
	if last == 0 {
		return
	}
	want := n.opts.TrailingLogs
	if bytes > n.opts.MaxLogBytes/2 {
		average := max(1, bytes/int64(last-first+1))
		want = min(want, max(minTrailing, uint64(n.opts.MaxLogBytes/2/average)))
	}
	r := n.raft()
	if want != n.trailing.Swap(want) {
		if err := n.reload(func(c *raft.ReloadableConfig) { c.TrailingLogs = want }); err != nil {
			n.log.Warn("changing how many log entries are kept", "err", err)
		}
	}
	if bytes > n.opts.MaxLogBytes && last-first > 2*want {
		if err := n.instance.Load().await(r.Snapshot()); err != nil {
			n.log.Debug("taking a snapshot because the log is big", "err", err)
		}
	}
}

// judge reports members that became healthy, or ceased to be.
func (n *Node) judge(nodes []NodeInfo) {
	for _, info := range n.health.judge(nodes) {
		if info.Healthy {
			n.log.Info("a member is healthy", "node", string(info.ID))
		} else {
			n.log.Warn("a member is not healthy", "node", string(info.ID), "silent", info.LastContact, "behind", info.Behind, "disk", info.Disk.String(), "index", uint64(info.LastIndex))
		}
	}
}

// watchFollowers is W2: a follower that answers but does not move.
func (n *Node) watchFollowers(d *dutyState) {
	t := n.instance.Load().transport
	last := storage.Index(n.raft().LastIndex())
	for _, info := range n.Nodes() {
		id := raft.ServerID(info.ID)
		switch {
		case info.Leader:
		case t.isInstalling(id), info.Disk == DiskFailing: // the cause is at its side
			n.health.moving(info.ID)
		default:
			times := n.health.stuck(info.ID, last, n.opts.stuckAfter)
			if times > 0 {
				n.resets.Add(1)
				n.log.Warn("a follower answers but does not move: cutting its pipeline", "node", string(info.ID), "index", uint64(info.LastIndex))
				t.reset(id)
			}
			if times > 1 && info.Voter && time.Since(d.handedOverAt) > handOverPause {
				d.handedOverAt = time.Now()
				n.handOver("a follower does not move")
				return
			}
		}
	}
}

// promote gives joiners their vote, one at a time, once their state is confirmed: before that they may have none.
func (n *Node) promote(nodes []NodeInfo) {
	lost := n.instance.Load().transport.acked.losses()
	for _, info := range nodes {
		if info.Voter || info.Unverified || lost[raft.ServerID(info.ID)] > 0 || !info.Healthy || !n.health.ripe(info.ID) {
			continue
		}
		err := n.change(n.ctx, func(r *raft.Raft, t time.Duration) raft.Future {
			return r.AddVoter(raft.ServerID(info.ID), raft.ServerAddress(info.ClusterAddr), 0, t)
		})
		if err != nil {
			n.log.Warn("giving a node its vote", "node", string(info.ID), "err", err)
		} else {
			n.log.Info("a node votes now", "node", string(info.ID))
		}
		return
	}
}

// bury removes dead servers if the operator wants that: never so many that the rest is less than a quorum of
// what there was, or than MinQuorum.
func (n *Node) bury(nodes []NodeInfo) {
	c := n.Autopilot()
	if !c.CleanupDeadServers {
		return
	}
	voters := 0
	alive := 0
	for _, info := range nodes {
		if info.Voter {
			voters++
			if !n.health.dead(info.ID) || info.Leader {
				alive++
			}
		}
	}
	for _, info := range nodes {
		if info.Leader || !n.health.dead(info.ID) {
			continue
		}
		if info.Voter && (alive < voters/2+1 || voters-1 < max(c.MinQuorum, 1)) {
			continue
		}
		n.log.Warn("removing a dead node", "node", string(info.ID))
		if err := n.RemovePeer(n.ctx, info.ID); err != nil {
			n.log.Warn("removing a dead node", "node", string(info.ID), "err", err)
		}
		return // one at a time
	}
}
