// Package certtest makes certificate authorities, certificates of clients and revocation lists for tests. All of it is new, with
// keys on P-256. Start reading at New.
package certtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is a certificate authority.
type CA struct {
	Cert *x509.Certificate
	Key  crypto.Signer

	t      testing.TB
	number int64 // of its latest list
}

// New returns a root with a name.
func New(t testing.TB, name string) *CA {
	t.Helper()
	c := &CA{t: t}
	c.Cert, c.Key = c.sign(authority(name), newKey(t))
	return c
}

// Below returns a CA that this one has certified.
func (c *CA) Below(name string) *CA {
	c.t.Helper()
	below := &CA{t: c.t}
	below.Cert, below.Key = c.sign(authority(name), newKey(c.t))
	return below
}

func authority(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
}

// Client is a certificate with its key.
type Client struct {
	Cert  *x509.Certificate
	Key   crypto.Signer
	Chain []*x509.Certificate // sent behind Cert
}

// Issue returns a certificate for a TLS client; change says what is special about it, nil: nothing.
func (c *CA) Issue(name string, change func(*x509.Certificate)) *Client {
	c.t.Helper()
	return c.IssueFor(newKey(c.t), name, change)
}

// IssueFor is Issue for a key.
func (c *CA) IssueFor(key crypto.Signer, name string, change func(*x509.Certificate)) *Client {
	c.t.Helper()
	cert := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		SubjectKeyId: []byte{1, 2, 0xab},
	}
	if change != nil {
		change(cert)
	}
	out := &Client{}
	out.Cert, out.Key = c.sign(cert, key)
	return out
}

// Server returns a certificate for a server at loopback.
func (c *CA) Server() *Client {
	c.t.Helper()
	return c.Issue("server", func(cert *x509.Certificate) {
		cert.ExtKeyUsage, cert.DNSNames = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []string{"localhost"}
		cert.IPAddresses = append(cert.IPAddresses, []byte{127, 0, 0, 1})
	})
}

// Revoke returns a list of these certificates, in PEM.
func (c *CA) Revoke(clients ...*Client) string {
	c.t.Helper()
	c.number++
	list := &x509.RevocationList{Number: big.NewInt(c.number), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
	for _, client := range clients {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{
			SerialNumber: client.Cert.SerialNumber, RevocationTime: list.ThisUpdate,
		})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, c.Cert, c.Key)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))
}

// PEM is the CA's certificate.
func (c *CA) PEM() string { return PEM(c.Cert) }

// PEM encodes certificates.
func PEM(certs ...*x509.Certificate) string {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return string(out)
}

// Sent is what the client sends in its handshake.
func (c *Client) Sent() []*x509.Certificate { return append([]*x509.Certificate{c.Cert}, c.Chain...) }

// TLS is the client's certificate for a tls.Config.
func (c *Client) TLS() tls.Certificate {
	out := tls.Certificate{PrivateKey: c.Key}
	for _, cert := range c.Sent() {
		out.Certificate = append(out.Certificate, cert.Raw)
	}
	return out
}

// Files writes the certificates and the key into a directory and returns their names.
func (c *Client) Files(t testing.TB, dir string) (certFile, keyFile string) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.Key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, c.Cert.Subject.CommonName+".pem"), filepath.Join(dir, c.Cert.Subject.CommonName+".key")
	for file, text := range map[string][]byte{
		certFile: []byte(PEM(c.Sent()...)), keyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func newKey(t testing.TB) crypto.Signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign signs a certificate, which is the CA's own if it has none yet.
func (c *CA) sign(cert *x509.Certificate, key crypto.Signer) (*x509.Certificate, crypto.Signer) {
	c.t.Helper()
	if cert.SerialNumber == nil {
		cert.SerialNumber = new(big.Int).SetBytes([]byte(rand.Text()[:10]))
	}
	if cert.NotBefore.IsZero() {
		cert.NotBefore = time.Now().Add(-time.Hour)
	}
	if cert.NotAfter.IsZero() {
		cert.NotAfter = time.Now().Add(24 * time.Hour)
	}
	by, with := c.Cert, c.Key
	if by == nil {
		by, with = cert, key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, by, key.Public(), with)
	if err != nil {
		c.t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	return signed, key
}
