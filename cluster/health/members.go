// Package health is what a node knows of the others from what they say of themselves: how far each one's log and state are, how its disk is,
// and whether and since when it has been healthy. It is in memory only, and decides nothing: what follows from it is package cluster's.
//
// Start reading at Members and NodeInfo.
package health

import (
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/storage"
)

// Members is what the echoes told: on the leader about every other node, elsewhere about the leader. It is in
// memory only, so a new leader begins with nothing, and gives everybody time.
type Members struct {
	currentFor, stabilization time.Duration

	mu        sync.Mutex
	autopilot AutopilotConfig
	leadSince time.Time // of this node's latest leadership
	nodes     map[certs.NodeID]*record
	silent    map[certs.NodeID]bool // joined through this node as non-voters
}

// record is one node as it last described itself.
type record struct {
	NodeInfo
	seenAt   time.Time
	nonVoter bool // it does not want a vote
	fresh    Freshness

	healthy bool
	since   time.Time // healthy has had its value since

	// W2: the last index, when it was reached, and how often the pipeline was cut because it stood still.
	stuckAt    storage.Index
	stuckSince time.Time
	cuts       int
}

// Init begins with nothing. A state that is older than currentFor is not current; a joiner is to be healthy for as long as stabilization says
// before it votes.
func (h *Members) Init(currentFor, stabilization time.Duration) {
	h.nodes, h.silent = map[certs.NodeID]*record{}, map[certs.NodeID]bool{}
	h.currentFor, h.stabilization = currentFor, stabilization
	h.autopilot = DefaultAutopilot()
	h.autopilot.ServerStabilizationTime = stabilization
}

// Lead begins a new leadership: what was heard before counts for nothing.
func (h *Members) Lead() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leadSince = time.Now()
	clear(h.nodes)
}

// Forget starts over with a node that joins or is removed.
func (h *Members) Forget(id certs.NodeID, nonVoter bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.nodes, id)
	delete(h.silent, id)
	if nonVoter {
		h.silent[id] = true
	}
}

// Heard records a sign of life. applied is what this node has applied.
func (h *Members) Heard(info NodeInfo, nonVoter bool, applied storage.Index) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.nodes[info.ID]
	if r == nil {
		r = &record{}
		h.nodes[info.ID] = r
	}
	if r.fresh.AsOf.IsZero() {
		r.fresh.AsOf = now // time to catch up
	}
	r.fresh.Note(now, applied, info.Applied)
	r.NodeInfo, r.seenAt, r.nonVoter = info, now, nonVoter
}

// Info returns what is known of a node. LastContact is negative if nothing was heard.
func (h *Members) Info(id certs.NodeID) NodeInfo {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.nodes[id]
	if r == nil {
		return NodeInfo{ID: id, LastContact: -1, Behind: -1}
	}
	info := r.NodeInfo
	info.Behind = -1
	if !r.fresh.AsOf.IsZero() {
		info.Behind = time.Since(r.fresh.AsOf)
	}
	if info.LastContact >= 0 { // not one that UpdateHealth has begun to count as silent
		info.LastContact = time.Since(r.seenAt)
	}
	return info
}

// IsHealthy compares a node with the leader.
func (h *Members) IsHealthy(info, leader NodeInfo) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.isHealthyLocked(info, leader)
}

func (h *Members) isHealthyLocked(info, leader NodeInfo) bool {
	return h.heardLocked(info) && info.LastTerm == leader.LastTerm && info.Behind < h.currentFor && info.Disk != DiskFailing &&
		uint64(info.LastIndex)+h.autopilot.MaxTrailingLogs >= uint64(leader.LastIndex)
}

// InContact reports whether the node was heard of lately, as healthy ones are.
func (h *Members) InContact(id certs.NodeID) bool {
	info := h.Info(id)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.heardLocked(info)
}

func (h *Members) heardLocked(info NodeInfo) bool {
	return info.LastContact >= 0 && info.LastContact <= h.autopilot.LastContactThreshold
}

// UpdateHealth updates how long each member has been healthy or not. It returns those that changed.
func (h *Members) UpdateHealth(nodes []NodeInfo) (changed []NodeInfo) {
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

// Stabilized reports whether a non-voter may get its vote.
func (h *Members) Stabilized(id certs.NodeID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.nodes[id]
	return r != nil && r.healthy && !r.nonVoter && !slices.Contains(h.autopilot.NonVoters, string(id)) && !h.silent[id] &&
		time.Since(r.since) >= h.autopilot.ServerStabilizationTime
}

// Dead reports whether a node has been silent for so long that it may be removed.
func (h *Members) Dead(id certs.NodeID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.nodes[id]
	return r != nil && time.Since(r.seenAt) > h.autopilot.DeadServerLastContactThreshold &&
		time.Since(h.leadSince) > h.autopilot.DeadServerLastContactThreshold
}

// Stuck reports whether a node that sends signs of life has not moved for limit although it is behind, and
// how often that was seen in a row. It counts as seen by asking.
func (h *Members) Stuck(id certs.NodeID, leader storage.Index, limit time.Duration) (times int) {
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

// Moving restarts the patience of stuck.
func (h *Members) Moving(id certs.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.nodes[id]; r != nil {
		r.stuckSince = time.Time{}
	}
}

// SetAutopilot sets the configuration. A zero duration or number is replaced by the default, except MinQuorum.
func (h *Members) SetAutopilot(c AutopilotConfig) {
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
		c.ServerStabilizationTime = h.stabilization
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.autopilot = c
}

// Autopilot returns the configuration in use.
func (h *Members) Autopilot() AutopilotConfig {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.autopilot
}

// State describes the nodes, all of which have been judged.
func (h *Members) State(leader certs.NodeID, nodes []NodeInfo) AutopilotState {
	state := AutopilotState{Healthy: true, Leader: leader}
	voters, healthy := 0, 0
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, info := range nodes {
		state.Servers = append(state.Servers, ServerState{NodeInfo: info, StableSince: h.nodes[info.ID].since})
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
	return state
}
