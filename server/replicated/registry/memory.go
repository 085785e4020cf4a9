package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"time"

	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/storage"
)

// Why a certificate that the CA has signed is refused.
var (
	ErrRevoked  = errors.New("the secondary was revoked: it needs a new activation token")
	ErrStranger = errors.New("the certificate is of no secondary that this primary knows")
)

var errNoCA = errors.New("the replication CA is missing")

// table is what is stored, in memory. It is not modified.
type table struct {
	ca          *enrol.CA // nil: none
	pool        *x509.CertPool
	fingerprint string            // of the CA
	secondaries map[string]record // by opaque id
	clusters    map[string]string // opaque ids of the active ones, by cluster id
}

// serverCert is this node's certificate. Not modified.
type serverCert struct {
	cert tls.Certificate
	ca   string // fingerprint of the CA that signed it
}

// Changed makes the registry forget what a change may have made wrong. Give it every Change of the feed, on every node.
func (r *Registry) Changed(ch storage.Change) {
	if ch.Touches(registry, CAKey) {
		r.forget()
	}
}

// Clear forgets everything, for instance when the server seals.
func (r *Registry) Clear() {
	r.forget()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = nil
}

func (r *Registry) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.table = nil
	r.changes++
}

// load returns the table, from memory if it is there.
func (r *Registry) load(ctx context.Context) (*table, error) {
	r.mu.Lock()
	t, before := r.table, r.changes
	r.mu.Unlock()
	if t != nil {
		return t, nil
	}
	t, err := r.readTable(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changes == before {
		r.table = t
	}
	return t, nil
}

// readTable reads everything. A record that this build does not understand is left out: its secondary is a stranger.
func (r *Registry) readTable(ctx context.Context) (*table, error) {
	t := &table{secondaries: map[string]record{}, clusters: map[string]string{}}
	ca, err := entry.Fetch[storedCA](ctx, r.opts.Store, CAKey)
	switch {
	case err == nil:
		cert, err := enrol.ParseCA(ca.Cert)
		if err != nil {
			return nil, err
		}
		t.ca, t.pool, t.fingerprint = &ca.CA, x509.NewCertPool(), enrol.Fingerprint(cert)
		t.pool.AddCert(cert)
	case !errors.Is(err, storage.ErrNotFound):
		return nil, err
	}
	entries, err := r.opts.Store.Scan(ctx, registry, "", 0)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		rec, err := entry.Decode[record](e)
		if err != nil || secondaryKey(rec.ID) != e.Key {
			r.log.Error("a secondary is not admitted, its record cannot be read", "key", e.Key, "err", err)
			continue
		}
		t.secondaries[rec.ID] = rec
		if rec.State == Active {
			t.clusters[rec.ClusterID] = rec.ID
		}
	}
	return t, nil
}

// Find returns the secondary that an id means: its own or that of its cluster. A zero one if there is none.
func (r *Registry) Find(ctx context.Context, id string) (roles.Peer, error) {
	t, err := r.load(ctx)
	if err != nil {
		return roles.Peer{}, err
	}
	p, known := t.secondaries[id]
	if !known {
		p = t.secondaries[t.clusters[id]]
	}
	return roles.Peer{ID: p.ID, ClusterID: p.ClusterID}, nil
}

// Admit answers link.Admission. It reads nothing from storage unless something has changed since it did last. The caller has
// verified the certificate against the pool of ServerTLS. ErrRevoked, ErrStranger.
func (r *Registry) Admit(ctx context.Context, cert *x509.Certificate) (roles.Peer, error) {
	s, err := enrol.Identify(cert)
	if err != nil {
		return roles.Peer{}, ErrStranger
	}
	t, err := r.load(ctx)
	if err != nil {
		return roles.Peer{}, err
	}
	rec, ok := t.secondaries[s.ID]
	switch {
	case !ok:
		return roles.Peer{}, ErrStranger
	case rec.State != Active || rec.Enrolment != s.Enrolment || rec.ClusterID != s.ClusterID:
		return roles.Peer{}, ErrRevoked // or enrolled again since, which needs the revocation
	}
	return roles.Peer{ID: rec.ID, ClusterID: rec.ClusterID}, nil
}

// ServerTLS answers link.Admission. The certificate lives in memory only and is replaced in time.
func (r *Registry) ServerTLS(ctx context.Context) (*tls.Certificate, *x509.CertPool, error) {
	role, err := roles.Read(ctx, r.opts.Store)
	if err == nil && role.Mode != roles.Primary && !role.Demoted { // a demoted one lets its secondaries have the rest
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	t, err := r.load(ctx)
	if err != nil {
		return nil, nil, err
	}
	if t.ca == nil {
		return nil, nil, errNoCA
	}
	cert, err := r.serverCert(t)
	if err != nil {
		return nil, nil, err
	}
	return &cert.cert, t.pool, nil
}

// serverRenewal is how long before its end a server's certificate is replaced: connections outlive it.
const serverRenewal = enrol.CertLifetime / 2

func (r *Registry) serverCert(t *table) (*serverCert, error) {
	now := r.now()
	fits := func(c *serverCert) bool {
		return c != nil && c.ca == t.fingerprint && c.cert.Leaf.NotAfter.Sub(now) > serverRenewal && c.cert.Leaf.NotBefore.Before(now.Add(time.Second))
	}
	r.mu.Lock()
	c := r.server
	r.mu.Unlock()
	if fits(c) {
		return c, nil
	}
	cert, err := t.ca.Issue(now)
	if err != nil {
		return nil, err
	}
	c = &serverCert{cert: cert, ca: t.fingerprint}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = c
	return c, nil
}
