package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
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
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/wire"
)

// Of connections without a certificate, which can only enrol, there are few, not for long, and little is read of each.
const (
	maxStrangers  = 16
	maxFromOne    = 4 // of them from one host, which so does not keep others from enrolling
	strangerTime  = 30 * time.Second
	strangerBytes = 256 << 10
)

// Windows of a connection: how much is on its way over a long distance.
const (
	streamWindow     = 8 << 20
	connectionWindow = 16 << 20
)

// ServerTLS is how the node of a primary shakes hands with a secondary.
func ServerTLS(cert *tls.Certificate, pool *x509.CertPool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert}, ClientCAs: pool, ClientAuth: tls.RequestClientCert,
		VerifyConnection: func(state tls.ConnectionState) error { return verifyPeer(state, pool) },
	}
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

// NewServer returns a server for connections that have shaken hands with ServerTLS.
func NewServer() *grpc.Server {
	return grpc.NewServer(
		grpc.Creds(&peerCredentials{}),
		grpc.InTapHandle(knownOnly),
		grpc.MaxRecvMsgSize(wire.MaxMessageBytes), grpc.MaxSendMsgSize(wire.MaxMessageBytes),
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connectionWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
		grpc.MaxConcurrentStreams(1024),
		grpc.WaitForHandlers(true),
	)
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

// PeerAuth says who is at the other end.
type PeerAuth struct {
	credentials.CommonAuthInfo
	Cert *x509.Certificate // verified; nil: none was given
	Conn net.Conn
}

// AuthType implements credentials.AuthInfo.
func (PeerAuth) AuthType() string { return replication.Protocol }

// ServerHandshake implements credentials.TransportCredentials.
func (c *peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, ok := conn.(*tls.Conn)
	if !ok {
		return nil, nil, errors.New("not a connection of the cluster port")
	}
	auth := PeerAuth{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, Conn: t.NetConn()}
	if state := t.ConnectionState(); len(state.PeerCertificates) > 0 { // and verifyPeer has passed it
		auth.Cert = state.PeerCertificates[0]
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

// AuthOf returns who is at the other end of the connection that a call came over.
func AuthOf(ctx context.Context) PeerAuth {
	if p, ok := peer.FromContext(ctx); ok {
		if auth, ok := p.AuthInfo.(PeerAuth); ok {
			return auth
		}
	}
	return PeerAuth{}
}

// knownOnly refuses everything but Enrol to who has shown no certificate, before anything of it is read.
func knownOnly(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != pb.Replication_Enrol_FullMethodName && AuthOf(ctx).Cert == nil {
		return nil, status.Error(codes.Unauthenticated, "a certificate is required")
	}
	return ctx, nil
}
