package cluster

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/proto/forwardpb"
	"github.com/coffer-project/coffer/storage"
)

// silence loses what a node sends and what it is sent. Connections stay open.
type silence struct{ on atomic.Bool }

func (s *silence) wire(c net.Conn) net.Conn { return &silentConn{c, s} }

type silentConn struct {
	net.Conn
	of *silence
}

func (c *silentConn) Read(p []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(p); err != nil || !c.of.on.Load() {
			return n, err
		}
	}
}

func (c *silentConn) Write(p []byte) (int, error) {
	if c.of.on.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// threeThatFallSilent starts three nodes that can fall silent; the first leads.
func threeThatFallSilent(t *testing.T, change func(*Options)) ([]*member, map[*member]*silence) {
	t.Helper()
	silences := map[string]*silence{}
	all := three(t, func(o *Options) {
		s := &silence{}
		silences[string(o.ID)] = s
		o.wire = s.wire
		change(o)
	})
	of := map[*member]*silence{}
	for _, m := range all {
		of[m] = silences[string(m.opts.ID)]
	}
	t.Cleanup(func() {
		for _, s := range of {
			s.on.Store(false)
		}
	})
	return all, of
}

// A read that waits for a silent leader goes on at the next one. Otherwise every request of the node that becomes the leader
// waits behind it.
func TestReadsLeaveASilentLeader(t *testing.T) {
	t.Parallel()
	all, of := threeThatFallSilent(t, func(o *Options) { o.ForwardWait = time.Minute })
	of[all[0]].on.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), keepaliveTime)
	defer cancel()
	var reads sync.WaitGroup
	defer reads.Wait()
	for _, m := range all[1:] {
		reads.Go(func() {
			if _, err := m.ReadIndex(ctx); err != nil {
				t.Errorf("a read that was under way at %s when the leader fell silent: %v", m.opts.ID, err)
			}
		})
	}
	next := leaderOf(t, all[1:])
	mustCommit(t, next, "k", "1")
	for _, m := range all[1:] {
		if _, err := m.ReadIndex(ctx); err != nil || m.value("k") != "1" {
			t.Errorf("%s reads %q, %v", m.opts.ID, m.value("k"), err)
		}
	}
}

// When leadership moves, the old leader asks the new one, which had just asked the old one.
func TestReadsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	all := three(t, func(o *Options) { o.ForwardWait = time.Minute })
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for _, m := range all {
		for range 2 {
			readers.Go(func() {
				for ctx.Err() == nil {
					m.ReadIndex(ctx)
				}
			})
		}
	}
	for range 10 {
		old := leaderOf(t, all)
		if err := old.TransferLeadership(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if _, err := m.ReadIndex(testContext(t)); err != nil {
				t.Fatalf("%s after a transfer of leadership: %v", m.opts.ID, err)
			}
		}
	}
}

// A node that is asked for a read index and does not lead says so. It does not ask the node that it takes for the leader.
func TestReadIndexIsNotAskedOn(t *testing.T) {
	t.Parallel()
	all := three(t)
	if index, err := all[1].reads.confirms.wait(testContext(t)); !errors.Is(err, errNotLeading) {
		t.Errorf("a follower confirms %d, %v, want errNotLeading", index, err)
	}
	conn, err := all[2].calls.dial(target("b", raft.ServerAddress(all[1].addr)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := forwardpb.NewForwardClient(conn).ReadIndex(testContext(t), &forwardpb.ReadIndexRequest{}); !errors.Is(err, errNotLeader) {
		t.Errorf("a follower that is asked for a read index: %v, want errNotLeader", err)
	}
}

// A request that a leader has taken ends when another node leads, at each node that forwarded it, and runs once. It may have had
// its effect, so it is not tried again.
func TestForwardedRequestsEndWithTheirLeader(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	all := three(t, func(o *Options) {
		o.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			ran.Add(1)
			<-r.Context().Done()
		})
	})
	ends := make(chan error, 2)
	for _, m := range all[1:] {
		go func() {
			ends <- m.Forward(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader("x")).WithContext(testContext(t)))
		}()
	}
	until(t, "both requests to run", func() bool { return ran.Load() == 2 })
	all[0].instance.Load().streams.cut() // the connections that carry the requests stay
	leaderOf(t, all[1:])
	for range 2 {
		select {
		case err := <-ends:
			if !errors.Is(err, storage.ErrOutcomeUnknown) {
				t.Errorf("Forward = %v, want ErrOutcomeUnknown", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a forwarded request waits for a node that does not lead any more")
		}
	}
	if ran.Load() != 2 {
		t.Errorf("two requests ran %d times", ran.Load())
	}
}

// A request that a silent leader has not taken goes to the next one, and runs once.
func TestForwardLeavesASilentLeader(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	all, of := threeThatFallSilent(t, func(o *Options) {
		o.ForwardWait = time.Minute
		o.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran.Add(1) })
	})
	for _, m := range all[1:] { // so that there is a connection
		if err := m.Forward(httptest.NewRecorder(), httptest.NewRequest("POST", "/", nil)); err != nil {
			t.Fatal(err)
		}
	}
	ran.Store(0)
	of[all[0]].on.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), keepaliveTime)
	defer cancel()
	served, here := 0, 0
	var mu sync.Mutex
	var both sync.WaitGroup
	for _, m := range all[1:] {
		both.Go(func() {
			err := m.Forward(httptest.NewRecorder(), httptest.NewRequest("POST", "/", nil).WithContext(ctx))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case ctx.Err() != nil:
				t.Errorf("Forward waited until the end: %v", err)
			case err == nil:
				served++
			case errors.Is(err, errSelf): // it has become the leader, and serves the request itself
				here++
			default:
				t.Errorf("Forward = %v", err)
			}
		})
	}
	both.Wait()
	if served != 1 || here != 1 || ran.Load() != 1 {
		t.Errorf("%d requests were forwarded, %d are for the new leader itself, %d ran, want one each", served, here, ran.Load())
	}
}

