package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/state"
	"github.com/coffer-project/coffer/replication/transport"
	"github.com/coffer-project/coffer/replication/wire"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/storage"
)

// pair is a primary with some mounts, and a cluster to be its secondary.
func pair(t *testing.T) (p, s *testCluster) {
	t.Helper()
	p, s = newTestCluster(t, "p", 2), newTestCluster(t, "s", 2)
	p.enable()
	p.put("s/sys/root/policies/x", "policy")
	p.put("s/index/not", "replicated")
	p.put("l/token/x", "local of the primary")
	s.put("l/token/y", "local of the secondary")
	for _, mount := range []string{"a", "b", "c"} {
		p.put(anchorKey(mount), "mount "+mount)
		for i := range 50 {
			p.put(key(mount, i), fmt.Sprint(i))
		}
	}
	return p, s
}

func key(mount string, i int) storage.Key {
	return storage.Key(fmt.Sprintf("s/%s/%v", mount, i))
}

func TestBackfillAndStream(t *testing.T) {
	p, s := pair(t)
	s.follows(p.certify("one", s, time.Now()), events{})
	s.catchesUp(p)
	for i := range 200 {
		p.put(key("a", i), fmt.Sprint("again ", i))
		if i%3 == 0 {
			p.remove(key("b", i))
		}
	}
	s.catchesUp(p)
	if got := s.shared()["l/token/x"]; got != "" {
		t.Error("what is local has travelled")
	}
	if e, err := (testStore{s}).Get(t.Context(), "l/token/y"); err != nil || string(e.Value) != "local of the secondary" {
		t.Errorf("what is local has changed: %q, %v", e.Value, err)
	}
	if a, b := p.nodes[0].link.Root(), s.nodes[0].link.Root(); a != b || a == "" {
		t.Errorf("the digests are %q and %q", a, b)
	}
}

// TestPause: while a secondary takes nothing, more than any buffer holds waits at the primary. The connection stays, calls go on, the
// lag grows; afterwards nothing is lost.
func TestPause(t *testing.T) {
	p, s := pair(t)
	p.calls = func(string, []byte) ([]byte, storage.Index, error) { return []byte("done"), p.index, nil }
	s.follows(p.certify("one", s, time.Now()), events{})
	s.catchesUp(p)
	link := s.nodes[0].link
	why := "no room"
	s.paused.Store(&why)
	eventually(t, "the pause", func() bool { return link.FollowStatus().Paused == why })
	at := link.FollowStatus().Cursor
	equal := link.FollowStatus().EqualAt
	big := strings.Repeat("x", 64<<10)
	for i := range 200 {
		p.put(key("a", 100+i), big)
	}
	if _, _, err := link.Call(t.Context(), "any", nil); err != nil {
		t.Errorf("a call during the pause: %v", err)
	}
	eventually(t, "signs of life for a while", func() bool { return time.Since(equal) > 300*time.Millisecond })
	st := link.FollowStatus()
	if st.Connected == "" || st.LagSeconds < 0.2 || st.Paused != why || time.Since(st.LastHeard) > 10*time.Second {
		t.Errorf("during the pause: %+v", st)
	}
	if ahead := st.Cursor.Index - at.Index; ahead > 20 {
		t.Errorf("%d entries were applied during the pause", ahead)
	}
	s.paused.Store(nil)
	s.catchesUp(p)
	if e, err := (testStore{s}).Get(t.Context(), key("a", 299)); err != nil || string(e.Value) != big {
		t.Errorf("after the pause: %d bytes, %v", len(e.Value), err)
	}
	if st := link.FollowStatus(); st.Paused != "" {
		t.Errorf("after the pause: %+v", st)
	}
}

