// Package forward is what a node and its leader ask each other over the cluster's port, with gRPC: requests of clients that only the leader
// may serve, read indexes, and echoes, by which the leader knows how a node is.
//
// It promises that a request runs at most once: the leader accepts before it is given anything, and a node that does not lead rejects. A
// request that was forwarded is never sent on, and one whose leader is lost ends.
//
// Start reading at Calls; client.go has the asking side of a request, server.go the leader's.
package forward

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
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

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/cluster/consensus"
	"github.com/coffer-project/coffer/cluster/port"
	"github.com/coffer-project/coffer/cluster/transport"
	"github.com/coffer-project/coffer/proto/forwardpb"
	"github.com/coffer-project/coffer/storage"
)

// ErrNotLeader is the answer of a node that was asked for something only the leader may do. It is given
// before anything is done.
var ErrNotLeader = status.Error(codes.FailedPrecondition, "this node does not lead")

// KeepaliveTime is how long a connection may be silent until gRPC asks whether the other end is there.
const KeepaliveTime = 10 * time.Second

// Options are the options of calls. All but Handler are required.
type Options struct {
	ID       certs.NodeID
	Raft     *consensus.Runner
	Port     *port.Port
	Identity *port.Identity
	Handler  http.Handler // serves requests that other nodes forward; nil: rejects them
	Reports  Reports
	Logger   *slog.Logger

	HeartbeatTimeout, LeaderLeaseTimeout time.Duration
	EchoInterval                         time.Duration
	ForwardWait                          time.Duration // how long ToLeader waits for a leader
}

// Reports takes what members say of themselves.
type Reports interface {
	// TakeReport takes the report of a member, and its certificate, which is nil if it is not known. It returns that of this node, the leader.
	TakeReport(cert *x509.Certificate, req *forwardpb.EchoRequest) *forwardpb.EchoReply
}

// Calls is the node's side of forwardpb: the server, and connections to leaders.
type Calls struct {
	forwardpb.UnimplementedForwardServer
	Options Options
	raft    *consensus.Runner
	log     *slog.Logger
	server  *grpc.Server
	served  chan struct{} // closed when Serve has returned
	In, Out atomic.Uint64 // requests forwarded
	Tries   atomic.Uint64 // to find a leader for one

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

// New serves the other nodes from now on.
func New(o Options) *Calls {
	c := &Calls{Options: o, raft: o.Raft, log: o.Logger, served: make(chan struct{}), open: map[*leaderConn]bool{}}
	c.server = grpc.NewServer(
		grpc.Creds(nodeCredentials{}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: KeepaliveTime, Timeout: 5 * time.Second}),
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
	in := o.Port.Inbox(port.Forward)
	go func() {
		defer close(c.served)
		if err := c.server.Serve(in); err != nil && !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, net.ErrClosed) {
			c.log.Error("serving other nodes", "err", err)
		}
	}()
	return c
}

// admit checks that a call comes from a member, as this node, which is to lead, knows it.
func (c *Calls) admit(ctx context.Context) error {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return errNotMember
	}
	auth, ok := p.AuthInfo.(nodeAuth)
	if !ok || auth.below.Closed.Load() {
		return errNotMember
	}
	if !c.raft.IsLeader() {
		return ErrNotLeader
	}
	if !c.raft.IsMember(auth.id) {
		return errNotMember
	}
	return nil
}

var errNotMember = status.Error(codes.PermissionDenied, "the node that calls is not a member of this cluster")

// enter reports whether a request of another node may run; then c.under.Done must follow.
func (c *Calls) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.draining {
		c.under.Add(1)
	}
	return !c.draining
}

