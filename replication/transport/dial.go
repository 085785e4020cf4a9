// Package transport makes the connections between clusters: a secondary's to a node of its primary, and the server for them.
//
// It promises that both sides are authenticated before anything is read of either, that connections without a certificate, which
// can only enrol, stay few and small, and that a caller learns whether what failed may have been done. Start reading at dial.go and
// server.go; errors.go says what becomes of an error on its way.
package transport

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/wire"
	"github.com/coffer-project/coffer/storage"
)

const (
	DialTimeout  = 5 * time.Second
	MaxRedirects = 4
)

// Identity is what a secondary shows, and whom it believes.
type Identity struct {
	pool *x509.CertPool
	Cert *tls.Certificate // nil: none yet
}

// NewIdentity reads what is in PEM. Without a certificate it can only enrol.
func NewIdentity(ca, cert, key []byte) (Identity, error) {
	id := Identity{pool: x509.NewCertPool()}
	if !id.pool.AppendCertsFromPEM(ca) {
		return Identity{}, errors.New("the primary's CA holds no certificate")
	}
	if cert == nil {
		return id, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return Identity{}, fmt.Errorf("the certificate for the primary is unusable: %w", err)
	}
	id.Cert = &pair
	return id, nil
}

// Client is a connection to one node of a primary.
type Client struct {
	pb.ReplicationClient
	conn *grpc.ClientConn
}

// Close ends the connection.
func (c *Client) Close() { c.conn.Close() } //nolint:errcheck // nothing is left to be said

// Dial makes a client, which connects when it is first used.
func (id Identity) Dial(addr string) (*Client, error) {
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: DialTimeout}, Config: &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{replication.Protocol}, RootCAs: id.pool, ServerName: replication.ServerName,
	}}
	if id.Cert != nil {
		dialer.Config.Certificates = []tls.Certificate{*id.Cert}
	}
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the dialler does TLS
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, DialTimeout)
			defer cancel()
			conn, err := dialer.DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, handshakeError(err)
			}
			if conn.(*tls.Conn).ConnectionState().NegotiatedProtocol != replication.Protocol {
				conn.Close()
				return nil, errNotClusterPort
			}
			return conn, nil
		}),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxMessageBytes), grpc.MaxCallSendMsgSize(wire.MaxMessageBytes)),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connectionWindow),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithStatsHandler(sentHandler{}),
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, fmt.Errorf("the address %q cannot be dialled: %w", addr, err)
	}
	return &Client{ReplicationClient: pb.NewReplicationClient(conn), conn: conn}, nil
}

var errNotClusterPort = errors.New("this is not the cluster port of a node (8201, if it is not configured otherwise)")

// handshakeError says what an operator can do about a handshake that failed.
func handshakeError(err error) error {
	var noTLS tls.RecordHeaderError
	var untrusted *tls.CertificateVerificationError
	var network *net.OpError
	switch {
	case errors.As(err, &noTLS):
		return fmt.Errorf("%w: the other side does not speak TLS", errNotClusterPort)
	case errors.As(err, &untrusted):
		return fmt.Errorf("the certificate there is not of the primary that this cluster knows: the port is not a cluster port, or the cluster there is another one, or was promoted since and takes a token of it (%w)", untrusted.Err)
	case errors.As(err, &network) && network.Op == "remote error":
		return fmt.Errorf("the node there rejects connections of secondaries: the port is not a cluster port (8201, if it is not configured otherwise), or the cluster there is sealed or not a primary (%w)", network.Err)
	}
	return err
}

// sentKey marks the context of a call with a *atomic.Bool that becomes true when the call's payload may have left.
type sentKey struct{}

// sentHandler tells calls that never left this node from those that may have arrived.
type sentHandler struct{}

// CountReceived makes the bytes that come over a stream, which is opened with this context, count.
func CountReceived(ctx context.Context, bytes *atomic.Int64) context.Context {
	return context.WithValue(ctx, receivedKey{}, bytes)
}

// receivedKey marks the context of a stream with a *atomic.Int64 that counts the bytes which come over it.
type receivedKey struct{}

// HandleRPC implements stats.Handler.
func (sentHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if in, ok := s.(*stats.InPayload); ok {
		if received, ok := ctx.Value(receivedKey{}).(*atomic.Int64); ok {
			received.Add(int64(in.WireLength))
		}
		return
	}
	if _, ok := s.(*stats.OutPayload); !ok { // without which the other side does nothing
		return
	}
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
}

// TagRPC implements stats.Handler.
func (sentHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (sentHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (sentHandler) HandleConn(context.Context, stats.ConnStats) {}

// Unary makes a call whose outcome is one of FromStatus.
func Unary(ctx context.Context, call func(context.Context) error) error {
	var sent atomic.Bool
	return FromStatus(call(context.WithValue(ctx, sentKey{}, &sent)), sent.Load())
}

// AnyOf calls do with each address, and those that it is redirected to, until it answers something else than that nothing
// was done there.
func AnyOf(ctx context.Context, addrs []string, id Identity, do func(context.Context, *Client) error) error {
	var problems []error
	tried := map[string]bool{}
	queue := slices.Clone(addrs)
	for redirects := 0; len(queue) > 0 && ctx.Err() == nil; {
		addr := queue[0]
		queue = queue[1:]
		if tried[addr] {
			continue
		}
		tried[addr] = true
		c, err := id.Dial(addr)
		if err == nil {
			err = Unary(ctx, func(ctx context.Context) error { return do(ctx, c) })
			c.Close()
		}
		if err == nil || !errors.Is(err, storage.ErrUnavailable) {
			return err
		}
		if r, ok := errors.AsType[*Redirect](err); ok && r.Addr != "" && redirects < MaxRedirects {
			redirects++
			queue = slices.Insert(queue, 0, r.Addr)
		}
		problems = append(problems, fmt.Errorf("%s: %w", addr, err))
	}
	if len(problems) == 0 {
		return errors.Join(fmt.Errorf("%w: no address of the primary is known", storage.ErrUnavailable), ctx.Err())
	}
	return errors.Join(problems...)
}

// Outlived reports whether a certificate is past its end, and whether less than a third of its time is left.
func Outlived(cert *tls.Certificate, now time.Time) (expired, soon bool) {
	leaf := cert.Leaf
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	return now.After(leaf.NotAfter), leaf.NotAfter.Sub(now) < life/3
}

// CertificateRequest makes a certificate request with the key that the certificate has.
func CertificateRequest(cert *tls.Certificate) ([]byte, error) {
	key, ok := cert.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key for the primary is of another kind than this build makes")
	}
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "Coffer secondary"}}, key)
}
