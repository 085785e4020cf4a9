package transport

import (
	"sync"

	"github.com/hashicorp/raft"
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

// At returns what a follower has acknowledged.
func (a *acked) At(id raft.ServerID, term uint64) uint64 {
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

// Losses returns what followers had acknowledged that have less now.
func (a *acked) Losses() map[raft.ServerID]uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[raft.ServerID]uint64, len(a.lost))
	for id, index := range a.lost {
		out[id] = index
	}
	return out
}

// Forget clears what is known of a follower that joins, or that has everything again.
func (a *acked) Forget(id raft.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, id)
	delete(a.lost, id)
}
