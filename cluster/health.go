package cluster

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// health is what the echoes told: on the leader about every other node, elsewhere about the leader. It is in
// memory only, so a new leader begins with nothing, and gives everybody time.
type health struct {
	currentFor time.Duration // Options.currentFor

	mu        sync.Mutex
	autopilot AutopilotConfig
	leadSince time.Time // of this node's latest leadership
	nodes     map[NodeID]*record
	silent    map[NodeID]bool // joined through this node as non-voters
}

// record is one node as it last described itself.
type record struct {
	NodeInfo
	seenAt   time.Time
	nonVoter bool // it does not want a vote
	fresh    freshness

	healthy bool
	since   time.Time // healthy has had its value since

	// W2: the last index, when it was reached, and how often the pipeline was cut because it stood still.
	stuckAt    storage.Index
	stuckSince time.Time
	cuts       int
}

func (h *health) init(o Options) {
	h.nodes, h.silent = map[NodeID]*record{}, map[NodeID]bool{}
	h.currentFor = o.currentFor
	h.autopilot = DefaultAutopilot()
	h.autopilot.ServerStabilizationTime = o.StabilizationTime
}

// lead begins a new leadership: what was heard before counts for nothing.
func (h *health) lead() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leadSince = time.Now()
	clear(h.nodes)
}

// forget begins anew with a node that joins or is removed.
func (h *health) forget(id NodeID, nonVoter bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.nodes, id)
	delete(h.silent, id)
	if nonVoter {
		h.silent[id] = true
	}
}

// heard records a sign of life. applied is what this node has applied.
func (h *health) heard(info NodeInfo, nonVoter bool, applied storage.Index) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.nodes[info.ID]
	if r == nil {
		r = &record{}
		h.nodes[info.ID] = r
	}
	if r.fresh.asOf.IsZero() {
		r.fresh.asOf = now // time to catch up
	}
	r.fresh.note(now, applied, info.Applied)
	r.NodeInfo, r.seenAt, r.nonVoter = info, now, nonVoter
}

// info returns what is known of a node. LastContact is negative if nothing was heard.
func (h *health) info(id NodeID) NodeInfo {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.nodes[id]
	if r == nil {
		return NodeInfo{ID: id, LastContact: -1, Behind: -1}
	}
	info := r.NodeInfo
	info.Behind = -1
	if !r.fresh.asOf.IsZero() {
		info.Behind = time.Since(r.fresh.asOf)
	}
	if info.LastContact >= 0 { // not one that judge has begun to count as silent
		info.LastContact = time.Since(r.seenAt)
	}
	return info
}

// isHealthy compares a node with the leader.
func (h *health) isHealthy(info, leader NodeInfo) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.isHealthyLocked(info, leader)
}

func (h *health) isHealthyLocked(info, leader NodeInfo) bool {
	return info.LastContact >= 0 && info.LastContact <= h.autopilot.LastContactThreshold &&
		info.LastTerm == leader.LastTerm && info.Behind < h.currentFor && info.Disk != DiskFailing &&
		uint64(info.LastIndex)+h.autopilot.MaxTrailingLogs >= uint64(leader.LastIndex)
}

// judge updates how long each member has been healthy or not. It returns those that changed.
func (h *health) judge(nodes []NodeInfo) (changed []NodeInfo) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, info := range nodes {
		r := h.nodes[info.ID]
		if r == nil {
			r = &record{NodeInfo: NodeInfo{ID: info.ID, LastContact: -1}, seenAt: h.leadSince}
			h.nodes[info.ID] = r
		}
		if r.since.IsZero() || r.healthy != info.Healthy {
			if !r.since.IsZero() {
				changed = append(changed, info)
			}
			r.healthy, r.since = info.Healthy, now
		}
	}
	return changed
}

// ripe reports whether a non-voter may get its vote.
func (h *health) ripe(id NodeID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.nodes[id]
	return r != nil && r.healthy && !r.nonVoter && !h.silent[id] &&
		time.Since(r.since) >= h.autopilot.ServerStabilizationTime
}

// dead reports whether a node has been silent for so long that it may be removed.
func (h *health) dead(id NodeID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.nodes[id]
	return r != nil && time.Since(r.seenAt) > h.autopilot.DeadServerLastContactThreshold &&
		time.Since(h.leadSince) > h.autopilot.DeadServerLastContactThreshold
}

// stuck reports whether a node that sends signs of life has not moved for limit although it is behind, and
// how often that was seen in a row. It counts as seen by asking.
func (h *health) stuck(id NodeID, leader storage.Index, limit time.Duration) (times int) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.nodes[id]
	if r == nil || r.LastContact < 0 || now.Sub(r.seenAt) > limit {
		return 0
	}
	if r.stuckSince.IsZero() || r.LastIndex != r.stuckAt || r.LastIndex >= leader {
		r.stuckAt, r.stuckSince, r.cuts = r.LastIndex, now, 0
		return 0
	}
	if now.Sub(r.stuckSince) < limit {
		return 0
	}
	r.stuckSince = now
	r.cuts++
	return r.cuts
}

// moving starts the patience of stuck anew.
func (h *health) moving(id NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.nodes[id]; r != nil {
		r.stuckSince = time.Time{}
	}
}

// SetAutopilot sets what this node does as leader from now on. It is not stored. A zero duration or number
// is replaced by the default, except MinQuorum.
func (n *Node) SetAutopilot(c AutopilotConfig) {
	d := DefaultAutopilot()
	if c.LastContactThreshold <= 0 {
		c.LastContactThreshold = d.LastContactThreshold
	}
	if c.DeadServerLastContactThreshold <= 0 {
		c.DeadServerLastContactThreshold = d.DeadServerLastContactThreshold
	}
	if c.MaxTrailingLogs == 0 {
		c.MaxTrailingLogs = d.MaxTrailingLogs
	}
	if c.ServerStabilizationTime <= 0 {
		c.ServerStabilizationTime = n.opts.StabilizationTime
	}
	n.health.mu.Lock()
	defer n.health.mu.Unlock()
	n.health.autopilot = c
}

// Autopilot returns the configuration in use.
func (n *Node) Autopilot() AutopilotConfig {
	n.health.mu.Lock()
	defer n.health.mu.Unlock()
	return n.health.autopilot
}

// AutopilotState returns the health of the cluster, on the leader; else storage.ErrReadOnly.
func (n *Node) AutopilotState() (AutopilotState, error) {
	if n.raft().State() != raft.Leader {
		return AutopilotState{}, storage.ErrReadOnly
	}
	nodes := n.Nodes()
	n.judge(nodes)
	state := AutopilotState{Healthy: true, Leader: n.opts.ID}
	voters, healthy := 0, 0
	n.health.mu.Lock()
	defer n.health.mu.Unlock()
	for _, info := range nodes {
		state.Servers = append(state.Servers, ServerState{NodeInfo: info, StableSince: n.health.nodes[info.ID].since})
		state.Healthy = state.Healthy && info.Healthy
		if info.Voter {
			voters++
			state.Voters = append(state.Voters, info.ID)
			if info.Healthy {
				healthy++
			}
		}
	}
	state.FailureTolerance = max(0, healthy-(voters/2+1))
	return state, nil
}
