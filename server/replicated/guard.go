package replicated

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Self implements Guard. A mode of "" means that it is not known: the server is sealed.
func (s *Store) Self() (mode Mode, setID, clusterID string, lineage storage.Lineage) {
	r, err := s.Current(context.Background())
	if err != nil {
		return "", "", "", nil
	}
	return r.Mode, r.SetID, r.ClusterID, r.Lineage
}

// Addrs implements Guard.
func (s *Store) Addrs() []string {
	if r := s.Role(); r.Addr != "" {
		return []string{r.Addr}
	}
	return s.opts.NodeAddrs()
}

// Active implements Guard.
func (s *Store) Active() (self bool, addr string) { return s.opts.Active() }

// ServerTLS implements Guard.
func (s *Store) ServerTLS(ctx context.Context) (*tls.Certificate, *x509.CertPool, error) {
	return s.registry.ServerTLS(ctx)
}

// Admit implements Guard.
func (s *Store) Admit(ctx context.Context, cert *x509.Certificate) (Peer, error) {
	return s.registry.Admit(ctx, cert)
}

// Enrol implements Guard.
func (s *Store) Enrol(ctx context.Context, req EnrolRequest) (EnrolReply, error) {
	reply, err := s.registry.Enrol(ctx, req)
	if err == nil || errors.Is(err, errLaterPrimary) { // the request is of a cluster that was invited
		if failed := s.meet(ctx, req.Latest); failed != nil {
			s.log.Error("a primary that a secondary knows of was not noted", "epoch", req.Latest.Number, "primary", req.Latest.ClusterID, "err", failed)
		}
	}
	return reply, err
}

// Renew implements Guard.
func (s *Store) Renew(ctx context.Context, p Peer, csr []byte) ([]byte, error) {
	return s.registry.Renew(ctx, p, csr)
}

// CallFilter is the kind of call by which a secondary asks its primary for its filter.
const CallFilter = "filter"

// Answer answers the calls of a secondary that this package knows.
func (s *Store) Answer(ctx context.Context, p Peer, kind string, _ []byte) ([]byte, storage.Index, error) {
	if kind != CallFilter {
		return nil, 0, engines.Invalid("unknown kind of call")
	}
	found, err := readFilters(ctx, s.store, p.ID, p.ClusterID)
	if err != nil {
		return nil, 0, err
	}
	if len(found) == 0 {
		return encoded(nil), 0, nil
	}
	scope, err := s.resolve(ctx, found[0])
	if err != nil {
		return nil, 0, err
	}
	return encoded(handOver(found[0], &scope)), 0, nil
}
