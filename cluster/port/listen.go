// Package port is the one port over which the nodes of a cluster talk: mutual TLS 1.3 by the register of members, told apart by ALPN.
//
// It promises that a connection comes from, and goes to, the member that its certificate names, that it ends when that member is removed, and that
// strangers, however many, keep no member out. Other protocols may be spoken with guests, who never reach what the nodes say to each other.
//
// Start reading at Port, then identity.go.
package port

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/cluster/certs"
)

// What is spoken on the cluster port by nodes of the cluster, by ALPN name. Listen adds others.
const (
	Raft    = "coffer-raft"
	Forward = "coffer-forward"
)

const (
	handshakeTimeout = 10 * time.Second
	maxHandshakes    = 256 // under way at once; more wait in the kernel's queue
	maxFromOne       = 64  // of them from one address, which so does not keep others out; more are refused
)

// Port is the cluster's listener. It hands each connection, after its handshake, to the protocol it asked for.
type Port struct {
	TCP      net.Listener
	identity *Identity
	config   *tls.Config
	log      *slog.Logger
	Failed   atomic.Uint64 // handshakes

	MetSelf     atomic.Bool  // a connection to itself has come to this process
	duplicateAt atomic.Int64 // Unix seconds, of the latest report

	ctx    context.Context // ends with the port: it cuts handshakes short
	cancel context.CancelFunc
	slots  chan struct{} // one token for each handshake under way
	wg     sync.WaitGroup

	mu        sync.Mutex
	greeting  map[string]int // handshakes under way, by the host that they come from
	protocols map[string]*Inbox
	guests    map[string]configure // of protocols that are spoken with others than the nodes of the cluster
}

// configure chooses how to shake hands with a client; nil: not at all.
type configure = func(*tls.ClientHelloInfo) (*tls.Config, error)

// Open listens at addr for the protocols of the nodes, which show themselves as who says.
func Open(addr string, identity *Identity, log *slog.Logger, protocols ...string) (*Port, error) {
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &Port{
		TCP: tcp, identity: identity, config: identity.server(protocols), log: log,
		greeting: map[string]int{}, protocols: map[string]*Inbox{}, guests: map[string]configure{}, slots: make(chan struct{}, maxHandshakes),
	}
	p.config.GetConfigForClient = p.configFor
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(p.accept)
	return p, nil
}

// Inbox returns a listener for one protocol in place of the one before, which is closed.
func (p *Port) Inbox(protocol string) *Inbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.protocols[protocol]; old != nil {
		old.Close()
	}
	in := NewInbox(p.TCP.Addr())
	p.protocols[protocol] = in
	return in
}

// NewInbox returns the listener of a protocol, which says that it is at addr.
func NewInbox(addr net.Addr) *Inbox {
	return &Inbox{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

// Guest returns a listener for a protocol that is spoken with others than the nodes of the cluster. config chooses how to shake hands.
func (p *Port) Guest(protocol string, config configure) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ctx.Err() != nil:
		return nil, net.ErrClosed
	case protocol == Raft || protocol == Forward || p.protocols[protocol] != nil:
		return nil, fmt.Errorf("the protocol %q is taken", protocol)
	}
	g := &guest{Inbox: NewInbox(p.TCP.Addr()), port: p, protocol: protocol}
	p.protocols[protocol], p.guests[protocol] = g.Inbox, config
	return g, nil
}

// configFor implements tls.Config.GetConfigForClient. nil: the cluster's own.
func (p *Port) configFor(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	for _, protocol := range hello.SupportedProtos {
		if protocol == p.identity.self {
			hello.Conn.(*Conn).self = true
			p.MetSelf.CompareAndSwap(false, slices.Contains(hello.SupportedProtos, Forward))
		}
		p.mu.Lock()
		config := p.guests[protocol]
		p.mu.Unlock()
		if config == nil {
			continue
		}
		c, err := config(hello)
		if err != nil {
			return nil, err
		}
		if c == nil {
			return nil, errors.New("no server for the protocol " + protocol)
		}
		c = c.Clone()
		c.MinVersion, c.NextProtos, c.GetConfigForClient = tls.VersionTLS13, []string{protocol}, nil
		c.SessionTicketsDisabled = true // so that each connection shows its certificate
		return c, nil
	}
	return nil, nil
}

// guest is the listener of a protocol that Listen added.
type guest struct {
	*Inbox
	port     *Port
	protocol string
}

