package lifecycle_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/join"
	"github.com/coffer-project/coffer/server/lifecycle/lifecycletest"
	"github.com/coffer-project/coffer/server/lifecycle/passport"
)

// leader is an unsealed node of a cluster, and its API for joiners.
type leader struct {
	*node
	url    string
	keys   []string
	refuse func(step string) bool
}

func newLeader(t *testing.T, change func(*lifecycle.Options)) *leader {
	t.Helper()
	l := &leader{node: newNode(t, "n1", lifecycletest.NewState(), change)}
	l.keys = l.init(3, 2)
	if l.Sealed() {
		l.unseal(l.keys[:2]...)
	}
	l.until(l.Active, "not active")
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	l.url = server.URL
	return l
}

func (l *leader) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	step := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	answer := func(v any, err error) {
		if err != nil || l.refuse != nil && l.refuse(step) {
			w.WriteHeader(http.StatusForbidden)
			v = nil
		}
		json.NewEncoder(w).Encode(map[string]any{"data": v})
	}
	var in join.Answer
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		answer(nil, err)
		return
	}
	if step == "challenge" {
		answer(l.Challenge(r.Context(), in.ServerID))
		return
	}
	grant, err := l.Admit(r.Context(), in)
	answer(map[string][]byte{"grant": grant}, err)
}

// joiner is a new node that gets the leader's state once its cluster runs.
func (l *leader) joiner(change func(*lifecycle.Options)) *node {
	n := newNode(l.t, "n2", lifecycletest.NewState(), change)
	n.follower.Store(true)
	n.onOpen = func(context.Context, passport.Passport) error { copyState(l.t, n.state, l.state); return nil }
	return n
}

func (l *leader) target() join.Target { return join.Target{LeaderAPIAddr: l.url} }

func (n *node) join(target join.Target) {
	n.t.Helper()
	if joined, err := n.Join(context.Background(), target); err != nil || joined {
		n.t.Fatalf("Join = %v, %v; want to wait for keys", joined, err)
	}
}

func TestJoin(t *testing.T) {
	l := newLeader(t, nil)
	n := l.joiner(nil)
	n.join(l.target())
	if s := n.Status(t.Context()); !s.Joining || !s.Initialized || !s.Sealed || s.Threshold != 2 || s.Shares != 3 {
		t.Errorf("status while keys are awaited = %+v", s)
	}
	n.unseal(l.keys[2], l.keys[0])
	if n.Identity() != l.Identity() || !slices.Equal(l.joined, []string{"n2"}) || string(n.passport.Trust) != "trust with public key of n2" {
		t.Errorf("joined %q as %q, goes by %q", n.Identity(), l.joined, n.passport.Trust)
	}
	if joined, err := n.Join(t.Context(), l.target()); err != nil || !joined {
		t.Errorf("joining again = %v, %v", joined, err)
	}
	if err := n.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.unseal(l.keys[1], l.keys[0])
}

func TestJoinAutomatic(t *testing.T) {
	auto := func(o *lifecycle.Options) { o.AutoSeal = static(t, 1) }
	l := newLeader(t, auto)
	n := l.joiner(func(o *lifecycle.Options) {
		auto(o)
		o.RetryJoin = []join.Target{{LeaderAPIAddr: "http://127.0.0.1:1"}, l.target()}
	})
	n.run()
	n.until(func() bool { return !n.Sealed() }, "it has not joined")
}

// Who cannot unseal cannot join, and learns nothing.
func TestJoinRefused(t *testing.T) {
	l := newLeader(t, nil)
	t.Run("wrong keys", func(t *testing.T) {
		n := l.joiner(nil)
		n.join(l.target())
		wrong := newNode(t, "other", lifecycletest.NewState(), nil).init(3, 2)
		if _, err := n.Unseal(t.Context(), wrong[0], false); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Unseal(t.Context(), wrong[1], false); err == nil || !n.Sealed() {
			t.Errorf("Unseal with another cluster's keys = %v", err)
		}
		if len(l.joined) != 0 {
			t.Errorf("the cluster admitted %q", l.joined)
		}
		n.unseal(l.keys[0], l.keys[1])
	})
	t.Run("another seal", func(t *testing.T) {
		n := l.joiner(func(o *lifecycle.Options) { o.AutoSeal = static(t, 1) })
		if _, err := n.Join(t.Context(), l.target()); err == nil || !strings.Contains(err.Error(), "seal") {
			t.Errorf("Join = %v", err)
		}
	})
	t.Run("another automatic key", func(t *testing.T) {
		l := newLeader(t, func(o *lifecycle.Options) { o.AutoSeal = static(t, 1) })
		n := l.joiner(func(o *lifecycle.Options) { o.AutoSeal = static(t, 2) })
		if _, err := n.Join(t.Context(), l.target()); err == nil || len(l.joined) != 0 {
			t.Errorf("Join = %v, admitted %q", err, l.joined)
		}
		if s := n.Status(t.Context()); s.Joining || s.Initialized {
			t.Errorf("status = %+v", s)
		}
	})
	t.Run("no answer", func(t *testing.T) {
		if _, err := l.Admit(t.Context(), join.Answer{ServerID: "n9", Answer: make([]byte, 56)}); err == nil {
			t.Error("a stranger was admitted")
		}
	})
}

