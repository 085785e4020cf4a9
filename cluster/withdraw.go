package cluster

import (
	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// withdrawVotes takes the vote of each follower that has lost acknowledged entries, as leader. The follower gets it back, as
// any other without a vote, when it has them again and has been healthy for a while.
func (n *Node) withdrawVotes(nodes []NodeInfo) {
	a := &n.raft.Transport().Acked
	lost := a.Losses()
	for _, info := range nodes {
		entry := lost[raft.ServerID(info.ID)]
		switch {
		case entry == 0 || info.Leader:
		case info.Voter:
			n.withdrawVote(info, storage.Index(entry), nodes)
		case info.LastContact >= 0 && info.LastIndex >= storage.Index(entry):
			a.Forget(raft.ServerID(info.ID))
		}
	}
}

func (n *Node) withdrawVote(info NodeInfo, lost storage.Index, nodes []NodeInfo) {
	if !enoughWithout(info.ID, nodes) {
		n.log.Error("a voter has lost entries that it had acknowledged, and keeps its vote because too few of the others are healthy",
			"node", string(info.ID), "acknowledged", uint64(lost))
		return
	}
	n.log.Error("a voter has lost entries that it had acknowledged: its vote is withdrawn until it has them again. Its directory was put back to an older copy, or emptied",
		"node", string(info.ID), "acknowledged", uint64(lost))
	if err := n.demoteVoter(n.ctx, info.ID); err != nil {
		n.log.Error("withdrawing a vote", "node", string(info.ID), "err", err)
		return
	}
	n.health.Forget(info.ID, false) // it has to be healthy for a while again
	n.withdrawn.Add(1)
}
