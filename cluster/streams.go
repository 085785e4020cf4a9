package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// dial opens a connection to one node for one protocol.
func (i *identity) dial(ctx context.Context, to NodeID, addr, protocol string) (*tls.Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	below := &conn{Conn: i.wire(raw), who: i}
	c := tls.Client(below, i.client(to, protocol))
	err = c.HandshakeContext(ctx)
	if err == nil && c.ConnectionState().NegotiatedProtocol != protocol {
		err = errors.New("the other side does not speak " + protocol)
	}
	if err == nil {
		err = below.admit(c.ConnectionState().PeerCertificates)
	}
	if err != nil {
		below.Close()
		return nil, err
	}
	return c, nil
}

// target joins a node's address and id into what Raft's network transport takes for an address, so that its
// connection pool, dialling and certificates keep nodes apart that had one address after the other.
func target(id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	return addr + "|" + raft.ServerAddress(id)
}

func splitTarget(t raft.ServerAddress) (NodeID, string) {
	addr, id, _ := strings.Cut(string(t), "|")
	return NodeID(id), addr
}

// streams is the raft.StreamLayer over the port. It keeps track of every connection, in and out, because
// Raft's transport leaves some open when it closes, and waits for others.
type streams struct {
	*inbox
	who    *identity
	ctx    context.Context // ends with cut: it stops dialling
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	open   map[*stream]bool
}

type stream struct {
	net.Conn
	owner *streams
}

func newStreams(in *inbox, who *identity) *streams {
	s := &streams{inbox: in, who: who, open: map[*stream]bool{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Accept implements net.Listener.
func (s *streams) Accept() (net.Conn, error) {
	for {
		conn, err := s.inbox.Accept()
		if err != nil {
			return nil, err
		}
		if kept, err := s.keep(conn); err == nil {
			return kept, nil
		}
	}
}

// Dial implements raft.StreamLayer.
func (s *streams) Dial(t raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	id, addr := splitTarget(t)
	conn, err := s.who.dial(ctx, id, addr, protocolRaft)
	if err != nil {
		return nil, err
	}
	return s.keep(conn)
}

func (s *streams) keep(conn net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	st := &stream{Conn: conn, owner: s}
	s.open[st] = true
	return st, nil
}

// cut closes every connection, and each later one at once. It does not say goodbye: that could block.
func (s *streams) cut() {
	s.cancel()
	s.mu.Lock()
	s.closed = true
	open := s.open
	s.open = map[*stream]bool{}
	s.mu.Unlock()
	for st := range open {
		st.Conn.(*tls.Conn).NetConn().Close()
	}
}

// abort closes the connection without saying goodbye.
func (st *stream) abort() {
	st.owner.mu.Lock()
	delete(st.owner.open, st)
	st.owner.mu.Unlock()
	st.Conn.(*tls.Conn).NetConn().Close()
}

// Close implements net.Conn.
func (st *stream) Close() error {
	st.owner.mu.Lock()
	delete(st.owner.open, st)
	st.owner.mu.Unlock()
	return st.Conn.Close()
}