// A leader that forgot the challenge, or refused once, does not cost the operator a restart.
func TestJoinAgainAfterFailure(t *testing.T) {
	for name, fail := range map[string]func(*leader, *node){
		"refused once": func(l *leader, n *node) { l.refuse = func(step string) bool { return step == "answer" } },
		"no cluster": func(l *leader, n *node) {
			open := n.onOpen
			n.onOpen = func(context.Context, passport.Passport) error { n.onOpen = open; return errTest }
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t, nil)
			n := l.joiner(nil)
			n.join(l.target())
			fail(l, n)
			if _, err := n.Unseal(t.Context(), l.keys[0], false); err != nil {
				t.Fatal(err)
			}
			if _, err := n.Unseal(t.Context(), l.keys[1], false); err == nil || !n.Sealed() {
				t.Fatalf("Unseal = %v", err)
			}
			l.refuse = nil
			n.unseal(l.keys[0], l.keys[1])
		})
	}
	t.Run("a new leader", func(t *testing.T) {
		l := newLeader(t, nil)
		n := l.joiner(nil)
		n.join(l.target())
		if err := l.Seal(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.unseal(l.keys[0], l.keys[2])
		l.until(l.Active, "not active")
		n.unseal(l.keys[0], l.keys[1])
	})
}

// Only the active node challenges and admits.
func TestAdmitOnStandby(t *testing.T) {
	l := newLeader(t, nil)
	l.follower.Store(true)
	if _, err := l.Challenge(t.Context(), "n2"); err == nil {
		t.Error("a standby gave a challenge")
	}
	if _, err := l.Admit(t.Context(), join.Answer{ServerID: "n2"}); err == nil {
		t.Error("a standby admitted a node")
	}
}

// Status answers while a change waits for others, and Close ends such a wait.
func TestWaitingChanges(t *testing.T) {
	stalled := func(t *testing.T) (url string, called chan struct{}) {
		called = make(chan struct{}, 8)
		release := make(chan struct{})
		s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			called <- struct{}{}
			<-release
		}))
		t.Cleanup(s.Close)
		t.Cleanup(func() { close(release) })
		return s.URL, called
	}
	t.Run("for an answer", func(t *testing.T) {
		url, called := stalled(t)
		n := newNode(t, "n2", lifecycletest.NewState(), nil)
		ended := make(chan error, 1)
		go func() {
			_, err := n.Join(context.Background(), join.Target{LeaderAPIAddr: url})
			ended <- err
		}()
		<-called
		if s := n.Status(t.Context()); s.Initialized || !s.Sealed || s.Type != "shamir" {
			t.Errorf("status = %+v", s)
		}
		if err := n.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Join = %v", err)
		}
		if _, err := n.Join(t.Context(), join.Target{LeaderAPIAddr: url}); err == nil {
			t.Error("a closed node joins")
		}
	})
	t.Run("for the state", func(t *testing.T) {
		l := newLeader(t, nil)
		n := l.joiner(nil)
		opened := make(chan struct{})
		n.onOpen = func(context.Context, passport.Passport) error { close(opened); return nil } // and nothing ever comes
		n.join(l.target())
		if _, err := n.Unseal(t.Context(), l.keys[0], false); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := n.Unseal(context.Background(), l.keys[1], false)
			ended <- err
		}()
		<-opened
		if s := n.Status(t.Context()); !s.Sealed || !s.Joining || s.Progress != 1 {
			t.Errorf("status = %+v", s)
		}
		if err := n.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil {
			t.Error("Unseal succeeded")
		}
	})
}

// A node that its cluster has removed seals, forgets its key, and stays sealed, also when it is started again.
func TestRemovedNodeSeals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node-key")
	kept := func(o *lifecycle.Options) { o.AutoSeal, o.KeyFile = static(t, 1), file }
	n := newNode(t, "n1", lifecycletest.NewState(), kept)
	n.init(0, 0)
	n.run()
	sealed, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(sealed), base64.StdEncoding.EncodeToString([]byte("key of n1"))) {
		t.Fatalf("the node's key is not kept, or in plain: %s, %v", sealed, err)
	}
	n.expelled.Store(true)
	n.state.Changes <- struct{}{}
	n.until(func() bool { return n.Sealed() && n.Removed() }, "it is not sealed")
	if _, err := n.Unseal(t.Context(), "x", false); err == nil || !strings.Contains(err.Error(), "removed") {
		t.Errorf("unsealing it: %v", err)
	}
	again := newNode(t, "n1", n.state, kept)
	again.run()
	if !again.Removed() || !again.Sealed() {
		t.Error("it forgets that it was removed")
	}
	if now, _ := os.ReadFile(file); strings.Contains(string(now), `"key"`) {
		t.Errorf("the key is still there: %s", now)
	}
}