// Drain refuses requests of other nodes. The channel is closed when none runs any more. It does not wait for connections: one
// whose other end is silent ends late.
func (c *Calls) Drain() (idle <-chan struct{}) {
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

// Close ends the serving and every connection to a leader.
func (c *Calls) Close() {
	c.server.Stop()
	<-c.served
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for l := range c.open {
		c.endLocked(l)
	}
}

// Leader returns a connection to the current leader. ErrSelf: it is this node.
func (c *Calls) Leader() (forwardpb.ForwardClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	addr, id := c.raft.Raft().LeaderWithID()
	to := transport.Target(id, addr)
	self := certs.NodeID(id) == c.Options.ID
	if id == "" || addr == "" || self {
		to = ""
	}
	c.followLocked(to)
	switch {
	case self:
		return nil, ErrSelf
	case to == "":
		return nil, errors.New("no leader is known")
	case c.closed:
		return nil, errors.New("the node is closing")
	}
	if c.conn == nil {
		conn, err := c.Dial(to)
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
func (c *Calls) followLocked(to raft.ServerAddress) {
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
		l.end = time.AfterFunc(c.Options.LeaderLeaseTimeout, func() {
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

func (c *Calls) endLocked(l *leaderConn) {
	if l.end != nil {
		l.end.Stop()
	}
	if c.conn == l {
		c.conn = nil
	}
	delete(c.open, l)
	l.Close()
}

// ErrSelf says that the leader is this node.
var ErrSelf = errors.New("this node is the leader")

// Dial returns a connection to a node, as transport.Target names it.
func (c *Calls) Dial(to raft.ServerAddress) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+string(to),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the dialler does TLS
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			id, addr := transport.SplitTarget(raft.ServerAddress(to))
			return c.Options.Identity.Dial(ctx, id, addr, port.Forward)
		}),
		grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: KeepaliveTime, Timeout: 3 * time.Second}),
		grpc.WithIdleTimeout(0),
	)
}

// AskIndex asks the leader for a read index.
func (c *Calls) AskIndex(ctx context.Context) (storage.Index, error) {
	client, err := c.Leader()
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
func (c *Calls) ReadIndex(ctx context.Context, _ *forwardpb.ReadIndexRequest) (*forwardpb.ReadIndexReply, error) {
	index, err := c.raft.OwnRead(ctx)
	switch {
	case errors.Is(err, consensus.ErrNotLeading):
		return nil, ErrNotLeader
	case err != nil:
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	c.raft.PushCommit(caller(ctx))
	return &forwardpb.ReadIndexReply{Index: uint64(index)}, nil
}

// Echo implements forwardpb.ForwardServer.
func (c *Calls) Echo(ctx context.Context, req *forwardpb.EchoRequest) (*forwardpb.EchoReply, error) {
	if caller(ctx) != certs.NodeID(req.NodeId) {
		return nil, status.Error(codes.PermissionDenied, "the certificate is another node's")
	}
	var cert *x509.Certificate
	if p, ok := peer.FromContext(ctx); ok {
		cert = p.AuthInfo.(nodeAuth).below.Certs[0]
	}
	return c.Options.Reports.TakeReport(cert, req), nil
}

// Tell tells the leader about this node, as describe says it. reply is nil if the leader did not take it; known is false if it does not
// know yet that it leads.
func (c *Calls) Tell(describe func() *forwardpb.EchoRequest) (reply *forwardpb.EchoReply, known bool) {
	client, err := c.Leader()
	if err != nil {
		return nil, true
	}
	req := describe()
	ctx, cancel := context.WithCancel(c.raft.Context())
	defer cancel()
	defer c.raft.Roles.Limit(max(c.Options.EchoInterval, time.Second), cancel)()
	reply, err = client.Echo(ctx, req)
	if err != nil {
		c.log.Debug("telling the leader about this node", "err", err)
		return nil, status.Code(err) != codes.FailedPrecondition
	}
	return reply, true
}

// Break breaks the connection to the leader, as a leader does that disappears: for tests.
func (c *Calls) Break() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(c.conn)
}

// Isolate makes sure that no leader is reached any more: for tests.
func (c *Calls) Isolate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn != nil {
		c.endLocked(c.conn)
	}
}

// Stop stops serving at once, as when the process ends: for tests.
func (c *Calls) Stop() { c.server.Stop() }

// nodeCredentials let gRPC run over connections whose TLS handshake the port has done.
type nodeCredentials struct{}

// nodeAuth says which node is at the other end.
type nodeAuth struct {
	credentials.CommonAuthInfo
	id    certs.NodeID
	below *port.Conn
}

// AuthType implements credentials.AuthInfo.
func (nodeAuth) AuthType() string { return "coffer-node" }

func (nodeCredentials) ServerHandshake(rawConn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, ok := rawConn.(*tls.Conn)
	if !ok {
		return nil, nil, errors.New("not a connection of the cluster port")
	}
	below, ok := t.NetConn().(*port.Conn)
	if !ok {
		return nil, nil, errors.New("not a connection of the cluster port")
	}
	level := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	return rawConn, nodeAuth{level, certs.NodeOf(below.Certs[0]), below}, nil
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
func caller(ctx context.Context) certs.NodeID {
	if p, ok := peer.FromContext(ctx); ok {
		if auth, ok := p.AuthInfo.(nodeAuth); ok {
			return auth.id
		}
	}
	return ""
}
