package security_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cert/certtest"
	"github.com/coffer-project/coffer/test/harness"
)

// wire is a connection to a node that a test writes requests to by hand.
type wire struct {
	net.Conn
	in *bufio.Reader
}

// wireTo connects from an address of this machine. first is sent before TLS begins.
func wireTo(t *testing.T, c *harness.Cluster, n *harness.Node, from, first string) *wire {
	t.Helper()
	return wired(t, c, n, from, first, nil)
}

// wireWith is wireTo for a client with a certificate, unless that is nil.
func wireWith(t *testing.T, c *harness.Cluster, n *harness.Node, from string, cert *certtest.Client) *wire {
	t.Helper()
	return wired(t, c, n, from, "", cert)
}

func wired(t *testing.T, c *harness.Cluster, n *harness.Node, from, first string, cert *certtest.Client) *wire {
	t.Helper()
	u, err := url.Parse(n.URL)
	if err != nil {
		t.Fatal(err)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	raw, err := d.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	raw.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(raw, first); err != nil {
		t.Fatal(err)
	}
	config := clientTLS(c)
	config.ServerName = u.Hostname()
	if cert != nil {
		config.Certificates = []tls.Certificate{cert.TLS()}
	}
	conn := tls.Client(raw, config)
	return &wire{conn, bufio.NewReader(conn)}
}

// ask sends a request and returns the response; err if the server has closed the connection.
func (w *wire) ask(method, path, body string, header ...string) (status int, h http.Header, content []byte, err error) {
	text := fmt.Sprintf("%s /v1/%s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n", method, path, len(body))
	for i := 0; i+1 < len(header); i += 2 {
		text += header[i] + ": " + header[i+1] + "\r\n"
	}
	if _, err := io.WriteString(w, text+"\r\n"+body); err != nil {
		return 0, nil, nil, err
	}
	res, err := http.ReadResponse(w.in, nil)
	if err != nil {
		return 0, nil, nil, err
	}
	defer res.Body.Close()
	content, err = io.ReadAll(res.Body)
	return res.StatusCode, res.Header, content, err
}

// TestIdleConnections: idle connections of one address, more than the process has descriptors, keep no client out.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	c, root := single(t, harness.Options{Files: 150})
	n := root.n
	for i := range 170 {
		w := wireTo(t, c, n, "127.0.0.1", "")
		if status, _, _, err := w.ask("GET", "sys/health", ""); err != nil || status != 200 {
			t.Fatalf("connection %d: status %d, %v", i, status, err)
		}
	}
	root.must("GET", "sys/mounts", nil)
	if status, _, _, err := wireTo(t, c, n, "127.0.0.2", "").ask("GET", "sys/health", ""); err != nil || status != 200 {
		t.Errorf("a client of another address: status %d, %v", status, err)
	}
}

// boundToken returns the header of a token that is good from one address only.
func boundToken(root user, address string) []string {
	root.t.Helper()
	root.must("POST", "auth/token/roles/bound", fields{"allowed_policies": "default", "token_bound_cidrs": address})
	return []string{"X-Vault-Token", authOf(root.t, root.must("POST", "auth/token/create/bound", nil)).Token}
}

// TestForwardedFor: X-Forwarded-For says who the client is if an authorized proxy sends it, and nothing otherwise.
func TestForwardedFor(t *testing.T) {
	t.Parallel()
	c, root := single(t, harness.Options{ListenerConfig: `
  x_forwarded_for_authorized_addrs = ["127.0.0.0/31"]
  x_forwarded_for_reject_not_present = false
  x_forwarded_for_reject_not_authorized = false
  x_forwarded_for_hop_skips = 1`})
	token := boundToken(root, "203.0.113.7")
	for _, test := range []struct {
		name, from string
		header     []string
		status     int
	}{
		{"the proxy says the client", "127.0.0.1", []string{"X-Forwarded-For", "198.51.100.1, 203.0.113.7, 10.0.0.1"}, 200},
		{"the client says it to the proxy", "127.0.0.1", []string{"X-Forwarded-For", "203.0.113.7, 198.51.100.1, 10.0.0.1"}, 403},
		{"in several headers", "127.0.0.1", []string{"X-Forwarded-For", "203.0.113.7", "X-Forwarded-For", "10.0.0.1"}, 200},
		{"too few hops", "127.0.0.1", []string{"X-Forwarded-For", "203.0.113.7"}, 400},
		{"no address", "127.0.0.1", []string{"X-Forwarded-For", "unknown, 10.0.0.1"}, 400},
		{"no header", "127.0.0.1", nil, 403},
		{"an address that is not authorized", "127.0.0.2", []string{"X-Forwarded-For", "203.0.113.7, 10.0.0.1"}, 403},
	} {
		status, _, body, err := wireTo(t, c, root.n, test.from, "").ask("GET", "auth/token/lookup-self", "", append(test.header, token...)...)
		if err != nil || status != test.status {
			t.Errorf("%s: status %d, %v; want %d: %.200s", test.name, status, err, test.status, body)
		}
	}
}