// A connection is kept while its node leads, also if it did not seem to for a moment.
func TestConnectionsFollowTheLeader(t *testing.T) {
	t.Parallel()
	_, f := two(t, nil)
	c := f.calls
	if _, err := c.leader(); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.conn
	c.followLocked("")
	if c.conn != l || l.end == nil {
		t.Error("a connection must be kept for a while when there is no leader")
	}
	c.followLocked(l.to)
	if c.conn != l || l.end != nil {
		t.Error("a connection must stay when its node leads again")
	}
	c.followLocked("another")
	if c.conn != nil || l.end == nil || !c.open[l] {
		t.Error("a connection must not be used when another node leads, and end later")
	}
}

// A leader that stops hands over, also while a connection of another node is silent.
func TestCloseHandsOverBesideASilentNode(t *testing.T) {
	t.Parallel()
	all, of := threeThatFallSilent(t, func(o *Options) {
		o.HeartbeatTimeout, o.ElectionTimeout = time.Minute, time.Minute // the others miss nobody meanwhile
	})
	of[all[2]].on.Store(true)
	for range 10 {
		mustCommit(t, all[0], "k", "v") // b is ahead of c from now on
	}
	all[0].Drain(testContext(t))
	until(t, "b to lead", all[1].IsLeader)
}

// Raft chooses one voter. If that is silent, another one gets the leadership.
func TestTransferPastASilentVoter(t *testing.T) {
	t.Parallel()
	all, of := threeThatFallSilent(t, func(*Options) {})
	last := mustCommit(t, all[0], "k", "v")
	for _, m := range all {
		if err := m.machine.WaitApplied(testContext(t), last); err != nil {
			t.Fatal(err)
		}
	}
	of[all[1]].on.Store(true) // the first of two that are equally far
	if err := all[0].TransferLeadership(testContext(t)); err != nil {
		t.Fatal(err)
	}
	until(t, "c to lead", all[2].IsLeader)
}

// What is of no use if it comes late does not wait as long as entries may: a connection that is dead, and does not look it,
// must not delay an election.
func TestUrgentMessagesDoNotWait(t *testing.T) {
	t.Parallel()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	m := single(t)
	s := newStreams(&inbox{addr: dead.Addr(), conns: make(chan net.Conn), done: make(chan struct{})}, m.who)
	in := newInbound(s, 50*time.Millisecond, raft.NetworkTransportConfig{MaxPool: 1, Timeout: time.Hour})
	defer in.Close()
	to := target("b", raft.ServerAddress(dead.Addr().String()))
	for name, send := range map[string]func() error{
		"a heartbeat": func() error {
			return in.AppendEntries("b", to, &raft.AppendEntriesRequest{}, &raft.AppendEntriesResponse{})
		},
		"a vote": func() error {
			return in.RequestVote("b", to, &raft.RequestVoteRequest{}, &raft.RequestVoteResponse{})
		},
		"a pre-vote": func() error {
			return in.RequestPreVote("b", to, &raft.RequestPreVoteRequest{}, &raft.RequestPreVoteResponse{})
		},
		"a transfer": func() error {
			return in.TimeoutNow("b", to, &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{})
		},
	} {
		ended := make(chan error, 1)
		go func() { ended <- send() }()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s was answered by no one", name)
			}
		case <-time.After(20 * time.Second):
			s.cut()
			t.Errorf("%s waits for a node that is silent", name)
		}
	}
}

// Looking for the leader changes nothing while it is there, and each voter has its own moment for it.
func TestLookingForTheLeader(t *testing.T) {
	t.Parallel()
	all := three(t, func(o *Options) { o.LeaderLeaseTimeout = o.HeartbeatTimeout / 2 })
	term, before := all[0].raft().CurrentTerm(), all[1].raft().ReloadableConfig()
	for range 20 {
		all[1].lookNow()
		all[2].lookNow()
		mustCommit(t, all[0], "k", "v")
	}
	if now := all[0].raft().CurrentTerm(); now != term || !all[0].IsLeader() {
		t.Errorf("looking for the leader made an election: term %d, was %d", now, term)
	}
	if after := all[1].raft().ReloadableConfig(); after != before {
		t.Errorf("looking for the leader left Raft with %+v, was %+v", after, before)
	}
	for leader, want := range map[raft.ServerID][]int{"a": {0, 0, 1}, "b": {0, 1, 1}, "c": {0, 1, 2}} {
		for i, m := range all {
			if got := m.place(leader); got != want[i] {
				t.Errorf("the place of %s with leader %s is %d, want %d", m.opts.ID, leader, got, want[i])
			}
		}
	}
}
