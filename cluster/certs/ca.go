// Package certs has the certificates of a cluster's nodes: the CA that issues them, and Trust, the register that says which key each
// member has. It holds no connections and no state of its own; a node's use of them is package port's.
//
// Each removal of a member replaces the CA, as the member may know its key; the old CA vouches for the new one, so that nodes that
// were away find their way. Start reading at Trust and CA.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"time"
)

const (
	CALifetime   = 365 * 24 * time.Hour
	CARenewal    = CALifetime / 3 // before the end
	leafLifetime = 7 * 24 * time.Hour
	LeafRenewal  = leafLifetime / 2 // before the end
	clockSkew    = time.Hour        // between nodes, tolerated

	// Common names in the certificates of nodes: whose key lasts, and of those that make a new key at each start, as
	// earlier versions did.
	LastingName = "Coffer cluster node"
	PassingName = "Coffer node"

	// idSuffix makes a node id a DNS name that exists nowhere else.
	idSuffix = ".node.coffer.internal"
)

// NodeID names a node for its whole life. It survives restarts and a change of address.
type NodeID string

// MaxIDBytes is how long an id may be.
const MaxIDBytes = 64

// CA is the authority of one cluster: it issues the certificates of nodes. It prints without the key.
type CA struct {
	Cert []byte // PEM
	Key  []byte // PEM, secret
}

// String implements fmt.Stringer.
func (CA) String() string { return "cluster CA" }

// GoString implements fmt.GoStringer.
func (c CA) GoString() string { return c.String() }

// LogValue implements slog.LogValuer.
func (c CA) LogValue() slog.Value { return slog.StringValue(c.String()) }

// NewCA makes a CA with a new P-256 key.
func NewCA() (CA, error) { return NewCAFor(CALifetime) }

// NewCAFor is NewCA with another lifetime, for tests.
func NewCAFor(lifetime time.Duration) (CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return CA{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: "Coffer cluster CA"},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(lifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return CA{}, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return CA{}, err
	}
	return CA{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}, nil
}

// Issue makes a certificate for one node with a new key of its own.
func (c CA) Issue(id NodeID) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	return c.IssueTo(id, key, PassingName)
}

// IssueTo makes a certificate for one node with this key. name is its common name.
func (c CA) IssueTo(id NodeID, key *ecdsa.PrivateKey, name string) (tls.Certificate, error) {
	der, err := c.sign(id, key.Public(), name)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// sign makes the certificate, DER, of a node with this public key.
func (c CA) sign(id NodeID, public any, name string) ([]byte, error) {
	pair, err := tls.X509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("the cluster CA is unusable: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: newSerial(),
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{CertName(id)},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(leafLifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	return x509.CreateCertificate(rand.Reader, template, pair.Leaf, public, pair.PrivateKey)
}

// vouch makes a certificate, DER, by which this CA says that next is its successor.
func (c CA) vouch(next *x509.Certificate) ([]byte, error) {
	pair, err := tls.X509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("the cluster CA is unusable: %w", err)
	}
	template := *next
	template.SerialNumber, template.MaxPathLen, template.MaxPathLenZero = newSerial(), 0, false
	return x509.CreateCertificate(rand.Reader, &template, pair.Leaf, next.PublicKey, pair.PrivateKey)
}

func newSerial() *big.Int {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand does not fail
	}
	return serial
}

// CertName is the name in a node's certificate. Ids may hold any byte, so it is written in hexadecimal, in
// labels of at most 60 characters.
func CertName(id NodeID) string {
	var b strings.Builder
	for i := range len(id) {
		if i > 0 && i%30 == 0 {
			b.WriteByte('.')
		}
		b.WriteString(hex.EncodeToString([]byte{id[i]}))
	}
	return b.String() + idSuffix
}

// NodeOf returns the node a certificate was issued to; "" if it names none.
func NodeOf(cert *x509.Certificate) NodeID {
	if len(cert.DNSNames) != 1 {
		return ""
	}
	encoded, ok := strings.CutSuffix(cert.DNSNames[0], idSuffix)
	if !ok {
		return ""
	}
	id, err := hex.DecodeString(strings.ReplaceAll(encoded, ".", ""))
	if err != nil {
		return ""
	}
	return NodeID(id)
}

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
