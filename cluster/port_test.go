package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"
)

func newTestIdentity(t *testing.T, id NodeID, ca CA) *identity {
	t.Helper()
	trust, err := newTrust(ca)
	if err != nil {
		t.Fatal(err)
	}
	who, err := newIdentity(id, nil, trust, func() (CA, error) { return ca, nil })
	if err != nil {
		t.Fatal(err)
	}
	return who
}

func TestCertificateNames(t *testing.T) {
	for _, id := range []NodeID{"a", "node-1.example", "Ünïcode/..*", NodeID(strings.Repeat("x", maxIDBytes))} {
		cert, err := testCA().Issue(id)
		if err != nil {
			t.Fatal(err)
		}
		if got := nodeOf(cert.Leaf); got != id {
			t.Errorf("the certificate of %q names %q", id, got)
		}
	}
}

func TestCertificateIsRenewed(t *testing.T) {
	who := newTestIdentity(t, "a", testCA())
	first, err := who.current()
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := who.current(); again != first {
		t.Error("a fresh certificate was replaced")
	}
	who.cert.Leaf.NotAfter = time.Now().Add(leafRenewal - time.Minute)
	if again, _ := who.current(); again == first {
		t.Error("a certificate near its end was not replaced")
	}
}

func TestCAIsNotPrinted(t *testing.T) {
	ca := testCA()
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "ca", ca)
	for _, s := range []string{fmt.Sprint(ca), fmt.Sprintf("%+v %#v", ca, ca), fmt.Sprint(Options{CA: ca}), log.String()} {
		if strings.Contains(s, "PRIVATE") || strings.Contains(s, fmt.Sprint([]byte("PRIVATE"))[1:10]) {
			t.Errorf("the key is printed: %.80s", s)
		}
	}
}

// Only nodes of the cluster that speak one of its protocols get through, and nothing else does harm.
func TestPortLetsInOnlyNodes(t *testing.T) {
	foreign, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	who := newTestIdentity(t, "a", testCA())
	p, err := listen("127.0.0.1:0", who, slog.New(slog.DiscardHandler), protocolRaft, protocolForward)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	in := p.inbox(protocolRaft)
	addr := p.tcp.Addr().String()
	dial := func(from *identity, to NodeID, change func(*tls.Config)) error {
		c := from.client(to, protocolRaft)
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
	b := newTestIdentity(t, "b", testCA())
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
			return dial(b, "a", func(c *tls.Config) { c.NextProtos = []string{protocolForward} })
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
		if conn, err := b.dial(context.Background(), "a", addr, protocolRaft); err == nil {
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
	theirs, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	node, guest, host := newTestIdentity(t, "b", testCA()), newTestIdentity(t, "g", theirs), newTestIdentity(t, "h", theirs)
	p, err := listen("127.0.0.1:0", newTestIdentity(t, "a", testCA()), slog.New(slog.DiscardHandler), protocolRaft, protocolForward)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	raft := p.inbox(protocolRaft)
	refuse := false
	const name = "guests"
	in, err := p.guest(name, func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if refuse {
			return nil, nil
		}
		return host.server([]string{protocolRaft}), nil // the name is not its to choose
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, taken := range []string{name, protocolRaft, protocolForward} {
		if _, err := p.guest(taken, nil); err == nil {
			t.Errorf("%q is given away twice", taken)
		}
	}
	addr := p.tcp.Addr().String()
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
		{"a guest", guest.client("h", name), "guest"},
		{"a node", node.client("a", protocolRaft), "raft"},
		{"a guest asks for raft", guest.client("a", protocolRaft), ""},
		{"a guest trusts us and asks for raft", with(guest.client("a", protocolRaft), func(c *tls.Config) { c.VerifyConnection = nil }), ""},
		{"a guest asks for both", with(guest.client("h", name), func(c *tls.Config) { c.NextProtos = []string{protocolRaft, name} }), "guest"},
		{"a node asks for the guests", with(node.client("h", name), func(c *tls.Config) { c.VerifyConnection = nil }), ""},
		{"a node asks for both", with(node.client("a", protocolRaft), func(c *tls.Config) { c.NextProtos = []string{protocolRaft, name} }), ""},
		{"old TLS", with(guest.client("h", name), func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }), ""},
		{"no certificate", with(guest.client("h", name), func(c *tls.Config) { c.GetClientCertificate = nil }), ""},
	}
	for _, tt := range tests {
		if got := reach(tt.config); got != tt.want {
			t.Errorf("%s: got to %q, want %q", tt.name, got, tt.want)
		}
	}
	refuse = true
	if got := reach(guest.client("h", name)); got != "" {
		t.Errorf("without a configuration a guest got to %q", got)
	}
	refuse = false
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if got := reach(guest.client("h", name)); got != "" {
		t.Errorf("after Close a guest got to %q", got)
	}
	again, err := p.guest(name, func(*tls.ClientHelloInfo) (*tls.Config, error) { return host.server(nil), nil })
	if err != nil {
		t.Fatal(err)
	}
	in.Close() // of the one before: it must not take the name away
	go serve(again, "again")
	if got := reach(guest.client("h", name)); got != "again" {
		t.Errorf("the next listener of the name: got to %q", got)
	}
}

// TestPortIsNotHeldByOne: whoever connects and says nothing, however often, does not keep others out.
func TestPortIsNotHeldByOne(t *testing.T) {
	p, err := listen("127.0.0.1:0", newTestIdentity(t, "a", testCA()), slog.New(slog.DiscardHandler), protocolRaft)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	in := p.inbox(protocolRaft)
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
		conn, err := net.Dial("tcp", p.tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	other := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: handshakeTimeout / 2}
	conn, err := tls.DialWithDialer(other, "tcp", p.tcp.Addr().String(), newTestIdentity(t, "b", testCA()).client("a", protocolRaft))
	if err != nil {
		t.Fatalf("another host: %v", err)
	}
	defer conn.Close()
	if got, _ := io.ReadAll(conn); string(got) != "welcome" {
		t.Errorf("another host got %q", got)
	}
}
