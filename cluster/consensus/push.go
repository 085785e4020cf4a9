package consensus

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/certs"
)

// pushes tell a follower at once what has been committed, when one of its clients waits for that. By itself Raft tells
// with the next entries, or after CommitTimeout: a client that writes one thing after the other through a standby would
// wait for that each time.
//
// What is sent is an ordinary append without entries. It names as previous entry the last one committed, with its term,
// so a follower whose log is another one there refuses it, and one that accepts it has every entry that it is told of.
// That stays true however late it arrives.
type pushes struct {
	mu sync.Mutex
	of map[certs.NodeID]*push
}

// push is the state of what one follower was sent.
type push struct {
	running, again bool   // guarded by pushes.mu
	sent           uint64 // index; of the goroutine that runs
}

// PushCommit begins to tell a follower what has been committed up to now. It does not wait.
func (n *Runner) PushCommit(id certs.NodeID) {
	if id == "" {
		return
	}
	n.pushes.mu.Lock()
	defer n.pushes.mu.Unlock()
	g := n.pushes.of[id]
	if g == nil {
		g = &push{}
		n.pushes.of[id] = g
	}
	if g.again = g.running; g.running {
		return
	}
	g.running = true
	n.Go(func() {
		for more := true; more; {
			n.push(id, g)
			n.pushes.mu.Lock()
			more = g.again && n.ctx.Err() == nil
			g.running, g.again = more, false
			n.pushes.mu.Unlock()
		}
	})
}

func (n *Runner) push(id certs.NodeID, g *push) {
	i := n.instance.Load()
	term := i.raft.CurrentTerm()
	if i.raft.State() != raft.Leader || i.raft.CurrentTerm() != term {
		return
	}
	commit := i.raft.CommitIndex()
	var last raft.Log
	if commit <= g.sent || n.logs.GetLog(commit, &last) != nil {
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
		if n.pushOnce(i, s, req) {
			g.sent = commit
		}
	}
}

// pushOnce reports whether the follower took it. One whose log does not reach so far yet is asked again: the entries
// are on their way, and were sent before they were committed.
func (n *Runner) pushOnce(i *instance, s raft.Server, req *raft.AppendEntriesRequest) bool {
	for pause := time.Millisecond; pause < 10*time.Millisecond; pause *= 2 {
		var resp raft.AppendEntriesResponse
		err := i.transport.Tell(s.ID, s.Address, req, &resp)
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
