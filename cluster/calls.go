package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/proto/forwardpb"
	"github.com/coffer-project/coffer/storage"
)

// errNotLeader is the answer of a node that was asked for something only the leader may do. It is given
// before anything is done.
var errNotLeader = status.Error(codes.FailedPrecondition, "this node does not lead")

// calls is the node's side of forwardpb: the server, and connections to leaders.
type calls struct {
	forwardpb.UnimplementedForwardServer
	n       *Node
	server  *grpc.Server
	served  chan struct{} // closed when Serve has returned
	in, out atomic.Uint64 // requests forwarded
	tries   atomic.Uint64 // to find a leader for one

	mu     sync.Mutex
	conn   *grpc.ClientConn // to the latest leader
	to     raft.ServerAddress
	closed bool
}

func newCalls(n *Node) *calls {
	c := &calls{n: n, served: make(chan struct{})}
	c.server = grpc.NewServer(
		grpc.Creds(nodeCredentials{}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if err := c.admit(ctx); err != nil {
				return nil, err
			}
			return handle(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			if err := c.admit(s.Context()); err != nil {
				return err
			}
			return handle(srv, s)
		}),
	)
	forwardpb.RegisterForwardServer(c.server, c)
	in := n.port.inbox(protocolForward)
	go func() {
		defer close(c.served)
		if err := c.server.Serve(in); err != nil && !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, net.ErrClosed) {
			n.log.Error("serving other nodes", "err", err)
		}
	}()
	return c
}

// admit checks that a call comes from a member, as this node, which is to lead, knows it.
func (c *calls) admit(ctx context.Context) error {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return errNotMember
	}
	auth, ok := p.AuthInfo.(nodeAuth)
	if !ok || auth.below.closed.Load() {
		return errNotMember
	}
	if !c.n.IsLeader() {
		return errNotLeader
	}
	if !c.n.isMember(auth.id) {
		return errNotMember
	}
	return nil
}

var errNotMember = status.Error(codes.PermissionDenied, "the node that calls is not a member of this cluster")

// drain refuses new calls and waits for those under way, until ctx ends.
func (c *calls) drain(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.server.GracefulStop()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (c *calls) close() {
	c.server.Stop()
	<-c.served
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// leader returns a connection to the current leader. errSelf: it is this node.
func (c *calls) leader() (forwardpb.ForwardClient, error) {
	addr, id := c.n.raft().LeaderWithID()
	switch {
	case id == "" || addr == "":
		return nil, errors.New("no leader is known")
	case NodeID(id) == c.n.opts.ID:
		return nil, errSelf
	}
	to := target(id, addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("the node is closing")
	}
	if c.conn == nil || c.to != to {
		conn, err := c.dial(to)
		if err != nil {
			return nil, err
		}
		if c.conn != nil {
			c.conn.Close()
		}
		c.conn, c.to = conn, to
	}
	return forwardpb.NewForwardClient(c.conn), nil
}

var errSelf = errors.New("this node is the leader")

func (c *calls) dial(to raft.ServerAddress) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+string(to),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the dialler does TLS
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			id, addr := splitTarget(raft.ServerAddress(to))
			return c.n.who.dial(ctx, id, addr, protocolForward)
		}),
		grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithIdleTimeout(0),
	)
}

// readIndex asks the leader.
func (c *calls) readIndex(ctx context.Context) (storage.Index, error) {
	client, err := c.leader()
	if err != nil {
		return 0, err
	}
	reply, err := client.ReadIndex(ctx, &forwardpb.ReadIndexRequest{})
	if err != nil {
		return 0, err
	}
	return storage.Index(reply.Index), nil
}

