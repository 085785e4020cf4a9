package destination_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// TestNoResponseNamesAddressAndReason: who reads that a destination cannot be reached learns where it was looked for and what has
// failed, and nothing of the path or the query.
func TestNoResponseNamesAddressAndReason(t *testing.T) {
	listen := func(serve func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() }) //nolint:errcheck // at the end
		if serve == nil {
			l.Close() //nolint:errcheck // nothing listens any more
			return l.Addr().String()
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go serve(c)
			}
		}()
		return l.Addr().String()
	}
	// Read, so that closing does not reset.
	closing := listen(func(c net.Conn) { c.Read(make([]byte, 4096)); c.Close() }) //nolint:errcheck // it is closed
	reset := listen(func(c net.Conn) {
		c.Read(make([]byte, 1)) //nolint:errcheck // it is reset
		c.(*net.TCPConn).SetLinger(0)
		c.Close() //nolint:errcheck // likewise
	})
	hanging := listen(func(c net.Conn) { c.Read(make([]byte, 1<<20)); select {} }) //nolint:errcheck // it never responds
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	untrusted := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(untrusted.Close)
	of := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	refusing := listen(nil)
	for _, test := range []struct{ name, url, address, want string }{
		{"refused", "http://" + refusing, refusing, "connection refused"},
		{"reset", "http://" + reset, reset, "connection reset"},
		{"closed", "http://" + closing, closing, "closed without a response"},
		{"hanging", "http://" + hanging, hanging, "did not answer in time"},
		{"no TLS", "https://" + of(plain), of(plain), "does not speak TLS"},
		{"certificate", "https://" + of(untrusted), of(untrusted), "its certificate is not trusted: the authority is unknown"},
		{"name", "http://no-such-host.invalid", "no-such-host.invalid", "the name no-such-host.invalid"},
	} {
		t.Run(test.name, func(t *testing.T) {
			timeout := 10 * time.Second
			if test.name == "hanging" {
				timeout = 50 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, strings.Replace(test.url, "://", "://user:pass@", 1)+"/path?token=sekrit", strings.NewReader("sekrit"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err = (&http.Client{Transport: new(http.Transport)}).Do(req); err == nil { //nolint:bodyclose // there is none
				t.Fatal("there was a response")
			}
			text := destination.NoResponse("The vendor", err, false).Text
			if !strings.Contains(text, test.want) || !strings.Contains(text, test.address) {
				t.Errorf("%q does not say %q of %s", text, test.want, test.address)
			}
			for _, secret := range []string{"sekrit", "pass", "path"} {
				if strings.Contains(text, secret) {
					t.Errorf("%q has %q", text, secret)
				}
			}
		})
	}
}
