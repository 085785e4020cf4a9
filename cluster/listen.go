package cluster

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
)

// What is spoken on the cluster port by nodes of the cluster, by ALPN name. Listen adds others.
const (
	protocolRaft    = "coffer-raft"
	protocolForward = "coffer-forward"
)

const (
	handshakeTimeout = 10 * time.Second
	maxHandshakes    = 256 // under way at once; more wait in the kernel's queue
	maxFromOne       = 64  // of them from one address, which keeps nobody else out so; more are refused
)

// port is the cluster's listener. It hands each connection, after its handshake, to the protocol it asked for.
type port struct {
	tcp    net.Listener
	who    *identity
	config *tls.Config
	log    *slog.Logger
	failed atomic.Uint64 // handshakes

	metSelf     atomic.Bool  // duplicate has come to this process
	duplicateAt atomic.Int64 // Unix seconds, of the latest report

	ctx    context.Context // ends with the port: it cuts handshakes short
	cancel context.CancelFunc
	slots  chan struct{} // one token for each handshake under way
	wg     sync.WaitGroup

	mu        sync.Mutex
	greeting  map[string]int // handshakes under way, by the host that they come from
	protocols map[string]*inbox
	guests    map[string]configure // of protocols that are spoken with others than the nodes of the cluster
}

// configure chooses how to shake hands with a client; nil: not at all.
type configure = func(*tls.ClientHelloInfo) (*tls.Config, error)

func listen(addr string, who *identity, log *slog.Logger, protocols ...string) (*port, error) {
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &port{
		tcp: tcp, who: who, config: who.server(protocols), log: log,
		greeting: map[string]int{}, protocols: map[string]*inbox{}, guests: map[string]configure{}, slots: make(chan struct{}, maxHandshakes),
	}
	p.config.GetConfigForClient = p.configFor
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(p.accept)
	return p, nil
}

// inbox returns a listener for one protocol in place of the one before, which is closed.
func (p *port) inbox(protocol string) *inbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.protocols[protocol]; old != nil {
		old.Close()
	}
	in := p.newInbox()
	p.protocols[protocol] = in
	return in
}

func (p *port) newInbox() *inbox {
	return &inbox{addr: p.tcp.Addr(), conns: make(chan net.Conn), done: make(chan struct{})}
}

// Listen returns a listener for connections from outside of the cluster: those to the cluster port that ask for this ALPN
// name. Their handshake is done with the configuration that config answers for them, whose NextProtos and MinVersion
// are set here, and they come out as *tls.Conn; nil, and an error, refuses. Such a connection never reaches what the
// nodes of the cluster say to each other, nor the other way round. Closing the listener gives the name back; it is
// closed with the node.
func (n *Node) Listen(protocol string, config func(*tls.ClientHelloInfo) (*tls.Config, error)) (net.Listener, error) {
	return n.port.guest(protocol, config)
}

func (p *port) guest(protocol string, config configure) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ctx.Err() != nil:
		return nil, net.ErrClosed
	case protocol == protocolRaft || protocol == protocolForward || p.protocols[protocol] != nil:
		return nil, fmt.Errorf("the protocol %q is taken", protocol)
	}
	g := &guest{inbox: p.newInbox(), port: p, protocol: protocol}
	p.protocols[protocol], p.guests[protocol] = g.inbox, config
	return g, nil
}

// configFor implements tls.Config.GetConfigForClient. nil: the cluster's own.
func (p *port) configFor(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	for _, protocol := range hello.SupportedProtos {
		if protocol == p.who.self {
			hello.Conn.(*conn).self = true
			p.metSelf.CompareAndSwap(false, slices.Contains(hello.SupportedProtos, protocolForward))
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
			return nil, errors.New("nobody is served who asks for " + protocol)
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
	*inbox
	port     *port
	protocol string
}

// Close implements net.Listener.
func (g *guest) Close() error {
	g.port.mu.Lock()
	if g.port.protocols[g.protocol] == g.inbox {
		delete(g.port.protocols, g.protocol)
		delete(g.port.guests, g.protocol)
	}
	g.port.mu.Unlock()
	return g.inbox.Close()
}

// accept never gives up: running out of file descriptors must not end the node's membership.
func (p *port) accept() {
	var wait time.Duration
	for {
		conn, err := p.tcp.Accept()
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
			p.failed.Add(1)
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
func (p *port) begin(from net.Addr) (done func(), ok bool) {
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

func (p *port) greet(raw net.Conn) {
	ctx, cancel := context.WithTimeout(p.ctx, handshakeTimeout)
	defer cancel()
	below := &conn{Conn: p.who.wire(raw), who: p.who}
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
		if err == nil && !guest && !below.self && nodeOf(state.PeerCertificates[0]) == p.who.id {
			p.sawDuplicate(raw.RemoteAddr().String())
			err = errors.New("it is of another process with this node's key")
		}
		if err == nil && in != nil && in.put(above) {
			return
		}
		err = cmp.Or(err, errors.New("no known protocol was asked for"))
	}
	below.Close()
	p.failed.Add(1)
	p.log.Debug("rejected a connection on the cluster port", "remote", raw.RemoteAddr().String(), "err", err)
}

func (p *port) close() {
	p.cancel()
	p.tcp.Close()
	p.mu.Lock()
	for _, in := range p.protocols {
		in.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// inbox is the net.Listener of one protocol. It can be closed and replaced while the port stays open.
type inbox struct {
	addr  net.Addr
	conns chan net.Conn // unbuffered; never closed
	done  chan struct{} // closed by Close

	closeOnce sync.Once
}

// put reports whether someone took the connection.
func (in *inbox) put(conn net.Conn) bool {
	select {
	case in.conns <- conn:
		return true
	case <-in.done:
		return false
	}
}

// Accept implements net.Listener.
func (in *inbox) Accept() (net.Conn, error) {
	select {
	case conn := <-in.conns:
		return conn, nil
	case <-in.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (in *inbox) Close() error {
	in.closeOnce.Do(func() { close(in.done) })
	return nil
}

// Addr implements net.Listener.
func (in *inbox) Addr() net.Addr { return in.addr }
