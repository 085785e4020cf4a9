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

	"github.com/coffer-project/coffer/cluster/consensus"
	"github.com/coffer-project/coffer/cluster/forward"
	"github.com/coffer-project/coffer/cluster/transport"
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
	ctx, cancel := context.WithTimeout(context.Background(), forward.KeepaliveTime)
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
	all := three(t, patient, func(o *Options) { o.ForwardWait = time.Minute })
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for _, m := range all {
		readers.Go(func() {
			for ctx.Err() == nil {
				m.ReadIndex(ctx)
			}
		})
	}
	for range 5 {
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
	all := three(t, unhurried)
	if index, err := all[1].raft.OwnRead(testContext(t)); !errors.Is(err, consensus.ErrNotLeading) {
		t.Errorf("a follower confirms %d, %v, want errNotLeading", index, err)
	}
	conn, err := all[2].calls.Dial(transport.Target("b", raft.ServerAddress(all[1].addr)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := forwardpb.NewForwardClient(conn).ReadIndex(testContext(t), &forwardpb.ReadIndexRequest{}); !errors.Is(err, forward.ErrNotLeader) {
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
	all[0].raft.Cut() // the connections that carry the requests stay
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
	ctx, cancel := context.WithTimeout(context.Background(), forward.KeepaliveTime)
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
			case errors.Is(err, forward.ErrSelf): // it has become the leader, and serves the request itself
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

// A leader that stops hands over, also while a connection of another node is silent.
func TestCloseHandsOverBesideASilentNode(t *testing.T) {
	t.Parallel()
	all, of := threeThatFallSilent(t, func(o *Options) {
		o.HeartbeatTimeout, o.ElectionTimeout, o.LeaderLeaseTimeout = time.Minute, time.Minute, time.Minute // no node notices a loss meanwhile
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
	until(t, "c to lead", func() bool {
		if all[0].IsLeader() { // on a busy machine c's campaign may fail
			_ = all[0].TransferLeadership(testContext(t))
		}
		return all[2].IsLeader()
	})
}

// What is of no use if it comes late does not wait as long as entries may: a connection that is dead, and does not look it,
// must not delay an election.
func TestLookingForTheLeader(t *testing.T) {
	t.Parallel()
	all := three(t, unhurried, func(o *Options) { o.LeaderLeaseTimeout = o.HeartbeatTimeout / 2 })
	term, before := all[0].raft.Raft().CurrentTerm(), all[1].raft.Raft().ReloadableConfig()
	for range 20 {
		all[1].raft.LookNow()
		all[2].raft.LookNow()
		mustCommit(t, all[0], "k", "v")
	}
	if now := all[0].raft.Raft().CurrentTerm(); now != term || !all[0].IsLeader() {
		t.Errorf("looking for the leader made an election: term %d, was %d", now, term)
	}
	if after := all[1].raft.Raft().ReloadableConfig(); after != before {
		t.Errorf("looking for the leader left Raft with %+v, was %+v", after, before)
	}
}
