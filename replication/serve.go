package replication

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
)

// Of connections without a certificate, which can only enrol, there are few, not for long, and little is read of each.
const (
	maxStrangers  = 16
	maxFromOne    = 4 // of them from one host, which so keeps nobody else from enrolling
	strangerTime  = 30 * time.Second
	strangerBytes = 256 << 10
)

// Windows of a connection: how much is on its way over a long distance.
const (
	streamWindow     = 8 << 20
	connectionWindow = 16 << 20
)

// server is one time of serving.
type server struct {
	pb.UnimplementedReplicationServer
	l      *Link
	grpc   *grpc.Server
	served chan struct{} // closed when Serve has returned
}

// ServerTLS is for cluster.Node.Listen: how to shake hands with a secondary, nil while this cluster is not a primary.
func (l *Link) ServerTLS(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	cert, pool, err := l.o.Guard.ServerTLS(hello.Context())
	if err != nil || cert == nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert}, ClientCAs: pool, ClientAuth: tls.RequestClientCert,
		VerifyConnection: func(state tls.ConnectionState) error { return verifyPeer(state, pool) },
	}, nil
}

// verifyPeer checks the certificate of a secondary, if one was shown, but for its age: admitCert looks at that, and Announce
// accepts certificates that have expired.
func verifyPeer(state tls.ConnectionState, pool *x509.CertPool) error {
	if len(state.PeerCertificates) == 0 {
		return nil
	}
	cert := state.PeerCertificates[0]
	at := time.Now()
	if at.After(cert.NotAfter) {
		at = cert.NotAfter
	}
	_, err := cert.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

// Serve serves other clusters on connections that have shaken hands as ServerTLS says, until Stop.
func (l *Link) Serve(listener net.Listener) error {
	s := &server{l: l, served: make(chan struct{})}
	defer close(s.served)
	s.grpc = grpc.NewServer(
		grpc.Creds(&peerCredentials{}),
		grpc.InTapHandle(knownOnly),
		grpc.MaxRecvMsgSize(maxMessageBytes), grpc.MaxSendMsgSize(maxMessageBytes),
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connectionWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
		grpc.MaxConcurrentStreams(1024),
		grpc.WaitForHandlers(true),
	)
	pb.RegisterReplicationServer(s.grpc, s)
	l.mu.Lock()
	if l.server != nil {
		l.mu.Unlock()
		listener.Close()
		return errors.New("other clusters are being served already")
	}
	l.server = s
	l.mu.Unlock()
	err := s.grpc.Serve(listener)
	if errors.Is(err, grpc.ErrServerStopped) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Stop ends what Serve began, and every stream. It gives calls under way until ctx ends. Twice is fine.
func (l *Link) Stop(ctx context.Context) {
	l.mu.Lock()
	s := l.server
	l.server = nil
	l.mu.Unlock()
	if s == nil {
		return
	}
	l.sessions.endAll(&redirect{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
	}
	<-s.served
}

// peerCredentials let gRPC run over connections that have shaken hands already.
type peerCredentials struct {
	mu        sync.Mutex
	strangers map[string]int // by the host that they come from
	all       int            // of them
}

// enter counts a stranger; leave ends it.
func (c *peerCredentials) enter(host string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= maxStrangers || c.strangers[host] >= maxFromOne {
		return false
	}
	if c.strangers == nil {
		c.strangers = map[string]int{}
	}
	c.strangers[host]++
	c.all++
	return true
}

func (c *peerCredentials) leave(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.strangers[host]--; c.strangers[host] == 0 {
		delete(c.strangers, host)
	}
}

// peerAuth says who is at the other end.
type peerAuth struct {
	credentials.CommonAuthInfo
	cert *x509.Certificate // verified; nil: none was given
	conn net.Conn
}

// AuthType implements credentials.AuthInfo.
func (peerAuth) AuthType() string { return Protocol }

// ServerHandshake implements credentials.TransportCredentials.
func (c *peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, ok := conn.(*tls.Conn)
	if !ok {
		return nil, nil, errors.New("not a connection of the cluster port")
	}
	auth := peerAuth{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, conn: t.NetConn()}
	if state := t.ConnectionState(); len(state.PeerCertificates) > 0 { // and verifyPeer has passed it
		auth.cert = state.PeerCertificates[0]
		return conn, auth, nil
	}
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		host = conn.RemoteAddr().String()
	}
	if !c.enter(host) {
		return nil, nil, errors.New("too many connections without a certificate")
	}
	limited := &stranger{Conn: conn, of: c, host: host}
	limited.timer = time.AfterFunc(strangerTime, func() { limited.Close() })
	return limited, auth, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (*peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("only for servers")
}

// Info implements credentials.TransportCredentials.
func (*peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (c *peerCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials.
func (*peerCredentials) OverrideServerName(string) error { return nil }

// stranger is a connection without a certificate.
type stranger struct {
	net.Conn
	of     *peerCredentials
	host   string
	timer  *time.Timer
	closed atomic.Bool
	read   int // by the one goroutine that reads
}

// Read implements net.Conn. What a stranger sends is kept in memory until a message is complete: it ends before that is
// much.
func (s *stranger) Read(p []byte) (int, error) {
	if s.read >= strangerBytes {
		return 0, errors.New("too much was sent without a certificate")
	}
	n, err := s.Conn.Read(p[:min(len(p), strangerBytes-s.read)])
	s.read += n
	return n, err
}

// Close implements net.Conn.
func (s *stranger) Close() error {
	if s.closed.CompareAndSwap(false, true) {
		s.of.leave(s.host)
	}
	return s.Conn.Close()
}

func authOf(ctx context.Context) peerAuth {
	if p, ok := peer.FromContext(ctx); ok {
		if auth, ok := p.AuthInfo.(peerAuth); ok {
			return auth
		}
	}
	return peerAuth{}
}

// knownOnly refuses everything but Enrol to who has shown no certificate, before anything of it is read.
func knownOnly(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != pb.Replication_Enrol_FullMethodName && authOf(ctx).cert == nil {
		return nil, status.Error(codes.Unauthenticated, "a certificate is required")
	}
	return ctx, nil
}

// admit returns who is calling, if they may.
func (l *Link) admit(ctx context.Context) (Peer, peerAuth, error) {
	auth := authOf(ctx)
	if auth.cert == nil {
		return Peer{}, auth, ErrRevoked
	}
	p, err := l.admitCert(ctx, auth.cert)
	return p, auth, err
}

func (l *Link) admitCert(ctx context.Context, cert *x509.Certificate) (Peer, error) {
	if now := time.Now(); now.After(cert.NotAfter) { // since the handshake
		return Peer{}, ErrRevoked
	}
	return l.o.Guard.Admit(ctx, cert)
}

// serving says whether this node does the work of a primary's active node, or, if that is enough, of one that was demoted and
// lets its secondaries have the rest.
func (l *Link) serving(rest bool) error {
	if self, addr := l.o.Guard.Active(); !self {
		return &redirect{addr: addr}
	}
	if self := l.o.Guard.Self(); l.here() == nil || !self.Primary && (!rest || !self.Demoted) {
		return &redirect{}
	}
	return nil
}

// Enrol implements pb.ReplicationServer.
func (s *server) Enrol(ctx context.Context, req *pb.EnrolRequest) (*pb.EnrolReply, error) {
	if err := s.l.serving(false); err != nil {
		return nil, s.l.toStatus(err)
	}
	var d decoder
	latest := d.other(req.GetLatest())
	if d.err != nil {
		return nil, s.l.toStatus(&Refusal{Detail: d.err.Error()})
	}
	reply, err := s.l.o.Guard.Enrol(ctx, EnrolRequest{
		SetID: req.GetSetId(), ClusterID: req.GetClusterId(), SecondaryID: req.GetSecondaryId(), Secret: req.GetSecret(), CSR: req.GetCsr(),
		Latest: latest,
	})
	if err != nil {
		return nil, s.l.toStatus(err)
	}
	return &pb.EnrolReply{
		Cert: reply.Cert, SetId: reply.SetID, PrimaryId: reply.PrimaryID, Lineage: encodeLineage(reply.Lineage), Addrs: reply.Addrs, ApiAddr: reply.APIAddr,
	}, nil
}

// Renew implements pb.ReplicationServer.
func (s *server) Renew(ctx context.Context, req *pb.RenewRequest) (*pb.RenewReply, error) {
	p, _, err := s.l.admit(ctx)
	if err == nil {
		err = s.l.serving(false)
	}
	if err != nil {
		return nil, s.l.toStatus(err)
	}
	cert, err := s.l.o.Guard.Renew(ctx, p, req.GetCsr())
	if err != nil {
		return nil, s.l.toStatus(err)
	}
	return &pb.RenewReply{Cert: cert}, nil
}

// Call implements pb.ReplicationServer.
func (s *server) Call(ctx context.Context, req *pb.CallRequest) (*pb.CallReply, error) {
	p, _, err := s.l.admit(ctx)
	if err == nil {
		err = s.l.serving(true) // what is done then is the server's to decide
	}
	if err != nil {
		return nil, s.l.toStatus(err)
	}
	answer, at, err := s.l.o.Guard.Call(ctx, p, req.GetKind(), req.GetPayload())
	if err != nil {
		return nil, s.l.toStatus(err)
	}
	at = min(at, s.l.Head()) // nothing that replicates is behind it
	return &pb.CallReply{Answer: answer, At: encodePosition(s.l.resolver().index(at))}, nil
}

// WhoIsActive implements pb.ReplicationServer.
func (s *server) WhoIsActive(ctx context.Context, _ *pb.WhoIsActiveRequest) (*pb.WhoIsActiveReply, error) {
	if _, _, err := s.l.admit(ctx); err != nil {
		return nil, s.l.toStatus(err)
	}
	self := s.l.o.Guard.Self()
	if !self.Primary {
		return nil, s.l.toStatus(&redirect{})
	}
	active, addr := s.l.o.Guard.Active()
	return &pb.WhoIsActiveReply{
		SetId: self.SetID, ClusterId: self.ClusterID, Epoch: self.Lineage.Epoch(), Active: active, ActiveAddr: addr, Addrs: s.l.o.Guard.Addrs(),
	}, nil
}

// Announce implements pb.ReplicationServer. A cluster that was promoted while this one was away has no other certificate than
// the one of that time: its age does not matter here, a revocation does.
func (s *server) Announce(ctx context.Context, req *pb.AnnounceRequest) (*pb.AnnounceReply, error) {
	auth := authOf(ctx)
	if auth.cert == nil {
		return nil, s.l.toStatus(ErrRevoked)
	}
	p, err := s.l.o.Guard.Admit(ctx, auth.cert)
	if err == nil {
		err = s.l.serving(true)
	}
	if err != nil {
		return nil, s.l.toStatus(err)
	}
	var d decoder
	a := Announcement{SetID: d.id(req.GetSetId()), OtherPrimary: d.other(req.GetPrimary()), Claim: req.GetClaim()}
	if d.err != nil || a.Number == 0 || a.ClusterID == "" {
		return nil, s.l.toStatus(&Refusal{Detail: "the announced primary has no epoch"})
	}
	reply, err := s.l.o.Guard.Announced(ctx, p, a)
	if err != nil {
		return nil, s.l.toStatus(err)
	}
	out := &pb.AnnounceReply{Self: encodeOther(OtherPrimary{EpochID: reply.EpochID}), Primary: reply.Primary, Fenced: reply.Fenced}
	for _, o := range reply.Others {
		out.Others = append(out.Others, encodeOther(o))
	}
	return out, nil
}

// Stream implements pb.ReplicationServer.
func (s *server) Stream(stream grpc.BidiStreamingServer[pb.FromSecondary, pb.FromPrimary]) error {
	l := s.l
	p, auth, err := l.admit(stream.Context())
	if err == nil {
		err = l.serving(true)
	}
	if err != nil {
		return l.toStatus(err)
	}
	a := l.join()
	if a == nil {
		return l.toStatus(&redirect{})
	}
	defer a.wg.Done()
	one := newSession(l, a, p, auth, stream)
	l.sessions.add(one)
	defer l.sessions.remove(one)
	err = one.run(stream.Context())
	l.log.Info("a secondary has disconnected", "secondary", p.ID, "reason", fmt.Sprint(err))
	if errors.Is(err, ErrFinal) || errors.Is(err, ErrFenced) || errors.Is(err, ErrOtherSet) || errors.Is(err, ErrRejected) {
		return nil // the last message has said it
	}
	if errors.Is(err, ErrTruncated) || errors.Is(err, ErrBuilding) || errors.Is(err, errScopeMoved) {
		return status.Error(codes.Unavailable, err.Error()) // another attempt helps
	}
	return l.toStatus(err)
}
