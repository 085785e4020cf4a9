package plugin

import (
	"crypto/x509"
	"testing"

	"github.com/openbao/openbao/sdk/v2/plugin/pb"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cert/certtest"
)

// TestBorrower has a plugin tell tokens apart without learning of them.
func TestBorrower(t *testing.T) {
	one, other := &engine{mount: engines.Mount{UUID: "1"}}, &engine{mount: engines.Mount{UUID: "2"}}
	name := one.borrower("accessor")
	if name == "" || name == "accessor" || name != one.borrower("accessor") || name == one.borrower("another") || name == other.borrower("accessor") {
		t.Errorf("it is %q, at the other mount %q", name, other.borrower("accessor"))
	}
	if name := one.borrower(""); name != "" {
		t.Errorf("without a token it is %q", name)
	}
}

func TestSpecialPaths(t *testing.T) {
	for _, tt := range []struct {
		pattern, path string
		want          bool
	}{
		{"login", "login", true},
		{"login", "login/x", false},
		{"login", "logi", false},
		{"/login", "login", true},
		{"public/*", "public/a/b", true},
		{"public/*", "publicity", false},
		{"pub*", "publicity", true},
		{"open/+/door", "open/any/door", true},
		{"open/+/door", "open/door", false},
		{"open/+/door", "open/a/b/door", false},
		{"open/+/d*", "open/any/door", true},
		{"open/+/d*", "open/any/door/handle", true},
		{"open/+/d*", "open/any/window", false},
		{"+/x", "a/x", true},
		{"*", "anything/at/all", true},
		{"", "x", false},
	} {
		if got := fits([]string{"never", tt.pattern}, tt.path); got != tt.want {
			t.Errorf("%q fits %q: %v", tt.path, tt.pattern, got)
		}
	}
}

// TestConnectionHasCertificates: plugins of both families find what the client has shown, and nothing where it has shown none.
func TestConnectionHasCertificates(t *testing.T) {
	if c := connection(t.Context(), ""); c != nil {
		t.Errorf("a renewal without a certificate: %v", c)
	}
	if c := connection(t.Context(), "192.0.2.1"); c.RemoteAddr != "192.0.2.1" || c.ConnectionState != nil || c.PeerCertificatesRaw != nil {
		t.Errorf("a client without a certificate: %v", c)
	}
	cert := certtest.New(t, "ca").Cert
	c := connection(engines.WithCertificates(t.Context(), []*x509.Certificate{cert}), "")
	told, err := pb.ProtoConnectionToLogicalConnection(c)
	if err != nil || len(told.PeerCertificatesRaw) != 1 || !told.ConnState.HandshakeComplete || !told.ConnState.PeerCertificates[0].Equal(cert) {
		t.Errorf("a client with a certificate: %v, %v", told, err)
	}
}
