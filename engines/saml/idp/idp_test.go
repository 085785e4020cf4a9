package idp_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/idp"
)

// newECDSA is a key that costs nothing to make.
func newECDSA(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// shortRSA is a key that is too short.
var shortRSA = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 1024) })

// issue returns a certificate by a parent, or by itself if that is nil.
func issue(t testing.TB, name string, key crypto.Signer, parent *x509.Certificate, by crypto.Signer) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func selfSigned(t testing.TB, name string) *x509.Certificate {
	return issue(t, name, newECDSA(t, elliptic.P256()), nil, nil)
}

func toPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func certPEM(c *x509.Certificate) string { return toPEM("CERTIFICATE", c.Raw) }

func TestCheckURL(t *testing.T) {
	tests := []struct {
		url, want string // part of the error, "" for none
	}{
		{"https://coffer.example.com/v1/auth/saml/callback", ""},
		{"http://127.0.0.1:8200/v1/auth/saml/callback?a=b", ""},
		{"HTTPS://[2001:db8::1]:443/", ""},
		{"https://bücher.example/", ""},
		{"", "must be an absolute URL"},
		{"coffer.example.com/callback", "must be an absolute URL"},
		{"/v1/auth/saml/callback", "must be an absolute URL"},
		{"ftp://coffer.example.com/", "must be an absolute URL"},
		{"javascript:alert(1)", "must be an absolute URL"},
		{"https:coffer.example.com", "with a host"},
		{"https:///callback", "with a host"},
		{"https://:8200/callback", "with a host"},
		{"https://coffer.example.com:0/", "with a port between"},
		{"https://coffer.example.com:65536/", "with a port between"},
		{"https://user@coffer.example.com/", "without user name"},
		{"https://coffer.example.com/#", "without a fragment"},
		{"https://coffer.example.com/#top", "without a fragment"},
		{"https://coffer.example.com/a b", "well-formed"},
		{"https://coffer.example.com/\r\n", "well-formed"},
		{"https://coffer.example.com/%zz", "well-formed"},
		{"https://coffer.example.com/\u0085", "well-formed"},
		{"https://coffer.example.com/" + strings.Repeat("a", idp.MaxURLBytes), "is longer than 2048 bytes"},
	}
	for _, tt := range tests {
		expect(t, "CheckURL("+tt.url+")", idp.CheckURL(tt.url), tt.want)
	}
}

func TestCheckEntityID(t *testing.T) {
	expect(t, "a URI", idp.CheckEntityID("urn:example:coffer"), "")
	expect(t, "a text", idp.CheckEntityID("Coffer (test)"), "")
	expect(t, "a line break", idp.CheckEntityID("urn:a\nb"), "control characters")
	expect(t, "a long one", idp.CheckEntityID(strings.Repeat("a", idp.MaxEntityIDBytes+1)), "is longer than 1024 bytes")
}

// expect checks that an error holds a text, or that there is none.
func expect(t *testing.T, what string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v, want no error", what, err)
	case want != "" && err == nil:
		t.Errorf("%s: no error, want %q", what, want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func TestParseCertificates(t *testing.T) {
	first, second := selfSigned(t, "first"), selfSigned(t, "second")
	key := newECDSA(t, elliptic.P384())
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	short, err := shortRSA()
	if err != nil {
		t.Fatal(err)
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	bare := strings.Join(strings.Split(strings.TrimSpace(certPEM(first)), "\n")[1:], "\n")
	bare = bare[:strings.Index(bare, "-----END")]
	many := ""
	for range idp.MaxCertificates + 1 {
		many += certPEM(issue(t, "one of many", key, nil, nil))
	}
	tests := []struct {
		name, text string
		want       []*x509.Certificate
		err        string
	}{
		{"one", certPEM(first), []*x509.Certificate{first}, ""},
		{"several, in order, each once", certPEM(second) + certPEM(first) + certPEM(second), []*x509.Certificate{second, first}, ""},
		{"text before them", "subject=CN = first\n" + certPEM(first) + "\nsubject=CN = second\n" + certPEM(second) + "\n", []*x509.Certificate{first, second}, ""},
		{"carriage returns", strings.ReplaceAll(certPEM(first), "\n", "\r\n"), []*x509.Certificate{first}, ""},
		{"RSA of 1024 bits", certPEM(issue(t, "short", short, nil, nil)), nil, "certificate 1 has an RSA key of 1024 bits: it takes 2048"},
		{"P-224", certPEM(issue(t, "p224", newECDSA(t, elliptic.P224()), nil, nil)), nil, "P-224"},
		{"Ed25519, behind a good one", certPEM(first) + certPEM(issue(t, "edwards", edwards, nil, nil)), nil, "certificate 2 has a key of the type Ed25519"},
		{"private key", toPEM("PRIVATE KEY", der), nil, "contains a private key: give the certificate only"},
		{"private key behind the certificate", certPEM(first) + toPEM("EC PRIVATE KEY", der), nil, "contains a private key"},
		{"public key", toPEM("PUBLIC KEY", der), nil, "bare public key"},
		{"request", toPEM("CERTIFICATE REQUEST", der), nil, "certificate request"},
		{"other block", toPEM("X509 CRL", der), nil, `"X509 CRL"`},
		{"damaged", toPEM("CERTIFICATE", first.Raw[:100]), nil, "certificate 1 is damaged"},
		{"base64 only", bare, nil, "is base64 without its frame: put the line -----BEGIN CERTIFICATE----- before it"},
		{"one line", strings.ReplaceAll(certPEM(first), "\n", " "), nil, "keep the line breaks"},
		{"second one cut off", certPEM(first) + certPEM(second)[:100], nil, "keep the line breaks"},
		{"escaped twice", strings.ReplaceAll(certPEM(first), "\n", `\n`), nil, "a backslash"},
		{"metadata", `<EntityDescriptor/>`, nil, "is XML"},
		{"URL", "https://idp.example.com/cert.pem", nil, "is a URL"},
		{"anything", "not a certificate!", nil, "must be a certificate in PEM"},
		{"nothing", "", nil, "must be a certificate in PEM"},
		{"too many", many, nil, "has 17 certificates, the limit is 16"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := idp.ParseCertificates(tt.text)
			expect(t, "ParseCertificates", err, tt.err)
			equal(t, got, tt.want)
		})
	}
}

func equal(t *testing.T, got, want []*x509.Certificate) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d certificates, want %d", len(got), len(want))
	}
	for i := range got {
		if !got[i].Equal(want[i]) {
			t.Errorf("certificate %d is %v, want %v", i, got[i].Subject, want[i].Subject)
		}
	}
}
