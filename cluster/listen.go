package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// What is spoken on the cluster port, by ALPN name. "coffer-replication" is kept for another package.
const (
	protocolRaft    = "coffer-raft"
	protocolForward = "coffer-forward"
)

const (
	handshakeTimeout = 10 * time.Second
	maxHandshakes    = 256 // under way at once; more wait in the kernel's queue
)

// port is the cluster's listener. It hands each connection, after its handshake, to the protocol it asked for.
type port struct {
	tcp    net.Listener
	config *tls.Config
	log    *slog.Logger
	failed atomic.Uint64 // handshakes

	ctx    context.Context // ends with the port: it cuts handshakes short
	cancel context.CancelFunc
	slots  chan struct{} // one token for each handshake under way
	wg     sync.WaitGroup

	mu        sync.Mutex
	protocols map[string]*inbox
}

func listen(addr string, who *identity, log *slog.Logger, protocols ...string) (*port, error) {
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &port{
		tcp: tcp, config: who.server(protocols), log: log,
		protocols: map[string]*inbox{}, slots: make(chan struct{}, maxHandshakes),
	}
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
	in := &inbox{addr: p.tcp.Addr(), conns: make(chan net.Conn), done: make(chan struct{})}
	p.protocols[protocol] = in
	return in
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
		select {
		case p.slots <- struct{}{}:
		case <-p.ctx.Done():
			conn.Close()
			return
		}
		p.wg.Go(func() {
			defer func() { <-p.slots }()
			p.greet(conn)
		})
	}
}

func (p *port) greet(raw net.Conn) {
	ctx, cancel := context.WithTimeout(p.ctx, handshakeTimeout)
	defer cancel()
	conn := tls.Server(raw, p.config)
	err := conn.HandshakeContext(ctx)
	if err == nil {
		p.mu.Lock()
		in := p.protocols[conn.ConnectionState().NegotiatedProtocol]
		p.mu.Unlock()
		if in != nil && in.put(conn) {
			return
		}
		err = errors.New("no known protocol was asked for")
	}
	raw.Close()
	p.failed.Add(1)
	p.log.Debug("refused a connection on the cluster port", "remote", raw.RemoteAddr().String(), "err", err)
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