// numbered makes keys that have numbers.
type numbered struct {
	lifecycle.Raft
	made *int
}

func (r numbered) NewKey() (private, public []byte, err error) {
	*r.made++
	return fmt.Appendf(nil, "key %d", *r.made), nil, nil
}

// A node keeps its key over restarts.
func TestNodeKeepsItsKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node-key")
	made := 0
	kept := func(o *lifecycle.Options) {
		o.AutoSeal, o.KeyFile = static(t, 1), file
		o.Raft = numbered{o.Raft, &made}
	}
	n := newNode(t, "n1", lifecycletest.NewState(), kept)
	n.init(0, 0)
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := newNode(t, "n1", n.state, kept)
	again.run()
	again.until(func() bool { return !again.Sealed() }, "it does not unseal")
	if string(again.passport.Key) != "key 1" {
		t.Errorf("it comes back with %s", again.passport.Key)
	}
	if err := again.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := newNode(t, "n1", n.state, kept)
	damaged.run()
	damaged.until(func() bool { return !damaged.Sealed() }, "it does not unseal with a damaged file")
	if string(damaged.passport.Key) != "key 2" {
		t.Errorf("with a damaged file it comes back with %s", damaged.passport.Key)
	}
}

// A node that ends when it has the state, and its own key not yet beside it, comes back with the key that it was admitted with.
func TestEndedWhileJoining(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node-key")
	made := 0
	kept := func(o *lifecycle.Options) {
		o.AutoSeal, o.KeyFile = static(t, 1), file
		o.Raft = numbered{o.Raft, &made}
	}
	l := newLeader(t, func(o *lifecycle.Options) { o.AutoSeal = static(t, 1) })
	n := l.joiner(kept)
	arrive, then := n.onOpen, []byte(nil)
	n.onOpen = func(ctx context.Context, p passport.Passport) (err error) {
		then, err = os.ReadFile(file)
		return errors.Join(err, arrive(ctx, p))
	}
	if joined, err := n.Join(t.Context(), l.target()); err != nil || !joined {
		t.Fatalf("Join = %v, %v", joined, err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(then), base64.StdEncoding.EncodeToString([]byte("key 1"))) {
		t.Errorf("the key is kept in plain: %s", then)
	}
	if err := os.WriteFile(file, then, 0o600); err != nil {
		t.Fatal(err)
	}
	again := newNode(t, "n2", n.state, kept)
	again.run()
	again.until(func() bool { return !again.Sealed() }, "it does not unseal")
	if string(again.passport.Key) != "key 1" {
		t.Errorf("it comes back with %s", again.passport.Key)
	}
	if kept, err := os.ReadFile(file); err != nil || strings.Contains(string(kept), `"joining"`) {
		t.Errorf("its file: %s, %v", kept, err)
	}
}

// A node whose data differs from its cluster's seals and gives way to a process that starts without it, and unseals by itself.
func TestNodeThatDiffersRestarts(t *testing.T) {
	restarted := make(chan bool, 1)
	n := newNode(t, "n1", lifecycletest.NewState(), func(o *lifecycle.Options) {
		o.AutoSeal = static(t, 1)
		o.Sealing = func(stay bool) func() { return func() { restarted <- stay } }
	})
	n.init(0, 0)
	n.run()
	n.differs.Store(true)
	n.state.Changes <- struct{}{}
	select {
	case stay := <-restarted:
		if stay || !n.Sealed() {
			t.Errorf("it is to stay sealed: %v; it is sealed: %v", stay, n.Sealed())
		}
	case <-time.After(20 * time.Second):
		t.Error("it does not restart")
	}
}

// A node whose data is not known to be its cluster's neither becomes active nor serves as a standby.
func TestUnverifiedNodeDoesNotServe(t *testing.T) {
	n := newNode(t, "n1", lifecycletest.NewState(), func(o *lifecycle.Options) { o.AutoSeal = static(t, 1) })
	n.unverified.Store(true)
	n.init(0, 0)
	n.state.Changes <- struct{}{}
	n.state.Changes <- struct{}{} // the first one has been looked at
	if n.Active() || n.Current() {
		t.Errorf("active: %v, current: %v", n.Active(), n.Current())
	}
	n.unverified.Store(false)
	n.state.Changes <- struct{}{}
	n.until(n.Active, "it does not become active")
	n.until(n.Current, "it does not become current")
}
