package security_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

const (
	heldBytes = 31 << 20 // of a body whose last byte never comes
	sentBytes = 2 << 20  // of such a body
	mostAdded = 64 << 20 // of memory that such bodies may cost
	heldConns = 30       // such bodies at once; each kept, they would add 60 MiB
)

// resident returns how much memory the node's process has.
func resident(t *testing.T, n *harness.Node) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if kib, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			size, err := strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return size << 10
		}
	}
	t.Fatal("the process has no VmRSS")
	return 0
}

// dial connects to the node's API, with TLS if it has it.
func dial(t *testing.T, c *harness.Cluster, n *harness.Node) net.Conn {
	t.Helper()
	conn, err := open(c, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func open(c *harness.Cluster, n *harness.Node) (net.Conn, error) {
	u, err := url.Parse(n.URL)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "http" {
		return net.Dial("tcp", u.Host)
	}
	return tls.Dial("tcp", u.Host, clientTLS(c))
}

func clientTLS(c *harness.Cluster) *tls.Config {
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: pool, CurvePreferences: harness.Curves}
}

// holdBody sends the beginning of a body, as far as the server takes it, and never its last byte.
func holdBody(conn net.Conn, path, token, kind string, size int) {
	header := fmt.Sprintf("POST /v1/%s HTTP/1.1\r\nHost: h\r\nContent-Type: %s\r\nContent-Length: %d\r\n", path, kind, size)
	if token != "" {
		header += "X-Vault-Token: " + token + "\r\n"
	}
	conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, header+"\r\n"); err != nil {
		return
	}
	for left := min(size-1, sentBytes); left > 0; {
		n, err := conn.Write(spaces[:min(left, len(spaces))])
		if err != nil {
			return // rejected
		}
		left -= n
	}
}

// spaces are the content of bodies that are held back.
var spaces = bytes.Repeat([]byte(" "), 64<<10)

// held is a body that never ends.
type held struct {
	left int
	over <-chan struct{}
}

func (h *held) Read(p []byte) (int, error) {
	if h.left == 0 {
		<-h.over
		return 0, errors.New("given up")
	}
	n := copy(p[:min(len(p), h.left)], spaces)
	h.left -= n
	return n, nil
}

// holdStreams does what holdBody does on many streams of one HTTP/2 connection, until each has a response.
func holdStreams(t *testing.T, c *harness.Cluster, n *harness.Node, streams int, path, token string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: clientTLS(c), ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var requests sync.WaitGroup
	for range streams {
		requests.Go(func() {
			r, err := http.NewRequestWithContext(ctx, "POST", n.URL+"/v1/"+path, &held{heldBytes - 1, ctx.Done()})
			if err != nil {
				t.Error(err)
				return
			}
			r.ContentLength = heldBytes
			if token != "" {
				r.Header.Set("X-Vault-Token", token)
			}
			res, err := client.Do(r)
			if err != nil {
				t.Errorf("a stream with a body that is held back gets no response: %v", err)
				return
			}
			defer res.Body.Close()
			if res.ProtoMajor != 2 || res.StatusCode < 400 {
				t.Errorf("%s, status %d, want HTTP/2 and a rejection", res.Proto, res.StatusCode)
			}
		})
	}
	requests.Wait()
}

