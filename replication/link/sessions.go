package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/follow"
	"github.com/coffer-project/coffer/replication/primary"
	"github.com/coffer-project/coffer/replication/state"
	"github.com/coffer-project/coffer/replication/transport"
	"github.com/coffer-project/coffer/replication/wire"
	"github.com/coffer-project/coffer/storage"
)

// session is a connected secondary.
type session struct {
	l       *Link
	active  *active
	peer    replication.Peer
	auth    transport.PeerAuth
	stream  grpc.BidiStreamingServer[pb.FromSecondary, pb.FromPrimary]
	machine *primary.Session
	final   storage.Index // of a demotion that the machine was told; of the goroutine that runs
	kicked  state.Signal
	gone    chan struct{} // closed when run has returned

	mu     sync.Mutex
	ended  error // why it is to end
	status replication.SessionStatus
	meter  follow.Meter
}

func newSession(l *Link, a *active, p replication.Peer, auth transport.PeerAuth, stream grpc.BidiStreamingServer[pb.FromSecondary, pb.FromPrimary]) *session {
	s := &session{l: l, active: a, peer: p, auth: auth, stream: stream, gone: make(chan struct{})}
	src := state.NewSource(l.Local, a.trees, p)
	s.machine = primary.New(src, l.o.Layout, primary.Options{HeartbeatMS: l.o.timing.heartbeat, CheckpointMS: l.o.timing.checkpoint})
	src.OnScopeMoved(s.machine.ScopeChanged)
	now := time.Now()
	s.status = replication.SessionStatus{Peer: p, ConnectedAt: now, LastHeartbeat: now}
	if from, ok := peer.FromContext(stream.Context()); ok {
		s.status.Addr = from.Addr.String()
	}
	return s
}

