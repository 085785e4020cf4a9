package port

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cluster/certs"
)

func newTestIdentity(t *testing.T, id certs.NodeID, ca certs.CA) *Identity {
	t.Helper()
	trust, err := certs.NewTrust(ca)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := NewIdentity(id, nil, trust, func() (certs.CA, error) { return ca, nil })
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

func TestCertificateIsRenewed(t *testing.T) {
	identity := newTestIdentity(t, "a", portCA())
	first, err := identity.Current()
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := identity.Current(); again != first {
		t.Error("a fresh certificate was replaced")
	}
	identity.cert.Leaf.NotAfter = time.Now().Add(certs.LeafRenewal - time.Minute)
	if again, _ := identity.Current(); again == first {
		t.Error("a certificate near its end was not replaced")
	}
}

// Only nodes of the cluster that speak one of its protocols get through, and nothing else does harm.
func TestPortLetsInOnlyNodes(t *testing.T) {
	foreign, err := certs.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	identity := newTestIdentity(t, "a", portCA())
	p, err := Open("127.0.0.1:0", identity, slog.New(slog.DiscardHandler), Raft, Forward)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	in := p.Inbox(Raft)
	addr := p.TCP.Addr().String()
	dial := func(from *Identity, to certs.NodeID, change func(*tls.Config)) error {
		c := from.Client(to, Raft)
		if change != nil {
			change(c)
		}
		conn, err := tls.Dial("tcp", addr, c)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, err = conn.Read(make([]byte, 1)) // in TLS 1.3 a refusal of the client comes late
		return err
	}
	b := newTestIdentity(t, "b", portCA())
	stranger := newTestIdentity(t, "b", foreign)
	tests := []struct {
		name string
		dial func() error
	}{
		{"another CA", func() error {
			return dial(stranger, "a", func(c *tls.Config) { c.VerifyConnection = nil })
		}},
		{"no certificate", func() error {
			return dial(b, "a", func(c *tls.Config) { c.GetClientCertificate = nil })
		}},
		{"no protocol", func() error { return dial(b, "a", func(c *tls.Config) { c.NextProtos = nil }) }},
		{"unknown protocol", func() error { return dial(b, "a", func(c *tls.Config) { c.NextProtos = []string{"h2"} }) }},
		{"nobody serves the protocol", func() error {
			return dial(b, "a", func(c *tls.Config) { c.NextProtos = []string{Forward} })
		}},
		{"old TLS", func() error {
			return dial(b, "a", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 })
		}},
		{"meant for another node", func() error { return dial(b, "c", nil) }},
		{"plain bytes", func() error {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprint(conn, "GET / HTTP/1.1\r\n\r\n")
			conn.SetDeadline(time.Now().Add(10 * time.Second))
			_, err = io.ReadAll(conn)
			if err == nil {
				err = io.EOF
			}
			return err
		}},
	}
	for _, tt := range tests {
		if err := tt.dial(); err == nil {
			t.Errorf("%s: let in", tt.name)
		} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Errorf("%s: neither let in nor refused", tt.name)
		}
	}
	select {
	case <-in.conns:
		t.Error("a refused connection came through")
	default:
	}
	go func() {
		if conn, err := b.Dial(context.Background(), "a", addr, Raft); err == nil {
			fmt.Fprint(conn, "hello")
			conn.Close()
		}
	}()
	conn, err := in.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, _ := io.ReadAll(conn); string(got) != "hello" {
		t.Errorf("a node's connection brought %q", got)
	}
}