// TestHeldBodies: bodies that are held back cost a node next to nothing unless they come with a valid token, in every
// state of the node, and others are served meanwhile.
func TestHeldBodies(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{Memory: true, StorageConfig: "performance_multiplier = 5"})
	leader := c.Leader()
	root := user{t, leader, c.RootToken, ""}
	standby := c.Standbys()[0]
	sealed := c.Standbys()[1]
	root.must("POST", "sys/auth/sso", fields{"type": "saml"})
	root.must("POST", "sys/mounts/secret", fields{"type": "kv", "options": fields{"version": "2"}})
	root.must("POST", "secret/data/x", fields{"data": fields{"a": "b"}})
	root.at(sealed).must("POST", "sys/seal", nil)
	empty := harness.NewCluster(t, 1, harness.Options{Bare: true, Memory: true})
	empty.Nodes[0].WaitHealth(501)
	slow := map[*harness.Node]*wire{
		leader: slowBody(t, c, leader, "auth/sso/token"), standby: slowBody(t, c, standby, "auth/sso/token"),
		empty.Nodes[0]: slowBody(t, empty, empty.Nodes[0], "sys/init"),
	}
	plausible := "hvs." + strings.Repeat("Ab3_", 24)
	const json, form = "application/json", "application/x-www-form-urlencoded"
	for _, test := range []struct {
		name              string
		c                 *harness.Cluster
		n                 *harness.Node
		path, token, kind string
		size              int
	}{
		{"active, no token", c, leader, "secret/data/x", "", json, heldBytes},
		{"active, a token that looks like one", c, leader, "secret/data/x", plausible, json, heldBytes},
		{"active, no mount", c, leader, "nowhere/x", plausible, json, heldBytes},
		{"active, a snapshot", c, leader, "sys/storage/raft/snapshot", plausible, json, heldBytes},
		{"active, a login", c, leader, "auth/sso/token", plausible, json, heldBytes},
		{"active, a SAML response", c, leader, "auth/sso/callback", "", form, 2 << 20},
		{"standby, no token", c, standby, "secret/data/x", "", json, heldBytes},
		{"standby, a token that looks like one", c, standby, "secret/data/x", plausible, json, heldBytes},
		{"standby, a snapshot", c, standby, "sys/storage/raft/snapshot", plausible, json, heldBytes},
		{"standby, a SAML response", c, standby, "auth/sso/callback", "", form, 2 << 20},
		{"sealed", c, sealed, "secret/data/x", plausible, json, heldBytes},
		{"sealed, unseal", c, sealed, "sys/unseal", "", json, heldBytes},
		{"not initialized, init", empty, empty.Nodes[0], "sys/init", "", json, heldBytes},
		{"not initialized", empty, empty.Nodes[0], "secret/data/x", plausible, json, heldBytes},
	} {
		t.Run(test.name, func(t *testing.T) {
			// What is compared is a node that has served as many connections before: what these leave to the garbage collector
			// is not of the bodies.
			hold := func(size int) {
				var conns sync.WaitGroup
				for range heldConns {
					conn := dial(t, test.c, test.n)
					conns.Go(func() { holdBody(conn, test.path, test.token, test.kind, size) })
				}
				conns.Wait()
			}
			hold(2)
			before := map[*harness.Node]int64{test.n: resident(t, test.n), leader: resident(t, leader)}
			hold(test.size)
			for n, was := range before {
				added := resident(t, n) - was
				if t.Logf("%d bodies add %d MiB to the memory of %s", heldConns, added>>20, n.ID); added > mostAdded/2 {
					t.Errorf("want less than %d MiB", int64(mostAdded/2)>>20)
				}
			}
			if test.c == c {
				root.at(standby).must("GET", "secret/data/x", nil)
				root.must("POST", "secret/data/x", fields{"data": fields{"a": "b"}})
			}
		})
	}
	for _, n := range []*harness.Node{leader, standby} {
		t.Run("HTTP/2, "+n.ID, func(t *testing.T) {
			before := resident(t, n)
			holdStreams(t, c, n, 250, "secret/data/x", plausible)
			holdStreams(t, c, n, 250, "secret/data/x", "")
			if added := resident(t, n) - before; added > mostAdded {
				t.Errorf("500 streams add %d MiB", added>>20)
			}
		})
	}
	for n, conn := range slow {
		conn.SetDeadline(time.Now().Add(30 * time.Second))
		res, err := http.ReadResponse(conn.in, nil)
		if err != nil {
			t.Errorf("a slow body on %s: %v, want a response", n.ID, err)
			continue
		}
		res.Body.Close()
		if res.StatusCode < 400 {
			t.Errorf("a slow body on %s: status %d, want a rejection", n.ID, res.StatusCode)
		}
	}
}

// slowBody begins a request without a token whose body stops after a byte: such a body has ten seconds.
func slowBody(t *testing.T, c *harness.Cluster, n *harness.Node, path string) *wire {
	t.Helper()
	w := wireTo(t, c, n, "127.0.0.1", "")
	if _, err := fmt.Fprintf(w, "POST /v1/%s HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n{", path); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestBodyBudget: also with a valid token bodies take no more memory than there is for them, one address leaves room for
// others, and a rate limit rejects a request before its body is read.
func TestBodyBudget(t *testing.T) {
	t.Parallel()
	c, root := single(t, harness.Options{Memory: true, ListenerConfig: `max_request_memory = "128MiB"`})
	n := root.n
	before := resident(t, n)
	var conns sync.WaitGroup
	for range 100 {
		conn := dial(t, c, n)
		conns.Go(func() { holdBody(conn, "cubbyhole/x", root.token, "application/json", heldBytes) })
	}
	conns.Wait()
	if added := resident(t, n) - before; added > 3*mostAdded {
		t.Errorf("100 bodies with a token add %d MiB, of a budget of 64 MiB for one address", added>>20)
	}
	body := `{"text":"` + strings.Repeat("x", 512<<10) + `"}`
	if status, _, content, err := wireTo(t, c, n, "127.0.0.2", "").ask("POST", "cubbyhole/x", body, "X-Vault-Token", root.token); err != nil || status != 204 {
		t.Errorf("another address: status %d, %v: %.200s", status, err, content)
	}
	root.must("GET", "cubbyhole/x", nil)

	root.must("POST", "sys/quotas/rate-limit/all", fields{"rate": 1, "interval": "1h"})
	var last *wire
	for range 2 {
		last = wireTo(t, c, n, "127.0.0.3", "")
		holdBody(last, "cubbyhole/x", "", "application/json", 1<<20)
	}
	res, err := http.ReadResponse(last.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a body beyond the rate limit: status %d, want 429 before it has arrived", res.StatusCode)
	}
}