// run moves messages between the stream and the machine until one of them ends, and returns why.
func (s *session) run(ctx context.Context) (err error) {
	defer close(s.gone)
	defer func() {
		if epoch := s.machine.Status().MetEpoch; epoch.Number != 0 {
			s.l.o.Guard.Fence(context.WithoutCancel(ctx), epoch)
		}
	}()
	defer s.l.o.Log.Unpin(s.pin())
	s.l.log.Info("a secondary has connected", "secondary", s.peer.ID, "cluster", s.peer.ClusterID)
	inbox := make(chan incoming, 8) // a secondary asks for little at once; not closed
	go s.receive(inbox)
	tick := time.NewTicker(s.l.o.timing.tick)
	defer tick.Stop()
	for {
		logged, kicked := s.l.o.Log.Changed(), s.kicked.Wait()
		for len(inbox) > 0 {
			if err := s.take(ctx, <-inbox); err != nil {
				return err
			}
		}
		sent, err := s.step(ctx)
		if err != nil {
			return err
		}
		if sent {
			continue
		}
		select {
		case m := <-inbox:
			if err := s.take(ctx, m); err != nil {
				return err
			}
		case <-logged:
			s.applied(ctx)
		case <-kicked:
		case <-tick.C:
		case <-s.active.ctx.Done():
			return &transport.Redirect{}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// applied waits until what the log has can be read, which is a moment later.
func (s *session) applied(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.l.o.timing.tick)
	defer cancel()
	s.l.o.State.WaitApplied(ctx, s.l.o.Log.Head()) //nolint:errcheck // otherwise there is nothing to be sent yet
}

// maxAskBytes limits a message of a secondary: many keys of the greatest length. Several wait at a time.
const maxAskBytes = 4 << 20

// incoming is a message from the secondary, or why there are no more.
type incoming struct {
	m   *pb.FromSecondary
	err error
}

func (s *session) receive(inbox chan<- incoming) {
	for {
		m, err := s.stream.Recv()
		if err == nil && proto.Size(m) > maxAskBytes {
			m, err = nil, &replication.Refusal{Detail: "a message of a secondary is too large"}
		}
		select {
		case inbox <- incoming{m, err}:
		case <-s.gone:
			return
		}
		if err != nil {
			return
		}
	}
}

// take gives a message to the machine.
func (s *session) take(ctx context.Context, in incoming) error {
	if refusal, ok := errors.AsType[*replication.Refusal](in.err); ok {
		return refusal
	}
	if in.err != nil {
		return fmt.Errorf("the connection has ended: %w", context.Canceled)
	}
	m, err := wire.DecodeSecondary(in.m)
	if err != nil {
		return &replication.Refusal{Detail: err.Error()}
	}
	now := time.Now()
	s.mu.Lock()
	s.status.LastHeartbeat = now
	if ms := in.m.GetNowMs(); ms != 0 {
		s.status.ClockSkew = time.UnixMilli(ms).Sub(now).Round(time.Millisecond)
	}
	if _, ok := m.(replication.Hello); ok {
		s.status.APIAddr, s.status.ClusterAddr = wire.ClipAddr(in.m.GetApiAddr()), wire.ClipAddr(in.m.GetClusterAddr())
	}
	s.mu.Unlock()
	if m == nil {
		return nil
	}
	if hello, ok := m.(replication.Hello); ok && s.peer.ClusterID != "" && hello.ClusterID != s.peer.ClusterID {
		return &replication.Refusal{Detail: "the certificate is another cluster's"}
	}
	return s.machine.Receive(ctx, m)
}

// step sends one message, if there is one.
func (s *session) step(ctx context.Context) (sent bool, err error) {
	if err := s.orders(); err != nil {
		return false, err
	}
	m, err := s.machine.Next(ctx)
	s.note()
	if err != nil || m == nil {
		return false, err
	}
	// What was read is not newer than what the registry is asked for now: nothing written after a revocation leaves.
	if _, err := s.l.admitCert(ctx, s.auth.Cert); err != nil {
		return false, err
	}
	p, err := wire.EncodePrimary(m)
	if err != nil {
		return false, err
	}
	if err := s.stream.Send(p); err != nil {
		return false, fmt.Errorf("the connection has ended: %w", context.Canceled)
	}
	return true, nil
}

// orders returns why the session is to end, and tells the machine of a demotion. After that it ends when the role changes
// again: what is written then is another primary's.
func (s *session) orders() error {
	if s.active.ctx.Err() != nil {
		return &transport.Redirect{}
	}
	switch self := s.l.o.Guard.Self(); {
	case self.Demoted && s.final == 0:
		s.final = self.Since
		s.machine.Demoted(self.Since)
	case s.final != 0 && (!self.Demoted || self.Since != s.final), !self.Demoted && !self.Primary:
		return &transport.Redirect{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// end makes the session end soon, and, if it hangs in the network, not much later.
func (s *session) end(why error) {
	s.mu.Lock()
	first := s.ended == nil
	if first {
		s.ended = why
	}
	s.mu.Unlock()
	s.kicked.Raise()
	if !first {
		return
	}
	grace := s.l.o.timing.grace
	if errors.Is(why, replication.ErrRevoked) {
		grace = s.l.o.timing.cut
	}
	time.AfterFunc(grace, func() {
		select {
		case <-s.gone:
		default:
			s.auth.Conn.Close()
		}
	})
}

// pin is the session's name in the log.
func (s *session) pin() string { return "secondary/" + s.peer.ID }

// note keeps what the machine says of itself for others.
func (s *session) note() {
	p := s.machine.Status()
	head := s.l.PositionOf(s.l.Head())
	now := time.Now()
	s.mu.Lock()
	st := &s.status
	if !p.Acked.IsZero() {
		st.Cursor = p.Acked
	}
	st.EntriesOut, st.BytesOut, st.Exact = p.Entries, p.Bytes, p.Exact
	if p.Exact || !st.EqualAt.IsZero() { // without a first copy the position says nothing
		if !p.Acked.IsZero() && !p.Acked.Before(head) {
			st.EqualAt = latest(st.EqualAt, st.LastHeartbeat)
		}
		if p.TimeMS != 0 {
			st.EqualAt = latest(st.EqualAt, time.UnixMilli(p.TimeMS))
		}
	}
	s.meter.Count(now, float64(p.Entries))
	s.mu.Unlock()
	after := s.l.o.Log.Base()
	if lineage := s.l.o.Guard.Self().Lineage; p.Acked.Epoch == lineage.Epoch() {
		after = p.Acked.Index
	}
	s.l.o.Log.Pin(s.pin(), after)
}

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// sessions are the connected secondaries.
type sessions struct {
	mu   sync.Mutex
	all  []*session
	past map[string]replication.SessionStatus // how the last session of each secondary ended, by opaque id
}

// add takes a session in. One that the same secondary had before ends: it has come back over another connection.
func (s *sessions) add(one *session) {
	s.mu.Lock()
	var before []*session
	for _, other := range s.all {
		if other.peer.ID == one.peer.ID {
			before = append(before, other)
		}
	}
	s.all = append(s.all, one)
	if last, ok := s.past[one.peer.ID]; ok && last.Peer == one.peer {
		one.mu.Lock()
		one.status.Cursor, one.status.EqualAt = last.Cursor, last.EqualAt
		one.mu.Unlock()
	}
	s.mu.Unlock()
	for _, other := range before {
		other.end(&transport.Redirect{})
	}
}

func (s *sessions) remove(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(other *session) bool { return other == one })
	one.mu.Lock()
	last := one.status
	one.mu.Unlock()
	if last.EndedAt = time.Now(); s.past == nil {
		s.past = map[string]replication.SessionStatus{}
	}
	s.past[one.peer.ID] = last
}

func (s *sessions) list() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

func (s *sessions) endAll(why error) {
	for _, one := range s.list() {
		one.end(why)
	}
}

// guard ends sessions that may not go on, and tells the others what has changed, until ctx ends.
func (s *sessions) guard(ctx context.Context, l *Link) {
	tick := time.NewTicker(time.Second) // for certificates that expire
	defer tick.Stop()
	seen := uint64(0)
	for {
		scoped := l.ScopeMoved()
		if scopes, err := l.AwaitScope(ctx); err == nil { // so that everybody has heard of it
			s.review(ctx, l, scopes != seen)
			seen = scopes
		}
		select {
		case <-scoped:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *sessions) review(ctx context.Context, l *Link, moved bool) {
	for _, one := range s.list() {
		_, err := l.admitCert(ctx, one.auth.Cert)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			one.end(err)
		case moved:
			one.machine.ScopeChanged()
			one.kicked.Raise()
		}
	}
}

// SessionStatus describes the secondaries that are connected, and those that were since this process began, by id.
func (l *Link) SessionStatus() []replication.SessionStatus {
	head, now := l.PositionOf(l.Head()), time.Now()
	var out []replication.SessionStatus
	for _, st := range l.sessions.statuses() {
		behind := st.Cursor.Before(head)
		if behind && st.Cursor.Epoch == head.Epoch {
			st.LagEntries = uint64(head.Index - st.Cursor.Index)
		}
		st.LagSeconds = follow.LagSince(now, st.EqualAt, st.LastHeartbeat, st.EndedAt.IsZero() && !behind)
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b replication.SessionStatus) int { return strings.Compare(a.Peer.ID, b.Peer.ID) })
	return out
}

// statuses returns the last status of each secondary.
func (s *sessions) statuses() []replication.SessionStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []replication.SessionStatus
	connected := map[string]bool{}
	for _, one := range s.all {
		one.mu.Lock()
		st := one.status
		st.RateOut = one.meter.Rate
		one.mu.Unlock()
		out, connected[st.Peer.ID] = append(out, st), true
	}
	for id, st := range s.past {
		if !connected[id] {
			out = append(out, st)
		}
	}
	return out
}
