// Package digest compares the state of a node with those of the others, at checkpoints: see DESIGN.md of package cluster.
//
// It promises that a node whose state is not the majority's distrusts its data, that no node passes on a state which differs, and that Verified is
// false until a checkpoint that is newer than the node's log has confirmed its state. Start reading at States.
package digest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/cluster/consensus"
	"github.com/coffer-project/coffer/cluster/health"
	"github.com/coffer-project/coffer/cluster/raftlog"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

// Members compare their states at checkpoints. The leader commits a mark; each member computes the digest of its state as of
// the mark and reports it in its next echo; and what a majority of the voters has reported is committed, so that a member
// with another state moves its data aside (fsm.FSM.Distrust). No single node decides what is right, also not the leader.
//
// A node serves nothing after its start until a checkpoint that is newer than its log has confirmed its state: see Verified.
const (
	// checkpointEntries and checkpointTime are after how many entries, or when fewer were applied, how much time, members
	// compare. A snapshot comes after more entries than that.
	checkpointEntries = 4096
	checkpointTime    = time.Minute
	// reportEchoes is how many echo intervals, and reportTime how much time at least, a leader waits for the digests of a majority
	// before it commits another mark. Slow members would never report the last one if that came sooner.
	reportEchoes = 10
	reportTime   = 3 * time.Second
	// CompareTimeout is how long Compare waits.
	CompareTimeout = 10 * time.Second
)

// Generation is the first one of stored formats that has checkpoints: members of earlier builds do not read them.
const Generation = 1

// Options are the options of states. All are required.
type Options struct {
	ID      certs.NodeID
	Dir     string
	Machine *fsm.FSM
	Logger  *slog.Logger

	EchoInterval, HeartbeatTimeout, ElectionTimeout time.Duration
	CompareFor                                      time.Duration // how long Compare waits

	Node Node
}

// Node is this node, and what it knows of the others.
type Node interface {
	Nodes() []health.NodeInfo // all members, as this node knows them
	Self() health.NodeInfo
	ClusterFormats() uint32 // the generation of stored formats that the cluster writes
	RaiseFormats()          // has the cluster write what all of its members read; called while this node leads
}

// States compares this node's state with the others'. Safe for concurrent use.
type States struct {
	opts Options
	raft *consensus.Runner
	logs *raftlog.Log

	startIndex storage.Index // last entry of the log when it was opened
	verified   atomic.Bool   // see Verified
	differing  atomic.Uint64
	undecided  atomic.Bool
	compareAt  atomic.Uint64 // the states are to be compared at this entry or a later one; see Compare
	restoring  atomic.Bool
	withheldAt atomic.Int64  // Unix nanoseconds: this node could not give its state to another one; see Give
	report     chan struct{} // capacity 1: the next echo is due; never closed
	reported   chan struct{} // capacity 1: there may be a step to take in a comparison; never closed
}

// New returns states that compare nothing yet: see begin.
func New(o Options) *States {
	return &States{opts: o, report: make(chan struct{}, 1), reported: make(chan struct{}, 1)}
}

// Begin gives it the log, as it was opened, and the runner of Raft, which has not started yet. Follow and Run follow once it has.
func (n *States) Begin(r *consensus.Runner, l *raftlog.Log) {
	n.raft, n.logs = r, l
	_, last, _ := l.Size()
	n.startIndex = max(storage.Index(last), n.opts.Machine.AppliedIndex())
}

// IsVerified returns what Verified has returned last.
func (n *States) IsVerified() bool { return n.verified.Load() }

// Heard says that a member may have reported a digest. It does not wait.
func (n *States) Heard() { signal(n.reported) }

// Due signals that the next echo is due, as there is a digest to report.
func (n *States) Due() <-chan struct{} { return n.report }

// SetRestoring says whether an operator is restoring a snapshot: a state that is new to all is sent without comparison.
func (n *States) SetRestoring(on bool) { n.restoring.Store(on) }

// Counts returns how often a member's state was not the majority's, and whether the voters' states differ without a majority.
func (n *States) Counts() (differing uint64, undecided bool) {
	return n.differing.Load(), n.undecided.Load()
}

// HasWithheld reports whether this node could not give its state to another one, since it last could.
func (n *States) HasWithheld() bool { return n.withheldAt.Load() != 0 }

// comparison is what Run remembers.
type comparison struct {
	term     uint64        // that this node leads in; 0: none
	before   storage.Index // the mark before the one that was proposed
	proposed bool          // a mark, which is not applied yet
	markedAt time.Time
	mark     storage.Index // that members are comparing at; 0: none
	applied  storage.Index // at the end of the last comparison

	decided  storage.Index         // the last mark with a majority
	majority []byte                // its digest
	differs  map[certs.NodeID]bool // members that have reported another one
}

