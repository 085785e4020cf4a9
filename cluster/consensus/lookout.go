package consensus

import (
	"time"

	"github.com/hashicorp/raft"
)

// lookOut makes this node notice in time, as a follower, that its leader is silent. By itself Raft looks once in one to two
// heartbeat timeouts, and so notices after one to three of them; as a voter rejects candidates while it takes its leader to be
// there, the last voter of a majority decides how long an election takes, and those that look at the same moment split the vote.
// Here each voter looks when a heartbeat timeout and a quarter have passed without a sign of life, and by its place among the
// voters a moment later than the one before it.
func (n *Runner) lookOut() {
	for {
		wait := n.opts.HeartbeatTimeout
		if _, leader := n.Raft().LeaderWithID(); leader != "" && leader != raft.ServerID(n.opts.ID) {
			due := n.Raft().LastContact().Add(wait + wait/4 + time.Duration(place(n.Servers(), raft.ServerID(n.opts.ID), leader))*wait/5)
			if wait = time.Until(due); wait <= 0 {
				n.LookNow()
				wait = n.opts.HeartbeatTimeout
			}
		}
		if !n.pause(wait) {
			return
		}
	}
}

// place counts the voters before self, in the order of ids, without the leader: the same order at all nodes.
func place(servers []raft.Server, self, leader raft.ServerID) int {
	place := 0
	for _, s := range servers {
		if s.ID == self {
			break
		}
		if s.Suffrage == raft.Voter && s.ID != leader {
			place++
		}
	}
	return min(place, 5)
}

// LookNow makes Raft look now whether its leader is there. It does that when its heartbeat timeout becomes shorter, which must
// never be longer than the election timeout.
func (n *Runner) LookNow() {
	for _, more := range []time.Duration{time.Nanosecond, 0} {
		err := n.reload(func(c *raft.ReloadableConfig) {
			c.HeartbeatTimeout, c.ElectionTimeout = n.opts.HeartbeatTimeout+more, n.opts.ElectionTimeout+more
		})
		if err != nil {
			n.log.Warn("looking for the leader", "err", err)
		}
	}
}

// reload changes Raft's configuration while it runs.
func (n *Runner) reload(change func(*raft.ReloadableConfig)) error {
	n.reloadMu.Lock()
	defer n.reloadMu.Unlock()
	r := n.Raft()
	c := r.ReloadableConfig()
	change(&c)
	return r.ReloadConfig(c)
}