// AwaitCursor and Cursor work on every node of a secondary, and a Call's answer comes with what to wait for.
func TestCallsAreReadableWhereTheyWereMade(t *testing.T) {
	p, s := pair(t)
	p.calls = func(kind string, payload []byte) ([]byte, storage.Index, error) {
		switch kind {
		case "put":
			return []byte("done"), p.put(key("a", 7), string(payload)), nil
		case "local": // nothing that replicates
			p.put("s/index/x", "y")
			return nil, p.put("l/token/z", string(payload)), nil
		case "refuse":
			return nil, 0, &replication.Refusal{Detail: "not like this"}
		case "fail":
			return nil, 0, errors.New("with a detail that must not travel")
		}
		return nil, 0, fmt.Errorf("%w: not now", storage.ErrReadOnly)
	}
	active, standby := s.nodes[0].link, s.nodes[1].link
	if _, _, err := active.Call(t.Context(), "put", nil); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("a call while nobody is followed: %v", err)
	}
	s.follows(p.certify("one", s, time.Now()), events{})
	for i := range 20 {
		text := fmt.Sprint("forwarded ", i)
		answer, at, err := active.Call(t.Context(), "put", []byte(text))
		if err != nil || string(answer) != "done" {
			t.Fatalf("a call: %q, %v", answer, err)
		}
		for _, link := range []*Link{active, standby} {
			if err := link.AwaitCursor(t.Context(), at); err != nil {
				t.Fatal(err)
			}
			if cursor, err := link.Cursor(t.Context()); err != nil || cursor.Before(at) {
				t.Errorf("the cursor is %v after waiting for %v: %v", cursor, at, err)
			}
		}
		if i == 0 {
			s.catchesUp(p) // until then a mount is not there as a whole
		}
		if e, err := (testStore{s}).Get(t.Context(), key("a", 7)); err != nil || string(e.Value) != text {
			t.Errorf("what was forwarded cannot be read: %q, %v", e.Value, err)
		}
	}
	_, at, err := active.Call(t.Context(), "local", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := active.AwaitCursor(t.Context(), at); err != nil {
		t.Error(err)
	}
	_, _, err = active.Call(t.Context(), "refuse", nil)
	if refusal, ok := errors.AsType[*replication.Refusal](err); !ok || refusal.Detail != "not like this" {
		t.Errorf("a refusal arrives as %v", err)
	}
	_, _, err = active.Call(t.Context(), "fail", nil)
	if !errors.Is(err, storage.ErrOutcomeUnknown) || strings.Contains(err.Error(), "travel") {
		t.Errorf("a failure arrives as %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err = active.Call(ctx, "standby", nil)
	for range 50 { // it is tried again and again, and when the time ends in the middle of a try the outcome is unknown
		if !errors.Is(err, storage.ErrOutcomeUnknown) {
			break
		}
		brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, _, err = active.Call(brief, "standby", nil)
		cancel()
	}
	if !errors.Is(err, storage.ErrUnavailable) || errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Errorf("what was not done arrives as %v", err)
	}
	if err := standby.AwaitCursor(ctx, storage.Position{Epoch: 9, Index: 1}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for what does not come: %v", err)
	}
	if st := p.nodes[0].link.SessionStatus(); len(st) != 1 || st[0].Peer.ID != "one" || st[0].APIAddr != "https://s" || st[0].ClusterAddr != s.nodes[0].addr {
		t.Errorf("the primary sees %+v", st)
	}
}

// A connection that is lost while a call is under way leaves its outcome open; one that was never there does not.
func TestLostCalls(t *testing.T) {
	p, s := pair(t)
	p.calls = func(string, []byte) ([]byte, storage.Index, error) {
		p.nodes[0].cut()
		return nil, 0, nil
	}
	s.follows(p.certify("one", s, time.Now()), events{})
	s.catchesUp(p)
	if _, _, err := s.nodes[0].link.Call(t.Context(), "x", nil); !errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Errorf("a lost call: %v", err)
	}
	s.catchesUp(p) // it has come back
	p.nodes[0].halt()
	p.nodes[1].halt()
	eventually(t, "the loss is noticed", func() bool { return s.nodes[0].link.FollowStatus().Connected == "" })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := s.nodes[0].link.Call(ctx, "x", nil); !errors.Is(err, storage.ErrUnavailable) || errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Errorf("a call that was never sent: %v", err)
	}
}

