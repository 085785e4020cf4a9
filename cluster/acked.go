package cluster

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// acked knows up to which entry each follower has acknowledged the log to this leader in its term. A follower keeps that
// through any crash; one that has less has lost its disk, or its directory was put back to an older copy. What it has
// acknowledged was counted for a majority, so it must not vote for a leader without it.
type acked struct {
	mu   sync.Mutex
	term uint64
	of   map[raft.ServerID]uint64
	lost map[raft.ServerID]uint64 // what followers had acknowledged that have less now
}

// at returns what a follower has acknowledged.
func (a *acked) at(id raft.ServerID, term uint64) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.term != term {
		return 0
	}
	return a.of[id]
}

// saw takes note of a response. before is what the follower had acknowledged when the request was sent: responses may
// overtake each other. A heartbeat says nothing about the log beyond that.
func (a *acked) saw(id raft.ServerID, before uint64, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if req.Term > a.term {
		a.term, a.of, a.lost = req.Term, map[raft.ServerID]uint64{}, map[raft.ServerID]uint64{}
	}
	if req.Term < a.term || resp.Term > req.Term {
		return
	}
	if resp.LastLog < before && before <= a.of[id] {
		a.lost[id] = max(a.lost[id], before)
		a.of[id] = resp.LastLog
	}
	if resp.Success && req.PrevLogEntry > 0 {
		a.of[id] = max(a.of[id], req.PrevLogEntry+uint64(len(req.Entries)))
	}
}

// losses returns what followers had acknowledged that have less now.
func (a *acked) losses() map[raft.ServerID]uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[raft.ServerID]uint64, len(a.lost))
	for id, index := range a.lost {
		out[id] = index
	}
	return out
}

// forget clears what is known of a follower that joins, or that has everything again.
func (a *acked) forget(id raft.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, id)
	delete(a.lost, id)
}

// withdrawVotes takes the vote of each follower that has lost acknowledged entries, as leader. The follower gets it back, as
// any other without a vote, when it has them again and has been healthy for a while.
func (n *Node) withdrawVotes(nodes []NodeInfo) {
	a := &n.instance.Load().transport.acked
	lost := a.losses()
	for _, info := range nodes {
		entry := lost[raft.ServerID(info.ID)]
		switch {
		case entry == 0 || info.Leader:
		case info.Voter:
			n.withdrawVote(info, storage.Index(entry), nodes)
		case info.LastContact >= 0 && info.LastIndex >= storage.Index(entry):
			a.forget(raft.ServerID(info.ID))
		}
	}
}

func (n *Node) withdrawVote(info NodeInfo, lost storage.Index, nodes []NodeInfo) {
	others, healthy := 0, 0
	for _, o := range nodes {
		if o.Voter && o.ID != info.ID {
			others++
			if o.Healthy || o.Leader {
				healthy++
			}
		}
	}
	if healthy <= others/2 {
		n.log.Error("a voter has lost entries that it had acknowledged, and keeps its vote because too few of the others are healthy",
			"node", string(info.ID), "acknowledged", uint64(lost))
		return
	}
	n.log.Error("a voter has lost entries that it had acknowledged: its vote is withdrawn until it has them again. Its directory was put back to an older copy, or emptied",
		"node", string(info.ID), "acknowledged", uint64(lost))
	err := n.change(n.ctx, func(r *raft.Raft, t time.Duration) raft.Future {
		return r.DemoteVoter(raft.ServerID(info.ID), 0, t)
	})
	if err != nil {
		n.log.Error("withdrawing a vote", "node", string(info.ID), "err", err)
		return
	}
	n.health.forget(info.ID, false) // it has to be healthy for a while again
	n.withdrawn.Add(1)
}
