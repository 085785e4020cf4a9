package link

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/transport"
	"github.com/coffer-project/coffer/replication/wire"
	"github.com/coffer-project/coffer/storage"
)

// TestStrangersSendLittle: a client without a certificate does not make a node keep much.
func TestStrangersSendLittle(t *testing.T) {
	p, _ := pair(t)
	id, err := transport.NewIdentity(p.ca.Cert, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := id.Dial(p.nodes[0].addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Enrol(t.Context(), &pb.EnrolRequest{SetId: "set", ClusterId: "s", SecondaryId: "one", Secret: strings.Repeat("x", 8<<20)})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a request of 8 MiB without a certificate: %v, want the connection to end", err)
	}
}

// TestLargeQuestions: a secondary cannot make its primary keep what it sends.
func TestLargeQuestions(t *testing.T) {
	p, s := pair(t)
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
	long := strings.Repeat("x", storage.MaxKeyBytes-len("s/a/"))
	ask := &pb.AskItems{Unit: "mount/a"}
	for range 4096 {
		ask.Keys = append(ask.Keys, "s/a/"+long)
	}
	for name, messages := range map[string][]*pb.FromSecondary{
		"before hello": {{Message: &pb.FromSecondary_AskItems{AskItems: ask}}},
		"after it": {
			{Message: &pb.FromSecondary_Hello{Hello: &pb.Hello{SetId: "set", ClusterId: s.id, ProtoMin: 1, ProtoMax: 1}}},
			{Message: &pb.FromSecondary_AskItems{AskItems: ask}},
		},
	} {
		stream, err := c.Stream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			if err := stream.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		for err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "too large") {
			t.Errorf("%s, a question of 16 MiB: %v", name, err)
		}
	}
}

// TestMountLeavesTheScope: a mount that is moved to where a filter does not let it through is not read any more, even by
// a client whose stream stands still before the move, because they acknowledge nothing.
func TestMountLeavesTheScope(t *testing.T) {
	p, s := pair(t)
	ear := newListener(t, p, s)
	ear.say(replication.AskPage{Unit: "mount/b", Values: true})
	ear.awaits("mount b")
	large := strings.Repeat("x", storage.MaxValueBytes)
	for i := range 24 { // more than is sent without an acknowledgement
		p.put(key("a", i), large)
	}
	sent := func() int64 {
		st := p.nodes[0].link.SessionStatus()
		if len(st) != 1 {
			t.Fatalf("%d sessions", len(st))
		}
		return st[0].BytesOut
	}
	eventually(t, "the stream stands still", func() bool { return sent() > 16<<20 })
	p.mu.Lock()
	p.hidden["mount/b"] = true // by its new place
	p.mu.Unlock()
	p.put(anchorKey("b"), "moved")
	p.put("s/b/new", "closed value")
	ear.say(replication.AskPage{Unit: "mount/b", Values: true})
	ear.say(replication.AskItems{Unit: "mount/b", Keys: []storage.Key{"s/b/new", anchorKey("b")}})
	ear.say(replication.AskPage{Unit: "mount/c", Values: true})
	got := ""
	if !ear.hears("mount c") { // a stream ends if a mount leaves the scope while it is read for an answer: the secondary comes back
		got = ear.all()
		ear = newListener(t, p, s)
		ear.say(replication.AskPage{Unit: "mount/b", Values: true})
		ear.say(replication.AskPage{Unit: "mount/c", Values: true})
		ear.awaits("mount c")
	}
	if got += ear.all(); strings.Contains(got, "closed value") || strings.Contains(got, "moved") {
		t.Error("it got what was written after the move")
	}
}

// deaf connects, asks for much, and reads nothing of it: what is sent to it blocks.
func deaf(t *testing.T, p, s *testCluster) {
	t.Helper()
	up := p.certify("one", s, time.Now())
	id, err := transport.NewIdentity(up.CA, up.Cert, up.Key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := id.Dial(p.nodes[0].addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	stream, err := c.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	asks := []replication.Message{replication.Hello{SetID: "set", ClusterID: s.id, ProtoMin: 1, ProtoMax: 1}}
	for range 40 {
		asks = append(asks, replication.AskPage{Unit: "mount/a", Values: true})
	}
	for _, m := range asks {
		sent, err := wire.EncodeSecondary(m)
		if err == nil {
			err = stream.Send(sent)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestDeafSecondaries: who does not read keeps neither the active node from retiring, nor its own sessions of before alive.
func TestDeafSecondaries(t *testing.T) {
	p, s := pair(t)
	large := strings.Repeat("x", storage.MaxValueBytes)
	for i := range 40 {
		p.put(key("a", i), large)
	}
	link := p.nodes[0].link
	blocked := func() {
		t.Helper()
		last := int64(-1)
		eventually(t, "what is sent blocks", func() bool {
			st := link.SessionStatus()
			if len(st) == 0 {
				return false
			}
			was := last
			last = st[len(st)-1].BytesOut
			return last > 8<<20 && last == was
		})
	}
	for range 3 {
		deaf(t, p, s)
		blocked()
	}
	eventually(t, "the sessions of before end", func() bool { return len(link.SessionStatus()) == 1 })
	retired := make(chan struct{})
	go func() {
		defer close(retired)
		p.nodes[0].retire()
	}()
	eventually(t, "the node retires", func() bool {
		select {
		case <-retired:
			return true
		default:
			return false
		}
	})
}