// TestProxyProtocol: PROXY headers of both versions say who the client is if an authorized proxy sends them; connections
// are counted by it.
func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	v1 := func(ip string) string { return "PROXY TCP4 " + ip + " 127.0.0.1 40000 8200\r\n" }
	v2 := "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71\x07\x7f\x00\x00\x01\x9c\x40\x20\x08" // 203.0.113.7
	t.Run("allow_authorized", func(t *testing.T) {
		c, root := single(t, harness.Options{ListenerConfig: `
  proxy_protocol_behavior = "allow_authorized"
  proxy_protocol_authorized_addrs = "127.0.0.1"
  max_connections_per_address = 8`})
		token := boundToken(root, "203.0.113.7")
		for _, test := range []struct {
			name, from, first string
			status            int // 0: the connection ends
		}{
			{"version 1", "127.0.0.1", v1("203.0.113.7"), 200},
			{"version 2", "127.0.0.1", v2, 200},
			{"another client", "127.0.0.1", v1("198.51.100.1"), 403},
			{"no header", "127.0.0.1", "", 403},
			{"version 1, unknown", "127.0.0.1", "PROXY UNKNOWN\r\n", 403},
			{"no TCP", "127.0.0.1", strings.Replace(v2, "\x21\x11", "\x21\x12", 1), 0},
			{"an address that is not authorized", "127.0.0.2", v1("203.0.113.7"), 403},
			{"the same, version 2", "127.0.0.2", v2, 403},
		} {
			status, _, body, err := wireTo(t, c, root.n, test.from, test.first).ask("GET", "auth/token/lookup-self", "", token...)
			if status != test.status || (err != nil) != (test.status == 0) {
				t.Errorf("%s: status %d, %v; want %d: %.200s", test.name, status, err, test.status, body)
			}
		}
		var clients, one []*wire
		for i := range 24 {
			clients = append(clients, wireTo(t, c, root.n, "127.0.0.1", v1(fmt.Sprintf("192.0.2.%d", i+1))))
		}
		for range 24 {
			one = append(one, wireTo(t, c, root.n, "127.0.0.1", v1("198.51.100.9")))
		}
		for i, w := range append(clients, one...) {
			if status, _, _, err := w.ask("GET", "sys/health", ""); err != nil || status != 200 {
				t.Errorf("connection %d through the proxy: status %d, %v", i, status, err)
			}
		}
		alive := func(wires []*wire) (n int) {
			for _, w := range wires {
				if _, _, _, err := w.ask("GET", "sys/health", ""); err == nil {
					n++
				}
			}
			return n
		}
		if n := alive(clients); n != len(clients) {
			t.Errorf("of %d clients behind the proxy %d keep their connection", len(clients), n)
		}
		if n := alive(one); n > 8 {
			t.Errorf("one client behind the proxy has %d connections, want 8", n)
		}
	})
	t.Run("deny_unauthorized", func(t *testing.T) {
		c, root := single(t, harness.Options{ListenerConfig: `
  proxy_protocol_behavior = "deny_unauthorized"
  proxy_protocol_authorized_addrs = ["127.0.0.1/32"]`})
		token := boundToken(root, "203.0.113.7")
		if status, _, _, err := wireTo(t, c, root.n, "127.0.0.1", v2).ask("GET", "auth/token/lookup-self", "", token...); err != nil || status != 200 {
			t.Errorf("the proxy: status %d, %v", status, err)
		}
		for _, first := range []string{"", v1("203.0.113.7"), v2} {
			if status, _, _, err := wireTo(t, c, root.n, "127.0.0.2", first).ask("GET", "sys/health", ""); err == nil {
				t.Errorf("an address that is not authorized, with %q: status %d, want no response", first, status)
			}
		}
	})
}

