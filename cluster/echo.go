package cluster

import (
	"crypto/x509"
	"math"
	"time"

	"github.com/coffer-project/coffer/proto/forwardpb"
	"github.com/coffer-project/coffer/storage"
)

const (
	// echoRetry is after what time an echo is sent again that the leader did not take, because it has just been elected.
	echoRetry = 50 * time.Millisecond
)

// reportLoop tells the leader about this node, in each interval and at each change of leadership; with that, its connections follow the
// leadership.
func (n *Node) reportLoop() {
	for {
		changed := n.raft.Roles.Next()
		wait := n.opts.EchoInterval
		if !n.report() || !n.states.IsVerified() { // a checkpoint for this node waits until the leader hears that it has caught up
			wait = min(wait, echoRetry)
		}
		select {
		case <-time.After(wait):
		case <-n.states.Due():
		case <-changed:
		case <-n.ctx.Done():
			return
		}
	}
}

// report tells the leader about this node. It reports false if the leader does not know yet that it leads.
func (n *Node) report() bool {
	reply, known := n.calls.Tell(n.echoRequest)
	if reply == nil {
		return known
	}
	before := n.health.Info(NodeID(reply.NodeId))
	n.health.Heard(NodeInfo{
		ID: NodeID(reply.NodeId), APIAddr: reply.ApiAddr, ClusterAddr: reply.ClusterAddr, LastIndex: storage.Index(reply.LastIndex),
		ClusterFormats: reply.ClusterFormats,
	}, false, 0)
	if before.APIAddr != reply.ApiAddr {
		n.raft.Roles.Announce() // Leader has something new to say; a waiter for a role has not
	}
	return true
}

func (n *Node) echoRequest() *forwardpb.EchoRequest {
	self := n.Self()
	return &forwardpb.EchoRequest{
		NodeId: string(self.ID), ApiAddr: self.APIAddr, ClusterAddr: self.ClusterAddr, Version: self.Version,
		LastIndex: uint64(self.LastIndex), AppliedIndex: uint64(self.Applied),
		NowMs: time.Now().UnixMilli(), Term: self.LastTerm, NonVoter: n.opts.NonVoter,
		DurableIndex: uint64(self.Durable), FollowKey: self.FollowKey, Disk: uint32(self.Disk),
		Formats: self.Formats, ClusterFormats: self.ClusterFormats, DigestIndex: uint64(self.DigestIndex), Digest: self.Digest,
		Unverified: self.Unverified,
	}
}

// TakeReport implements forward.Reports.
func (n *Node) TakeReport(cert *x509.Certificate, req *forwardpb.EchoRequest) *forwardpb.EchoReply {
	r := n.raft.Raft()
	if cert != nil {
		n.registry.NoteCertificate(cert)
	}
	n.health.Heard(NodeInfo{
		ID: NodeID(req.NodeId), APIAddr: req.ApiAddr, ClusterAddr: req.ClusterAddr, Version: req.Version,
		LastTerm: req.Term, LastIndex: storage.Index(req.LastIndex), Applied: storage.Index(req.AppliedIndex),
		Durable: storage.Index(req.DurableIndex), FollowKey: req.FollowKey, Disk: Disk(min(req.Disk, math.MaxUint8)),
		Formats: req.Formats, ClusterFormats: req.ClusterFormats, DigestIndex: storage.Index(req.DigestIndex), Digest: req.Digest,
		Unverified: req.Unverified,
	}, req.NonVoter, n.opts.Machine.AppliedIndex())
	n.states.Heard()
	return &forwardpb.EchoReply{
		NodeId: string(n.opts.ID), ApiAddr: n.opts.APIAddr, ClusterAddr: n.addr,
		LastIndex: r.LastIndex(), NowMs: time.Now().UnixMilli(), ClusterFormats: n.ClusterFormats(),
	}
}
