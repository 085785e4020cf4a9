package enrol_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/replicated/enrol"
)

var now = time.Date(2030, 5, 6, 7, 8, 9, 0, time.UTC)

func newCA(t testing.TB) (enrol.CA, *x509.Certificate) {
	t.Helper()
	ca, err := enrol.NewCA(now)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := enrol.ParseCA(ca.Cert)
	if err != nil {
		t.Fatal(err)
	}
	return ca, cert
}

func parseCert(t testing.TB, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("no certificate in PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestCA(t *testing.T) {
	_, cert := newCA(t)
	if years := cert.NotAfter.Sub(now).Hours() / 24 / 365; years < 29.9 || years > 30.1 {
		t.Errorf("the CA lives %v years", years)
	}
	if cert.KeyUsage&x509.KeyUsageCertSign == 0 || !cert.IsCA || !cert.MaxPathLenZero {
		t.Errorf("the CA's certificate: %+v", cert)
	}
	other, _ := newCA(t)
	if string(other.Cert) == string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})) {
		t.Error("two CAs are the same")
	}
}

// TestServerCertificate: each node has its own key, for the one name, for seven days.
func TestServerCertificate(t *testing.T) {
	ca, cert := newCA(t)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	one, err := ca.Issue(now)
	if err != nil {
		t.Fatal(err)
	}
	two, err := ca.Issue(now)
	if err != nil {
		t.Fatal(err)
	}
	if one.PrivateKey.(*ecdsa.PrivateKey).Equal(two.PrivateKey) || one.Leaf.SerialNumber.Cmp(two.Leaf.SerialNumber) == 0 {
		t.Error("two nodes have the same key or number")
	}
	verify := func(name string, usage x509.ExtKeyUsage, at time.Time) error {
		_, err := one.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage}, CurrentTime: at})
		return err
	}
	if err := verify(enrol.ServerName, x509.ExtKeyUsageServerAuth, now.Add(enrol.CertLifetime-time.Second)); err != nil {
		t.Errorf("the certificate is refused: %v", err)
	}
	if verify(enrol.ServerName, x509.ExtKeyUsageServerAuth, now.Add(enrol.CertLifetime+time.Second)) == nil {
		t.Error("an expired certificate is accepted")
	}
	if verify("primary.example.com", x509.ExtKeyUsageServerAuth, now) == nil {
		t.Error("the certificate is good for another name")
	}
	if verify(enrol.ServerName, x509.ExtKeyUsageClientAuth, now) == nil {
		t.Error("a server's certificate is good for a client")
	}
	if _, err := enrol.Identify(one.Leaf); err == nil {
		t.Error("a server's certificate names a secondary")
	}
}

func TestClientCertificate(t *testing.T) {
	ca, cert := newCA(t)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	csr, key, err := enrol.NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []enrol.Subject{
		{ID: "berlin", ClusterID: "6d1e", Enrolment: "e1"},
		{ID: "a/b c%?#é", ClusterID: "x", Enrolment: "y"},
		{ID: strings.Repeat("\xff", enrol.MaxIDBytes), ClusterID: strings.Repeat("c", 128), Enrolment: strings.Repeat("e", 64)},
	} {
		text, err := ca.SignCSR(csr, s, now)
		if err != nil {
			t.Fatal(err)
		}
		leaf := parseCert(t, text)
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: now}); err != nil {
			t.Errorf("the certificate of %q is refused: %v", s.ID, err)
		}
		if got, err := enrol.Identify(leaf); got != s || err != nil {
			t.Errorf("Identify = %+v, %v, want %+v", got, err, s)
		}
		if leaf.NotAfter.Sub(now) != enrol.CertLifetime {
			t.Errorf("it lives %v", leaf.NotAfter.Sub(now))
		}
		if _, err := tls.X509KeyPair(text, key); err != nil {
			t.Errorf("key and certificate: %v", err)
		}
	}
	for _, s := range []enrol.Subject{{}, {ID: "a", ClusterID: "b"}, {ID: strings.Repeat("a", enrol.MaxIDBytes+1), ClusterID: "b", Enrolment: "c"}} {
		if _, err := ca.SignCSR(csr, s, now); err == nil {
			t.Errorf("a certificate for %+v was signed", s)
		}
	}
}

