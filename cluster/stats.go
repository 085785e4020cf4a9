package cluster

import (
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// Stats returns current numbers.
func (n *Node) Stats() Stats {
	i := n.instance.Load()
	r := i.raft
	_, _, logBytes := n.logs.size()
	s := Stats{
		Term: r.CurrentTerm(), CommitIndex: r.CommitIndex(), LastIndex: r.LastIndex(),
		AppliedIndex: uint64(n.opts.Machine.AppliedIndex()),
		Leader:       n.IsLeader(), LastContact: -1, Behind: n.Behind(), Current: n.Current(), DiskFailing: n.DiskFault() != nil,
		Ops: n.ops.Load(), Entries: n.entries.Load(),
		ReadRequests: n.reads.requests.Load(), ReadRounds: n.reads.confirms.count.Load() + n.reads.seeks.count.Load(),
		LogSyncs: n.logs.syncs.Load(), LogSyncTime: time.Duration(n.logs.syncTime.Load()), LogBytes: logBytes,
		TrailingLogs: n.trailing.Load(), Elections: n.elections.Load(),
		ForwardsIn: n.calls.in.Load(), ForwardsOut: n.calls.out.Load(),
		StallsSeen: n.stalls.Load(), PipelineResets: n.resets.Load(), RaftRestarts: n.boots.Load(),
		SnapshotsSent: i.transport.snapshotsSent(), HandshakesFailed: n.port.failed.Load(),
	}
	s.Verified, s.CheckpointSeen, s.Differing = n.Verified(), uint64(n.opts.Machine.Confirmed()), n.differing.Load()
	s.VotesWithdrawn = n.withdrawn.Load()
	s.Undecided = n.undecided.Load()
	s.SnapshotIndex, _ = strconv.ParseUint(r.Stats()["last_snapshot_index"], 10, 64) // 0 if Raft changes the name
	s.CAEnds = n.who.goBy().ca.NotAfter
	if cert, err := n.who.current(); err == nil {
		s.CertificateEnds = cert.Leaf.NotAfter
	}
	n.queue.mu.Lock()
	s.QueuedOps, s.QueuedBytes = len(n.queue.ops), n.queue.bytes
	n.queue.mu.Unlock()
	for _, server := range n.servers() {
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
