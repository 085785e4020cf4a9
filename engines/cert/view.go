package cert

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// view is what is stored, parsed. It is not changed once it is there.
type view struct {
	version uint64
	roles   []*trusting // by name
	cas     []*x509.Certificate
	roots   *x509.CertPool // of cas
	revoked map[revocation]bool
}

// trusting is a role with what it trusts.
type trusting struct {
	*role
	name   string
	certs  []*x509.Certificate
	pinned bool // certs is one client's certificate
	roots  *x509.CertPool
}

// issuer is the hash of an issuer's name in DER.
type issuer [sha256.Size]byte

// revocation is a certificate that a list revokes.
type revocation struct {
	issuer issuer
	serial string // decimal
}

func issuerOf(c *x509.Certificate) issuer { return sha256.Sum256(c.RawIssuer) }

// current returns the view of what is stored now.
func (e *engine) current(ctx context.Context, s storage.Reader) (*view, error) {
	if v := e.view.Load(); v != nil && v.version == e.version.Load() {
		return v, nil
	}
	e.loading.Lock()
	defer e.loading.Unlock()
	version := e.version.Load()
	if v := e.view.Load(); v != nil && v.version == version {
		return v, nil
	}
	v := &view{version: version, roots: x509.NewCertPool(), revoked: map[revocation]bool{}}
	if err := v.addRoles(ctx, s); err != nil {
		return nil, err
	}
	if err := v.addLists(ctx, s); err != nil {
		return nil, err
	}
	e.view.Store(v)
	return v, nil
}

func (v *view) addRoles(ctx context.Context, s storage.Reader) error {
	names, err := s.List(ctx, rolePrefix, "", 0)
	if err != nil {
		return err
	}
	known := map[[sha256.Size]byte]bool{}
	for _, name := range names {
		ro, err := getRole(ctx, s, name)
		if err != nil {
			return err
		}
		if ro == nil {
			continue
		}
		t := &trusting{role: ro, name: name, roots: x509.NewCertPool()}
		if t.certs, t.pinned, err = ro.trusted(); err != nil {
			return fmt.Errorf("reading the certificate of role %q: %w", name, err)
		}
		v.roles = append(v.roles, t)
		if t.pinned {
			continue
		}
		for _, c := range t.certs {
			t.roots.AddCert(c)
			v.roots.AddCert(c)
			if sum := sha256.Sum256(c.Raw); !known[sum] {
				known[sum] = true
				v.cas = append(v.cas, c)
			}
		}
	}
	slices.SortFunc(v.roles, func(a, b *trusting) int { return strings.Compare(a.name, b.name) })
	return nil
}

func (v *view) addLists(ctx context.Context, s storage.Reader) error {
	names, err := s.List(ctx, crlPrefix, "", 0)
	if err != nil {
		return err
	}
	for _, name := range names {
		l, err := getCRL(ctx, s, name)
		if err != nil {
			return fmt.Errorf("reading revocation list %q: %w", name, err)
		}
		if l == nil {
			continue
		}
		of := issuer(sha256.Sum256(l.RawIssuer))
		for _, e := range l.RevokedCertificateEntries {
			v.revoked[revocation{of, e.SerialNumber.String()}] = true
		}
	}
	return nil
}

func (v *view) isRevoked(c *x509.Certificate) bool {
	return v.revoked[revocation{issuerOf(c), c.SerialNumber.String()}]
}

// maxSerialBits is more than any serial number has (RFC 5280, 4.1.2.2): writing a long one in decimals takes long.
const maxSerialBits = 1024

// What keeps a certificate from logging in. Clients are not told.
var (
	errNone    = errors.New("the client has shown no certificate")
	errMany    = fmt.Errorf("the client has sent more than %d certificates", engines.MaxCertificates)
	errSerial  = errors.New("the client has sent a certificate with a serial number that is too long")
	errNoRole  = errors.New("no such role")
	errRevoked = errors.New("a certificate of the chain is revoked")
)

// match returns the first role that accepts what a client has shown, of those with a name, or of all if that is "".
// The cost is bounded whatever the client has sent: x509 limits the signatures that it checks for one chain.
func (v *view) match(shown []*x509.Certificate, name string, now time.Time) (*trusting, error) {
	switch {
	case len(shown) == 0:
		return nil, errNone
	case len(shown) > engines.MaxCertificates:
		return nil, errMany
	case slices.ContainsFunc(shown, func(c *x509.Certificate) bool { return c.SerialNumber.BitLen() > maxSerialBits }):
		return nil, errSerial
	}
	roles, roots := v.roles, v.roots
	if name != "" {
		i := slices.IndexFunc(roles, func(t *trusting) bool { return t.name == name })
		if i < 0 {
			return nil, errNoRole
		}
		roles, roots = roles[i:i+1], roles[i].roots
	}
	chains, failure := verify(shown, roots, now)
	if chains != nil {
		chains = slices.DeleteFunc(chains, func(chain []*x509.Certificate) bool { return slices.ContainsFunc(chain, v.isRevoked) })
		if failure = errNoRole; len(chains) == 0 {
			failure = errRevoked
		}
	}
	for _, t := range roles {
		if !t.accepts(shown[0], chains, now) {
			continue
		}
		if v.isRevoked(shown[0]) {
			return nil, errRevoked
		}
		unmet := t.met(shown[0])
		if unmet == "" {
			return t, nil
		}
		failure = fmt.Errorf("%s of role %q", unmet, t.name)
	}
	return nil, failure
}

// verify returns the chains from what was shown to one of the roots.
func verify(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) ([][]*x509.Certificate, error) {
	sent := x509.NewCertPool()
	for _, c := range shown[1:] {
		sent.AddCert(c)
	}
	return shown[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: sent, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// accepts reports whether the role trusts a certificate, given the chains from it to CAs.
func (t *trusting) accepts(leaf *x509.Certificate, chains [][]*x509.Certificate, now time.Time) bool {
	if t.pinned {
		return leaf.Equal(t.certs[0]) && !now.Before(leaf.NotBefore) && !now.After(leaf.NotAfter)
	}
	return slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool {
		return slices.ContainsFunc(t.certs, chain[len(chain)-1].Equal)
	})
}
