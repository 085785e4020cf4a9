package security_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cert/certtest"
	"github.com/coffer-project/coffer/test/harness"
)

// machine is a client with a certificate, or without one if that is nil.
type machine struct {
	c        *harness.Cluster
	cert     *certtest.Client
	sessions tls.ClientSessionCache // nil: none is resumed
}

// do sends a request to a node over a connection of its own. asked reports whether the server wanted a certificate.
func (m machine) do(t *testing.T, n *harness.Node, method, path, token string, body any, header ...string) (a harness.Answer, asked bool) {
	t.Helper()
	config := clientTLS(m.c)
	config.ClientSessionCache = m.sessions
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked = true
		if m.cert == nil {
			return new(tls.Certificate), nil
		}
		cert := m.cert.TLS()
		return &cert, nil
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	defer client.CloseIdleConnections()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, n.URL+"/v1/"+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("X-Vault-Token", token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	a, err = (&harness.Node{HTTP: client}).Send(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return a, asked
}

// awaitAsked waits until a node asks for certificates, or does not any more: a standby knows of a change of the mounts a moment later.
func (m machine) awaitAsked(t *testing.T, n *harness.Node, want bool) {
	t.Helper()
	harness.Await(t, "a node to know whether certificates are needed", 30*time.Second, func() error {
		if _, asked := m.do(t, n, "GET", "sys/health", "", nil); asked != want {
			return fmt.Errorf("%s asks for a certificate: %v", n.ID, asked)
		}
		return nil
	})
}

// login logs in and returns the token.
func (m machine) login(t *testing.T, n *harness.Node, role string) string {
	t.Helper()
	a, _ := m.do(t, n, "POST", "auth/cert/login", "", fields{"name": role})
	if a.Status != 200 {
		t.Fatalf("login on %s: status %d: %.300s", n.ID, a.Status, a.Body)
	}
	return authOf(t, a).Token
}

// stays wants a login to be refused, for the same words whatever the cause is.
func (m machine) stays(t *testing.T, what string, n *harness.Node, role string) {
	t.Helper()
	a, _ := m.do(t, n, "POST", "auth/cert/login", "", fields{"name": role})
	if a.Status != 400 || !strings.Contains(string(a.Body), "certificate") {
		t.Errorf("%s on %s: status %d: %.300s", what, n.ID, a.Status, a.Body)
	}
	if m.cert != nil && !strings.Contains(string(a.Body), "invalid certificate: no role accepts it") {
		t.Errorf("%s: the client sees %.300s", what, a.Body)
	}
}

// TestClientCertificates: a certificate logs in at every node, if a CA of the role has issued it, it says what the role wants, and it is
// neither expired nor revoked; its token is renewed with the same key only.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{})
	root := user{t, c.Leader(), c.RootToken, ""}
	logFile := filepath.Join(t.TempDir(), "audit.log")
	root.must("POST", "sys/audit/file", fields{"type": "file", "options": fields{"file_path": logFile, "log_raw": "true"}})
	ca, stranger := certtest.New(t, "ca"), certtest.New(t, "ca")
	good := machine{c: c, cert: ca.Issue("web.example.com", nil)}
	if _, asked := good.do(t, c.Leader(), "GET", "sys/health", "", nil); asked {
		t.Error("a client is asked for a certificate without a method that needs one")
	}
	root.must("POST", "sys/auth/cert", fields{"type": "cert"})
	root.must("POST", "auth/cert/certs/web", fields{"certificate": ca.PEM(), "allowed_common_names": "*.example.com", "token_policies": "default"})
	root.must("POST", "auth/cert/config", fields{"enable_metadata_on_failures": true})
	nodes := append(c.Standbys(), c.Leader())
	for _, n := range nodes {
		good.awaitAsked(t, n, true)
		token := good.login(t, n, "web")
		if good.login(t, n, "") == token {
			t.Error("two logins got one token")
		}
		machine{c: c, cert: nil}.stays(t, "no certificate", n, "web")
		machine{c: c, cert: stranger.Issue("web.example.com", nil)}.stays(t, "another CA", n, "web")
		machine{c: c, cert: stranger.IssueFor(good.cert.Key, "web.example.com", nil)}.stays(t, "another CA, the same key", n, "web")
		machine{c: c, cert: ca.Issue("web.example.com", func(x *x509.Certificate) { x.NotAfter = time.Now().Add(-time.Minute) })}.stays(t, "expired", n, "web")
		machine{c: c, cert: ca.Issue("web.example.org", nil)}.stays(t, "another name", n, "web")
		machine{c: c, cert: ca.Server()}.stays(t, "a server's certificate", n, "web")

		for name, renewal := range map[string]struct {
			who    machine
			status int
		}{
			"the same certificate":            {good, 200},
			"a newer one for its key":         {machine{c: c, cert: ca.IssueFor(good.cert.Key, "web.example.com", nil)}, 200},
			"no certificate":                  {machine{c: c, cert: nil}, 400},
			"another one that could log in":   {machine{c: c, cert: ca.Issue("web.example.com", nil)}, 400},
			"one of another CA, the same key": {machine{c: c, cert: stranger.IssueFor(good.cert.Key, "web.example.com", nil)}, 400},
		} {
			if a, _ := renewal.who.do(t, n, "POST", "auth/token/renew-self", token, nil); a.Status != renewal.status {
				t.Errorf("%s: a renewal with %s: status %d, want %d: %.300s", n.ID, name, a.Status, renewal.status, a.Body)
			}
		}
	}
	headersAreNoCertificates(t, c, good.cert)
	manyAreRefused(t, c, ca)

	token := good.login(t, c.Leader(), "web")
	root.must("POST", "auth/cert/crls/ca", fields{"crl": ca.Revoke(good.cert)})
	root.refused("a list of another CA", "POST", "auth/cert/crls/ca", fields{"crl": stranger.Revoke()})
	for _, n := range nodes {
		good.stays(t, "revoked", n, "web")
		if a, _ := good.do(t, n, "POST", "auth/token/renew-self", token, nil); a.Status != 400 {
			t.Errorf("%s: a renewal with a revoked certificate: status %d", n.ID, a.Status)
		}
		machine{c: c, cert: ca.Issue("web.example.com", nil)}.login(t, n, "web")
	}
	root.must("DELETE", "sys/auth/cert", nil)
	for _, n := range nodes {
		good.awaitAsked(t, n, false)
	}
	recorded(t, logFile, good.cert)
}

// headersAreNoCertificates: only the handshake tells who a client is, also at a node that forwards.
func headersAreNoCertificates(t *testing.T, c *harness.Cluster, cert *certtest.Client) {
	t.Helper()
	der := base64.StdEncoding.EncodeToString(cert.Cert.Raw)
	for _, n := range c.Nodes {
		for _, name := range []string{"X-Ssl-Client-Cert", "X-Forwarded-Client-Cert", "Client-Cert", "X-Client-Cert", "Certificates"} {
			a, _ := machine{c: c, cert: nil}.do(t, n, "POST", "auth/cert/login", "", fields{"name": "web"}, name, der, "X-Forwarded-For", "127.0.0.1")
			if a.Status != 400 {
				t.Errorf("a certificate in the header %s on %s: status %d", name, n.ID, a.Status)
			}
		}
	}
}

// recorded: the audit log names the certificate of a login, and of one that was refused.
func recorded(t *testing.T, file string, cert *certtest.Client) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var in, out bool
	for _, line := range strings.Split(string(text), "\n") {
		var r struct {
			Error    string
			Response struct {
				Auth struct{ Metadata map[string]string }
			}
		}
		if json.Unmarshal([]byte(line), &r) != nil {
			continue
		}
		serial := cert.Cert.SerialNumber.String()
		in = in || r.Response.Auth.Metadata["serial_number"] == serial && r.Response.Auth.Metadata["cert_name"] == "web"
		out = out || strings.Contains(r.Error, "serial_number="+serial)
	}
	if !in || !out {
		t.Errorf("the audit log has the login: %v, the login that was refused: %v", in, out)
	}
}

