package port

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/cluster/certs"
)

// Identity is this node's certificate and what it goes by when others show theirs. Safe for concurrent use.
type Identity struct {
	id        certs.NodeID
	key       *ecdsa.PrivateKey
	Public    []byte
	name      string                   // common name in a certificate that this node issues to itself
	authority func() (certs.CA, error) // the CA with its key, for a node that is not registered
	Wire      func(net.Conn) net.Conn
	self      string // ALPN name that only this process asks for, in connections to itself

	mu     sync.Mutex
	member func(certs.NodeID) bool // in Raft's configuration; nil: not known yet
	goesBy *certs.Trust
	cert   *tls.Certificate // nil: to be made
	open   map[*Conn]bool   // with other nodes
	issued map[string]bool  // certificates, DER, that were verified to be issued under trust
}

// NewIdentity returns the identity of a node with a private key, or a new one if that is nil, which goes by trust. authority returns the CA
// with its key, for a node that is not registered.
func NewIdentity(id certs.NodeID, private []byte, trust *certs.Trust, authority func() (certs.CA, error)) (*Identity, error) {
	name := certs.LastingName
	if private == nil {
		name = certs.PassingName
		var err error
		if private, _, err = certs.NewKey(); err != nil {
			return nil, err
		}
	}
	parsed, err := x509.ParsePKCS8PrivateKey(private)
	if err != nil {
		return nil, errors.New("the node's key is unusable")
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the node's key is of an unknown type")
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	i := &Identity{
		id: id, key: key, Public: public, name: name, goesBy: trust, authority: authority, Wire: func(c net.Conn) net.Conn { return c },
		self: "coffer-self-" + rand.Text(), open: map[*Conn]bool{}, issued: map[string]bool{}}
	_, err = i.Current()
	return i, err
}

// Current returns this node's certificate: the one it is registered with or, until it is, one by the CA, whose key
// then shows that this node could open the cluster's state.
func (i *Identity) Current() (*tls.Certificate, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	registered := i.goesBy.Has(i.id, i.Public)
	if i.cert != nil && (registered || time.Until(i.cert.Leaf.NotAfter) > certs.LeafRenewal) {
		return i.cert, nil
	}
	var cert tls.Certificate
	if registered {
		leaf, err := x509.ParseCertificate(i.goesBy.Members[i.id].Certificate)
		if err != nil {
			return nil, fmt.Errorf("this node's certificate: %w", err)
		}
		cert = tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: i.key, Leaf: leaf}
	} else {
		ca, err := i.authority()
		if err != nil {
			return nil, fmt.Errorf("this node has no certificate yet: %w", err)
		}
		if cert, err = ca.IssueTo(i.id, i.key, i.name); err != nil {
			return nil, err
		}
	}
	cert.Certificate = append(cert.Certificate, i.goesBy.Successors...)
	i.cert = &cert
	return i.cert, nil
}

// AdmitOnly sets how a node that is not registered tells who is a member.
func (i *Identity) AdmitOnly(member func(certs.NodeID) bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.member = member
}

// Trust returns what the node goes by.
func (i *Identity) Trust() *certs.Trust {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.goesBy
}

// Adopt goes by t from now on, and closes the connections that it does not allow. What is older than what the node
// goes by changes nothing: a restored snapshot brings no member back.
func (i *Identity) Adopt(t *certs.Trust) (adopted bool) {
	i.mu.Lock()
	if t.Generation <= i.goesBy.Generation {
		i.mu.Unlock()
		return false
	}
	i.goesBy, i.cert, i.issued = t, nil, map[string]bool{}
	var open []*Conn
	for c := range i.open {
		open = append(open, c)
	}
	i.mu.Unlock()
	for _, c := range open {
		if _, err := i.check(c.Certs); err != nil {
			c.Close()
		}
	}
	return true
}

