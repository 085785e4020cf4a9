package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// SetVote gives a member its vote, or takes it, on the leader. AutopilotConfig.NonVoters decides what lasts: a member that is not
// among them gets its vote back. RejectedError says why it cannot be.
func (n *Node) SetVote(ctx context.Context, id NodeID, votes bool) error {
	if err := n.raft.MustLead(); err != nil {
		return err
	}
	nodes := n.Nodes()
	for _, info := range nodes {
		switch {
		case info.ID != id:
		case info.Voter == votes:
			return nil
		case votes:
			return n.giveVote(ctx, info)
		default:
			return n.takeVote(ctx, info, nodes)
		}
	}
	return RejectedError(fmt.Sprintf("no member has the id %q", id))
}

func (n *Node) giveVote(ctx context.Context, info NodeInfo) error {
	if !mayVote(info, n.raft.Transport().Acked.Losses()) {
		return RejectedError(fmt.Sprintf("node %q is not healthy, or its state is not confirmed yet: it votes once it is", info.ID))
	}
	return n.addVoter(ctx, info)
}

// mayVote reports whether a member is fit to vote; lost are the entries that members have lost although they had acknowledged them.
func mayVote(info NodeInfo, lost map[raft.ServerID]uint64) bool {
	return info.Healthy && !info.Unverified && lost[raft.ServerID(info.ID)] == 0
}

func (n *Node) addVoter(ctx context.Context, info NodeInfo) error {
	err := n.raft.Change(ctx, func(r *raft.Raft, t time.Duration) raft.Future {
		return r.AddVoter(raft.ServerID(info.ID), raft.ServerAddress(info.ClusterAddr), 0, t)
	})
	if err == nil {
		n.log.Info("a node votes now", "node", string(info.ID))
	}
	return err
}

func (n *Node) demoteVoter(ctx context.Context, id NodeID) error {
	return n.raft.Change(ctx, func(r *raft.Raft, t time.Duration) raft.Future { return r.DemoteVoter(raft.ServerID(id), 0, t) })
}

// handOver is the answer of a leader to what only another one can do to it: storage.ErrReadOnly, try again there.
func (n *Node) handOver(ctx context.Context) error {
	if err := n.TransferLeadership(ctx); err != nil {
		return fmt.Errorf("this node leads, and cannot hand over: %w", err)
	}
	return storage.ErrReadOnly
}

func (n *Node) takeVote(ctx context.Context, info NodeInfo, nodes []NodeInfo) error {
	if info.ID == n.opts.ID {
		return n.handOver(ctx)
	}
	if !enoughWithout(info.ID, nodes) {
		return RejectedError(fmt.Sprintf("without the vote of %q too few of the others are healthy", info.ID))
	}
	err := n.demoteVoter(ctx, info.ID)
	if err == nil {
		n.log.Info("a node votes no more", "node", string(info.ID))
	}
	return err
}

// enoughWithout reports whether the voters but one would be a cluster of which a majority is healthy.
func enoughWithout(id NodeID, nodes []NodeInfo) bool {
	others, healthy := 0, 0
	for _, o := range nodes {
		if o.Voter && o.ID != id {
			others++
			if o.Healthy || o.Leader {
				healthy++
			}
		}
	}
	return healthy > others/2
}