// Close implements net.Listener.
func (g *guest) Close() error {
	g.port.mu.Lock()
	if g.port.protocols[g.protocol] == g.Inbox {
		delete(g.port.protocols, g.protocol)
		delete(g.port.guests, g.protocol)
	}
	g.port.mu.Unlock()
	return g.Inbox.Close()
}

// accept never gives up: running out of file descriptors must not end the node's membership.
func (p *Port) accept() {
	var wait time.Duration
	for {
		conn, err := p.TCP.Accept()
		switch {
		case err == nil:
			wait = 0
		case errors.Is(err, net.ErrClosed) || p.ctx.Err() != nil:
			return
		default:
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			p.log.Warn("accepting a connection on the cluster port", "err", err)
			select {
			case <-time.After(wait):
			case <-p.ctx.Done():
				return
			}
			continue
		}
		done, ok := p.begin(conn.RemoteAddr())
		if !ok {
			conn.Close()
			p.Failed.Add(1)
			continue
		}
		select {
		case p.slots <- struct{}{}:
		case <-p.ctx.Done():
			done()
			conn.Close()
			return
		}
		p.wg.Go(func() {
			defer func() { <-p.slots; done() }()
			p.greet(conn)
		})
	}
}

// begin counts a handshake; false: there are too many of the same host. done ends it.
func (p *Port) begin(from net.Addr) (done func(), ok bool) {
	host, _, err := net.SplitHostPort(from.String())
	if err != nil {
		host = from.String()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.greeting[host] >= maxFromOne {
		return nil, false
	}
	p.greeting[host]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.greeting[host]--; p.greeting[host] == 0 {
			delete(p.greeting, host)
		}
	}, true
}

func (p *Port) greet(raw net.Conn) {
	ctx, cancel := context.WithTimeout(p.ctx, handshakeTimeout)
	defer cancel()
	below := &Conn{Conn: p.identity.Wire(raw), identity: p.identity}
	above := tls.Server(below, p.config)
	err := above.HandshakeContext(ctx)
	if err == nil {
		state := above.ConnectionState()
		p.mu.Lock()
		in, guest := p.protocols[state.NegotiatedProtocol], p.guests[state.NegotiatedProtocol] != nil
		p.mu.Unlock()
		if !guest {
			err = below.admit(state.PeerCertificates)
		}
		if err == nil && !guest && !below.self && certs.NodeOf(state.PeerCertificates[0]) == p.identity.id {
			p.sawDuplicate(raw.RemoteAddr().String())
			err = errors.New("it is of another process with this node's key")
		}
		if err == nil && in != nil && in.put(above) {
			return
		}
		err = cmp.Or(err, errors.New("no known protocol was asked for"))
	}
	below.Close()
	p.Failed.Add(1)
	p.log.Debug("rejected a connection on the cluster port", "remote", raw.RemoteAddr().String(), "err", err)
}

// Close ends the port and every listener.
func (p *Port) Close() {
	p.cancel()
	p.TCP.Close()
	p.mu.Lock()
	for _, in := range p.protocols {
		in.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// Inbox is the net.Listener of one protocol. It can be closed and replaced while the port stays open.
type Inbox struct {
	addr  net.Addr
	conns chan net.Conn // unbuffered; never closed
	done  chan struct{} // closed by Close

	closeOnce sync.Once
}

// put reports whether someone took the connection.
func (in *Inbox) put(conn net.Conn) bool {
	select {
	case in.conns <- conn:
		return true
	case <-in.done:
		return false
	}
}

// Accept implements net.Listener.
func (in *Inbox) Accept() (net.Conn, error) {
	select {
	case conn := <-in.conns:
		return conn, nil
	case <-in.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (in *Inbox) Close() error {
	in.closeOnce.Do(func() { close(in.done) })
	return nil
}

// Addr implements net.Listener.
func (in *Inbox) Addr() net.Addr { return in.addr }

// sawDuplicate reports a connection of another process with this node's key, at most once a minute.
func (p *Port) sawDuplicate(remote string) {
	now := time.Now().Unix()
	if last := p.duplicateAt.Load(); now-last >= 60 && p.duplicateAt.CompareAndSwap(last, now) {
		p.log.Error("another process runs as this node, with the same key: its data directory is a copy of this one's. Stop it", "node", string(p.identity.id), "remote", remote)
	}
}
