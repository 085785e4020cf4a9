package cluster

import (
	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// SetAutopilot sets what this node does as leader from now on. It is not stored. A zero duration or number
// is replaced by the default, except MinQuorum.
func (n *Node) SetAutopilot(c AutopilotConfig) { n.health.SetAutopilot(c) }

// Autopilot returns the configuration in use.
func (n *Node) Autopilot() AutopilotConfig { return n.health.Autopilot() }

// AutopilotState returns the health of the cluster, on the leader; else storage.ErrReadOnly.
func (n *Node) AutopilotState() (AutopilotState, error) {
	if n.raft.Raft().State() != raft.Leader {
		return AutopilotState{}, storage.ErrReadOnly
	}
	nodes := n.Nodes()
	n.updateHealth(nodes)
	return n.health.State(n.opts.ID, nodes), nil
}

// updateHealth reports members that became healthy, or ceased to be.
func (n *Node) updateHealth(nodes []NodeInfo) {
	for _, info := range n.health.UpdateHealth(nodes) {
		if info.Healthy {
			n.log.Info("a member is healthy", "node", string(info.ID))
		} else {
			n.log.Warn("a member is not healthy", "node", string(info.ID), "silent", info.LastContact, "behind", info.Behind, "disk", info.Disk.String(), "index", uint64(info.LastIndex))
		}
	}
}

// promote gives joiners their vote, one at a time, once their state is confirmed: before that they may have none.
func (n *Node) promote(nodes []NodeInfo) {
	lost := n.raft.Transport().Acked.Losses()
	for _, info := range nodes {
		if info.Voter || !mayVote(info, lost) || !n.health.Stabilized(info.ID) {
			continue
		}
		if err := n.addVoter(n.ctx, info); err != nil {
			n.log.Warn("giving a node its vote", "node", string(info.ID), "err", err)
		}
		return
	}
}

// removeDeadServers removes dead servers if the operator wants that: never so many that the rest is less than a quorum of
// what there was, or than MinQuorum.
func (n *Node) removeDeadServers(nodes []NodeInfo) {
	c := n.Autopilot()
	if !c.CleanupDeadServers {
		return
	}
	voters := 0
	alive := 0
	for _, info := range nodes {
		if info.Voter {
			voters++
			if !n.health.Dead(info.ID) || info.Leader {
				alive++
			}
		}
	}
	for _, info := range nodes {
		if info.Leader || !n.health.Dead(info.ID) {
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
