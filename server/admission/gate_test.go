package admission_test

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/admission"
)

// addressed is a connection from any address.
type addressed struct {
	net.Conn
	from net.Addr
}

func (c addressed) RemoteAddr() net.Addr { return c.from }

// arrivals is a listener of connections that a test makes.
type arrivals chan net.Conn

func (a arrivals) Accept() (net.Conn, error) {
	c, ok := <-a
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (a arrivals) Close() error   { return nil }
func (a arrivals) Addr() net.Addr { return &net.TCPAddr{} }

// client is one end of a connection, and what the server got of it.
type client struct {
	net.Conn
	server net.Conn // nil: the gate did not let it in
}

// closed reports whether the server's end is closed.
func (c client) closed() bool {
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return err == io.EOF || err == io.ErrClosedPipe
}

// TestGate: connections beyond a bound take the place of idle ones, the oldest of the address that is crowded.
func TestGate(t *testing.T) {
	in := make(arrivals, 1)
	gate := admission.NewGate(in, admission.GateOptions{Total: 6, Each: 3, Exempt: []netip.Prefix{netip.MustParsePrefix("10.0.0.9/32")}})
	accepted := make(chan net.Conn)
	go func() {
		for {
			c, err := gate.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	defer close(in)
	connect := func(ip string, let bool) client {
		t.Helper()
		ours, theirs := net.Pipe()
		in <- addressed{theirs, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(ip), 1))}
		c := client{Conn: ours}
		if let {
			c.server = <-accepted
		} else if _, err := ours.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a connection beyond the bounds: %v, want its end", err)
		}
		return c
	}
	busy := func(c client) { gate.ConnState(c.server, http.StateActive) }
	idle := func(c client) { gate.ConnState(c.server, http.StateIdle) }

	a1, a2, a3 := connect("10.0.0.1", true), connect("10.0.0.1", true), connect("10.0.0.1", true)
	busy(a1)
	busy(a3)
	idle(a3)
	a4 := connect("10.0.0.1", true)
	if !a2.closed() || a1.closed() || a3.closed() {
		t.Error("of one address, the oldest idle connection must make room")
	}
	busy(a3)
	busy(a4)
	connect("10.0.0.1", false) // nothing is idle
	b1, b2, b3 := connect("10.0.0.2", true), connect("10.0.0.2", true), connect("10.0.0.9", true)
	if open, _, _ := gate.Numbers(); open != 6 {
		t.Errorf("open = %d, want 6", open)
	}
	busy(b1)
	c1 := connect("10.0.0.3", true) // full: 10.0.0.2 has more than 10.0.0.9
	if !b2.closed() || b3.closed() {
		t.Error("of all addresses, the one with most connections must make room")
	}
	for _, c := range []client{b3, c1} {
		busy(c)
	}
	connect("10.0.0.4", false)
	b1.server.Close()
	b1.server.Close()
	x := connect("10.0.0.9", true)
	busy(x)
	for _, c := range []client{a1, a3, a4, b3, c1, x} {
		c.server.Close()
	}
	for range 4 {
		busy(connect("10.0.0.9", true)) // it stands for many clients
	}
	open, evicted, rejected := gate.Numbers()
	if open != 4 || evicted != 2 || rejected != 2 {
		t.Errorf("open, evicted, rejected = %d, %d, %d; want 4, 2, 2", open, evicted, rejected)
	}
}

func TestBudget(t *testing.T) {
	b := admission.NewBudget(100, 60)
	one, two := b.Share(netip.MustParseAddr("2001:db8::1")), b.Share(netip.MustParseAddr("2001:db8::2")) // of one /64
	other := b.Share(netip.MustParseAddr("10.0.0.1"))
	if err := one.Grow(50); err != nil {
		t.Fatal(err)
	}
	if err := two.Grow(11); err != admission.ErrBusy {
		t.Errorf("beyond what one client may have: %v", err)
	}
	if err := other.Grow(50); err != nil {
		t.Error(err)
	}
	if err := two.Grow(1); err != admission.ErrBusy {
		t.Errorf("beyond what there is: %v", err)
	}
	one.Shrink(1)
	if err := two.Grow(1); err != nil {
		t.Error(err)
	}
	for range 2 {
		one.Release()
		two.Release()
		other.Release()
	}
	if b.Used() != 0 || b.Rejected() != 2 {
		t.Errorf("used %d, rejected %d; want 0, 2", b.Used(), b.Rejected())
	}
}

func TestPace(t *testing.T) {
	p := admission.NewPace(30 * time.Second)
	begun := p.Deadline(0).Add(-admission.Grace)
	for arrived, want := range map[int64]time.Duration{0: 10 * time.Second, 64 << 10: 18 * time.Second, 1 << 30: 30 * time.Second} {
		if got := p.Deadline(arrived).Sub(begun); got != want {
			t.Errorf("after %d bytes the time is %v, want %v", arrived, got, want)
		}
	}
}
