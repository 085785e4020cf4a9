// Package enrol is the cryptography by which a cluster becomes the secondary of another: the replication CA, the
// certificates of both sides, the activation token, and the bundle of what a secondary needs for its first call.
//
// It promises that a private key never leaves the cluster that made it, that no foreign bytes are relied on before
// their size and form are checked, and that a certificate names one enrolment of one cluster, so that a registry can
// refuse it. It keeps nothing, knows no network, and takes the time from its caller. The bundle reaches the secondary in
// one of two ways: wrapped at the primary's API, with a signed Claims token that says where (token.go), or encrypted to a
// public key of the secondary (bundle.go). Start reading at CA, then Subject.
package enrol

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"time"
)

// Lifetimes. ClockSkew is how far the clocks of two clusters may be apart.
const (
	CALifetime   = 30 * 365 * 24 * time.Hour
	CertLifetime = 7 * 24 * time.Hour
	ClockSkew    = time.Hour
)

// ServerName is the name in every server certificate: a secondary checks it, together with the CA, whatever address it
// has dialled.
const ServerName = "primary.replication.coffer.internal"

// maxPEMBytes limits a CA or a certificate in PEM, maxRequestBytes a certificate request in DER.
const (
	maxPEMBytes     = 64 << 10
	maxRequestBytes = 16 << 10
)

// CA is the authority of one primary: a holder of its key can make itself a secondary. It prints without the key.
type CA struct {
	Cert []byte `json:"cert"` // PEM
	Key  []byte `json:"key"`  // PEM, secret
}

// String implements fmt.Stringer.
func (CA) String() string { return "replication CA" }

// GoString implements fmt.GoStringer.
func (c CA) GoString() string { return c.String() }

// LogValue implements slog.LogValuer.
func (c CA) LogValue() slog.Value { return slog.StringValue(c.String()) }

// NewCA makes a CA with a new P-256 key.
func NewCA(now time.Time) (CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return CA{}, err
	}
	serial := newSerial()
	template := &x509.Certificate{
		SerialNumber: serial,
		// A name of its own lets a pool find the one that signed among several.
		Subject:               pkix.Name{CommonName: "Coffer replication CA " + serial.Text(36)},
		NotBefore:             now.Add(-ClockSkew),
		NotAfter:              now.Add(CALifetime),
		IsCA:                  true,
		MaxPathLenZero:        true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return CA{}, err
	}
	private, err := encodeKey(key)
	if err != nil {
		return CA{}, err
	}
	return CA{Cert: encodeCert(der), Key: private}, nil
}

// Issue makes a server certificate for one node, with a key of its own.
func (c CA) Issue(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "Coffer primary"},
		DNSNames:    []string{ServerName},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := c.sign(template, &key.PublicKey, now)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// SignCSR makes a client certificate, in PEM, for the key of a certificate request in DER. Of the request it takes the
// key and nothing else. ErrRequest: it is not a request that was signed with a P-256 key.
func (c CA) SignCSR(csr []byte, s Subject, now time.Time) ([]byte, error) {
	key, err := requestKey(csr)
	if err != nil {
		return nil, err
	}
	name, err := s.uri()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "Coffer secondary"},
		URIs:        name,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := c.sign(template, key, now)
	if err != nil {
		return nil, err
	}
	return encodeCert(der), nil
}

// sign completes the template of a leaf certificate and signs it.
func (c CA) sign(template *x509.Certificate, key *ecdsa.PublicKey, now time.Time) ([]byte, error) {
	pair, err := tls.X509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("the replication CA is unusable: %w", err)
	}
	template.SerialNumber = newSerial()
	template.NotBefore = now.Add(-ClockSkew)
	template.NotAfter = now.Add(CertLifetime)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	return x509.CreateCertificate(rand.Reader, template, pair.Leaf, key, pair.PrivateKey)
}

// ErrRequest says that a certificate request cannot be used.
var ErrRequest = errors.New("the certificate request is not one that is signed with a P-256 key")

// requestKey returns the key of a certificate request, which the sender has proved to hold.
func requestKey(der []byte) (*ecdsa.PublicKey, error) {
	if len(der) > maxRequestBytes {
		return nil, ErrRequest
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil || csr.CheckSignature() != nil {
		return nil, ErrRequest
	}
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, ErrRequest
	}
	return key, nil
}

// RequestKey returns the SHA-256 of the key of a certificate request, in hexadecimal. ErrRequest as in SignCSR.
func RequestKey(csr []byte) (string, error) {
	key, err := requestKey(csr)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", ErrRequest
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

// NewCSR makes a fresh P-256 key, in PEM, and a certificate request for it, in DER.
func NewCSR() (csr, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if key, err = encodeKey(private); err != nil {
		return nil, nil, err
	}
	csr, err = CSRFor(key)
	return csr, key, err
}

// CSRFor makes a certificate request for a key that NewCSR has made.
func CSRFor(key []byte) (csr []byte, err error) {
	block, _ := pem.Decode(key)
	if block == nil {
		return nil, errors.New("the key is not in PEM")
	}
	private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("the key is malformed")
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "Coffer secondary"}}
	return x509.CreateCertificateRequest(rand.Reader, template, private)
}

// ParseCA returns the certificate of a CA from PEM: exactly one, of a CA with a P-256 key.
func ParseCA(text []byte) (*x509.Certificate, error) {
	if len(text) > maxPEMBytes {
		return nil, errors.New("the CA certificate is too large")
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the CA is not exactly one certificate in PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, errors.New("the CA's certificate is malformed")
	}
	if key, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() || !cert.IsCA {
		return nil, errors.New("the certificate is not that of a replication CA")
	}
	return cert, nil
}

// Fingerprint returns the SHA-256 of a certificate, in hexadecimal.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func newSerial() *big.Int {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand does not fail
	}
	return serial
}
