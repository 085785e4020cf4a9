package transport

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/cluster/port"
)

// Target joins a node's address and id into what Raft's network transport takes for an address, so that its
// connection pool, dialling and certificates keep nodes apart that had one address after the other.
func Target(id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	return addr + "|" + raft.ServerAddress(id)
}

// SplitTarget is the inverse of Target.
func SplitTarget(t raft.ServerAddress) (certs.NodeID, string) {
	addr, id, _ := strings.Cut(string(t), "|")
	return certs.NodeID(id), addr
}

// Streams is the raft.StreamLayer over the port. It keeps track of every connection, in and out, because
// Raft's transport leaves some open when it closes, and waits for others.
type Streams struct {
	*port.Inbox
	identity *port.Identity
	ctx      context.Context // ends with cut: it stops dialling
	cancel   context.CancelFunc

	mu     sync.Mutex
	closed bool
	open   map[*stream]bool
}

type stream struct {
	net.Conn
	owner *Streams
}

// NewStreams returns the stream layer over the listener of a protocol.
func NewStreams(in *port.Inbox, identity *port.Identity) *Streams {
	s := &Streams{Inbox: in, identity: identity, open: map[*stream]bool{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Accept implements net.Listener.
func (s *Streams) Accept() (net.Conn, error) {
	for {
		conn, err := s.Inbox.Accept()
		if err != nil {
			return nil, err
		}
		if kept, err := s.track(conn); err == nil {
			return kept, nil
		}
	}
}

// Dial implements raft.StreamLayer.
func (s *Streams) Dial(t raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	id, addr := SplitTarget(t)
	conn, err := s.identity.Dial(ctx, id, addr, port.Raft)
	if err != nil {
		return nil, err
	}
	return s.track(conn)
}

func (s *Streams) track(conn net.Conn) (net.Conn, error) {
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

// Cut closes every connection, and each later one at once. It does not say goodbye: that could block.
func (s *Streams) Cut() {
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
