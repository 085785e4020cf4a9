package replicated

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated/registry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/storage"
)

// Self says what this cluster is. A mode of "" means that it is not known: the server is sealed.
func (s *Store) Self() (mode roles.Mode, setID, clusterID string, lineage storage.Lineage) {
	r, err := s.Current(context.Background())
	if err != nil {
		return "", "", "", nil
	}
	return r.Mode, r.SetID, r.ClusterID, r.Lineage
}

// Addrs answers link.Cluster.
func (s *Store) Addrs() []string {
	if r := s.Role(); r.Addr != "" {
		return []string{r.Addr}
	}
	return s.opts.Node.NodeAddrs()
}

// APIAddr is the API address of this cluster.
func (s *Store) APIAddr() string { return s.opts.Node.APIAddr() }

// Active answers link.Cluster.
func (s *Store) Active() (self bool, addr string) { return s.opts.Node.Active() }

// ServerTLS answers link.Admission.
func (s *Store) ServerTLS(ctx context.Context) (*tls.Certificate, *x509.CertPool, error) {
	return s.registry.ServerTLS(ctx)
}

// Admit answers link.Admission.
func (s *Store) Admit(ctx context.Context, cert *x509.Certificate) (roles.Peer, error) {
	return s.registry.Admit(ctx, cert)
}

// Enrol answers link.Admission.
func (s *Store) Enrol(ctx context.Context, req replication.EnrolRequest) (replication.EnrolReply, error) {
	reply, err := s.registry.Enrol(ctx, req)
	if err == nil || errors.Is(err, registry.ErrLaterPrimary) { // the request is of a cluster that was invited
		if failed := s.others.Meet(ctx, req.Latest); failed != nil {
			s.log.Error("a primary that a secondary knows of was not noted", "epoch", req.Latest.Number, "primary", req.Latest.ClusterID, "err", failed)
		}
	}
	return reply, err
}

// Renew answers link.Admission.
func (s *Store) Renew(ctx context.Context, p roles.Peer, csr []byte) ([]byte, error) {
	return s.registry.Renew(ctx, p, csr)
}

// Fence answers link.Announcements.
func (s *Store) Fence(ctx context.Context, epoch storage.EpochID) { s.others.Fence(ctx, epoch) }

// Announced answers link.Announcements.
func (s *Store) Announced(ctx context.Context, p roles.Peer, a replication.Announcement) (replication.AnnounceReply, error) {
	return s.others.Announced(ctx, p, a)
}
