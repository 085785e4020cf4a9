package cluster

import (
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// Stats returns current numbers.
func (n *Node) Stats() Stats {
	r, c := n.raft.Raft(), n.raft.Numbers()
	_, _, logBytes := n.logs.Size()
	s := Stats{
		Term: r.CurrentTerm(), CommitIndex: r.CommitIndex(), LastIndex: r.LastIndex(),
		AppliedIndex: uint64(n.opts.Machine.AppliedIndex()),
		Leader:       n.IsLeader(), LastContact: -1, Behind: n.Behind(), Current: n.Current(), DiskFailing: n.DiskFault() != nil,
		Ops: c.Ops, Entries: c.Entries, QueuedOps: c.QueuedOps, QueuedBytes: c.QueuedBytes,
		ReadRequests: c.ReadRequests, ReadRounds: c.ReadRounds,
		LogSyncs: n.logs.Syncs.Load(), LogSyncTime: time.Duration(n.logs.SyncTime.Load()), LogBytes: logBytes,
		LogFolds: n.logs.Folds.Load(), LogFoldTime: time.Duration(n.logs.FoldTime.Load()), LogFoldBytes: n.logs.FoldBytes.Load(),
		TrailingLogs: c.TrailingLogs, Elections: c.Elections,
		ForwardsIn: n.calls.In.Load(), ForwardsOut: n.calls.Out.Load(),
		StallsSeen: n.stalls.Load(), PipelineResets: n.resets.Load(), RaftRestarts: c.RaftRestarts,
		SnapshotsSent: n.raft.Transport().SnapshotsSent(), HandshakesFailed: n.port.Failed.Load(),
	}
	differing, undecided := n.states.Counts()
	s.Verified, s.CheckpointSeen, s.Differing = n.Verified(), uint64(n.opts.Machine.Confirmed()), differing
	s.VotesWithdrawn = n.withdrawn.Load()
	s.Undecided = undecided
	s.SnapshotIndex, _ = strconv.ParseUint(r.Stats()["last_snapshot_index"], 10, 64) // 0 if Raft changes the name
	s.CAEnds = n.identity.Trust().Authority().NotAfter
	if cert, err := n.identity.Current(); err == nil {
		s.CertificateEnds = cert.Leaf.NotAfter
	}
	for _, server := range n.raft.Servers() {
		s.Peers++
		if server.Suffrage == raft.Voter {
			s.Voters++
		}
	}
	if s.Leader {
		s.LastContact = 0
	} else if last := r.LastContact(); !last.IsZero() {
		s.LastContact = time.Since(last)
	}
	return s
}

// ScrubNumbers are the metrics of the scrubber, if there is one.
func (n *Node) ScrubNumbers() map[string]float64 {
	if n.scrubber == nil {
		return nil
	}
	return n.scrubber.Numbers()
}