// A protocol that is spoken with others has its own certificates, and they open nothing else; nor do those of nodes
// open it.
func TestPortKeepsGuestsApart(t *testing.T) {
	theirs, err := certs.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	node, guest, host := newTestIdentity(t, "b", portCA()), newTestIdentity(t, "g", theirs), newTestIdentity(t, "h", theirs)
	p, err := Open("127.0.0.1:0", newTestIdentity(t, "a", portCA()), slog.New(slog.DiscardHandler), Raft, Forward)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	raft := p.Inbox(Raft)
	refuse := false
	const name = "guests"
	in, err := p.Guest(name, func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if refuse {
			return nil, nil
		}
		return host.server([]string{Raft}), nil // the name is not its to choose
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, taken := range []string{name, Raft, Forward} {
		if _, err := p.Guest(taken, nil); err == nil {
			t.Errorf("%q is given away twice", taken)
		}
	}
	addr := p.TCP.Addr().String()
	// reach returns what the client reads; the server writes the name of the listener that got the connection.
	serve := func(l net.Listener, says string) {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, says)
			conn.Close()
		}
	}
	go serve(in, "guest")
	go serve(raft, "raft")
	reach := func(c *tls.Config) string {
		conn, err := tls.Dial("tcp", addr, c)
		if err != nil {
			return ""
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		got, err := io.ReadAll(conn)
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Error("neither let in nor refused")
		}
		return string(got)
	}
	with := func(c *tls.Config, change func(*tls.Config)) *tls.Config {
		change(c)
		return c
	}
	tests := []struct {
		name   string
		config *tls.Config
		want   string
	}{
		{"a guest", guest.Client("h", name), "guest"},
		{"a node", node.Client("a", Raft), "raft"},
		{"a guest asks for raft", guest.Client("a", Raft), ""},
		{"a guest trusts us and asks for raft", with(guest.Client("a", Raft), func(c *tls.Config) { c.VerifyConnection = nil }), ""},
		{"a guest asks for both", with(guest.Client("h", name), func(c *tls.Config) { c.NextProtos = []string{Raft, name} }), "guest"},
		{"a node asks for the guests", with(node.Client("h", name), func(c *tls.Config) { c.VerifyConnection = nil }), ""},
		{"a node asks for both", with(node.Client("a", Raft), func(c *tls.Config) { c.NextProtos = []string{Raft, name} }), ""},
		{"old TLS", with(guest.Client("h", name), func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }), ""},
		{"no certificate", with(guest.Client("h", name), func(c *tls.Config) { c.GetClientCertificate = nil }), ""},
	}
	for _, tt := range tests {
		if got := reach(tt.config); got != tt.want {
			t.Errorf("%s: got to %q, want %q", tt.name, got, tt.want)
		}
	}
	refuse = true
	if got := reach(guest.Client("h", name)); got != "" {
		t.Errorf("without a configuration a guest got to %q", got)
	}
	refuse = false
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if got := reach(guest.Client("h", name)); got != "" {
		t.Errorf("after Close a guest got to %q", got)
	}
	again, err := p.Guest(name, func(*tls.ClientHelloInfo) (*tls.Config, error) { return host.server(nil), nil })
	if err != nil {
		t.Fatal(err)
	}
	in.Close() // of the one before: it must not take the name away
	go serve(again, "again")
	if got := reach(guest.Client("h", name)); got != "again" {
		t.Errorf("the next listener of the name: got to %q", got)
	}
}

// TestPortIsNotHeldByOne: a client that connects and sends nothing, however often, does not keep others out.
func TestPortIsNotHeldByOne(t *testing.T) {
	p, err := Open("127.0.0.1:0", newTestIdentity(t, "a", portCA()), slog.New(slog.DiscardHandler), Raft)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	in := p.Inbox(Raft)
	go func() {
		for {
			conn, err := in.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "welcome")
			conn.Close()
		}
	}()
	for range maxHandshakes + 100 {
		conn, err := net.Dial("tcp", p.TCP.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	other := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: handshakeTimeout / 2}
	conn, err := tls.DialWithDialer(other, "tcp", p.TCP.Addr().String(), newTestIdentity(t, "b", portCA()).Client("a", Raft))
	if err != nil {
		t.Fatalf("another host: %v", err)
	}
	defer conn.Close()
	if got, _ := io.ReadAll(conn); string(got) != "welcome" {
		t.Errorf("another host got %q", got)
	}
}

var portCA = sync.OnceValue(func() certs.CA {
	ca, err := certs.NewCA()
	if err != nil {
		panic(err)
	}
	return ca
})