// Whatever breaks, the secondary goes on where it was.
func TestConnectionsBreak(t *testing.T) {
	p, s := pair(t)
	stop := s.follows(p.certify("one", s, time.Now()), events{})
	for i := range 30 {
		p.put(key("a", i), fmt.Sprint("round ", i))
		p.nodes[0].cut()
	}
	s.catchesUp(p)
	resumed := func() bool {
		for _, one := range p.activeNode().link.sessions.list() {
			if one.peer.ID == "one" {
				one.mu.Lock()
				defer one.mu.Unlock()
				return one.status.Exact
			}
		}
		return false
	}
	eventually(t, "the primary knows that the secondary is exact", resumed)

	// Another node of the primary takes over: the first one redirects.
	p.nodes[1].lead()
	p.put(key("b", 1), "after a failover")
	s.catchesUp(p)
	if st := s.nodes[0].link.FollowStatus(); st.Connected != p.nodes[1].addr {
		t.Errorf("it is connected to %q, and the active node is at %q", st.Connected, p.nodes[1].addr)
	}

	// Another node of the secondary takes over.
	stop()
	s.nodes[1].lead()
	s.follows(p.certify("one", s, time.Now()), events{})
	p.put(key("b", 2), "after another")
	s.catchesUp(p)
	if st := s.nodes[1].link.FollowStatus(); st.Repair != nil {
		t.Errorf("something had to be repaired: %+v", st.Repair)
	}
	if got := s.nodes[0].link.FollowStatus().State; got != replication.Disconnected {
		t.Errorf("the node before is %s", got)
	}
}

// A log that is gone makes the secondary compare, and what it then has is exact.
func TestLogIsGone(t *testing.T) {
	p, s := pair(t)
	stop := s.follows(p.certify("one", s, time.Now()), events{})
	s.catchesUp(p)
	stop()
	p.put(key("a", 3), "meanwhile")
	p.remove(key("a", 4))
	p.put(key("a", 1000), "new")
	if err := p.nodes[0].log.Reset(p.nodes[0].AppliedIndex()); err != nil {
		t.Fatal(err)
	}
	s.follows(p.certify("one", s, time.Now()), events{})
	s.catchesUp(p)
	if r := s.nodes[0].link.FollowStatus().Repair; r == nil || r.Keys > 10 {
		t.Errorf("the repair was %+v", r)
	}
}

func TestRevocation(t *testing.T) {
	p, s := pair(t)
	s.follows(p.certify("one", s, time.Now()), events{})
	s.catchesUp(p)
	before := s.shared()
	p.admin(func() { p.revoked["one"] = true })
	p.put(key("a", 1), "not for the revoked")
	eventually(t, "the session ends", func() bool { return connectedTo(p.nodes[0].link) == 0 })
	eventually(t, "the secondary knows", func() bool { return s.nodes[0].link.FollowStatus().Terminal == "revoked" })
	if !maps.Equal(s.shared(), before) {
		t.Error("something was sent after the revocation")
	}
	if _, _, err := s.nodes[0].link.Call(t.Context(), "x", nil); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("a call of a revoked secondary: %v", err)
	}
	if _, err := s.nodes[0].link.WhoIsActive(t.Context(), p.nodes[0].addr, p.certify("one", s, time.Now())); !errors.Is(err, replication.ErrRevoked) {
		t.Errorf("a revoked secondary asks who is active: %v", err)
	}
	p.admin(func() { p.revoked["one"] = false })
	s.catchesUp(p) // it tries again by itself
}

