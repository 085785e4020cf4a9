package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/storage/storagetest/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// member is one node of a test cluster.
type member struct {
	*Node
	machine *fsm.FSM
	opts    Options
	t       testing.TB
}

var testCA = sync.OnceValue(func() CA {
	ca, err := NewCA()
	if err != nil {
		panic(err)
	}
	return ca
})

// testLogger prints if the environment asks for it.
func testLogger(id string) *slog.Logger {
	if os.Getenv("CLUSTER_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})).With("on", id)
}

// tempDir is in memory where there is a file system for that: these tests are not about the disk.
func tempDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "coffer-cluster-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// testOptions has timeouts for nodes that share one machine.
func testOptions(t testing.TB, id string) Options {
	return Options{
		ID: NodeID(id), Dir: tempDir(t), ListenAddr: "127.0.0.1:0", APIAddr: "https://" + id + ":8200", Version: "test",
		CA: testCA(), Logger: testLogger(id),
		HeartbeatTimeout: 700 * time.Millisecond, ElectionTimeout: 700 * time.Millisecond, LeaderLeaseTimeout: 700 * time.Millisecond, CommitTimeout: 30 * time.Millisecond,
		EchoInterval: 60 * time.Millisecond, StabilizationTime: 50 * time.Millisecond, ForwardWait: 10 * time.Second,
	}
}

// start opens a node; change may adapt its options.
func start(t testing.TB, id string, change ...func(*Options)) *member {
	t.Helper()
	o := testOptions(t, id)
	for _, c := range change {
		c(&o)
	}
	m := &member{opts: o, t: t}
	m.open()
	t.Cleanup(m.stop)
	return m
}

func (m *member) open() {
	m.t.Helper()
	var err error
	if m.machine, err = fsm.Open(m.opts.Dir, fsm.Options{WholeBytes: -1}); err != nil { // as if the state were large
		m.t.Fatalf("opening the state machine: %v", err)
	}
	m.opts.Machine = m.machine
	if m.Node, err = Open(m.opts); err != nil {
		m.machine.Close()
		m.t.Fatalf("opening node %s: %v", m.opts.ID, err)
	}
	m.opts.ListenAddr = m.port.TCP.Addr().String() // the same after a restart
}

func (m *member) stop() {
	if m.Node == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := errors.Join(m.Close(ctx), m.machine.Close()); err != nil {
		m.t.Errorf("closing %s: %v", m.opts.ID, err)
	}
	m.Node = nil
}

// kill ends the node without a word to the others.
func (m *member) kill() {
	m.t.Helper()
	m.raft.Cut()
	m.calls.Stop()
	m.raft.Stop(m.calls.Close) //nolint:errcheck // it ends in the middle of things
	m.port.Close()
	if err := errors.Join(m.logs.Close(), m.machine.Close()); err != nil {
		m.t.Errorf("killing %s: %v", m.opts.ID, err)
	}
	m.Node = nil
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// until waits for something that nothing announces.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			t.Fatalf("waiting in vain: %s", what)
		}
	}
}

// single starts a cluster of one.
func single(t testing.TB, change ...func(*Options)) *member {
	t.Helper()
	m := start(t, "a", change...)
	if err := m.Bootstrap(testContext(t)); err != nil {
		t.Fatal(err)
	}
	until(t, "leadership", m.IsLeader)
	return m
}

