package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/state"
	"github.com/coffer-project/coffer/replication/transport"
	"github.com/coffer-project/coffer/replication/wire"
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
	return transport.ServerTLS(cert, pool), nil
}

// Serve serves other clusters on connections that have shaken hands as ServerTLS says, until Stop.
func (l *Link) Serve(listener net.Listener) error {
	s := &server{l: l, served: make(chan struct{})}
	defer close(s.served)
	s.grpc = transport.NewServer()
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
	l.sessions.endAll(&transport.Redirect{})
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

// toStatus is for what a server returns.
func (l *Link) toStatus(err error) error {
	return transport.ToStatus(err, func() string {
		self, addr := l.o.Guard.Active()
		if self {
			return ""
		}
		return addr
	}, l.log)
}

// admit returns who is calling, if they may.
func (l *Link) admit(ctx context.Context) (replication.Peer, transport.PeerAuth, error) {
	auth := transport.AuthOf(ctx)
	if auth.Cert == nil {
		return replication.Peer{}, auth, replication.ErrRevoked
	}
	p, err := l.admitCert(ctx, auth.Cert)
	return p, auth, err
}

func (l *Link) admitCert(ctx context.Context, cert *x509.Certificate) (replication.Peer, error) {
	if now := time.Now(); now.After(cert.NotAfter) { // since the handshake
		return replication.Peer{}, replication.ErrRevoked
	}
	return l.o.Guard.Admit(ctx, cert)
}

// serving says whether this node does the work of a primary's active node, or, if that is enough, of one that was demoted and
// lets its secondaries have the rest.
func (l *Link) serving(rest bool) error {
	if self, addr := l.o.Guard.Active(); !self {
		return &transport.Redirect{Addr: addr}
	}
	if self := l.o.Guard.Self(); l.here() == nil || !self.Primary && (!rest || !self.Demoted) {
		return &transport.Redirect{}
	}
	return nil
}

// Enrol implements pb.ReplicationServer.
func (s *server) Enrol(ctx context.Context, req *pb.EnrolRequest) (*pb.EnrolReply, error) {
	if err := s.l.serving(false); err != nil {
		return nil, s.l.toStatus(err)
	}
	var d wire.Decoder
	latest := d.OtherPrimary(req.GetLatest())
	if d.Err != nil {
		return nil, s.l.toStatus(&replication.Refusal{Detail: d.Err.Error()})
	}
	reply, err := s.l.o.Guard.Enrol(ctx, replication.EnrolRequest{
		SetID: req.GetSetId(), ClusterID: req.GetClusterId(), SecondaryID: req.GetSecondaryId(), Secret: req.GetSecret(), CSR: req.GetCsr(),
		Latest: latest,
	})
	if err != nil {
		return nil, s.l.toStatus(err)
	}
	return &pb.EnrolReply{
		Cert: reply.Cert, SetId: reply.SetID, PrimaryId: reply.PrimaryID, Lineage: wire.EncodeLineage(reply.Lineage), Addrs: reply.Addrs, ApiAddr: reply.APIAddr,
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
	return &pb.CallReply{Answer: answer, At: wire.EncodePosition(s.l.PositionOf(at))}, nil
}

// WhoIsActive implements pb.ReplicationServer.
func (s *server) WhoIsActive(ctx context.Context, _ *pb.WhoIsActiveRequest) (*pb.WhoIsActiveReply, error) {
	if _, _, err := s.l.admit(ctx); err != nil {
		return nil, s.l.toStatus(err)
	}
	self := s.l.o.Guard.Self()
	if !self.Primary {
		return nil, s.l.toStatus(&transport.Redirect{})
	}
	active, addr := s.l.o.Guard.Active()
	return &pb.WhoIsActiveReply{
		SetId: self.SetID, ClusterId: self.ClusterID, Epoch: self.Lineage.Epoch(), Active: active, ActiveAddr: addr, Addrs: s.l.o.Guard.Addrs(),
	}, nil
}

// Announce implements pb.ReplicationServer. A cluster that was promoted while this one was away has no other certificate than
// the one of that time: its age does not matter here, a revocation does.
func (s *server) Announce(ctx context.Context, req *pb.AnnounceRequest) (*pb.AnnounceReply, error) {
	auth := transport.AuthOf(ctx)
	if auth.Cert == nil {
		return nil, s.l.toStatus(replication.ErrRevoked)
	}
	p, err := s.l.o.Guard.Admit(ctx, auth.Cert)
	if err == nil {
		err = s.l.serving(true)
	}
	if err != nil {
		return nil, s.l.toStatus(err)
	}
	var d wire.Decoder
	a := replication.Announcement{SetID: d.ID(req.GetSetId()), OtherPrimary: d.OtherPrimary(req.GetPrimary()), Claim: req.GetClaim()}
	if d.Err != nil || a.Number == 0 || a.ClusterID == "" {
		return nil, s.l.toStatus(&replication.Refusal{Detail: "the announced primary has no epoch"})
	}
	reply, err := s.l.o.Guard.Announced(ctx, p, a)
	if err != nil {
		return nil, s.l.toStatus(err)
	}
	out := &pb.AnnounceReply{Self: wire.EncodeOtherPrimary(replication.OtherPrimary{EpochID: reply.EpochID}), Primary: reply.Primary, Fenced: reply.Fenced}
	for _, o := range reply.Others {
		out.Others = append(out.Others, wire.EncodeOtherPrimary(o))
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
		return l.toStatus(&transport.Redirect{})
	}
	defer a.wg.Done()
	one := newSession(l, a, p, auth, stream)
	l.sessions.add(one)
	defer l.sessions.remove(one)
	err = one.run(stream.Context())
	l.log.Info("a secondary has disconnected", "secondary", p.ID, "reason", fmt.Sprint(err))
	if errors.Is(err, replication.ErrFinal) || errors.Is(err, replication.ErrFenced) || errors.Is(err, replication.ErrOtherSet) || errors.Is(err, replication.ErrRejected) {
		return nil // the last message has said it
	}
	if errors.Is(err, replication.ErrTruncated) || errors.Is(err, replication.ErrBuilding) || errors.Is(err, state.ErrScopeMoved) {
		return status.Error(codes.Unavailable, err.Error()) // another attempt helps
	}
	return l.toStatus(err)
}