// Follow tells those that wait that this node has computed or confirmed a digest.
func (n *States) Follow() {
	for {
		select {
		case <-n.opts.Machine.DigestChanged():
			n.Verified()
			signal(n.report)
			signal(n.reported)
		case <-n.raft.Context().Done():
			return
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run has the members compare their states while this node leads.
func (n *States) Run() {
	tick := time.NewTicker(n.opts.EchoInterval)
	defer tick.Stop()
	var c comparison
	for {
		changed := n.raft.Roles.Next()
		n.compare(&c)
		n.Verified()
		select {
		case <-tick.C:
		case <-n.reported:
		case <-changed:
		case <-n.raft.Context().Done():
			return
		}
	}
}

// compare takes the next step of a comparison, if there is one.
func (n *States) compare(c *comparison) {
	term, leads := n.raft.Leads()
	if !leads || c.term != term {
		*c = comparison{term: term}
		n.undecided.Store(false)
	}
	if !leads {
		return
	}
	nodes := n.opts.Node.Nodes()
	n.opts.Node.RaiseFormats()
	if n.opts.Node.ClusterFormats() < Generation || len(nodes) < 2 {
		return
	}
	n.countDiffering(c, nodes)
	own, _ := n.opts.Machine.Digest()
	if c.proposed && own > c.before {
		c.proposed, c.mark = false, own
	}
	switch {
	case c.mark != 0:
		n.conclude(c, nodes)
	case c.proposed && time.Since(c.markedAt) < n.reportWait():
	case n.mustCompare(c, nodes, own):
		c.before, c.proposed, c.markedAt = own, true, time.Now()
		n.proposeCheckpoint(0, nil)
	}
}

func (n *States) reportWait() time.Duration { return max(reportTime, reportEchoes*n.opts.EchoInterval) }

// mustCompare reports whether it is time for a checkpoint. own is this node's last mark.
func (n *States) mustCompare(c *comparison, nodes []health.NodeInfo, own storage.Index) bool {
	since, asked := time.Since(c.markedAt), storage.Index(n.compareAt.Load())
	switch applied := n.opts.Machine.AppliedIndex(); {
	case c.markedAt.IsZero(), c.proposed, asked > own, applied >= c.applied+checkpointEntries, applied > c.applied && since >= checkpointTime:
		return true
	case since < n.opts.EchoInterval:
		return false
	case asked > c.decided:
		return true
	}
	for _, info := range nodes {
		if info.Unverified && info.Applied >= c.decided { // else the last one will do, when it gets there
			return true
		}
	}
	return false
}

// conclude commits what a majority of the voters has reported.
func (n *States) conclude(c *comparison, nodes []health.NodeInfo) {
	majority, heard, different := n.tally(c.mark, nodes)
	if majority == nil {
		if !heard && time.Since(c.markedAt) < n.reportWait() {
			return
		}
		if different && !n.undecided.Swap(true) {
			n.opts.Logger.Error("the states of the voters differ, and no majority has the same: start the voters that are down; "+
				"if all are up, stop those that are wrong and move their data directories away",
				"node", string(n.opts.ID), "checkpoint", uint64(c.mark))
		}
		c.mark = 0
		return
	}
	n.undecided.Store(false)
	c.decided, c.majority, c.differs = c.mark, majority, map[certs.NodeID]bool{}
	if n.countDiffering(c, nodes); c.differs[n.opts.ID] {
		n.opts.Machine.Distrust(&storage.CorruptError{File: n.opts.Dir, Detail: fmt.Sprintf(
			"the records as of entry %d are not those of the majority of the voters, which this node was leading", c.mark)})
		return
	}
	n.proposeCheckpoint(c.mark, majority)
	c.mark, c.applied = 0, n.opts.Machine.AppliedIndex()+1
}

// countDiffering reports members whose state is not the majority's, also those that report late.
func (n *States) countDiffering(c *comparison, nodes []health.NodeInfo) {
	for _, info := range nodes {
		if c.decided == 0 || info.DigestIndex != c.decided || bytes.Equal(info.Digest, c.majority) || c.differs[info.ID] {
			continue
		}
		c.differs[info.ID] = true
		n.differing.Add(1)
		n.opts.Logger.Error("a member's state is not the majority's: the member moves its data aside and fetches the state again",
			"node", string(info.ID), "checkpoint", uint64(c.decided))
	}
}

// tally counts the digests of the voters at a mark. majority is nil unless more than half of them have the same; heard says
// that each has reported, different that not all that have did report the same.
func (n *States) tally(mark storage.Index, nodes []health.NodeInfo) (majority []byte, heard, different bool) {
	counts := map[string]int{}
	voters, reports := 0, 0
	for _, info := range nodes {
		if !info.Voter {
			continue
		}
		voters++
		if info.DigestIndex == mark {
			reports++
			counts[string(info.Digest)]++
		}
	}
	for digest, count := range counts {
		if count > voters/2 {
			majority = []byte(digest)
		}
	}
	return majority, reports == voters, len(counts) > 1
}

// proposeCheckpoint does not wait until the entry is committed: what is lost is made up for by the next one.
func (n *States) proposeCheckpoint(index storage.Index, digest []byte) {
	command, err := fsm.EncodeCheckpoint(time.Now().UnixMilli(), index, digest)
	if err != nil {
		n.opts.Logger.Error("proposing a checkpoint", "err", err)
		return
	}
	n.raft.ProposeOnce(command)
}

// Compare has the members compare their states, at an entry that is not older than the call, and returns nil if this node's is
// the majority's, or there is nothing to compare with. It is for the leader; elsewhere it waits for the leader's next checkpoint.
// A node whose state differs distrusts its data. storage.ErrUnavailable: the states could not be compared in time.
func (n *States) Compare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.opts.CompareFor)
	defer cancel()
	at := n.opts.Machine.AppliedIndex()
	if n.opts.Machine.Err() == nil && n.Verified() && n.nothingToCompare() {
		return nil
	}
	for asked := n.compareAt.Load(); asked < uint64(at) && !n.compareAt.CompareAndSwap(asked, uint64(at)); {
		asked = n.compareAt.Load()
	}
	signal(n.reported)
	err := n.opts.Machine.WaitConfirmed(ctx, at)
	switch {
	case err == nil:
		return n.opts.Machine.Err()
	case n.opts.Machine.Err() != nil:
		return fmt.Errorf("%w: the state of this node is not to be used: %w", storage.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: the voters have not compared their states in time: start those that are down: %w", storage.ErrUnavailable, err)
}

// Give waits until this node's state may be sent to another member: a state that differs would make that member differ
// too, and the two a majority. While too few voters can be compared, a state that was confirmed since the start is sent; one
// that was not, or that differs from another voter's, is not.
func (n *States) Give(stop <-chan struct{}) error {
	if n.restoring.Load() && n.Verified() && n.opts.Machine.Err() == nil {
		return nil // the state is new to all
	}
	ctx, cancel := context.WithCancel(n.raft.Context())
	defer cancel()
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := n.Compare(ctx)
	switch {
	case err == nil, n.opts.Machine.Err() == nil && n.Verified() && !n.undecided.Load() && !n.canCompare():
		n.withheldAt.Store(0)
		return nil
	case n.opts.Machine.Err() == nil && n.withheldAt.Swap(time.Now().UnixNano()) == 0:
		n.opts.Logger.Error("this node's state is not sent to a member that needs it, because no majority of the voters is known to have "+
			"the same: start the voters that are down", "node", string(n.opts.ID))
	}
	return err
}

// canCompare reports whether a majority of the voters could take a checkpoint from this node, which leads: they apply what it
// sends, and do not wait for its state.
func (n *States) canCompare() bool {
	first, _, _ := n.logs.Size()
	voters, able := 0, 0
	for _, info := range n.opts.Node.Nodes() {
		if !info.Voter {
			continue
		}
		voters++
		if info.ID == n.opts.ID || info.Behind >= 0 && info.Behind < n.opts.CompareFor && uint64(info.LastIndex)+1 >= first {
			able++
		}
	}
	return able > voters/2
}

// Withholds reports whether this node does not hold on to its leadership, because it could not give its state to a member and
// another voter may have one that it can.
func (n *States) Withholds() bool {
	at := n.withheldAt.Load()
	return at != 0 && !n.verified.Load() && time.Since(time.Unix(0, at)) < 2*(n.opts.HeartbeatTimeout+n.opts.ElectionTimeout)
}

// Verified reports whether this node's state is known to be its cluster's: a checkpoint that is newer than the log it was
// opened with has confirmed that, or there is nothing to compare with. Until then what it would serve may have been
// changed on its disk. LeaderChanges signals when that becomes true, which it stays.
func (n *States) Verified() bool {
	if n.verified.Load() {
		return true
	}
	if n.opts.Machine.Confirmed() <= n.startIndex && !n.nothingToCompare() {
		return false
	}
	if !n.verified.Swap(true) {
		n.raft.Roles.Signal()
	}
	return true
}

// nothingToCompare reports whether this node is the only voter, or the cluster has members of a build that knows no
// checkpoints. That the cluster has none is not for this node's disk alone to say.
func (n *States) nothingToCompare() bool {
	self := n.opts.Node.Self()
	if self.Voter && n.raft.OtherVoters() == 0 {
		return true
	}
	heard := 0
	for _, info := range n.opts.Node.Nodes() {
		switch {
		case info.ID == n.opts.ID || info.LastContact < 0:
		case info.ClusterFormats > 0:
			return false
		case info.Leader && info.APIAddr != "":
			return true
		case self.Leader && info.Voter:
			heard++
		}
	}
	_, leads := n.raft.Leads()
	return leads && self.ClusterFormats == 0 && heard+1 > (n.raft.OtherVoters()+1)/2
}
