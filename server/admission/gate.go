package admission

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
)

// Gate is a net.Listener that bounds the connections of an HTTP server: all of them, and those of each client address.
// A connection beyond a bound takes the place of one that is idle (no request is under way, or none has come yet): of the
// same client if that has too many, else of one that has many. Where none is idle, the new connection is closed.
//
// Give ConnState to the server; without it every connection counts as idle. Safe for concurrent use.
type Gate struct {
	net.Listener
	total, each int
	exempt      []netip.Prefix
	late        bool // addresses are known after the first bytes only

	mu      sync.Mutex
	open    int
	clients map[netip.Addr]*client

	evicted, rejected atomic.Uint64
}

// client is one address with connections.
type client struct {
	open int
	idle list // oldest first
}

// list is a doubly linked list of connections.
type list struct{ first, last *conn }

// conn is one accepted connection.
type conn struct {
	net.Conn
	gate *Gate

	// Guarded by gate.mu.
	client     *client
	addr       netip.Addr
	idle, gone bool
	known      bool // addr is the client's
	prev, next *conn
}

// GateOptions bound a Gate.
type GateOptions struct {
	Total, Each int // connections: of the listener, and of one client
	// Exempt are networks whose addresses stand for many clients: the bound of one client is not theirs.
	Exempt []netip.Prefix
	// Late says that the listener's connections learn the client's address from their first bytes: RemoteAddr waits for
	// them. Until then a connection counts for no client.
	Late bool
}

// NewGate returns a gate in front of a listener.
func NewGate(l net.Listener, o GateOptions) *Gate {
	return &Gate{Listener: l, total: o.Total, each: o.Each, exempt: o.Exempt, late: o.Late, clients: map[netip.Addr]*client{}}
}

// Accept implements net.Listener.
func (g *Gate) Accept() (net.Conn, error) {
	for {
		raw, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, gate: g}
		if !g.late {
			c.addr, c.known = addressOf(raw), true
		}
		if g.admit(c) {
			return c, nil
		}
		raw.Close()
	}
}

func addressOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return Client(a.AddrPort().Addr())
	}
	return netip.Addr{}
}

// admit makes room for a connection, and reports whether there is.
func (g *Gate) admit(c *conn) bool {
	g.mu.Lock()
	victims, ok := g.admitLocked(c)
	g.mu.Unlock()
	g.close(victims, ok)
	return ok
}

func (g *Gate) admitLocked(c *conn) (victims []*conn, ok bool) {
	if victim := g.crowdedLocked(c.addr, c.known); victim != nil {
		victims = append(victims, victim)
		g.removeLocked(victim)
	} else if g.fullLocked(c.addr, c.known) {
		return nil, false
	}
	if g.open >= g.total {
		victim := g.busiestLocked()
		if victim == nil {
			return victims, false
		}
		victims = append(victims, victim)
		g.removeLocked(victim)
	}
	g.open++
	g.joinLocked(c)
	return victims, true
}

// fullLocked reports whether an address has as many connections as it may.
func (g *Gate) fullLocked(addr netip.Addr, known bool) bool {
	cl := g.clients[addr]
	return known && cl != nil && cl.open >= g.each && !Contains(g.exempt, addr)
}

// crowdedLocked returns the oldest idle connection of an address that has as many as it may, nil if there is none.
func (g *Gate) crowdedLocked(addr netip.Addr, known bool) *conn {
	if !g.fullLocked(addr, known) {
		return nil
	}
	return g.clients[addr].idle.first
}

// busiestLocked returns an idle connection of an address that has many: the most of those it looks at, which are few, as
// it runs for each connection while the gate is full.
func (g *Gate) busiestLocked() *conn {
	const looks = 32
	var most *client
	looked := 0
	for _, cl := range g.clients { // in random order
		if cl.idle.first != nil && (most == nil || cl.open > most.open) {
			most = cl
		}
		if looked++; looked >= looks && most != nil {
			break
		}
	}
	if most == nil {
		return nil
	}
	return most.idle.first
}

// joinLocked counts a connection for its address, as idle.
func (g *Gate) joinLocked(c *conn) {
	cl := g.clients[c.addr]
	if cl == nil {
		cl = new(client)
		g.clients[c.addr] = cl
	}
	cl.open++
	c.client, c.idle = cl, true
	cl.idle.push(c)
}

// leaveLocked is the opposite of joinLocked.
func (g *Gate) leaveLocked(c *conn) {
	if c.idle {
		c.client.idle.remove(c)
	}
	if c.client.open--; c.client.open == 0 {
		delete(g.clients, c.addr)
	}
}

// removeLocked forgets a connection.
func (g *Gate) removeLocked(c *conn) {
	if !c.gone {
		c.gone = true
		g.open--
		g.leaveLocked(c)
	}
}

// close ends connections that had to make room.
func (g *Gate) close(victims []*conn, admitted bool) {
	for _, v := range victims {
		g.evicted.Add(1)
		v.Conn.Close()
	}
	if !admitted {
		g.rejected.Add(1)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.gate.mu.Lock()
	c.gate.removeLocked(c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}

// ConnState is for http.Server.ConnState.
func (g *Gate) ConnState(nc net.Conn, state http.ConnState) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok || state != http.StateActive && state != http.StateIdle {
		return
	}
	var addr netip.Addr
	if g.late {
		addr = addressOf(c.Conn) // known by now
	}
	var victims []*conn
	admitted := true
	g.mu.Lock()
	if !c.known && !c.gone {
		victims, admitted = g.identifyLocked(c, addr)
	}
	if idle := state == http.StateIdle; admitted && !c.gone && c.idle != idle {
		if c.idle = idle; idle {
			c.client.idle.push(c)
		} else {
			c.client.idle.remove(c)
		}
	}
	g.mu.Unlock()
	if victims != nil || !admitted {
		g.close(victims, admitted)
	}
	if !admitted {
		c.Close()
	}
}

// identifyLocked counts a connection for the address that a proxy has said by now.
func (g *Gate) identifyLocked(c *conn, addr netip.Addr) (victims []*conn, admitted bool) {
	g.leaveLocked(c)
	c.known, c.addr = true, addr
	victim, full := g.crowdedLocked(addr, true), g.fullLocked(addr, true)
	if victim != nil {
		victims = append(victims, victim)
		g.removeLocked(victim)
	}
	g.joinLocked(c)
	return victims, victim != nil || !full
}

// Numbers are the metrics of the gate.
func (g *Gate) Numbers() (open int, evicted, rejected uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open, g.evicted.Load(), g.rejected.Load()
}

func (l *list) push(c *conn) {
	c.prev, c.next = l.last, nil
	if l.last != nil {
		l.last.next = c
	} else {
		l.first = c
	}
	l.last = c
}

func (l *list) remove(c *conn) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		l.last = c.prev
	}
	c.prev, c.next = nil, nil
}
