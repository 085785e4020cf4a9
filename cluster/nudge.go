package cluster

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// nudges tell a follower at once what has been committed, when one of its clients waits for that. By itself Raft tells
// with the next entries, or after CommitTimeout: a client that writes one thing after the other through a standby would
// wait for that each time.
//
// What is sent is an ordinary append without entries. It names as previous entry the last one committed, with its term,
// so a follower whose log is another one there refuses it, and one that accepts it has every entry that it is told of.
// That stays true however late it arrives.
type nudges struct {
	mu sync.Mutex
	of map[NodeID]*nudge
}

// nudge is the telling of one follower.
type nudge struct {
	running, again bool   // guarded by nudges.mu
	told           uint64 // index; of the goroutine that runs
}

// nudge begins to tell a follower what has been committed up to now. It does not wait.
func (n *Node) nudge(id NodeID) {
	if id == "" {
		return
	}
	n.nudges.mu.Lock()
	defer n.nudges.mu.Unlock()
	g := n.nudges.of[id]
	if g == nil {
		g = &nudge{}
		n.nudges.of[id] = g
	}
	if g.again = g.running; g.running {
		return
	}
	g.running = true
	n.wg.Go(func() {
		for more := true; more; {
			n.tell(id, g)
			n.nudges.mu.Lock()
			more = g.again && n.ctx.Err() == nil
			g.running, g.again = more, false
			n.nudges.mu.Unlock()
		}
	})
}

func (n *Node) tell(id NodeID, g *nudge) {
	i := n.instance.Load()
	term := i.raft.CurrentTerm()
	if i.raft.State() != raft.Leader || i.raft.CurrentTerm() != term {
		return
	}
	commit := i.raft.CommitIndex()
	var last raft.Log
	if commit <= g.told || n.logs.GetLog(commit, &last) != nil {
		return
	}
	for _, s := range i.raft.GetConfiguration().Configuration().Servers {
		if s.ID != raft.ServerID(id) {
			continue
		}
		req := &raft.AppendEntriesRequest{
			RPCHeader: n.rpcHeader(), Term: term,
			PrevLogEntry: commit, PrevLogTerm: last.Term, LeaderCommitIndex: commit,
		}
		if n.tellOnce(i, s, req) {
			g.told = commit
		}
	}
}

// tellOnce reports whether the follower took it. One whose log does not reach so far yet is asked again: the entries
// are on their way, and were sent before they were committed.
func (n *Node) tellOnce(i *instance, s raft.Server, req *raft.AppendEntriesRequest) bool {
	for pause := time.Millisecond; pause < 10*time.Millisecond; pause *= 2 {
		var resp raft.AppendEntriesResponse
		err := i.transport.tell(s.ID, s.Address, req, &resp)
		if err != nil || resp.Success || resp.Term != req.Term {
			return err == nil && resp.Success
		}
		select {
		case <-n.ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
	return false
}