// three starts a cluster of three voters; the first leads.
func three(t testing.TB, change ...func(*Options)) []*member {
	t.Helper()
	a := single(t, change...)
	all := []*member{a}
	for _, id := range []string{"b", "c"} {
		m := start(t, id, change...)
		if err := a.Join(testContext(t), m.opts.ID, m.addr, false, true); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	until(t, "three voters, and that all of them know", func() bool {
		return all[0].raft.OtherVoters() == 2 && all[1].raft.OtherVoters() == 2 && all[2].raft.OtherVoters() == 2
	})
	return all
}

// patient is for tests that name their leader: on a busy machine it keeps the leadership all the same.
func patient(o *Options) {
	o.HeartbeatTimeout, o.ElectionTimeout, o.LeaderLeaseTimeout = 2500*time.Millisecond, 2500*time.Millisecond, 2500*time.Millisecond
}

// unhurried is for tests that need one election at most: an overloaded machine takes no leadership away either.
func unhurried(o *Options) {
	o.HeartbeatTimeout, o.ElectionTimeout, o.LeaderLeaseTimeout = 5*time.Second, 5*time.Second, 5*time.Second
}

func leaderOf(t testing.TB, all []*member) *member {
	t.Helper()
	var found *member
	until(t, "a leader", func() bool {
		for _, m := range all {
			if m.Node != nil && m.IsLeader() {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

func put(key, value string) storage.Batch {
	return storage.Batch{Puts: []storage.Put{{Key: storage.Key("l/test/" + key), Value: []byte(value)}}}
}

func mustCommit(t testing.TB, n *member, key, value string) storage.Index {
	t.Helper()
	index, err := n.Commit(testContext(t), put(key, value))
	if err != nil {
		t.Fatalf("Commit(%s) = %v", key, err)
	}
	return index
}

// value reads locally.
func (m *member) value(key string) string {
	m.t.Helper()
	e, err := m.machine.Get(context.Background(), storage.Key("l/test/"+key))
	if errors.Is(err, storage.ErrNotFound) {
		return ""
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return string(e.Value)
}

func TestSingleNode(t *testing.T) {
	m := single(t)
	ctx := testContext(t)
	index := mustCommit(t, m, "k", "1")
	if got := m.value("k"); got != "1" {
		t.Errorf("after Commit the local value is %q", got)
	}
	if read, err := m.ReadIndex(ctx); err != nil || read < index {
		t.Errorf("ReadIndex = %d, %v, want at least %d", read, err, index)
	}
	stale := put("k", "2")
	stale.Reads = []storage.Read{{Key: "l/test/k", Version: 0}}
	if _, err := m.Commit(ctx, stale); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("Commit with a stale read = %v, want ErrConflict", err)
	}
	if _, err := m.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: "nonsense"}}}); err == nil {
		t.Error("Commit of an invalid key succeeded")
	}
	if err := m.Bootstrap(ctx); err != nil {
		t.Errorf("bootstrapping twice = %v", err)
	}
	for i := range 3 {
		m.stop()
		m.open()
		until(t, "leadership after a restart", m.IsLeader)
		if got := m.value("k"); got != "1" {
			t.Errorf("after restart %d the value is %q", i, got)
		}
		mustCommit(t, m, "other", fmt.Sprint(i))
	}
}

// The state machine stays open while the node closes and opens again, as when the server seals and unseals.
func TestReopenOverTheSameMachine(t *testing.T) {
	m := single(t)
	for i := range 3 {
		key := fmt.Sprint(i)
		mustCommit(t, m, key, key)
		if err := m.Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		var err error
		if m.Node, err = Open(m.opts); err != nil {
			t.Fatal(err)
		}
		until(t, "leadership", m.IsLeader)
		if got := m.value(key); got != key {
			t.Errorf("after reopening the value is %q, want %q", got, key)
		}
	}
}

func TestThreeNodes(t *testing.T) {
	all := three(t)
	ctx := testContext(t)
	for i := range 50 {
		mustCommit(t, all[0], "k", fmt.Sprint(i))
		reader := all[i%3]
		if _, err := reader.ReadIndex(ctx); err != nil {
			t.Fatal(err)
		}
		if got := reader.value("k"); got != fmt.Sprint(i) {
			t.Fatalf("node %d reads %q after ReadIndex, want %d", i%3, got, i)
		}
	}
	if _, err := all[1].Commit(ctx, put("k", "x")); !errors.Is(err, storage.ErrReadOnly) {
		t.Errorf("Commit on a follower = %v, want ErrReadOnly", err)
	}
	until(t, "the follower to know the leader's API address", func() bool {
		l, ok := all[1].Leader()
		return ok && l.ID == "a" && l.APIAddr == "https://a:8200"
	})
	until(t, "all nodes to be healthy", func() bool {
		s, err := all[0].AutopilotState()
		return err == nil && s.Healthy && s.FailureTolerance == 1 && len(s.Servers) == 3
	})
}

func TestCAIsNotPrinted(t *testing.T) {
	ca := testCA()
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "ca", ca)
	for _, s := range []string{fmt.Sprint(ca), fmt.Sprintf("%+v %#v", ca, ca), fmt.Sprint(Options{CA: ca}), log.String()} {
		if strings.Contains(s, "PRIVATE") || strings.Contains(s, fmt.Sprint([]byte("PRIVATE"))[1:10]) {
			t.Errorf("the key is printed: %.80s", s)
		}
	}
}

// Operations that share an entry each get their own answer.
func TestCommitAnswersEachOperation(t *testing.T) {
	m := single(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for i := range 64 {
		wg.Go(func() {
			b := put("contended", fmt.Sprint(i))
			b.Reads = []storage.Read{{Key: "l/test/contended"}} // must not exist
			_, err := m.Commit(testContext(t), b)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
				if got := m.value("contended"); got != fmt.Sprint(i) {
					t.Errorf("%d was acknowledged, the value is %s", i, got)
				}
			} else if !errors.Is(err, storage.ErrConflict) {
				t.Errorf("Commit = %v", err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d of 64 created the same key", won)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.Commit(ctx, put("k", "1")); err != nil && !errors.Is(err, storage.ErrUnavailable) && !errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Errorf("Commit with an ended context = %v", err)
	}
}
