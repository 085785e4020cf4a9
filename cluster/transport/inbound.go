package transport

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/certs"
)

// Inbound is Raft's network transport, except that each connection from another node is served by a transport of its
// own, which checks that every message is in the name of the node that the connection belongs to. Raft goes by the
// name in a message, and its transport does not say which connection brought it.
type Inbound struct {
	*raft.NetworkTransport                        // for what this node sends
	urgent                 *raft.NetworkTransport // for what is of no use if it comes late
	config                 raft.NetworkTransportConfig
	streams                *Streams
	messages               chan raft.RPC
	heartbeat              atomic.Pointer[func(raft.RPC)]

	done      chan struct{} // closed by Close
	closeOnce sync.Once
	wg        sync.WaitGroup
}

// NewInbound takes how long heartbeats and what belongs to elections may take. A connection whose other end has become silent
// is noticed by that: with the time that entries may take, one of them would delay an election by as much.
func NewInbound(s *Streams, urgent time.Duration, config raft.NetworkTransportConfig) *Inbound {
	out := func(timeout time.Duration) *raft.NetworkTransport {
		config := config
		config.Timeout, config.Stream = timeout, &outbound{Streams: s, done: make(chan struct{})}
		return raft.NewNetworkTransportWithConfig(&config)
	}
	in := &Inbound{
		NetworkTransport: out(config.Timeout), urgent: out(min(urgent, config.Timeout)), config: config, streams: s,
		messages: make(chan raft.RPC), done: make(chan struct{}),
	}
	in.wg.Go(in.accept)
	return in
}

// Consumer implements raft.Transport.
func (in *Inbound) Consumer() <-chan raft.RPC { return in.messages }

// Tell gives Raft a message of this node's own. It offers it for as long as wanted says so.
func (in *Inbound) Tell(command any, wanted func() bool) {
	m := raft.RPC{Command: command, RespChan: make(chan raft.RPCResponse, 1)}
	for wanted() {
		select {
		case in.messages <- m:
			return
		case <-in.done:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// AppendEntries implements raft.Transport.
func (in *Inbound) AppendEntries(id raft.ServerID, to raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if isHeartbeat(req) {
		return in.urgent.AppendEntries(id, to, req, resp)
	}
	return in.NetworkTransport.AppendEntries(id, to, req, resp)
}

// RequestVote implements raft.Transport.
func (in *Inbound) RequestVote(id raft.ServerID, to raft.ServerAddress, req *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return in.urgent.RequestVote(id, to, req, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (in *Inbound) RequestPreVote(id raft.ServerID, to raft.ServerAddress, req *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return in.urgent.RequestPreVote(id, to, req, resp)
}

// TimeoutNow implements raft.Transport.
func (in *Inbound) TimeoutNow(id raft.ServerID, to raft.ServerAddress, req *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return in.urgent.TimeoutNow(id, to, req, resp)
}

// SetHeartbeatHandler implements raft.Transport.
func (in *Inbound) SetHeartbeatHandler(handle func(raft.RPC)) { in.heartbeat.Store(&handle) }

// Close implements raft.WithClose.
func (in *Inbound) Close() error {
	in.closeOnce.Do(func() { close(in.done) })
	err := errors.Join(in.streams.Close(), in.NetworkTransport.Close(), in.urgent.Close())
	in.wg.Wait()
	return err
}

func (in *Inbound) accept() {
	for {
		c, err := in.streams.Accept()
		if err != nil {
			return
		}
		in.wg.Go(func() { in.serve(c.(*stream)) })
	}
}

// serve hands Raft what one connection brings, until it breaks or names another node than its own.
func (in *Inbound) serve(c *stream) {
	from := certs.NodeOf(c.Conn.(*tls.Conn).ConnectionState().PeerCertificates[0])
	one := &oneStream{stream: c, offered: make(chan net.Conn, 1), broken: make(chan struct{}), done: make(chan struct{})}
	one.offered <- one.conn()
	config := in.config
	config.Stream = one
	t := raft.NewNetworkTransportWithConfig(&config)
	defer t.Close()
	t.SetHeartbeatHandler(func(m raft.RPC) {
		handle := in.heartbeat.Load()
		if handle == nil || !isFrom(m, from) {
			one.end() // and no answer
			return
		}
		(*handle)(m)
	})
	for {
		select {
		case m := <-t.Consumer():
			if !isFrom(m, from) {
				return
			}
			select {
			case in.messages <- m:
			case <-in.done:
				return
			}
		case <-one.broken:
			return
		case <-in.done:
			return
		}
	}
}

// isFrom reports whether a message is in the name of the node.
func isFrom(m raft.RPC, id certs.NodeID) bool {
	named, ok := m.Command.(raft.WithRPCHeader)
	return ok && certs.NodeID(named.GetRPCHeader().ID) == id
}

// outbound is the raft.StreamLayer of a transport that only dials.
type outbound struct {
	*Streams
	done chan struct{} // closed by Close
	once sync.Once
}

// Accept implements net.Listener.
func (o *outbound) Accept() (net.Conn, error) {
	<-o.done
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (o *outbound) Close() error {
	o.once.Do(func() { close(o.done) })
	return nil
}

// oneStream is the raft.StreamLayer of a transport that serves one connection.
type oneStream struct {
	stream  *stream
	offered chan net.Conn // capacity 1
	broken  chan struct{} // closed when the connection has ended
	done    chan struct{} // closed by Close

	endOnce, closeOnce sync.Once
}

func (o *oneStream) conn() net.Conn { return &endingConn{o.stream, o} }

func (o *oneStream) end() {
	o.endOnce.Do(func() { close(o.broken) })
	o.stream.abort()
}

// Accept implements net.Listener: the connection, and never another.
func (o *oneStream) Accept() (net.Conn, error) {
	select {
	case c := <-o.offered:
		return c, nil
	case <-o.done:
		return nil, net.ErrClosed
	}
}

// Dial implements raft.StreamLayer.
func (o *oneStream) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, net.ErrClosed
}

// Addr implements net.Listener.
func (o *oneStream) Addr() net.Addr { return o.stream.LocalAddr() }

// Close implements net.Listener.
func (o *oneStream) Close() error {
	o.closeOnce.Do(func() { close(o.done) })
	o.end()
	return nil
}

// endingConn tells its oneStream when it is closed.
type endingConn struct {
	net.Conn
	of *oneStream
}

// Close implements net.Conn.
func (c *endingConn) Close() error {
	c.of.end()
	return nil
}
