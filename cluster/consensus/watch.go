package consensus

import (
	"math"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// minTrailing is the least number of entries kept behind a snapshot, whatever their size.
const minTrailing = 1024

// Watch looks after a transfer of leadership that does not end, and a log that lost its tail. It is called from one goroutine.
func (n *Runner) Watch() {
	n.watchTransfer()
	n.watchLostSuffix()
}

// awaitFailure acts at once when the state machine stops.
func (n *Runner) awaitFailure() {
	if n.opts.Machine.WaitApplied(n.ctx, math.MaxUint64) != nil && n.ctx.Err() == nil {
		n.WatchMachine()
	}
}

// WatchMachine gives leadership up when the state machine has stopped, and again when this node is elected nevertheless: the others
// do not know that it cannot lead.
func (n *Runner) WatchMachine() {
	err := n.opts.Machine.Err()
	if err == nil {
		return
	}
	if !n.Broken.Swap(true) {
		n.log.Error("the state machine has stopped: this node can neither lead nor serve", "node", string(n.opts.ID), "err", err)
		n.Roles.Signal()
	}
	n.HandOver("the state machine has stopped")
}

// transferSeen notes that Raft refused a write because leadership is being transferred.
func (n *Runner) transferSeen() { n.transferSince.CompareAndSwap(0, time.Now().UnixNano()) }

// watchTransfer is W3: Raft can forget to take back the flag that a transfer is under way, and then refuses
// every write for as long as it leads.
func (n *Runner) watchTransfer() {
	since := n.transferSince.Load()
	if since == 0 || time.Since(time.Unix(0, since)) < 2*n.opts.ElectionTimeout {
		return
	}
	if n.Raft().State() != raft.Leader {
		n.transferSince.Store(0)
		return
	}
	n.restartRaft("a transfer of leadership does not end")
}

// watchLostSuffix restarts a follower whose log lost its tail to a failed append: Raft truncates first and
// remembers the old end when the append then fails (a full disk), and refuses everything from there on.
func (n *Runner) watchLostSuffix() {
	r := n.Raft()
	_, last, _ := n.logs.Size()
	if index := r.LastIndex(); index <= last || r.State() != raft.Follower {
		n.lostRounds = 0
		return
	}
	snapshot, err := strconv.ParseUint(r.Stats()["last_snapshot_index"], 10, 64)
	if err != nil || r.LastIndex() <= snapshot {
		n.lostRounds = 0
		return
	}
	if n.lostRounds++; n.lostRounds >= 3 {
		n.lostRounds = 0
		n.restartRaft("the log ends before Raft thinks it does")
	}
}

// GovernLog keeps fewer entries behind a snapshot when they are big, and takes one when the log is.
func (n *Runner) GovernLog() {
	first, last, bytes := n.logs.Size()
	if last == 0 {
		return
	}
	want := n.opts.TrailingLogs
	if bytes > n.opts.MaxLogBytes/2 {
		average := max(1, bytes/int64(last-first+1))
		want = min(want, max(minTrailing, uint64(n.opts.MaxLogBytes/2/average)))
	}
	r := n.Raft()
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
