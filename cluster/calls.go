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

// keepaliveTime is how long a connection may be silent until gRPC asks whether the other end is there.
const keepaliveTime = 10 * time.Second

// calls is the node's side of forwardpb: the server, and connections to leaders.
type calls struct {
	forwardpb.UnimplementedForwardServer
	n       *Node
	server  *grpc.Server
	served  chan struct{} // closed when Serve has returned
	in, out atomic.Uint64 // requests forwarded
	tries   atomic.Uint64 // to find a leader for one

	mu       sync.Mutex
	conn     *leaderConn // to the latest leader; nil: none
	open     map[*leaderConn]bool
	closed   bool
	draining bool
	under    sync.WaitGroup // requests that run for other nodes
}

// leaderConn is a connection to a node that leads, or has led.
type leaderConn struct {
	*grpc.ClientConn
	to  raft.ServerAddress
	end *time.Timer // closes it; nil: its node leads
}

func newCalls(n *Node) *calls {
	c := &calls{n: n, served: make(chan struct{}), open: map[*leaderConn]bool{}}
	c.server = grpc.NewServer(
		grpc.Creds(nodeCredentials{}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: 5 * time.Second}),
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

// enter reports whether a request of another node may run; then c.under.Done must follow.
func (c *calls) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.draining {
		c.under.Add(1)
	}
	return !c.draining
}

// drain refuses requests of other nodes. The channel is closed when none runs any more. It does not wait for connections: one
// whose other end is silent ends late.
func (c *calls) drain() (idle <-chan struct{}) {
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.under.Wait()
	}()
	return done
}

func (c *calls) close() {
	c.server.Stop()
	<-c.served
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for l := range c.open {
		c.endLocked(l)
	}
}

// leader returns a connection to the current leader. errSelf: it is this node.
func (c *calls) leader() (forwardpb.ForwardClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	addr, id := c.n.raft().LeaderWithID()
	to := target(id, addr)
	self := NodeID(id) == c.n.opts.ID
	if id == "" || addr == "" || self {
		to = ""
	}
	c.followLocked(to)
	switch {
	case self:
		return nil, errSelf
	case to == "":
		return nil, errors.New("no leader is known")
	case c.closed:
		return nil, errors.New("the node is closing")
	}
	if c.conn == nil {
		conn, err := c.dial(to)
		if err != nil {
			return nil, err
		}
		c.conn = &leaderConn{ClientConn: conn, to: to}
		c.open[c.conn] = true
	}
	return forwardpb.NewForwardClient(c.conn), nil
}

// followLocked ends the connection to a node that leads no more, and with it what waits for its response. A node that has
// handed over still has the time to respond in which a leader notices that it has lost its majority; a silent one will not.
// to is the current leader, "" if that is none or this node.
func (c *calls) followLocked(to raft.ServerAddress) {
	l := c.conn
	switch {
	case l == nil:
		return
	case l.to == to:
		if l.end != nil {
			l.end.Stop()
			l.end = nil
		}
		return
	case l.end == nil:
		l.end = time.AfterFunc(c.n.opts.LeaderLeaseTimeout, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if l.end != nil {
				c.endLocked(l)
			}
		})
	}
	if to != "" {
		c.conn = nil
	}
}

func (c *calls) endLocked(l *leaderConn) {
	if l.end != nil {
		l.end.Stop()
	}
	if c.conn == l {
		c.conn = nil
	}
	delete(c.open, l)
	l.Close()
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
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: 3 * time.Second}),
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

// ReadIndex implements forwardpb.ForwardServer. A node that does not lead says so; it never asks another.
func (c *calls) ReadIndex(ctx context.Context, _ *forwardpb.ReadIndexRequest) (*forwardpb.ReadIndexReply, error) {
	index, err := c.n.reads.confirms.wait(ctx)
	switch {
	case errors.Is(err, errNotLeading):
		return nil, errNotLeader
	case err != nil:
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
		Formats: req.Formats, ClusterFormats: req.ClusterFormats, DigestIndex: storage.Index(req.DigestIndex), Digest: req.Digest,
		Unverified: req.Unverified,
	}, req.NonVoter, c.n.opts.Machine.AppliedIndex())
	signal(c.n.reported)
	return &forwardpb.EchoReply{
		NodeId: string(c.n.opts.ID), ApiAddr: c.n.opts.APIAddr, ClusterAddr: c.n.addr,
		LastIndex: r.LastIndex(), NowMs: time.Now().UnixMilli(), ClusterFormats: c.n.ClusterFormats(),
	}, nil
}

// echoes tells the leader about this node, in each interval and at each change of leadership; with that, calls follows the
// leadership.
func (n *Node) echoes() {
	for {
		changed := n.roles.next()
		wait := n.opts.EchoInterval
		if !n.calls.echo() || !n.verified.Load() { // a checkpoint for this node waits until the leader hears that it has caught up
			wait = min(wait, echoRetry)
		}
		select {
		case <-time.After(wait):
		case <-n.report:
		case <-changed:
		case <-n.ctx.Done():
			return
		}
	}
}

// echo tells the leader about this node. It reports false if the leader does not know yet that it leads.
func (c *calls) echo() bool {
	client, err := c.leader()
	if err != nil {
		return true
	}
	self := c.n.self()
	ctx, cancel := context.WithCancel(c.n.ctx)
	defer cancel()
	defer c.n.roles.limit(max(c.n.opts.EchoInterval, time.Second), cancel)()
	reply, err := client.Echo(ctx, &forwardpb.EchoRequest{
		NodeId: string(self.ID), ApiAddr: self.APIAddr, ClusterAddr: self.ClusterAddr, Version: self.Version,
		LastIndex: uint64(self.LastIndex), AppliedIndex: uint64(self.Applied),
		NowMs: time.Now().UnixMilli(), Term: self.LastTerm, NonVoter: c.n.opts.NonVoter,
		DurableIndex: uint64(self.Durable), FollowKey: self.FollowKey, Disk: uint32(self.Disk),
		Formats: self.Formats, ClusterFormats: self.ClusterFormats, DigestIndex: uint64(self.DigestIndex), Digest: self.Digest,
		Unverified: self.Unverified,
	})
	if err != nil {
		c.n.log.Debug("telling the leader about this node", "err", err)
		return status.Code(err) != codes.FailedPrecondition
	}
	before := c.n.health.info(NodeID(reply.NodeId))
	c.n.health.heard(NodeInfo{
		ID: NodeID(reply.NodeId), APIAddr: reply.ApiAddr, ClusterAddr: reply.ClusterAddr, LastIndex: storage.Index(reply.LastIndex),
		ClusterFormats: reply.ClusterFormats,
	}, false, 0)
	if before.APIAddr != reply.ApiAddr {
		select { // Leader has something new to say; whoever waits for a role has not
		case c.n.roles.public <- struct{}{}:
		default:
		}
	}
	return true
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
