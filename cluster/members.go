package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/storage"
)

// Peers returns the members in Raft's latest configuration, sorted by id, with id, address, vote and
// leadership only.
func (n *Node) Peers() []NodeInfo {
	_, leader := n.raft.Raft().LeaderWithID()
	var peers []NodeInfo
	for _, s := range n.raft.Servers() {
		peers = append(peers, NodeInfo{
			ID: NodeID(s.ID), ClusterAddr: string(s.Address), Voter: s.Suffrage == raft.Voter, Leader: s.ID == leader,
		})
	}
	return peers
}

func checkMember(id NodeID, clusterAddr string) error {
	if id == "" || len(id) > certs.MaxIDBytes || clusterAddr == "" {
		return fmt.Errorf("a member needs an id of 1 to %d bytes and an address", certs.MaxIDBytes)
	}
	return nil
}

// Join adds a member, on the leader; it will vote once it is healthy and has caught up, unless nonVoter.
// rejoin says that the node lost its data. A known id that rejoins, or comes with another address, is removed
// first and begins again without a vote: with an empty log it must not vote, and Raft's sender to it would
// otherwise go on where it was, at the old address. An address that another member has is refused.
func (n *Node) Join(ctx context.Context, id NodeID, clusterAddr string, nonVoter, rejoin bool) error {
	if err := checkMember(id, clusterAddr); err != nil {
		return err
	}
	if err := n.raft.MustLead(); err != nil {
		return err
	}
	var known raft.Server
	for _, s := range n.raft.Servers() {
		switch {
		case NodeID(s.ID) == id:
			known = s
		case string(s.Address) == clusterAddr:
			return fmt.Errorf("address %s belongs to member %q: remove that one first", clusterAddr, s.ID)
		}
	}
	switch {
	case known.ID == "":
	case string(known.Address) == clusterAddr && !rejoin:
		return nil
	case id == n.opts.ID:
		return fmt.Errorf("%q leads: it cannot join", id)
	default:
		if err := n.RemovePeer(ctx, id); err != nil {
			return err
		}
	}
	n.health.Forget(id, nonVoter)
	n.raft.Transport().Acked.Forget(raft.ServerID(id))
	err := n.raft.Change(ctx, func(r *raft.Raft, t time.Duration) raft.Future {
		return r.AddNonvoter(raft.ServerID(id), raft.ServerAddress(clusterAddr), 0, t)
	})
	if err != nil {
		return fmt.Errorf("adding %q: %w", id, err)
	}
	n.log.Info("added a member", "node", string(id), "address", clusterAddr)
	return nil
}

// RemovePeer removes a member, on the leader. With that its certificate ends: no node talks to it any more. Removing an unknown one is fine, and so is the leader itself:
// it hands over to another voter first, and the answer is then storage.ErrReadOnly, try again there.
func (n *Node) RemovePeer(ctx context.Context, id NodeID) error {
	if err := n.raft.MustLead(); err != nil {
		return err
	}
	if id == n.opts.ID {
		return n.handOver(ctx)
	}
	if !n.raft.IsMember(id) {
		if _, left := n.identity.Trust().Members[id]; !left {
			return nil
		}
		return n.registry.Remove(ctx, id) // leadership changed while it was removed
	}
	err := n.raft.Change(ctx, func(r *raft.Raft, t time.Duration) raft.Future { return r.RemoveServer(raft.ServerID(id), 0, t) })
	if err != nil {
		return fmt.Errorf("removing %q: %w", id, err)
	}
	n.health.Forget(id, false)
	n.log.Info("removed a member", "node", string(id))
	if err := n.registry.Remove(ctx, id); err != nil {
		return fmt.Errorf("%q is removed, but its certificate has not ended yet: %w", id, err)
	}
	return nil
}

// Leader returns the current leader, if one is known.
func (n *Node) Leader() (NodeInfo, bool) {
	addr, id := n.raft.Raft().LeaderWithID()
	if id == "" {
		return NodeInfo{}, false
	}
	if NodeID(id) == n.opts.ID {
		return n.Self(), true
	}
	info := n.health.Info(NodeID(id))
	info.ClusterAddr, info.Leader, info.Voter, info.Healthy = string(addr), true, true, true
	return info, true
}

// Self describes this node.
func (n *Node) Self() NodeInfo {
	r := n.raft.Raft()
	_, leader := r.LeaderWithID()
	info := NodeInfo{
		ID: n.opts.ID, APIAddr: n.opts.APIAddr, ClusterAddr: n.addr, Version: n.opts.Version,
		Leader: NodeID(leader) == n.opts.ID, Healthy: !n.raft.Broken.Load() && !n.raft.Stalled(),
		LastTerm: r.CurrentTerm(), LastIndex: storage.Index(r.LastIndex()), Applied: n.opts.Machine.AppliedIndex(),
		Behind: n.Behind(), Disk: n.disk(), Durable: n.opts.Machine.DurableIndex(), FollowKey: n.opts.FollowKey,
		Formats: n.formats(), ClusterFormats: n.ClusterFormats(), Unverified: !n.states.IsVerified(),
	}
	info.DigestIndex, info.Digest = n.opts.Machine.Digest()
	for _, s := range n.raft.Servers() {
		if NodeID(s.ID) == n.opts.ID {
			info.Voter = s.Suffrage == raft.Voter
		}
	}
	return info
}

// Nodes returns all members, sorted by id. Only the leader knows how the others are; another node knows
// itself and the leader.
func (n *Node) Nodes() []NodeInfo {
	self := n.Self()
	_, leader := n.raft.Raft().LeaderWithID()
	var nodes []NodeInfo
	for _, s := range n.raft.Servers() {
		info := self
		if NodeID(s.ID) != n.opts.ID {
			info = n.health.Info(NodeID(s.ID))
			info.ClusterAddr, info.Voter, info.Leader = string(s.Address), s.Suffrage == raft.Voter, s.ID == leader
			info.Healthy = info.Leader || self.Leader && n.health.IsHealthy(info, self)
		}
		nodes = append(nodes, info)
	}
	return nodes
}
