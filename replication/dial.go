package replication

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
	"github.com/coffer-project/coffer/storage"
)

const (
	dialTimeout  = 5 * time.Second
	maxRedirects = 4
)

// identity is what a secondary shows, and whom it believes.
type identity struct {
	pool *x509.CertPool
	cert *tls.Certificate // nil: none yet
}

func newIdentity(ca, cert, key []byte) (identity, error) {
	id := identity{pool: x509.NewCertPool()}
	if !id.pool.AppendCertsFromPEM(ca) {
		return identity{}, errors.New("the primary's CA holds no certificate")
	}
	if cert == nil {
		return id, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return identity{}, fmt.Errorf("the certificate for the primary is unusable: %w", err)
	}
	id.cert = &pair
	return id, nil
}

// client is a connection to one node of a primary.
type client struct {
	pb.ReplicationClient
	conn *grpc.ClientConn
}

func (c *client) close() { c.conn.Close() } //nolint:errcheck // nothing is left to be said

// dial makes a client, which connects when it is first used.
func (id identity) dial(addr string) (*client, error) {
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{Protocol}, RootCAs: id.pool, ServerName: ServerName,
	}}
	if id.cert != nil {
		dialer.Config.Certificates = []tls.Certificate{*id.cert}
	}
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the dialler does TLS
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			conn, err := dialer.DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, handshakeError(err)
			}
			if conn.(*tls.Conn).ConnectionState().NegotiatedProtocol != Protocol {
				conn.Close()
				return nil, errNotClusterPort
			}
			return conn, nil
		}),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connectionWindow),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithStatsHandler(sentHandler{}),
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, fmt.Errorf("the address %q cannot be dialled: %w", addr, err)
	}
	return &client{ReplicationClient: pb.NewReplicationClient(conn), conn: conn}, nil
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

// unary makes a call whose outcome is one of fromStatus.
func unary(ctx context.Context, call func(context.Context) error) error {
	var sent atomic.Bool
	return fromStatus(call(context.WithValue(ctx, sentKey{}, &sent)), sent.Load())
}

// anyOf calls do with each address, and those that it is redirected to, until it answers something else than that nothing
// was done there.
func anyOf(ctx context.Context, addrs []string, id identity, do func(context.Context, *client) error) error {
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
		c, err := id.dial(addr)
		if err == nil {
			err = unary(ctx, func(ctx context.Context) error { return do(ctx, c) })
			c.close()
		}
		if err == nil || !errors.Is(err, storage.ErrUnavailable) {
			return err
		}
		if r, ok := errors.AsType[*redirect](err); ok && r.addr != "" && redirects < maxRedirects {
			redirects++
			queue = slices.Insert(queue, 0, r.addr)
		}
		problems = append(problems, fmt.Errorf("%s: %w", addr, err))
	}
	if len(problems) == 0 {
		return errors.Join(fmt.Errorf("%w: no address of the primary is known", storage.ErrUnavailable), ctx.Err())
	}
	return errors.Join(problems...)
}

// Enrol trades a one-time secret and a certificate request for a certificate, at the first address that answers. A
// *Refusal is the primary's answer.
func (l *Link) Enrol(ctx context.Context, addrs []string, ca []byte, req EnrolRequest) (EnrolReply, error) {
	id, err := newIdentity(ca, nil, nil)
	if err != nil {
		return EnrolReply{}, err
	}
	var reply *pb.EnrolReply
	err = anyOf(ctx, addrs, id, func(ctx context.Context, c *client) error {
		var err error
		reply, err = c.Enrol(ctx, &pb.EnrolRequest{
			SetId: req.SetID, ClusterId: req.ClusterID, SecondaryId: req.SecondaryID, Secret: req.Secret, Csr: req.CSR,
			Latest: encodeOther(req.Latest),
		})
		return err
	})
	if err != nil {
		return EnrolReply{}, fmt.Errorf("enrolling at the primary: %w", err)
	}
	var d decoder
	out := EnrolReply{
		Cert: reply.GetCert(), SetID: d.id(reply.GetSetId()), PrimaryID: d.id(reply.GetPrimaryId()), Lineage: d.lineage(reply.GetLineage()),
		Addrs: d.addrs(reply.GetAddrs()), APIAddr: reply.GetApiAddr(),
	}
	return out, d.err
}

// WhoIsActive asks one address of a primary, with the certificate of up: any node of it answers.
func (l *Link) WhoIsActive(ctx context.Context, addr string, up Upstream) (ActiveReply, error) {
	id, err := newIdentity(up.CA, up.Cert, up.Key)
	if err != nil {
		return ActiveReply{}, err
	}
	c, err := id.dial(addr)
	if err != nil {
		return ActiveReply{}, err
	}
	defer c.close()
	var reply *pb.WhoIsActiveReply
	err = unary(ctx, func(ctx context.Context) error {
		var err error
		reply, err = c.WhoIsActive(ctx, &pb.WhoIsActiveRequest{})
		return err
	})
	if err != nil {
		return ActiveReply{}, err
	}
	var d decoder
	out := ActiveReply{
		SetID: d.id(reply.GetSetId()), ClusterID: d.id(reply.GetClusterId()), Epoch: reply.GetEpoch(), Active: reply.GetActive(),
		ActiveAddr: reply.GetActiveAddr(), Addrs: d.addrs(reply.GetAddrs()),
	}
	return out, d.err
}

// Announce tells a former primary of a later one of its set. The certificate of up may have expired.
func (l *Link) Announce(ctx context.Context, up Upstream, a Announcement) (AnnounceReply, error) {
	id, err := newIdentity(up.CA, up.Cert, up.Key)
	if err != nil {
		return AnnounceReply{}, err
	}
	var reply *pb.AnnounceReply
	err = anyOf(ctx, up.Addrs, id, func(ctx context.Context, c *client) error {
		var err error
		reply, err = c.Announce(ctx, &pb.AnnounceRequest{SetId: a.SetID, Primary: encodeOther(a.OtherPrimary), Claim: a.Claim})
		return err
	})
	if err != nil {
		return AnnounceReply{}, err
	}
	var d decoder
	out := AnnounceReply{EpochID: d.other(reply.GetSelf()).EpochID, Primary: reply.GetPrimary(), Fenced: reply.GetFenced()}
	for _, o := range reply.GetOthers() {
		out.Others = append(out.Others, d.other(o))
	}
	return out, d.err
}

// outlived reports whether a certificate is past its end, and whether less than a third of its time is left.
func outlived(cert *tls.Certificate, now time.Time) (expired, soon bool) {
	leaf := cert.Leaf
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	return now.After(leaf.NotAfter), leaf.NotAfter.Sub(now) < life/3
}

// request makes a certificate request with the key that the certificate has.
func request(cert *tls.Certificate) ([]byte, error) {
	key, ok := cert.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key for the primary is of another kind than this build makes")
	}
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "Coffer secondary"}}, key)
}
