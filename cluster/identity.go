package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
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
)

// NewKey makes the key of a node, which it keeps for as long as it is a member. private is a secret.
func NewKey() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if private, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return nil, nil, err
	}
	public, err = x509.MarshalPKIXPublicKey(key.Public())
	return private, public, err
}

// identity is this node's certificate and what it goes by when others show theirs. Safe for concurrent use.
type identity struct {
	id        NodeID
	key       *ecdsa.PrivateKey
	public    []byte
	name      string             // common name in a certificate that this node issues to itself
	authority func() (CA, error) // the CA with its key, for a node that is not registered
	wire      func(net.Conn) net.Conn
	self      string // ALPN name that only this process asks for, in connections to itself

	mu     sync.Mutex
	member func(NodeID) bool // in Raft's configuration; nil: not known yet
	trust  *Trust
	cert   *tls.Certificate // nil: to be made
	open   map[*conn]bool   // with other nodes
	issued map[string]bool  // certificates, DER, that were verified to be issued under trust
}

func newIdentity(id NodeID, private []byte, trust *Trust, authority func() (CA, error)) (*identity, error) {
	name := lastingName
	if private == nil {
		name = passingName
		var err error
		if private, _, err = NewKey(); err != nil {
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
	i := &identity{
		id: id, key: key, public: public, name: name, trust: trust, authority: authority, wire: func(c net.Conn) net.Conn { return c },
		self: "coffer-self-" + rand.Text(), open: map[*conn]bool{}, issued: map[string]bool{}}
	_, err = i.current()
	return i, err
}

// current returns this node's certificate: the one it is registered with or, until it is, one by the CA, whose key
// then shows that this node could open the cluster's state.
func (i *identity) current() (*tls.Certificate, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	registered := i.trust.has(i.id, i.public)
	if i.cert != nil && (registered || time.Until(i.cert.Leaf.NotAfter) > leafRenewal) {
		return i.cert, nil
	}
	var cert tls.Certificate
	if registered {
		leaf, err := x509.ParseCertificate(i.trust.Members[i.id].Certificate)
		if err != nil {
			return nil, fmt.Errorf("this node's certificate: %w", err)
		}
		cert = tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: i.key, Leaf: leaf}
	} else {
		ca, err := i.authority()
		if err != nil {
			return nil, fmt.Errorf("this node has no certificate yet: %w", err)
		}
		if cert, err = ca.issueTo(i.id, i.key, i.name); err != nil {
			return nil, err
		}
	}
	cert.Certificate = append(cert.Certificate, i.trust.Successors...)
	i.cert = &cert
	return i.cert, nil
}

// admitOnly sets how a node that is not registered tells who is a member.
func (i *identity) admitOnly(member func(NodeID) bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.member = member
}

// goBy returns what the node goes by.
func (i *identity) goBy() *Trust {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.trust
}

// adopt goes by t from now on, and closes the connections that it does not allow. What is older than what the node
// goes by changes nothing: a restored snapshot brings nobody back.
func (i *identity) adopt(t *Trust) (adopted bool) {
	i.mu.Lock()
	if t.Generation <= i.trust.Generation {
		i.mu.Unlock()
		return false
	}
	i.trust, i.cert, i.issued = t, nil, map[string]bool{}
	var open []*conn
	for c := range i.open {
		open = append(open, c)
	}
	i.mu.Unlock()
	for _, c := range open {
		if _, err := i.check(c.certs); err != nil {
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
func (i *identity) check(certs []*x509.Certificate) (NodeID, error) {
	if len(certs) == 0 {
		return "", errors.New("no certificate was shown")
	}
	id, key := nodeOf(certs[0]), certs[0].RawSubjectPublicKeyInfo
	i.mu.Lock()
	t, member, issued := i.trust, i.member, i.issued[string(certs[0].Raw)]
	i.mu.Unlock()
	switch {
	case id == "":
		return "", errors.New("the certificate names no node")
	case id == i.id && slices.Equal(key, i.public), t.has(id, key), issued && time.Now().Before(certs[0].NotAfter):
		return id, nil
	}
	successions, err := t.issuer(certs, time.Now())
	_, known := t.Members[id]
	switch {
	case err != nil:
		return "", err
	case len(t.Members) > 0 && !t.has(i.id, i.public):
		if member == nil || !member(id) {
			return "", fmt.Errorf("%q is not a member", id)
		}
	case known && successions == 0:
		return "", fmt.Errorf("another key is registered for %q", id)
	case slices.Contains(t.Removed, id) && successions == 0:
		return "", fmt.Errorf("%q was removed", id)
	default:
		i.mu.Lock()
		if i.trust == t {
			i.issued[string(certs[0].Raw)] = true
		}
		i.mu.Unlock()
	}
	return id, nil
}

// server returns the configuration of the listener: only nodes of this cluster, only the given protocols.
func (i *identity) server(protocols []string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             protocols,
		ClientAuth:             tls.RequireAnyClientCert, // check is stricter than a pool
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.current() },
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := i.check(s.PeerCertificates)
			return err
		},
	}
}

// client returns the configuration for dialling one node. Another node that answers at its address, after an
// address was reused, is rejected: what is said to one voter must not be counted for another.
func (i *identity) client(to NodeID, protocol string) *tls.Config {
	protocols := []string{protocol}
	if to == i.id {
		protocols = append(protocols, i.self)
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           protocols,
		ServerName:           certName(to),
		InsecureSkipVerify:   true, // #nosec G402 -- VerifyConnection does, by the register of members
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.current() },
		VerifyConnection: func(s tls.ConnectionState) error {
			id, err := i.check(s.PeerCertificates)
			if err == nil && id != to {
				err = fmt.Errorf("%q answers in place of %q", id, to)
			}
			return err
		},
	}
}

// conn is a TCP connection below TLS. Once it is admitted it ends when its peer ceases to be a member.
type conn struct {
	net.Conn
	who    *identity
	certs  []*x509.Certificate
	self   bool // it is a connection of this process to itself
	closed atomic.Bool
}

// admit checks the peer, now and whenever the register of members changes.
func (c *conn) admit(certs []*x509.Certificate) error {
	c.certs = certs
	c.who.mu.Lock()
	c.who.open[c] = true
	c.who.mu.Unlock()
	if _, err := c.who.check(certs); err != nil { // the register may have changed since the handshake
		c.Close()
		return err
	}
	return nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.closed.Store(true)
	c.who.mu.Lock()
	delete(c.who.open, c)
	c.who.mu.Unlock()
	return c.Conn.Close()
}