// TestHandshake proves both sides with real TLS: a certificate of another CA is refused by either.
func TestHandshake(t *testing.T) {
	ca, err := enrol.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := enrol.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name           string
		server, client enrol.CA
		ok             bool
	}{{"own", ca, ca, true}, {"foreign server", foreign, ca, false}, {"foreign client", ca, foreign, false}}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cert, err := test.server.Issue(time.Now())
			if err != nil {
				t.Fatal(err)
			}
			csr, key, err := enrol.NewCSR()
			if err != nil {
				t.Fatal(err)
			}
			text, err := test.client.SignCSR(csr, enrol.Subject{ID: "a", ClusterID: "b", Enrolment: "c"}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			pair, err := tls.X509KeyPair(text, key)
			if err != nil {
				t.Fatal(err)
			}
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(ca.Cert)
			a, b := net.Pipe()
			defer a.Close()
			defer b.Close()
			done := make(chan error, 1) // one error, of the server's handshake
			go func() {
				s := tls.Server(a, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})
				err := s.Handshake()
				if err == nil {
					_, err = s.Write([]byte("x"))
				}
				a.Close()
				done <- err
			}()
			c := tls.Client(b, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: enrol.ServerName})
			clientErr := c.Handshake()
			if clientErr == nil {
				_, clientErr = c.Read(make([]byte, 1))
			}
			b.Close()
			serverErr := <-done
			if ok := clientErr == nil && serverErr == nil; ok != test.ok {
				t.Errorf("client: %v, server: %v", clientErr, serverErr)
			}
		})
	}
}

func TestSignCSRRefuses(t *testing.T) {
	ca, _ := newCA(t)
	s := enrol.Subject{ID: "a", ClusterID: "b", Enrolment: "c"}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request := func(key any) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	good, _, err := enrol.NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	broken := append([]byte(nil), good...)
	broken[len(broken)-1] ^= 1
	for name, csr := range map[string][]byte{
		"nothing": nil, "noise": []byte("x"), "RSA": request(rsaKey), "P-384": request(p384), "a broken signature": broken,
		"too much": make([]byte, 1<<20),
	} {
		if _, err := ca.SignCSR(csr, s, now); !errors.Is(err, enrol.ErrRequest) {
			t.Errorf("a request with %s: %v", name, err)
		}
		if _, err := enrol.RequestKey(csr); !errors.Is(err, enrol.ErrRequest) {
			t.Errorf("RequestKey of %s: %v", name, err)
		}
	}
	if _, err := enrol.RequestKey(good); err != nil {
		t.Error(err)
	}
}

// TestRequestKey: two requests for one key are recognised as that, and no others.
func TestRequestKey(t *testing.T) {
	csr, key, err := enrol.NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	again, err := enrol.CSRFor(key)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := enrol.NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	of := func(csr []byte) string {
		t.Helper()
		hash, err := enrol.RequestKey(csr)
		if err != nil {
			t.Fatal(err)
		}
		return hash
	}
	if of(csr) != of(again) || of(csr) == of(other) {
		t.Errorf("keys %s, again %s, other %s", of(csr), of(again), of(other))
	}
	for _, bad := range [][]byte{nil, []byte("x"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})} {
		if _, err := enrol.CSRFor(bad); err == nil {
			t.Errorf("a request for the key %q", bad)
		}
	}
}

func claims() enrol.Claims {
	return enrol.Claims{
		Exp: now.Add(time.Hour).Unix(), Iat: now.Unix(), JTI: "wrapping-token-secret", Addr: "https://p.example:8200", ID: "berlin",
		SetID: "set", ClusterAddrs: []string{"p.example:8201"},
	}
}