// A secondary that does not read is cut off as soon as it is revoked, too.
func TestRevocationOfOneThatHangs(t *testing.T) {
	p, s := pair(t)
	for i := range 40 {
		p.put(key("a", i), strings.Repeat("x", 1<<20))
	}
	up := p.certify("one", s, time.Now())
	id, err := transport.NewIdentity(up.CA, up.Cert, up.Key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := id.Dial(p.nodes[0].addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stream, err := c.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []replication.Message{
		replication.Hello{SetID: "set", ClusterID: s.id, ProtoMin: 1, ProtoMax: 1},
		replication.AskPage{Unit: "mount/a", Values: true}, replication.AskPage{Unit: "mount/a", Values: true}, replication.AskPage{Unit: "mount/a", Values: true},
	} {
		sent, err := wire.EncodeSecondary(m)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if err := stream.Send(sent); err != nil {
				t.Fatal(err)
			}
			if _, ok := m.(replication.Hello); ok {
				break
			}
		}
	}
	eventually(t, "it is connected", func() bool { return connectedTo(p.nodes[0].link) == 1 })
	p.admin(func() { p.revoked["one"] = true })
	eventually(t, "the session ends", func() bool { return connectedTo(p.nodes[0].link) == 0 })
}

func TestFilters(t *testing.T) {
	p, s := pair(t)
	p.admin(func() { p.hidden["mount/b"] = true })
	var dropped []string
	s.follows(p.certify("one", s, time.Now()), events{beforeDrop: func(_ context.Context, unit string) {
		if _, err := (testStore{s}).Get(t.Context(), key("c", 1)); err != nil {
			t.Error("what is dropped was gone before it was announced")
		}
		dropped = append(dropped, unit)
	}})
	s.catchesUp(p)
	p.put(key("b", 1), "hidden")
	p.put(key("a", 1), "not hidden")
	p.admin(func() { p.hidden["mount/c"] = true })
	s.catchesUp(p)
	if !slices.Equal(dropped, []string{"mount/c"}) {
		t.Errorf("dropped was %v", dropped)
	}
	p.admin(func() { clear(p.hidden) })
	s.catchesUp(p)
	units, err := s.nodes[1].link.Units(t.Context())
	if want := map[string]bool{"ns/root": true, "mount/a": true, "mount/b": true, "mount/c": true}; err != nil || !maps.Equal(units, want) {
		t.Errorf("it has %v, %v", units, err)
	}
}

func TestRenewal(t *testing.T) {
	p, s := pair(t)
	old := p.certify("one", s, time.Now().Add(-enrol.CertLifetime+time.Hour))
	renewed := make(chan []byte, 1)
	s.follows(old, events{learned: func(_ context.Context, l replication.Learned) {
		if l.Cert != nil {
			renewed <- l.Cert
		}
	}})
	cert := <-renewed
	s.catchesUp(p)
	pair, err := tls.X509KeyPair(cert, old.Key)
	if err != nil {
		t.Fatal(err)
	}
	if _, soon := transport.Outlived(&pair, time.Now()); soon {
		t.Error("the new certificate is old")
	}
	if p.renewals != 1 {
		t.Errorf("it was renewed %d times", p.renewals)
	}
	// The connection is one with the new certificate: it outlives the old one.
	eventually(t, "the session of the old certificate ends", func() bool {
		list := p.nodes[0].link.sessions.list()
		return len(list) == 1 && list[0].auth.Cert.Equal(pair.Leaf)
	})
}

func TestLearning(t *testing.T) {
	p, s := pair(t)
	up := p.certify("one", s, time.Now())
	up.Addrs, up.PrimaryID = []string{"127.0.0.1:1", p.nodes[1].addr}, "somebody" // dead, and a standby
	learned := make(chan replication.Learned, 10)
	s.follows(up, events{learned: func(_ context.Context, l replication.Learned) { learned <- l }})
	if l := <-learned; l.PrimaryID != "p" || l.Lineage.Epoch() != 1 || l.Addrs != nil {
		t.Errorf("from the welcome it learned %+v", l)
	}
	if l := <-learned; !slices.Equal(l.Addrs, p.addrs()) || l.PrimaryID != "" {
		t.Errorf("from a heartbeat it learned %+v", l)
	}
	s.catchesUp(p)
}

// A client that is not of this primary's CA, or not any more, is rejected.
func TestStrangers(t *testing.T) {
	p, s := pair(t)
	other := newTestCluster(t, "other", 1)
	foreign := other.certify("one", s, time.Now())
	foreign.CA, foreign.Addrs = p.ca.Cert, p.addrs()
	expired := p.certify("one", s, time.Now().Add(-enrol.CertLifetime-time.Minute))
	unknownPrimary := p.certify("one", s, time.Now())
	unknownPrimary.CA = other.ca.Cert
	for name, up := range map[string]replication.Upstream{"foreign": foreign, "expired": expired, "of another primary": unknownPrimary} {
		if _, err := s.nodes[0].link.WhoIsActive(t.Context(), p.nodes[0].addr, up); err == nil {
			t.Errorf("%s: answered", name)
		}
		id, err := transport.NewIdentity(up.CA, up.Cert, up.Key)
		if err != nil {
			t.Fatal(err)
		}
		c, err := id.Dial(p.nodes[0].addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		stream, err := c.Stream(t.Context())
		if err == nil {
			_, err = stream.Recv()
		}
		if err == nil {
			t.Errorf("%s: served", name)
		}
	}
	if n := connectedTo(p.nodes[0].link); n != 0 {
		t.Errorf("%d sessions", n)
	}

	// One that says to be another cluster than its certificate.
	x := newTestCluster(t, "x", 1)
	x.follows(p.certify("one", s, time.Now()), events{})
	eventually(t, "it is refused", func() bool {
		return strings.Contains(x.nodes[0].link.FollowStatus().Reason, "another cluster's")
	})

	// Without a certificate there is nothing but enrolment.
	id, err := transport.NewIdentity(p.ca.Cert, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := id.Dial(p.nodes[0].addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.WhoIsActive(t.Context(), &pb.WhoIsActiveRequest{})
	_, err2 := c.Call(t.Context(), &pb.CallRequest{})
	_, err3 := c.Renew(t.Context(), &pb.RenewRequest{})
	stream, err4 := c.Stream(t.Context())
	if err4 == nil {
		_, err4 = stream.Recv()
	}
	for i, err := range []error{err, err2, err3, err4} {
		if status.Code(err) != codes.Unauthenticated && status.Code(err) != codes.Unavailable { // the latter of one that was ended for good
			t.Errorf("call %d without a certificate: %v", i, err)
		}
	}

	// An expired certificate is known to be one before anything is dialled.
	y := newTestCluster(t, "y", 1)
	y.follows(p.certify("two", y, time.Now().Add(-enrol.CertLifetime-time.Minute)), events{})
	eventually(t, "the reason is told", func() bool {
		st := y.nodes[0].link.FollowStatus()
		return st.Terminal == "rejected" && strings.Contains(st.Reason, "expired")
	})
}

func TestEnrol(t *testing.T) {
	p, s := pair(t)
	csr, keyPEM, err := enrol.NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	req := replication.EnrolRequest{SetID: "set", ClusterID: "s", SecondaryID: "one", Secret: "secret", CSR: csr}
	link := s.nodes[0].link
	reply, err := link.Enrol(t.Context(), []string{"127.0.0.1:1", p.nodes[1].addr}, p.ca.Cert, req) // dead, and a standby that redirects
	if err != nil || reply.PrimaryID != "p" || reply.SetID != "set" || reply.Lineage.Epoch() != 1 || !slices.Equal(reply.Addrs, p.addrs()) {
		t.Fatalf("enrolling: %+v, %v", reply, err)
	}
	if p.enrolled != 1 {
		t.Errorf("it was enrolled %d times", p.enrolled)
	}
	up := replication.Upstream{SetID: "set", CA: p.ca.Cert, Cert: reply.Cert, Key: keyPEM, Addrs: reply.Addrs}
	for i, n := range p.nodes {
		who, err := link.WhoIsActive(t.Context(), n.addr, up)
		if err != nil || who.SetID != "set" || who.ClusterID != "p" || who.Epoch != 1 || who.Active != (i == 0) || who.ActiveAddr != p.nodes[0].addr {
			t.Errorf("node %d says %+v, %v", i, who, err)
		}
	}
	req.Secret = "another"
	_, err = link.Enrol(t.Context(), p.addrs(), p.ca.Cert, req)
	if refusal, ok := errors.AsType[*replication.Refusal](err); !ok || !strings.Contains(refusal.Detail, "already used") {
		t.Errorf("a secret that was used: %v", err)
	}
	other := newTestCluster(t, "other", 1)
	if _, err := link.Enrol(t.Context(), p.addrs(), other.ca.Cert, req); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("a primary of another CA: %v", err)
	}
	if _, err := link.Enrol(t.Context(), other.addrs(), other.ca.Cert, req); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("a cluster that is no primary: %v", err)
	}
	if _, err := link.Enrol(t.Context(), nil, p.ca.Cert, req); err == nil {
		t.Error("nowhere")
	}
}

// A planned switch-over moves nothing, neither to the old primary nor to a third cluster.
func TestSwitchOver(t *testing.T) {
	p, s := pair(t)
	third := newTestCluster(t, "third", 1)
	stopS := s.follows(p.certify("one", s, time.Now()), events{})
	stopThird := third.follows(p.certify("two", third, time.Now()), events{})
	s.catchesUp(p)
	third.catchesUp(p)
	stopThird() // it is away meanwhile
	p.put(key("a", 1), "the last but one")
	at := p.put(key("a", 2), "the last of the first epoch")
	s.catchesUp(p)

	p.admin(func() { p.self.Primary, p.self.Demoted = false, true })
	final := storage.Position{Epoch: 1, Index: p.self.Since}
	eventually(t, "the secondary has everything", func() bool {
		cursor, err := s.nodes[0].link.Cursor(t.Context())
		return err == nil && cursor == final
	})
	if final.Index <= at {
		t.Fatal("the test is wrong")
	}
	eventually(t, "the session has ended", func() bool { return connectedTo(p.nodes[0].link) == 0 })
	eventually(t, "the secondary says so", func() bool { return s.nodes[0].link.FollowStatus().Final })
	p.calls = func(string, []byte) ([]byte, storage.Index, error) { return []byte("still here"), 0, nil }
	if answer, _, err := s.nodes[0].link.Call(t.Context(), "x", nil); err != nil || string(answer) != "still here" {
		t.Errorf("a call of a demoted primary: %q, %v", answer, err)
	}
	if st := s.nodes[0].link.FollowStatus(); !st.Final || st.Terminal != "" {
		t.Errorf("after a call the status is %+v", st)
	}
	stopS()
	if err := p.nodes[0].link.SetCursor(t.Context(), final, p.self.Lineage, []string{"ns/root", "mount/a", "mount/b", "mount/c"}); err != nil {
		t.Fatal(err)
	}
	s.admin(func() {
		s.self.Primary = true
		s.self.Lineage = storage.Lineage{{Epoch: 1, ClusterID: "p", Base: 1}, {Epoch: 2, ClusterID: "s", From: final, Base: s.index + 1}}
	})
	s.put(key("a", 3), "the first of the second")
	p.admin(func() { p.self.Demoted, p.self.Lineage = false, s.self.Lineage })
	third.admin(func() { third.self.Lineage = s.self.Lineage })

	p.follows(s.certify("back", p, time.Now()), events{})
	third.follows(s.certify("two", third, time.Now()), events{})
	p.catchesUp(s)
	third.catchesUp(s)
	for _, c := range []*testCluster{p, third} {
		if r := c.nodes[0].link.FollowStatus().Repair; r != nil {
			t.Errorf("%s had to repair: %+v", c.id, r)
		}
	}
	s.put(key("b", 3), "and it goes on")
	p.catchesUp(s)
	third.catchesUp(s)
}

// What a cluster has written behind the point where the others went on without it is replaced, and kept aside.
func TestConflicts(t *testing.T) {
	p, s := pair(t)
	stop := s.follows(p.certify("one", s, time.Now()), events{})
	s.catchesUp(p)
	stop()
	cursor, err := s.nodes[0].link.Cursor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lost := p.put(key("a", 1), "only here")
	onlyKey := p.put(key("a", 2000), "and this")
	s.admin(func() { // forced
		s.self.Primary = true
		s.self.Lineage = storage.Lineage{{Epoch: 1, ClusterID: "p", Base: 1}, {Epoch: 2, ClusterID: "s", From: cursor, Base: s.index + 1}}
	})
	s.put(key("a", 3), "only there")

	// The old primary meets the new one first as a secondary that knows more.
	p.admin(func() { p.self.Primary, p.self.Demoted = false, true })
	if err := p.nodes[0].link.SetCursor(t.Context(), storage.Position{Epoch: 1, Index: p.self.Since}, p.self.Lineage,
		[]string{"ns/root", "mount/a", "mount/b", "mount/c"}); err != nil {
		t.Fatal(err)
	}
	p.admin(func() { p.self.Demoted, p.self.Lineage = false, s.self.Lineage })
	p.follows(s.certify("back", p, time.Now()), events{})
	p.catchesUp(s)
	copies, err := p.nodes[1].link.Conflicts(t.Context())
	if err != nil || len(copies) != 2 {
		t.Fatalf("copies: %+v, %v", copies, err)
	}
	slices.SortFunc(copies, func(a, b state.ConflictCopy) int { return int(a.Mine.Index) - int(b.Mine.Index) })
	if c := copies[0]; c.Key != key("a", 1) || string(c.Value) != "only here" || c.Mine != (storage.Position{Epoch: 1, Index: lost}) || c.Theirs.IsZero() {
		t.Errorf("the first copy is %+v", c)
	}
	if c := copies[1]; c.Key != key("a", 2000) || string(c.Value) != "and this" || c.Mine.Index != onlyKey || !c.Theirs.IsZero() {
		t.Errorf("the second copy is %+v", c)
	}
	if err := p.nodes[0].link.Reset(t.Context()); err == nil {
		if copies, err := p.nodes[0].link.Conflicts(t.Context()); err != nil || len(copies) != 2 {
			t.Errorf("after Reset: %d copies, %v", len(copies), err)
		}
	}
}

// A primary that meets a secondary of a later epoch learns that it is one no more.
func TestFencing(t *testing.T) {
	p, s := pair(t)
	later := storage.Lineage{{Epoch: 1, ClusterID: "p", Base: 1}, {Epoch: 2, ClusterID: "q", From: storage.Position{Epoch: 1, Index: 5}, Base: 7}}
	if err := s.nodes[0].link.SetCursor(t.Context(), storage.Position{Epoch: 2, Index: 9}, later, nil); err != nil {
		t.Fatal(err)
	}
	s.follows(p.certify("one", s, time.Now()), events{})
	eventually(t, "the secondary says why", func() bool { return s.nodes[0].link.FollowStatus().Terminal == "fenced" })
	eventually(t, "the primary knows", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.fenced == 2
	})
}

// TestAnnounce: a former primary hears of a later one, at the address of a standby, too, and from a cluster whose certificate
// has expired; not from one that was revoked, and not over anything but this call.
func TestAnnounce(t *testing.T) {
	p, s := pair(t)
	a := replication.Announcement{SetID: "set", OtherPrimary: replication.OtherPrimary{EpochID: storage.EpochID{Number: 2, ClusterID: "s"}, APIAddr: "https://s"}, Claim: true}
	link := s.nodes[0].link
	up := p.certify("one", s, time.Now().Add(-enrol.CertLifetime-time.Hour))
	up.Addrs = []string{"127.0.0.1:1", p.nodes[1].addr}
	reply, err := link.Announce(t.Context(), up, a)
	want := replication.AnnounceReply{
		EpochID: storage.EpochID{Number: 1, ClusterID: "p"}, Primary: true, Fenced: true,
		Others: []replication.OtherPrimary{{EpochID: storage.EpochID{Number: 7, ClusterID: "one"}, APIAddr: "https://seven"}},
	}
	if err != nil || fmt.Sprint(reply) != fmt.Sprint(want) {
		t.Errorf("announced: %+v, %v; want %+v", reply, err, want)
	}
	p.mu.Lock()
	if len(p.announced) != 1 || p.announced[0] != a {
		t.Errorf("heard %+v, want %+v", p.announced, a)
	}
	p.mu.Unlock()
	if _, err := link.WhoIsActive(t.Context(), p.nodes[0].addr, up); !errors.Is(err, replication.ErrRevoked) {
		t.Errorf("another call with a certificate that has expired: %v", err)
	}
	other := newTestCluster(t, "other", 1)
	foreign := other.certify("one", s, time.Now())
	foreign.CA, foreign.Addrs = p.ca.Cert, p.addrs()
	if _, err := link.Announce(t.Context(), foreign, a); err == nil {
		t.Error("with a certificate of another CA: no error")
	}
	if _, err := link.Announce(t.Context(), up, replication.Announcement{SetID: "set"}); err == nil {
		t.Error("without an epoch: no error")
	}
	p.mu.Lock()
	p.revoked["one"] = true
	p.mu.Unlock()
	if _, err := link.Announce(t.Context(), up, a); !errors.Is(err, replication.ErrRevoked) {
		t.Errorf("revoked: %v", err)
	}
}

// TestLag: the time since both sides were equal grows, at both ends, as long as the other side is away.
func TestLag(t *testing.T) {
	p, s := pair(t)
	s.follows(p.certify("one", s, time.Now()), events{})
	s.catchesUp(p)
	of := func() (replication.FollowStatus, replication.SessionStatus) {
		list := p.nodes[0].link.SessionStatus()
		if len(list) != 1 {
			t.Fatalf("%d secondaries", len(list))
		}
		return s.nodes[0].link.FollowStatus(), list[0]
	}
	eventually(t, "both know that they are equal", func() bool {
		f, one := of()
		return f.LagSeconds == 0 && one.LagSeconds == 0 && one.LagEntries == 0 && !f.EqualAt.IsZero() && !one.EqualAt.IsZero()
	})
	copied := 0
	for _, value := range p.shared() {
		copied += len(value)
	}
	if f, _ := of(); f.BytesIn < int64(copied) {
		t.Errorf("%d bytes were received, and the first copy has %d", f.BytesIn, copied)
	}
	p.nodes[0].halt()
	eventually(t, "both notice", func() bool {
		f, one := of()
		return f.Connected == "" && !one.EndedAt.IsZero() && f.LagSeconds > 0 && one.LagSeconds > 0
	})
	f, one := of()
	p.put("s/sys/root/policies/late", "not there yet")
	eventually(t, "it grows", func() bool {
		later, lateOne := of()
		return later.LagSeconds > f.LagSeconds && lateOne.LagSeconds > one.LagSeconds && lateOne.LagEntries == 1 &&
			later.EqualAt.Equal(f.EqualAt) && lateOne.EqualAt.Equal(one.EqualAt)
	})
	p.nodes[0].serve(t, p.nodes[0].addr)
	s.catchesUp(p)
	eventually(t, "it is gone", func() bool {
		f, one := of()
		return f.LagSeconds == 0 && one.LagSeconds == 0 && one.EndedAt.IsZero() && one.LagEntries == 0
	})
}

// TestWrongPorts: what an operator reads who has named a port that is not a primary's cluster port.
func TestWrongPorts(t *testing.T) {
	p, s := pair(t)
	up := p.certify("one", s, time.Now())
	listen := func(serve func(net.Conn)) string {
		t.Helper()
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		t.Cleanup(func() { tcp.Close(); <-done })
		go func() {
			defer close(done)
			for {
				conn, err := tcp.Accept()
				if err != nil {
					return
				}
				serve(conn)
				conn.Close()
			}
		}()
		return tcp.Addr().String()
	}
	cert, err := newTestCluster(t, "other", 1).ca.Issue(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	withTLS := func(protocol string, config func(*tls.ClientHelloInfo) (*tls.Config, error)) func(net.Conn) {
		return func(conn net.Conn) {
			tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{protocol}, GetConfigForClient: config}).Handshake() //nolint:errcheck // the client says it
		}
	}
	for name, tt := range map[string]struct{ addr, want string }{
		"no TLS": {listen(func(conn net.Conn) {
			conn.Read(make([]byte, 64))                            //nolint:errcheck // whatever comes
			conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) //nolint:errcheck // the client says it
		}), "not the cluster port of a node (8201"},
		"the API":         {listen(withTLS("h2", nil)), "not a cluster port"},
		"another cluster": {listen(withTLS(replication.Protocol, nil)), "takes a token of it"},
		"not a primary": {listen(withTLS(replication.Protocol, func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return nil, errors.New("not a primary")
		})), "sealed or not a primary"},
		"nothing": {"127.0.0.1:1", "connection refused"},
	} {
		_, err := s.nodes[0].link.WhoIsActive(t.Context(), tt.addr, up)
		if !errors.Is(err, storage.ErrUnavailable) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "desc =") {
			t.Errorf("%s: %v, want it to say %q", name, err, tt.want)
		}
	}
}
