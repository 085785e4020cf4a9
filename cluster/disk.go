package cluster

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/cluster/health"
	"github.com/coffer-project/coffer/cluster/raftlog"
)

// isDiskFault reports whether a write failed because of the operating system: a full, read-only or broken disk.
func isDiskFault(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) || strings.Contains(err.Error(), "file sync error") // bbolt says no more
}

// DiskFault returns why the disk takes no writes at the moment, or nil.
func (n *Node) DiskFault() error {
	if n.raft.Stalled() {
		return errors.New("a write has been under way for more than " + n.opts.stallAfter.String())
	}
	if err := n.logs.Failure(); err != nil && isDiskFault(err) {
		return fmt.Errorf("writing %s: %w", raftlog.FileName, err)
	}
	if err := n.opts.Machine.Health(); err != nil && n.opts.Machine.Err() == nil && isDiskFault(err) {
		return fmt.Errorf("writing the state file: %w", err)
	}
	return nil
}

// disk is what this node tells the leader about its disk.
func (n *Node) disk() Disk {
	switch {
	case n.DiskFault() != nil:
		return health.DiskFailing
	case n.opts.Space != nil:
		return n.opts.Space.Disk()
	}
	return health.DiskOK
}

// Roomier reports whether there is another voter that is healthy and has room on its disk for writes.
func (n *Node) Roomier() bool { return n.roomier().ID != "" }

// roomier returns that voter, the furthest ahead; without one, a NodeInfo without id.
func (n *Node) roomier() (best NodeInfo) {
	for _, info := range n.Nodes() {
		if !info.Leader && info.Voter && info.Healthy && info.Disk < health.DiskFull && (best.ID == "" || info.LastIndex > best.LastIndex) {
			best = info
		}
	}
	return best
}

// roomPause is the least time between two transfers of leadership because of room.
const roomPause = 10 * time.Second

// watchRoom hands leadership to a node with room when this one's disk has no room for writes.
func (n *Node) watchRoom(d *dutyState) {
	if n.disk() != health.DiskFull || time.Since(d.roomAt) < roomPause {
		return
	}
	to := n.roomier()
	if to.ID == "" {
		return
	}
	d.roomAt = time.Now()
	n.log.Warn("handing leadership over", "reason", "the disk has no room for writes", "to", string(to.ID))
	if err := n.raft.TransferTo(to.ID, to.ClusterAddr); err != nil {
		n.log.Warn("handing leadership over failed", "err", err)
	}
}

// quietTime is how long a disk must have taken every write before the log hears that it works again.
const quietTime = 10 * time.Second

// watchDisk reports a disk that takes no writes, once.
func (n *Node) watchDisk(d *dutyState) {
	switch err := n.DiskFault(); {
	case err != nil:
		if d.failedAt.IsZero() {
			n.log.Error("the disk takes no writes: this node does not advance until it does; free space, or replace the disk", "node", string(n.opts.ID), "directory", n.opts.Dir, "err", err)
		}
		d.failedAt = time.Now()
	case !d.failedAt.IsZero() && time.Since(d.failedAt) > quietTime:
		d.failedAt = time.Time{}
		n.log.Info("the disk takes writes again", "node", string(n.opts.ID), "directory", n.opts.Dir)
	}
}

// watchCurrent reports that this node is no longer current, and that it is again.
func (n *Node) watchCurrent(d *dutyState) {
	age := n.Behind()
	switch late := age < 0 && time.Since(n.openedAt) > CurrentWithin || age >= n.opts.currentFor; {
	case late && !d.late:
		n.log.Error("this node has not applied what the leader had: it answers no reads until it has", "node", string(n.opts.ID),
			"behind", age, "index", uint64(n.opts.Machine.AppliedIndex()), "err", n.whyBehind())
	case !late && d.late:
		n.log.Info("this node is current again", "node", string(n.opts.ID), "index", uint64(n.opts.Machine.AppliedIndex()))
	default:
		return
	}
	d.late = !d.late
}

func (n *Node) whyBehind() error {
	if err := n.opts.Machine.Err(); err != nil {
		return err
	}
	if err := n.DiskFault(); err != nil {
		return err
	}
	if _, id := n.raft.Raft().LeaderWithID(); id == "" {
		return errors.New("no leader is known")
	}
	if age := n.Behind(); age < 0 {
		return errors.New("the leader has not answered yet, or what it had is still on its way")
	}
	return errors.New("the leader does not answer, or its entries do not arrive")
}
