package admission

import (
	"encoding/base64"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/cert/certtest"
)

// TestCertHeader reads the header as proxies write it.
func TestCertHeader(t *testing.T) {
	ca := certtest.New(t, "ca")
	cert := ca.Issue("client", nil).Cert
	der := base64.StdEncoding.EncodeToString(cert.Raw)
	below := base64.StdEncoding.EncodeToString(ca.Cert.Raw)
	for _, test := range []struct {
		name, decoders, value string
		certs                 int // 0: an error
	}{
		{"nginx", "URL,DER", url.PathEscape(certtest.PEM(cert)), 1},
		{"base64", "BASE64", der, 1},
		{"base64 of a chain", "BASE64", der + "," + below, 2},
		{"escaped base64", "URL,BASE64", url.QueryEscape(der), 1},
		{"too many", "BASE64", strings.Repeat(der+",", 10) + der, 0},
		{"too long", "BASE64", strings.Repeat("A", maxCertBytes+1), 0},
		{"not what the decoders say", "URL,DER", der, 0},
		{"bad escapes", "URL,DER", "%zz", 0},
		{"not base64", "BASE64", "*", 0},
		{"no certificate", "BASE64", "AAAA", 0},
	} {
		f := Forwarded{Authorized: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, CertHeader: "X-Cert", CertDecoders: strings.Split(test.decoders, ",")}
		r := &http.Request{RemoteAddr: "192.0.2.1:1", Header: http.Header{"X-Cert": {test.value}}}
		err := f.Certificates(r)
		if (err == nil) != (test.certs > 0) || len(r.TLS.PeerCertificates) != test.certs {
			t.Errorf("%s: %v, %d certificates, want %d", test.name, err, len(r.TLS.PeerCertificates), test.certs)
		}
		if test.certs > 0 && !slices.Equal(r.TLS.PeerCertificates[0].Raw, cert.Raw) {
			t.Errorf("%s: another certificate", test.name)
		}
		if len(r.Header) > 0 {
			t.Errorf("%s: the header goes on to the server", test.name)
		}
	}
}