// ReadIndex implements forwardpb.ForwardServer.
func (c *calls) ReadIndex(ctx context.Context, _ *forwardpb.ReadIndexRequest) (*forwardpb.ReadIndexReply, error) {
	if !c.n.IsLeader() {
		return nil, errNotLeader
	}
	index, err := c.n.ReadIndex(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	c.n.nudge(caller(ctx))
	return &forwardpb.ReadIndexReply{Index: uint64(index)}, nil
}

// Echo implements forwardpb.ForwardServer.
func (c *calls) Echo(ctx context.Context, req *forwardpb.EchoRequest) (*forwardpb.EchoReply, error) {
	if caller(ctx) != NodeID(req.NodeId) {
		return nil, status.Error(codes.PermissionDenied, "the certificate is another node's")
	}
	r := c.n.raft()
	if p, ok := peer.FromContext(ctx); ok {
		c.n.sawKey(p.AuthInfo.(nodeAuth).below.certs[0])
	}
	c.n.health.heard(NodeInfo{
		ID: NodeID(req.NodeId), APIAddr: req.ApiAddr, ClusterAddr: req.ClusterAddr, Version: req.Version,
		LastTerm: req.Term, LastIndex: storage.Index(req.LastIndex), Applied: storage.Index(req.AppliedIndex),
		Durable: storage.Index(req.DurableIndex), FollowKey: req.FollowKey, Disk: Disk(min(req.Disk, math.MaxUint8)),
	}, req.NonVoter, c.n.opts.Machine.AppliedIndex())
	return &forwardpb.EchoReply{
		NodeId: string(c.n.opts.ID), ApiAddr: c.n.opts.APIAddr, ClusterAddr: c.n.addr,
		LastIndex: r.LastIndex(), NowMs: time.Now().UnixMilli(),
	}, nil
}

// echoes tells the leader about this node, in each interval and at each change of leadership.
func (n *Node) echoes() {
	for {
		changed := n.roles.next()
		n.calls.echo()
		select {
		case <-time.After(n.opts.EchoInterval):
		case <-changed:
		case <-n.ctx.Done():
			return
		}
	}
}

func (c *calls) echo() {
	client, err := c.leader()
	if err != nil {
		return
	}
	self := c.n.self()
	ctx, cancel := context.WithTimeout(c.n.ctx, max(c.n.opts.EchoInterval, time.Second))
	defer cancel()
	reply, err := client.Echo(ctx, &forwardpb.EchoRequest{
		NodeId: string(self.ID), ApiAddr: self.APIAddr, ClusterAddr: self.ClusterAddr, Version: self.Version,
		LastIndex: uint64(self.LastIndex), AppliedIndex: uint64(self.Applied),
		NowMs: time.Now().UnixMilli(), Term: self.LastTerm, NonVoter: c.n.opts.NonVoter,
		DurableIndex: uint64(self.Durable), FollowKey: self.FollowKey, Disk: uint32(self.Disk),
	})
	if err != nil {
		c.n.log.Debug("telling the leader about this node", "err", err)
		return
	}
	before := c.n.health.info(NodeID(reply.NodeId))
	c.n.health.heard(NodeInfo{
		ID: NodeID(reply.NodeId), APIAddr: reply.ApiAddr, ClusterAddr: reply.ClusterAddr, LastIndex: storage.Index(reply.LastIndex),
	}, false, 0)
	if before.APIAddr != reply.ApiAddr {
		select { // Leader has something new to say; whoever waits for a role has not
		case c.n.roles.public <- struct{}{}:
		default:
		}
	}
}

// nodeCredentials let gRPC run over connections whose TLS handshake the port has done.
type nodeCredentials struct{}

// nodeAuth says which node is at the other end.
type nodeAuth struct {
	credentials.CommonAuthInfo
	id    NodeID
	below *conn
}

// AuthType implements credentials.AuthInfo.
func (nodeAuth) AuthType() string { return "coffer-node" }

func (nodeCredentials) ServerHandshake(rawConn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, ok := rawConn.(*tls.Conn)
	if !ok {
		return nil, nil, errors.New("not a connection of the cluster port")
	}
	below, ok := t.NetConn().(*conn)
	if !ok {
		return nil, nil, errors.New("not a connection of the cluster port")
	}
	level := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	return rawConn, nodeAuth{level, nodeOf(below.certs[0]), below}, nil
}

func (nodeCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("only for servers")
}

func (nodeCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (c nodeCredentials) Clone() credentials.TransportCredentials { return c }
func (nodeCredentials) OverrideServerName(string) error           { return nil }

// caller returns the node that makes the call.
func caller(ctx context.Context) NodeID {
	if p, ok := peer.FromContext(ctx); ok {
		if auth, ok := p.AuthInfo.(nodeAuth); ok {
			return auth.id
		}
	}
	return ""
}

// unavailable says that nothing was done, and why.
func unavailable(err error) error { return fmt.Errorf("%w: %w", storage.ErrUnavailable, err) }
