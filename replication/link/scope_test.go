package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/replication/transport"
	"github.com/coffer-project/coffer/replication/wire"
)

// listener is a secondary of our own that keeps everything it gets, and asks for what it likes.
type listener struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[pb.FromSecondary, pb.FromPrimary]
	done   chan struct{} // closed when the stream has ended

	mu  sync.Mutex
	got []string // messages, as texts
}

func newListener(t *testing.T, p, s *testCluster) *listener {
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
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := c.Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ear := &listener{t: t, stream: stream, done: make(chan struct{})}
	go func() {
		defer close(ear.done)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			text := m.String()
			ear.mu.Lock()
			ear.got = append(ear.got, text)
			ear.mu.Unlock()
		}
	}()
	t.Cleanup(func() { cancel(); <-ear.done; c.Close() })
	ear.say(replication.Hello{SetID: "set", ClusterID: s.id, ProtoMin: 1, ProtoMax: 1})
	return ear
}

func (ear *listener) say(m replication.Message) {
	ear.t.Helper()
	sent, err := wire.EncodeSecondary(m)
	if err != nil {
		ear.t.Fatal(err)
	}
	if err := ear.stream.Send(sent); err != nil && !errors.Is(err, io.EOF) { // of one that has ended nothing is heard
		ear.t.Fatal(err)
	}
}

// all is everything received, as text.
func (ear *listener) all() string {
	ear.mu.Lock()
	defer ear.mu.Unlock()
	return strings.Join(ear.got, "\n")
}

func (ear *listener) awaits(text string) {
	ear.t.Helper()
	if !ear.hears(text) {
		ear.t.Fatalf("the stream has ended without %s", text)
	}
}

// hears waits until the text is there, or the stream has ended without it.
func (ear *listener) hears(text string) (heard bool) {
	ear.t.Helper()
	looked := 0
	eventually(ear.t, "it gets "+text, func() bool {
		ended := false
		select {
		case <-ear.done:
			ended = true
		default:
		}
		ear.mu.Lock()
		defer ear.mu.Unlock()
		for ; looked < len(ear.got) && !heard; looked++ {
			heard = strings.Contains(ear.got[looked], text)
		}
		return heard || ended
	})
	return heard
}

// Nothing of what a secondary must not have ever reaches it, whatever it asks for: neither names nor values.
func TestNothingOutOfScopeIsSent(t *testing.T) {
	p, s := pair(t)
	p.put(anchorKey("topsecret"), "mount topsecret")
	p.put("s/topsecret/name", "hidden value")
	p.put("l/token/x", "a local value")
	p.admin(func() { p.hidden["mount/topsecret"] = true })
	ear := newListener(t, p, s)
	everything := new(digest.Buckets)
	for i := range digest.Groups * digest.Groups {
		everything.Add(i)
	}
	ask := func(unit replication.Unit) {
		ear.say(replication.AskPage{Unit: unit, Values: true})
		ear.say(replication.AskPage{Unit: unit, Buckets: everything})
		ear.say(replication.AskSums{Unit: unit, Group: replication.AllGroups})
	}
	ask("ns/root")
	ear.awaits("policy")
	for i := range 100 {
		p.put("s/topsecret/name", fmt.Sprint("hidden value ", i))
		p.put(key("a", i), fmt.Sprint("open value ", i))
	}
	ear.awaits("open value 99")
	p.admin(func() { p.hidden["mount/b"] = true })
	for i := range 100 {
		p.put(key("b", i), fmt.Sprint("closed value ", i))
		p.put(key("a", i), fmt.Sprint("later value ", i))
	}
	ear.awaits("later value 99")
	ear.say(replication.AskPage{Unit: "mount/b", Values: true})
	ear.say(replication.AskPage{Unit: "mount/topsecret", Values: true})
	ear.say(replication.AskPage{Unit: "mount/c", Values: true})
	ear.awaits("mount c")
	got := ear.all()
	for _, secret := range []string{"hidden value", "closed value", "a local value", "local of", "s/topsecret", "s/index", "l/token", "l/replication"} {
		if strings.Contains(got, secret) {
			t.Errorf("%q was sent", secret)
		}
	}
	if n := strings.Count(got, "topsecret"); n != strings.Count(got, `gone:{unit:"mount/topsecret"}`) {
		t.Errorf("the name of what is hidden was sent %d times", n)
	}
}

// A filter that comes while a client writes as fast as it can: nothing that was written after it is sent.
func TestFilterUnderLoad(t *testing.T) {
	p, s := pair(t)
	const mounts = 30
	name := func(i int) string { return fmt.Sprint("m", i) }
	for i := range mounts {
		p.put(anchorKey(name(i)), "mount")
	}
	ear := newListener(t, p, s)
	ear.awaits("welcome")
	for i := range mounts {
		for n := range 5 {
			p.put(key(name(i), n), fmt.Sprintf("open %d.", i))
		}
		if i%3 == 0 { // else it may be closed before anything is sent
			ear.awaits(fmt.Sprintf("open %d.", i))
		}
		p.admin(func() { p.hidden[replication.Unit("mount/"+name(i))] = true })
		for n := range 5 {
			p.put(key(name(i), n), "closed")
		}
	}
	p.put(key("a", 0), "the end")
	ear.awaits("the end")
	if strings.Contains(ear.all(), "closed") {
		t.Error("what was written behind the filter was sent")
	}
}
