package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// memberTimeout bounds one change of the configuration, when the context does not.
const memberTimeout = 30 * time.Second

func (n *Node) servers() []raft.Server {
	servers := slices.Clone(n.raft().GetConfiguration().Configuration().Servers)
	slices.SortFunc(servers, func(a, b raft.Server) int { return cmp.Compare(a.ID, b.ID) })
	return servers
}

// otherVoters counts the voters beside this node.
func (n *Node) otherVoters() int {
	voters := 0
	for _, s := range n.servers() {
		if s.Suffrage == raft.Voter && NodeID(s.ID) != n.opts.ID {
			voters++
		}
	}
	return voters
}

// Peers returns the members in Raft's latest configuration, sorted by id, with id, address, vote and
// leadership only.
func (n *Node) Peers() []NodeInfo {
	_, leader := n.raft().LeaderWithID()
	var peers []NodeInfo
	for _, s := range n.servers() {
		peers = append(peers, NodeInfo{
			ID: NodeID(s.ID), ClusterAddr: string(s.Address), Voter: s.Suffrage == raft.Voter, Leader: s.ID == leader,
		})
	}
	return peers
}

func checkMember(id NodeID, clusterAddr string) error {
	if id == "" || len(id) > maxIDBytes || clusterAddr == "" {
		return fmt.Errorf("a member needs an id of 1 to %d bytes and an address", maxIDBytes)
	}
	return nil
}

// Join adds a member, on the leader; it will vote once it is healthy and has caught up, unless nonVoter.
// rejoin says that the node lost its data. A known id that rejoins, or comes with another address, is removed
// first and begins anew without a vote: with an empty log it must not vote, and Raft's sender to it would
// otherwise go on where it was, at the old address. An address that another member has is refused.
func (n *Node) Join(ctx context.Context, id NodeID, clusterAddr string, nonVoter, rejoin bool) error {
	if err := checkMember(id, clusterAddr); err != nil {
		return err
	}
	if err := n.mustLead(); err != nil {
		return err
	}
	var known raft.Server
	for _, s := range n.servers() {
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
	n.health.forget(id, nonVoter)
	n.instance.Load().transport.acked.forget(raft.ServerID(id))
	err := n.change(ctx, func(r *raft.Raft, t time.Duration) raft.Future {
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
	if err := n.mustLead(); err != nil {
		return err
	}
	if id == n.opts.ID {
		if err := n.TransferLeadership(ctx); err != nil {
			return fmt.Errorf("this node leads, and cannot hand over: %w", err)
		}
		return storage.ErrReadOnly
	}
	if !n.isMember(id) {
		if _, left := n.who.goBy().Members[id]; !left {
			return nil
		}
		return n.endMembership(ctx, id) // leadership changed while it was removed
	}
	err := n.change(ctx, func(r *raft.Raft, t time.Duration) raft.Future { return r.RemoveServer(raft.ServerID(id), 0, t) })
	if err != nil {
		return fmt.Errorf("removing %q: %w", id, err)
	}
	n.health.forget(id, false)
	n.log.Info("removed a member", "node", string(id))
	if err := n.endMembership(ctx, id); err != nil {
		return fmt.Errorf("%q is removed, but its certificate has not ended yet: %w", id, err)
	}
	return nil
}

// change runs one change of the configuration. If the context ends first the change may still happen.
func (n *Node) change(ctx context.Context, do func(*raft.Raft, time.Duration) raft.Future) error {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	i := n.instance.Load()
	answer := make(chan error, 1)
	go func() { answer <- i.await(do(i.raft, memberTimeout)) }()
	select {
	case err := <-answer:
		if err != nil {
			return commitError(err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", storage.ErrOutcomeUnknown, ctx.Err())
	}
}

// TransferLeadership hands leadership to the voter that is furthest ahead, or to another one if that does not take it.
// storage.ErrUnavailable: there is none, or none took it.
func (n *Node) TransferLeadership(ctx context.Context) error {
	i := n.instance.Load()
	switch {
	case i.raft.State() != raft.Leader:
		return storage.ErrReadOnly
	case n.otherVoters() == 0:
		return fmt.Errorf("%w: there is no other voter", storage.ErrUnavailable)
	}
	answer := make(chan error, 1)
	go func() { answer <- n.transfer(ctx, i) }()
	select {
	case err := <-answer:
		if err != nil {
			return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", storage.ErrUnavailable, ctx.Err())
	}
}

// transfer tries the voter of Raft's choice, then each of the others. One that is silent costs an election timeout, one that
// was restarted a connection that turns out to be dead.
func (n *Node) transfer(ctx context.Context, i *instance) error {
	err := i.await(i.raft.LeadershipTransfer())
	for _, s := range n.servers() {
		for err != nil && s.Suffrage == raft.Voter && NodeID(s.ID) != n.opts.ID && i.raft.State() == raft.Leader && ctx.Err() == nil {
			n.log.Info("a voter did not take over: trying", "node", string(s.ID), "err", err)
			err = i.await(i.raft.LeadershipTransferToServer(s.ID, s.Address))
			if !errors.Is(err, raft.ErrLeadershipTransferInProgress) || !n.pause(10*time.Millisecond) {
				break // else the try before has not ended yet
			}
		}
	}
	if i.raft.State() != raft.Leader {
		return nil
	}
	return err
}

// Leader returns the current leader, if one is known.
func (n *Node) Leader() (NodeInfo, bool) {
	addr, id := n.raft().LeaderWithID()
	if id == "" {
		return NodeInfo{}, false
	}
	if NodeID(id) == n.opts.ID {
		return n.self(), true
	}
	info := n.health.info(NodeID(id))
	info.ClusterAddr, info.Leader, info.Voter, info.Healthy = string(addr), true, true, true
	return info, true
}

// self describes this node.
func (n *Node) self() NodeInfo {
	r := n.raft()
	_, leader := r.LeaderWithID()
	info := NodeInfo{
		ID: n.opts.ID, APIAddr: n.opts.APIAddr, ClusterAddr: n.addr, Version: n.opts.Version,
		Leader: NodeID(leader) == n.opts.ID, Healthy: !n.broken.Load() && !n.stalled(),
		LastTerm: r.CurrentTerm(), LastIndex: storage.Index(r.LastIndex()), Applied: n.opts.Machine.AppliedIndex(),
		Behind: n.Behind(), Disk: n.disk(), Durable: n.opts.Machine.DurableIndex(), FollowKey: n.opts.FollowKey,
		Formats: n.formats(), ClusterFormats: n.ClusterFormats(), Unverified: !n.verified.Load(),
	}
	info.DigestIndex, info.Digest = n.opts.Machine.Digest()
	for _, s := range n.servers() {
		if NodeID(s.ID) == n.opts.ID {
			info.Voter = s.Suffrage == raft.Voter
		}
	}
	return info
}

// Nodes returns all members, sorted by id. Only the leader knows how the others are; another node knows
// itself and the leader.
func (n *Node) Nodes() []NodeInfo {
	self := n.self()
	_, leader := n.raft().LeaderWithID()
	var nodes []NodeInfo
	for _, s := range n.servers() {
		info := self
		if NodeID(s.ID) != n.opts.ID {
			info = n.health.info(NodeID(s.ID))
			info.ClusterAddr, info.Voter, info.Leader = string(s.Address), s.Suffrage == raft.Voter, s.ID == leader
			info.Healthy = info.Leader || self.Leader && n.health.isHealthy(info, self)
		}
		nodes = append(nodes, info)
	}
	return nodes
}
