package node

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"

	"github.com/coffer-project/coffer/cluster"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle/join"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/lifecycle/passport"
	"github.com/coffer-project/coffer/server/lifecycle/rotation"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
	"github.com/coffer-project/coffer/storage/fsm"
)

// The server declares what it needs of the packages below it; these types fulfil that with the concrete ones.

// barrierOf is a lifecycle.Barrier.
type barrierOf struct{ *barrier.Barrier }

func (b barrierOf) NewRing() (rootKey []byte, ring storage.Put, err error) {
	rootKey = barrier.NewRootKey()
	ring, err = barrier.KeyringPut(rootKey)
	return rootKey, ring, err
}

func (b barrierOf) Rotate(ctx context.Context) (rotation.KeyInfo, error) {
	info, err := b.Barrier.Rotate(ctx)
	return rotation.KeyInfo(info), err
}

func (b barrierOf) KeyInfo() rotation.KeyInfo { return rotation.KeyInfo(b.Barrier.KeyInfo()) }

// rawOf is a lifecycle.Raw.
type rawOf struct{ *fsm.FSM }

func (r rawOf) WriteSnapshot(ctx context.Context, w io.Writer) (index, term uint64, err error) {
	info, err := r.FSM.WriteSnapshot(ctx, w)
	return uint64(info.Index), info.Term, err
}

// recordsOf are cluster.Records.
type recordsOf struct{ passport.Records }

func (r recordsOf) CA(ctx context.Context) (cluster.CA, error) {
	ca, err := r.Records.CA(ctx)
	return cluster.CA(ca), err
}

func (r recordsOf) Store(ctx context.Context, trust []byte, ca *cluster.CA) error {
	return r.Records.Store(ctx, trust, (*passport.CA)(ca))
}

// clusterOf is a lifecycle.Cluster.
type clusterOf struct{ *cluster.Node }

func (c clusterOf) Leader() (members.Peer, bool) {
	p, ok := c.Node.Leader()
	return peerOf(p), ok
}

func (c clusterOf) Peers() ([]members.Peer, error) {
	var peers []members.Peer
	for _, p := range c.Node.Nodes() {
		peers = append(peers, peerOf(p))
	}
	return peers, nil
}

func (c clusterOf) Changes() <-chan struct{} { return c.LeaderChanges() }

func (c clusterOf) Admit(ctx context.Context, a join.Answer) ([]byte, error) {
	trust, err := c.Node.Admit(ctx, cluster.Joiner{
		ID: cluster.NodeID(a.ServerID), ClusterAddr: a.ClusterAddr, PublicKey: a.PublicKey, Formats: a.Formats, NonVoter: a.NonVoter, Rejoin: a.Rejoin,
	})
	return trust, rejected(err)
}

func (c clusterOf) RotateCA(ctx context.Context) error { return rejected(c.Node.RotateCA(ctx)) }

// rejected lets the operator read why the cluster does not do something.
func rejected(err error) error {
	if why, ok := errors.AsType[cluster.RejectedError](err); ok {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: why.Error(), Err: err}
	}
	return err
}

func (c clusterOf) Certificates() members.Certificates {
	out := members.Certificates{}
	ends, generation, nodes := c.Node.Certificates()
	out.CAEnds, out.Generation = ends, generation
	for _, m := range nodes {
		out.Nodes = append(out.Nodes, members.Certificate{Node: string(m.Node), Ends: m.Ends, Current: m.Current})
	}
	return out
}

func (c clusterOf) RemovePeer(ctx context.Context, id string) error {
	return c.Node.RemovePeer(ctx, cluster.NodeID(id))
}

// StepDown does nothing where no other node could take over.
func (c clusterOf) StepDown(ctx context.Context) error {
	if !slices.ContainsFunc(c.Node.Peers(), func(p cluster.NodeInfo) bool { return p.Voter && !p.Leader }) {
		return nil
	}
	return c.TransferLeadership(ctx)
}