// check returns the node that shows these certificates, if it is a member.
//
// The registered key decides. A node that is not registered here may have joined while this one was away: then its
// certificate is of the CA that this node knows, or of one that succeeded it. Each removal replaces the CA, so no
// node that this one knows to be removed has such a certificate. The same holds for a member that joined again with a
// new key. A node that is not registered itself cannot go by the register, which is of other nodes or older than it:
// it goes by the CA and by Raft's configuration.
func (i *Identity) check(shown []*x509.Certificate) (certs.NodeID, error) {
	if len(shown) == 0 {
		return "", errors.New("no certificate was shown")
	}
	id, key := certs.NodeOf(shown[0]), shown[0].RawSubjectPublicKeyInfo
	i.mu.Lock()
	t, member, issued := i.goesBy, i.member, i.issued[string(shown[0].Raw)]
	i.mu.Unlock()
	switch {
	case id == "":
		return "", errors.New("the certificate names no node")
	case id == i.id && slices.Equal(key, i.Public), t.Has(id, key), issued && time.Now().Before(shown[0].NotAfter):
		return id, nil
	}
	successions, err := t.Issuer(shown, time.Now())
	_, known := t.Members[id]
	switch {
	case err != nil:
		return "", err
	case len(t.Members) > 0 && !t.Has(i.id, i.Public):
		if member == nil || !member(id) {
			return "", fmt.Errorf("%q is not a member", id)
		}
	case known && successions == 0:
		return "", fmt.Errorf("another key is registered for %q", id)
	case slices.Contains(t.Removed, id) && successions == 0:
		return "", fmt.Errorf("%q was removed", id)
	default:
		i.mu.Lock()
		if i.goesBy == t {
			i.issued[string(shown[0].Raw)] = true
		}
		i.mu.Unlock()
	}
	return id, nil
}

// server returns the configuration of the listener: only nodes of this cluster, only the given protocols.
func (i *Identity) server(protocols []string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             protocols,
		ClientAuth:             tls.RequireAnyClientCert, // check is stricter than a pool
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.Current() },
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := i.check(s.PeerCertificates)
			return err
		},
	}
}

// Client returns the configuration for dialling one node. Another node that answers at its address, after an
// address was reused, is rejected: what is said to one voter must not be counted for another.
func (i *Identity) Client(to certs.NodeID, protocol string) *tls.Config {
	protocols := []string{protocol}
	if to == i.id {
		protocols = append(protocols, i.self)
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           protocols,
		ServerName:           certs.CertName(to),
		InsecureSkipVerify:   true, // #nosec G402 -- VerifyConnection does, by the register of members
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.Current() },
		VerifyConnection: func(s tls.ConnectionState) error {
			id, err := i.check(s.PeerCertificates)
			if err == nil && id != to {
				err = fmt.Errorf("%q answers in place of %q", id, to)
			}
			return err
		},
	}
}

// Conn is a TCP connection below TLS. Once it is admitted it ends when its peer ceases to be a member.
type Conn struct {
	net.Conn
	identity *Identity
	Certs    []*x509.Certificate
	self     bool // it is a connection of this process to itself
	Closed   atomic.Bool
}

// admit checks the peer, now and whenever the register of members changes.
func (c *Conn) admit(shown []*x509.Certificate) error {
	c.Certs = shown
	c.identity.mu.Lock()
	c.identity.open[c] = true
	c.identity.mu.Unlock()
	if _, err := c.identity.check(shown); err != nil { // the register may have changed since the handshake
		c.Close()
		return err
	}
	return nil
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.Closed.Store(true)
	c.identity.mu.Lock()
	delete(c.identity.open, c)
	c.identity.mu.Unlock()
	return c.Conn.Close()
}

// Dial opens a connection to one node for one protocol.
func (i *Identity) Dial(ctx context.Context, to certs.NodeID, addr, protocol string) (*tls.Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	below := &Conn{Conn: i.Wire(raw), identity: i}
	c := tls.Client(below, i.Client(to, protocol))
	err = c.HandshakeContext(ctx)
	if err == nil && c.ConnectionState().NegotiatedProtocol != protocol {
		err = errors.New("the other side does not speak " + protocol)
	}
	if err == nil {
		err = below.admit(c.ConnectionState().PeerCertificates)
	}
	if err != nil {
		below.Close()
		return nil, err
	}
	return c, nil
}
