package cluster

import (
	"sync"

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
		var resp raft.AppendEntriesResponse
		if err := i.transport.tell(s.ID, s.Address, req, &resp); err == nil && resp.Success {
			g.told = commit
		}
	}
}