func (c clusterOf) SetVote(ctx context.Context, id string, votes bool) error {
	err := c.Node.SetVote(ctx, cluster.NodeID(id), votes)
	if why, ok := errors.AsType[cluster.RejectedError](err); ok {
		return engines.Invalid("%s", why)
	}
	return err
}

func (c clusterOf) Forward(w http.ResponseWriter, r *http.Request) error { return c.Node.Forward(w, r) }

func (c clusterOf) Restore(ctx context.Context, state io.Reader) error {
	err := c.RestoreSnapshot(ctx, state)
	if why, ok := errors.AsType[cluster.RejectedError](err); ok {
		return engines.Invalid("the snapshot is rejected, nothing was changed: %s", why)
	}
	return err
}

func (c clusterOf) SetAutopilot(a members.Autopilot) {
	c.Node.SetAutopilot(cluster.AutopilotConfig(a))
}

func (c clusterOf) Numbers() map[string]float64 {
	s := c.Stats()
	behind := s.Behind.Seconds()
	if behind < 0 {
		behind = -1
	}
	out := map[string]float64{
		"raft_term": float64(s.Term), "raft_commit_index": float64(s.CommitIndex),
		"raft_last_index": float64(s.LastIndex), "raft_snapshot_index": float64(s.SnapshotIndex),
		"raft_peers": float64(s.Peers), "raft_voters": float64(s.Voters),
		"raft_behind_seconds": behind, "raft_current": bit(s.Current), "raft_disk_failing": bit(s.DiskFailing),
		"raft_leader_last_contact_seconds": max(0, s.LastContact).Seconds(), "raft_elections_total": float64(s.Elections),
		"raft_log_syncs_total": float64(s.LogSyncs), "raft_log_sync_seconds_total": s.LogSyncTime.Seconds(),
		"raft_log_folds_total": float64(s.LogFolds), "raft_log_fold_seconds_total": s.LogFoldTime.Seconds(),
		"raft_log_fold_bytes_total": float64(s.LogFoldBytes),
		"raft_log_bytes":            float64(s.LogBytes), "raft_trailing_logs": float64(s.TrailingLogs),
		"raft_snapshots_sent_total": float64(s.SnapshotsSent), "raft_restarts_total": float64(s.RaftRestarts),
		"raft_verified": bit(s.Verified), "raft_checkpoint_index": float64(s.CheckpointSeen),
		"raft_states_undecided": bit(s.Undecided), "raft_votes_withdrawn_total": float64(s.VotesWithdrawn), "raft_members_differing_total": float64(s.Differing),
		"raft_stalls_total": float64(s.StallsSeen), "raft_pipeline_resets_total": float64(s.PipelineResets),
		"commit_operations_total": float64(s.Ops), "commit_entries_total": float64(s.Entries),
		"commit_queued_operations": float64(s.QueuedOps), "commit_queued_bytes": float64(s.QueuedBytes),
		"read_index_requests_total": float64(s.ReadRequests), "read_index_rounds_total": float64(s.ReadRounds),
		"forwarded_requests_in_total": float64(s.ForwardsIn), "forwarded_requests_out_total": float64(s.ForwardsOut),
		"cluster_handshakes_failed_total":         float64(s.HandshakesFailed),
		"cluster_certificate_expiry_time_seconds": float64(s.CertificateEnds.Unix()),
		"cluster_ca_expiry_time_seconds":          float64(s.CAEnds.Unix()),
	}
	maps.Copy(out, c.ScrubNumbers())
	return out
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func peerOf(p cluster.NodeInfo) members.Peer {
	return members.Peer{
		ID: string(p.ID), APIAddr: p.APIAddr, ClusterAddr: p.ClusterAddr, Version: p.Version,
		Voter: p.Voter, Leader: p.Leader, Healthy: p.Healthy, LastContact: max(0, p.LastContact),
		Behind: p.Behind, Disk: p.Disk.String(),
		LastIndex: uint64(p.LastIndex), AppliedIndex: uint64(p.Applied), LastTerm: p.LastTerm,
		FollowKey: p.FollowKey,
	}
}