// TestActivationToken: what the CA has signed is read back, by people's tools as well as by Verify.
func TestActivationToken(t *testing.T) {
	ca, cert := newCA(t)
	token, err := ca.Sign(claims())
	if err != nil {
		t.Fatal(err)
	}
	got, err := enrol.Verify(cert, token, now)
	if err != nil {
		t.Fatal(err)
	}
	want := claims()
	want.Type, want.CA = enrol.ClaimsType, enrol.Fingerprint(cert)
	if g, w := mustJSON(t, got), mustJSON(t, want); g != w {
		t.Errorf("Verify = %s, want %s", g, w)
	}
	if p, err := enrol.Parse(token); err != nil || mustJSON(t, p) != mustJSON(t, want) {
		t.Errorf("Parse: %v", err)
	}
	parts := strings.Split(token, ".")
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || len(parts) != 3 {
		t.Fatal("not a JSON Web Token")
	}
	var shown map[string]any
	if err := json.Unmarshal(payload, &shown); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"exp", "iat", "jti", "type", "addr", "id", "set_id", "cluster_addrs", "ca"} {
		if shown[field] == nil {
			t.Errorf("the payload has no %q", field)
		}
	}
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestActivationTokenRefused is the table of forged, expired, foreign, cut and re-signed tokens.
func TestActivationTokenRefused(t *testing.T) {
	ca, cert := newCA(t)
	foreign, _ := newCA(t)
	good, err := ca.Sign(claims())
	if err != nil {
		t.Fatal(err)
	}
	resigned, err := foreign.Sign(claims())
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(good, ".")
	encode := base64.RawURLEncoding.EncodeToString
	forge := func(edit func(*enrol.Claims)) string {
		c := claims()
		c.Type, c.CA = enrol.ClaimsType, enrol.Fingerprint(cert)
		edit(&c)
		return parts[0] + "." + encode([]byte(mustJSON(t, c))) + "." + parts[2]
	}
	withHeader := func(text string) string { return encode([]byte(text)) + "." + parts[1] + "." + parts[2] }
	own := func(edit func(*enrol.Claims)) string {
		c := claims()
		edit(&c)
		token, err := ca.Sign(c)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	tests := []struct {
		name, token string
		want        error
	}{
		{"empty", "", enrol.ErrToken},
		{"no parts", "abc", enrol.ErrToken},
		{"cut in the signature", good[:len(good)-4], enrol.ErrToken},
		{"cut after the payload", parts[0] + "." + parts[1], enrol.ErrToken},
		{"without a signature", parts[0] + "." + parts[1] + ".", enrol.ErrToken},
		{"a part more", good + ".x", enrol.ErrToken},
		{"line break inside", good[:20] + "\n" + good[20:], enrol.ErrToken},
		{"padding", parts[0] + "=." + parts[1] + "." + parts[2], enrol.ErrToken},
		{"algorithm none", withHeader(`{"alg":"none","typ":"JWT"}`), enrol.ErrToken},
		{"algorithm HS256", withHeader(`{"alg":"HS256","typ":"JWT"}`), enrol.ErrToken},
		{"critical extension", withHeader(`{"alg":"ES256","typ":"JWT","crit":["x"],"x":1}`), enrol.ErrToken},
		{"key inside", withHeader(`{"alg":"ES256","typ":"JWT","jwk":{}}`), enrol.ErrToken},
		{"two headers", withHeader(`{"alg":"ES256","typ":"JWT"}{}`), enrol.ErrToken},
		{"header spelt otherwise", withHeader(`{"typ":"JWT","alg":"ES256"}`), enrol.ErrSignature},
		{"forged id", forge(func(c *enrol.Claims) { c.ID = "paris" }), enrol.ErrSignature},
		{"forged time", forge(func(c *enrol.Claims) { c.Exp += 3600 }), enrol.ErrSignature},
		{"forged address", forge(func(c *enrol.Claims) { c.Addr = "https://evil.example" }), enrol.ErrSignature},
		{"forged without a set", forge(func(c *enrol.Claims) { c.SetID = "" }), enrol.ErrToken},
		{"of another type", forge(func(c *enrol.Claims) { c.Type = "dr" }), enrol.ErrToken},
		{"re-signed by another CA", resigned, enrol.ErrSignature},
		{"re-signed, with our fingerprint", resign(t, foreign, cert), enrol.ErrSignature},
		{"signature of zeros", parts[0] + "." + parts[1] + "." + encode(make([]byte, 64)), enrol.ErrSignature},
		{"signature in DER", parts[0] + "." + parts[1] + "." + encode(make([]byte, 70)), enrol.ErrToken},
		{"expired", own(func(c *enrol.Claims) { c.Exp = now.Unix() }), enrol.ErrExpired},
		{"no expiry", own(func(c *enrol.Claims) { c.Exp = 0 }), enrol.ErrToken},
		{"without a wrapping token", own(func(c *enrol.Claims) { c.JTI = "" }), enrol.ErrToken},
		{"far too long", strings.Repeat("a", 1<<20), enrol.ErrToken},
	}
	for _, test := range tests {
		if _, err := enrol.Verify(cert, test.token, now); !errors.Is(err, test.want) {
			t.Errorf("%s: Verify = %v, want %v", test.name, err, test.want)
		}
	}
	if _, err := ca.Sign(enrol.Claims{Addr: strings.Repeat("a", enrol.MaxTokenBytes)}); err == nil {
		t.Error("a token longer than can be read back was signed")
	}
}

// resign signs claims that name one CA with the key of another.
func resign(t testing.TB, with enrol.CA, name *x509.Certificate) string {
	t.Helper()
	pair, err := tls.X509KeyPair(with.Cert, with.Key)
	if err != nil {
		t.Fatal(err)
	}
	c := claims()
	c.Type, c.CA = enrol.ClaimsType, enrol.Fingerprint(name)
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." + encode([]byte(mustJSON(t, c)))
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, pair.PrivateKey.(*ecdsa.PrivateKey), digest[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := append(fill(r), fill(s)...)
	return signed + "." + encode(signature)
}

func fill(n *big.Int) []byte { return n.FillBytes(make([]byte, 32)) }

func bundle(t testing.TB) enrol.Bundle {
	ca, _ := newCA(t)
	return enrol.Bundle{
		Secret: "one-time-secret", CA: ca.Cert, SetID: "set", SecondaryID: "berlin", Addrs: []string{"p.example:8201"},
		APIAddr: "https://p.example:8200", Exp: now.Add(time.Hour).Unix(),
	}
}

// TestSealedBundle: only a holder of the private key reads it, and a change is detected.
func TestSealedBundle(t *testing.T) {
	public, private, err := enrol.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	want := bundle(t)
	sealed, err := enrol.SealBundle(public, want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := enrol.OpenBundle(private, sealed); err != nil || mustJSON(t, got) != mustJSON(t, want) {
		t.Errorf("OpenBundle = %v", err)
	}
	if again, _ := enrol.SealBundle(public, want); again == sealed {
		t.Error("the same bundle was encrypted to the same text twice")
	}
	_, other, err := enrol.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enrol.OpenBundle(other, sealed); !errors.Is(err, enrol.ErrSealed) {
		t.Errorf("OpenBundle with another key = %v", err)
	}
	raw, err := base64.StdEncoding.DecodeString(sealed)
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		changed := append([]byte(nil), raw...)
		changed[i] ^= 1
		if _, err := enrol.OpenBundle(private, base64.StdEncoding.EncodeToString(changed)); err == nil {
			t.Fatalf("byte %d can be changed", i)
		}
	}
	for _, n := range []int{0, 1, 20, 33, 34, len(raw) - 1} {
		if _, err := enrol.OpenBundle(private, base64.StdEncoding.EncodeToString(raw[:n])); err == nil {
			t.Errorf("a bundle cut to %d bytes is opened", n)
		}
	}
	for _, token := range []string{"", "x", "no base64!", strings.Repeat("A", 1<<20)} {
		if _, err := enrol.OpenBundle(private, token); !errors.Is(err, enrol.ErrToken) {
			t.Errorf("OpenBundle of noise = %v", err)
		}
	}
}

func TestPublicKeyRefused(t *testing.T) {
	for name, key := range map[string]string{
		"empty": "", "noise": "not a key", "short": base64.StdEncoding.EncodeToString(make([]byte, 31)),
		"long": base64.StdEncoding.EncodeToString(make([]byte, 33)), "of low order": base64.StdEncoding.EncodeToString(make([]byte, 32)),
	} {
		if _, err := enrol.SealBundle(key, bundle(t)); !errors.Is(err, enrol.ErrPublicKey) {
			t.Errorf("a key that is %s: %v", name, err)
		}
	}
}

func TestBundleIsComplete(t *testing.T) {
	for name, edit := range map[string]func(*enrol.Bundle){
		"secret":    func(b *enrol.Bundle) { b.Secret = "" },
		"CA":        func(b *enrol.Bundle) { b.CA = nil },
		"noise CA":  func(b *enrol.Bundle) { b.CA = []byte("x") },
		"two CAs":   func(b *enrol.Bundle) { b.CA = append(b.CA, b.CA...) },
		"set":       func(b *enrol.Bundle) { b.SetID = "" },
		"id":        func(b *enrol.Bundle) { b.SecondaryID = "" },
		"addresses": func(b *enrol.Bundle) { b.Addrs = nil },
		"expiry":    func(b *enrol.Bundle) { b.Exp = 0 },
	} {
		b := bundle(t)
		edit(&b)
		if _, err := enrol.ParseBundle([]byte(mustJSON(t, b))); !errors.Is(err, enrol.ErrBundle) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	leaf, err := func() (tls.Certificate, error) { ca, _ := newCA(t); return ca.Issue(now) }()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enrol.ParseCA(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]})); err == nil {
		t.Error("a server's certificate is taken for a CA")
	}
}

// TestSecretsDoNotPrint: neither the CA's key nor what a token or bundle holds.
func TestSecretsDoNotPrint(t *testing.T) {
	ca, _ := newCA(t)
	b, c := bundle(t), claims()
	for _, v := range []any{ca, b, c, &ca, &b, &c} {
		var log strings.Builder
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v)
		for _, text := range []string{fmt.Sprint(v), fmt.Sprintf("%+v %#v %s", v, v, v), log.String()} {
			if strings.Contains(text, "PRIVATE") || strings.Contains(text, "secret") {
				t.Errorf("%T prints its secret", v)
			}
		}
	}
}