// TestClientCertificatesOnASecondary: a shared method takes certificates on a secondary, too, which asks for them by itself.
func TestClientCertificatesOnASecondary(t *testing.T) {
	t.Parallel()
	primary, secondary := harness.NewCluster(t, 1, harness.Options{Prefix: "p"}), harness.NewCluster(t, 1, harness.Options{Prefix: "s"})
	root := user{t, primary.Leader(), primary.RootToken, ""}
	ca := certtest.New(t, "ca")
	root.must("POST", "sys/auth/cert", fields{"type": "cert"})
	root.must("POST", "auth/cert/certs/web", fields{"certificate": ca.PEM(), "token_policies": "default"})
	harness.Replicate(primary, secondary, "eu")
	n := secondary.Leader()
	good := machine{c: secondary, cert: ca.Issue("web", nil)}
	good.awaitAsked(t, n, true)
	token := good.login(t, n, "web")
	if a, _ := good.do(t, n, "POST", "auth/token/renew-self", token, nil); a.Status != 200 {
		t.Errorf("a renewal: status %d: %.300s", a.Status, a.Body)
	}
	machine{c: secondary, cert: certtest.New(t, "ca").Issue("web", nil)}.stays(t, "another CA", n, "web")
	root.must("POST", "auth/cert/crls/ca", fields{"crl": ca.Revoke(good.cert)})
	secondary.AwaitHead(primary)
	good.stays(t, "revoked", n, "web")
}

// manyAreRefused: a client that sends more certificates than a chain has gets no connection.
func manyAreRefused(t *testing.T, c *harness.Cluster, ca *certtest.CA) {
	t.Helper()
	many := ca.Issue("web.example.com", nil)
	for range 10 {
		many.Chain = append(many.Chain, ca.Below("below").Cert)
	}
	w := wireWith(t, c, c.Leader(), "127.0.0.1", many)
	if status, _, _, err := w.ask("GET", "sys/health", ""); err == nil {
		t.Errorf("a client with eleven certificates is answered %d", status)
	}
}

