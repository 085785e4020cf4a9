package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"time"
)

const (
	caLifetime   = 30 * 365 * 24 * time.Hour
	leafLifetime = 24 * time.Hour
	leafRenewal  = 8 * time.Hour // before the end
	clockSkew    = time.Hour     // between nodes, tolerated

	// idSuffix makes a node id a DNS name that exists nowhere else.
	idSuffix = ".node.coffer.internal"
)

// CA is the authority of one cluster: whoever holds its key can make itself a node. It prints without the key.
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
func NewCA() (CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return CA{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: "Coffer cluster CA"},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caLifetime),
		IsCA:                  true,
		MaxPathLenZero:        true,
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

// Issue makes a certificate for one node, good for a day, with a key of its own.
func (c CA) Issue(id NodeID) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(c.Cert, c.Key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("the cluster CA is unusable: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: newSerial(),
		Subject:      pkix.Name{CommonName: "Coffer node"},
		DNSNames:     []string{certName(id)},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(leafLifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, pair.Leaf, key.Public(), pair.PrivateKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

func newSerial() *big.Int {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand does not fail
	}
	return serial
}

// certName is the name in a node's certificate. Ids may hold any byte, so it is written in hexadecimal, in
// labels of at most 60 characters.
func certName(id NodeID) string {
	var b strings.Builder
	for i := range len(id) {
		if i > 0 && i%30 == 0 {
			b.WriteByte('.')
		}
		b.WriteString(hex.EncodeToString([]byte{id[i]}))
	}
	return b.String() + idSuffix
}

// nodeOf returns the node a certificate was issued to. "" is nobody.
func nodeOf(cert *x509.Certificate) NodeID {
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

// identity is this node's certificate, renewed in time, and what it trusts. Safe for concurrent use.
type identity struct {
	id   NodeID
	ca   CA
	pool *x509.CertPool

	mu   sync.Mutex
	cert *tls.Certificate
}

func newIdentity(id NodeID, ca CA) (*identity, error) {
	i := &identity{id: id, ca: ca, pool: x509.NewCertPool()}
	if !i.pool.AppendCertsFromPEM(ca.Cert) {
		return nil, errors.New("the cluster CA holds no certificate")
	}
	_, err := i.current()
	return i, err
}

func (i *identity) current() (*tls.Certificate, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.cert != nil && time.Until(i.cert.Leaf.NotAfter) > leafRenewal {
		return i.cert, nil
	}
	cert, err := i.ca.Issue(i.id)
	if err != nil {
		return nil, err
	}
	i.cert = &cert
	return i.cert, nil
}

// server returns the configuration of the listener: only nodes of this cluster, only the given protocols.
func (i *identity) server(protocols []string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             protocols,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              i.pool,
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.current() },
		VerifyConnection: func(s tls.ConnectionState) error {
			if nodeOf(s.PeerCertificates[0]) == "" {
				return errors.New("the certificate names no node")
			}
			return nil
		},
	}
}

// client returns the configuration for dialling one node. Another node that answers at its address, after an
// address was reused, is refused: what is said to one voter must not be counted for another.
func (i *identity) client(to NodeID, protocol string) *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           []string{protocol},
		RootCAs:              i.pool,
		ServerName:           certName(to),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.current() },
	}
}