// TestRedaction: what a listener redacts is empty in all that needs no token, in namespaces, too; and what browsers must know
// of the API is in every response.
func TestRedaction(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{ListenerConfig: "redact_addresses = true\n  redact_version = true\n  redact_cluster_name = true"})
	root.must("POST", "sys/namespaces/a", nil)
	root.replicates()
	for path, want := range map[string][]string{
		"sys/health": {"version", "coffer_version", "cluster_name"}, "sys/leader": {"leader_address", "leader_cluster_address"},
		"sys/seal-status": {"version", "coffer_version", "build_date", "cluster_name"}, "sys/replication/status": nil,
		"sys/replication/performance/status": nil, "sys/unseal": {"version", "cluster_name"},
		"a/sys/replication/status": nil, "a/sys/replication/performance/status": nil,
	} {
		redacted(t, root.nobody(), path, want)
	}
	if a := root.do("GET", "sys/host-info", nil); a.Status != 200 {
		t.Errorf("a path with a token: status %d", a.Status)
	}
	if a := root.do("GET", "sys/mounts", nil, "Authorization", "Bearer another"); a.Status != 400 {
		t.Errorf("two tokens that differ: status %d, want 400", a.Status)
	}
	if a := root.do("GET", "sys/mounts", nil, "Authorization", "Bearer "+root.token); a.Status != 200 {
		t.Errorf("the same token twice: status %d, want 200", a.Status)
	}
}

// replicates makes the cluster a primary, whose status has an address.
func (u user) replicates() {
	u.t.Helper()
	u.must("POST", "sys/replication/performance/primary/enable", fields{"primary_cluster_addr": "127.0.0.1:1"})
	harness.Await(u.t, "replication", 30*time.Second, func() error {
		if a := u.nobody().do("GET", "sys/replication/performance/status", nil); !strings.Contains(string(a.Body), `"mode":"primary"`) {
			return fmt.Errorf("status %d: %.200s", a.Status, a.Body)
		}
		return nil
	})
}

// redactedByStandbys: a standby redacts what the active node answers.
func redactedByStandbys(t *testing.T, c *harness.Cluster) {
	root := user{t, c.Leader(), c.RootToken, ""}
	root.replicates()
	for _, node := range c.Standbys() {
		redacted(t, root.at(node).nobody(), "sys/replication/status", nil)
	}
	if a := root.nobody().do("GET", "sys/replication/status", nil, "Coffer-Redact", "cluster_name"); strings.Contains(string(a.Body), "127.0.0.1") {
		t.Error("a client's header replaces what the listener redacts")
	}
}

func redacted(t *testing.T, u user, path string, want []string) {
	t.Helper()
	method, body := "GET", any(nil)
	if path == "sys/unseal" {
		method, body = "POST", fields{"reset": true}
	}
	a := u.do(method, path, body)
	content := map[string]any{}
	if err := json.Unmarshal(a.Body, &content); err != nil {
		t.Fatalf("%s: status %d: %v", path, a.Status, err)
	}
	for _, field := range want {
		if v, ok := content[field]; !ok || v != "" {
			t.Errorf("%s: %s = %v, want it empty", path, field, v)
		}
	}
	if strings.HasSuffix(path, "status") && a.Status != 200 {
		t.Errorf("%s: status %d: %.200s", path, a.Status, a.Body)
	}
	for _, hidden := range []string{"127.0.0.1", "1.21.0", `"test"`} {
		if strings.Contains(string(a.Body), hidden) {
			t.Errorf("%s tells %s", path, hidden)
		}
	}
	if a.Header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(a.Header.Get("Strict-Transport-Security"), "max-age=") {
		t.Errorf("%s: the headers for browsers are missing: %v", path, a.Header)
	}
}