// TestNoClientCertificates: a listener with tls_disable_client_certs never asks.
func TestNoClientCertificates(t *testing.T) {
	t.Parallel()
	c, root := single(t, harness.Options{ListenerConfig: "  tls_disable_client_certs = true"})
	ca := certtest.New(t, "ca")
	root.must("POST", "sys/namespaces/child", nil)
	root.in("child").must("POST", "sys/auth/cert", fields{"type": "cert"})
	if _, asked := (machine{c: c, cert: ca.Issue("web", nil)}).do(t, root.n, "GET", "sys/health", "", nil); asked {
		t.Error("the listener asks for a certificate")
	}
}

// TestCertificatesOfNamespaces: a method in any namespace has the listener ask.
func TestCertificatesOfNamespaces(t *testing.T) {
	t.Parallel()
	c, root := single(t, harness.Options{})
	ca := certtest.New(t, "ca")
	m := machine{c: c, cert: ca.Issue("web", nil)}
	root.must("POST", "sys/namespaces/child", nil)
	child := root.in("child")
	m.sessions = tls.NewLRUClientSessionCache(1)
	for range 2 {
		if _, asked := m.do(t, root.n, "GET", "sys/health", "", nil); asked {
			t.Error("asked for a certificate without a method that needs one")
		}
	}
	child.must("POST", "sys/auth/staff", fields{"type": "cert"})
	child.must("POST", "auth/staff/certs/web", fields{"certificate": ca.PEM()})
	if a, asked := m.do(t, root.n, "POST", "child/auth/staff/login", "", nil); a.Status != 200 || !asked {
		t.Errorf("a login in a namespace: status %d, asked: %v: %.300s", a.Status, asked, a.Body)
	}
	if a, asked := m.do(t, root.n, "POST", "child/auth/staff/login", "", nil); a.Status != 200 || asked {
		t.Errorf("a login in a session that is resumed: status %d, asked: %v: %.300s", a.Status, asked, a.Body)
	}
	if a, _ := m.do(t, root.n, "POST", "auth/staff/login", "", nil); a.Status == 200 {
		t.Error("the method of a namespace logs in at the root")
	}
}

// TestClientCertificateHeader: an authorized proxy says which certificate its client has, and no other client does.
func TestClientCertificateHeader(t *testing.T) {
	t.Parallel()
	c, root := single(t, harness.Options{ListenerConfig: `
  x_forwarded_for_authorized_addrs = ["127.0.0.0/31"]
  x_forwarded_for_reject_not_present = false
  x_forwarded_for_reject_not_authorized = false
  x_forwarded_for_client_cert_header = "x-client-cert"
  x_forwarded_for_client_cert_header_decoders = "URL,DER"`})
	ca := certtest.New(t, "ca")
	root.must("POST", "sys/auth/cert", fields{"type": "cert"})
	root.must("POST", "auth/cert/certs/web", fields{"certificate": ca.PEM(), "token_bound_cidrs": []string{"203.0.113.7", "127.0.0.0/8"}})
	client := url.PathEscape(certtest.PEM(ca.Issue("client", nil).Cert))
	proxy := ca.Issue("proxy", nil)
	for _, test := range []struct {
		name, from string
		own        *certtest.Client
		header     []string
		status     int
		is         string
	}{
		{"the proxy says it", "127.0.0.1", proxy, []string{"X-Forwarded-For", "203.0.113.7", "X-Client-Cert", client}, 200, "client"},
		{"the client has none", "127.0.0.1", proxy, []string{"X-Forwarded-For", "203.0.113.7"}, 400, ""},
		{"it is empty", "127.0.0.1", proxy, []string{"X-Forwarded-For", "203.0.113.7", "X-Client-Cert", ""}, 400, ""},
		{"without X-Forwarded-For", "127.0.0.1", nil, []string{"X-Client-Cert", client}, 200, "client"},
		{"the proxy for itself", "127.0.0.1", proxy, nil, 400, ""},
		{"twice", "127.0.0.1", nil, []string{"X-Client-Cert", client, "X-Client-Cert", client}, 400, ""},
		{"no certificate", "127.0.0.1", nil, []string{"X-Client-Cert", "abc"}, 400, ""},
		{"from another address", "127.0.0.2", nil, []string{"X-Client-Cert", client}, 400, ""},
		{"from another address, with a certificate of its own", "127.0.0.2", proxy, []string{"X-Client-Cert", client}, 200, "proxy"},
	} {
		status, _, body, err := wireWith(t, c, root.n, test.from, test.own).ask("POST", "auth/cert/login", "", test.header...)
		if err != nil || status != test.status || test.is != "" && !strings.Contains(string(body), `"common_name":"`+test.is+`"`) {
			t.Errorf("%s: status %d, %v; want %d of %q: %.300s", test.name, status, err, test.status, test.is, body)
		}
	}
}
