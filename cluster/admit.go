package cluster

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// Joiner is a node that asks to become a member.
type Joiner struct {
	ID          NodeID
	ClusterAddr string // host:port that members dial
	PublicKey   []byte // of its own key, PKIX
	Formats     uint32 // newest generation of formats that it reads; 0 from builds before they were numbered
	NonVoter    bool
	Rejoin      bool // it holds no data; see Join
}

// Admit makes a node a member, on the leader: it registers the node's key, then adds it to Raft's configuration. It
// returns what the node is to go by until it has the state. See Join for the rest. A node that is registered with
// another key and still heard of is not replaced.
func (n *Node) Admit(ctx context.Context, j Joiner) (trust []byte, err error) {
	id, clusterAddr, public, nonVoter, rejoin := j.ID, j.ClusterAddr, j.PublicKey, j.NonVoter, j.Rejoin
	if err := n.raft.MustLead(); err != nil {
		return nil, err
	}
	n.registry.Joining.Lock()
	defer n.registry.Joining.Unlock()
	defer func() {
		if err != nil && (err.Error() != n.rejection || time.Since(n.rejectedAt) > time.Minute) {
			n.rejection, n.rejectedAt = err.Error(), time.Now() // it tries again each second
			n.log.Warn("a node that wants to join is rejected", "node", string(j.ID), "address", j.ClusterAddr, "err", err)
		}
	}()
	if err := n.canRead(ctx, j); err != nil {
		return nil, err
	}
	if n.opts.Records == nil {
		return nil, n.Join(ctx, id, clusterAddr, nonVoter, rejoin)
	}
	if _, err := x509.ParsePKIXPublicKey(public); err != nil {
		return nil, RejectedError("the node that joins sent no public key: it may run an earlier version")
	}
	if err := checkMember(id, clusterAddr); err != nil {
		return nil, err
	}
	if id == n.opts.ID {
		return nil, fmt.Errorf("%q leads: it cannot join", id)
	}
	if known, ok := n.identity.Trust().Members[id]; ok && !slices.Equal(known.Key, public) {
		if silent := n.health.Info(id).LastContact; n.raft.IsMember(id) && silent >= 0 && silent < 3*n.opts.EchoInterval {
			return nil, RejectedError(fmt.Sprintf("node %q is a member and answers: give this node another id, or remove that one first", id))
		}
		rejoin = true // what has another key is another node
	}
	if rejoin && n.raft.IsMember(id) {
		if err := n.RemovePeer(ctx, id); err != nil {
			return nil, err
		}
	}
	if err := n.registry.Admit(ctx, id, public); err != nil {
		return nil, err
	}
	if err := n.Join(ctx, id, clusterAddr, nonVoter, rejoin); err != nil {
		return nil, err
	}
	return n.registry.Trust()
}
