package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

// load writes through the leader of the moment, until stop; each writer counts up under its own key.
type load struct {
	acked [4]atomic.Int64 // highest number acknowledged to each writer
	stop  func()          // waits for the writers
}

func startLoad(t testing.TB, all func() []*member) *load {
	ctx, cancel := context.WithCancel(context.Background())
	var l load
	var wg sync.WaitGroup
	for w := range l.acked {
		wg.Go(func() {
			for i := int64(1); ctx.Err() == nil; {
				before := i
				for _, m := range all() {
					if _, err := m.Commit(ctx, put(fmt.Sprint("writer", w), fmt.Sprint(i))); err == nil {
						l.acked[w].Store(i)
						i++
					}
				}
				if i == before { // an election is under way
					select {
					case <-ctx.Done():
					case <-time.After(5 * time.Millisecond):
					}
				}
			}
		})
	}
	l.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(l.stop)
	return &l
}

// check reads everything back: what was acknowledged must be there. A write of unknown outcome may be, too.
func (l *load) check(t testing.TB, m *member) {
	t.Helper()
	if _, err := m.ReadIndex(testContext(t)); err != nil {
		t.Fatal(err)
	}
	for w := range l.acked {
		var got int64
		fmt.Sscan(m.value(fmt.Sprint("writer", w)), &got)
		if acked := l.acked[w].Load(); got < acked {
			t.Errorf("writer %d: %d was acknowledged, %d is stored on %s", w, acked, got, m.opts.ID)
		}
	}
}

func (l *load) progress() int64 {
	var sum int64
	for w := range l.acked {
		sum += l.acked[w].Load()
	}
	return sum
}

// members is a list that changes while others read it.
type members struct {
	mu  sync.Mutex
	all []*member
}

func (m *members) get() []*member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all)
}

func (m *members) drop(dead *member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = slices.DeleteFunc(m.all, func(x *member) bool { return x == dead })
}

func (m *members) add(x *member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, x)
}

func TestKillTheLeaderUnderLoad(t *testing.T) {
	t.Parallel()
	list := &members{all: three(t)}
	l := startLoad(t, list.get)
	for range 2 {
		old := leaderOf(t, list.get())
		before := l.progress()
		until(t, "writes", func() bool { return l.progress() > before+100 })
		list.drop(old)
		// The writers may still hold the dead node: it answers ErrUnavailable or ErrReadOnly.
		dead := *old
		dead.kill()
		next := leaderOf(t, list.get())
		before = l.progress()
		until(t, "writes after the loss of the leader", func() bool { return l.progress() > before+100 })
		l.check(t, next)
		old.open()
		list.add(old)
		until(t, "the lost node to catch up", func() bool {
			return old.machine.AppliedIndex() >= next.machine.AppliedIndex()
		})
	}
	l.stop()
	for _, m := range list.get() {
		l.check(t, m)
	}
}

func TestJoinAndRemoveUnderLoad(t *testing.T) {
	t.Parallel()
	list := &members{all: three(t, patient)}
	a := list.all[0]
	ctx := testContext(t)
	l := startLoad(t, list.get)
	d := start(t, "d")
	for range 2 { // the second time it is there already
		if err := a.Join(ctx, "d", d.addr, false, false); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the fourth vote", func() bool { return a.raft.OtherVoters() == 3 })
	if err := errors.Join(a.Join(ctx, "a", a.addr, false, false), a.Join(ctx, "b", list.all[1].addr, false, false)); err != nil || a.raft.OtherVoters() != 3 {
		t.Errorf("joining what is there: %v, and %d other voters", err, a.raft.OtherVoters())
	}
	if err := a.Join(ctx, "a", a.addr, false, true); err == nil {
		t.Error("the leader could rejoin without its data")
	}
	if err := a.Join(ctx, "e", d.addr, false, false); err == nil {
		t.Error("a second member got the address of the first")
	}
	if err := a.RemovePeer(ctx, "d"); err != nil {
		t.Fatal(err)
	}
	if err := a.RemovePeer(ctx, "nobody"); err != nil {
		t.Errorf("removing an unknown member = %v", err)
	}
	if a.raft.OtherVoters() != 2 || len(a.Peers()) != 3 {
		t.Errorf("members after the removal: %v", a.Peers())
	}
	before := l.progress()
	until(t, "writes after the removal", func() bool { return l.progress() > before+100 })
	if err := a.RemovePeer(ctx, "a"); !errors.Is(err, storage.ErrReadOnly) {
		t.Fatalf("removing the leader = %v, want ErrReadOnly", err)
	}
	next := leaderOf(t, list.get()[1:])
	if err := next.RemovePeer(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	l.stop()
	l.check(t, next)
}

func TestNonVoterStaysOne(t *testing.T) {
	a := single(t)
	tests := []struct {
		id       string
		itself   bool // it says so in its echoes, as after a change of leader
		joinedAs bool
	}{{"b", true, false}, {"c", false, true}}
	for _, tt := range tests {
		m := start(t, tt.id, func(o *Options) { o.NonVoter = tt.itself })
		if err := a.Join(testContext(t), m.opts.ID, m.addr, tt.joinedAs, false); err != nil {
			t.Fatal(err)
		}
	}
	d := start(t, "d")
	if err := a.Join(testContext(t), "d", d.addr, false, false); err != nil {
		t.Fatal(err)
	}
	until(t, "d's vote", func() bool { return a.raft.OtherVoters() > 0 })
	for _, info := range a.Nodes() {
		if want := info.ID == "a" || info.ID == "d"; info.Voter != want {
			t.Errorf("%s votes: %v, want %v", info.ID, info.Voter, want)
		}
	}
}

// A node that lost its data is known as a voter: it must not vote before it has everything again.
func TestRejoinWithoutData(t *testing.T) {
	all := three(t, unhurried)
	a, c := all[0], all[2]
	mustCommit(t, a, "k", "1")
	c.stop()
	c.opts.Dir, c.opts.ListenAddr = tempDir(t), "127.0.0.1:0"
	c.open()
	a.SetAutopilot(AutopilotConfig{ServerStabilizationTime: time.Hour})
	if err := a.Join(testContext(t), "c", c.addr, false, true); err != nil {
		t.Fatal(err)
	}
	if got := a.raft.OtherVoters(); got != 1 {
		t.Errorf("%d other voters while one has lost its data, want 1", got)
	}
	if _, err := c.ReadIndex(testContext(t)); err != nil || c.value("k") != "1" {
		t.Errorf("the node that came back reads %q, %v", c.value("k"), err)
	}
	a.SetAutopilot(AutopilotConfig{ServerStabilizationTime: time.Millisecond})
	until(t, "the vote to come back", func() bool { return a.raft.OtherVoters() == 2 })
}

func TestTransferLeadership(t *testing.T) {
	t.Parallel()
	all := three(t, patient)
	l := startLoad(t, func() []*member { return all })
	for range 3 {
		old := leaderOf(t, all)
		if err := old.TransferLeadership(testContext(t)); err != nil {
			t.Fatal(err)
		}
		until(t, "another leader", func() bool { return !old.IsLeader() })
		leaderOf(t, all)
	}
	l.stop()
	l.check(t, leaderOf(t, all))
	if err := single(t).TransferLeadership(testContext(t)); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("transfer without another voter = %v, want ErrUnavailable", err)
	}
}

// A node whose state machine has stopped may be elected, as the others do not know; it does not keep the leadership.
func TestBrokenNodeKeepsNoLeadership(t *testing.T) {
	t.Parallel()
	all := three(t)
	a, broken := all[0], all[2]
	mustCommit(t, a, "k", "1")
	catchUp(t, broken, a)
	broken.machine.Damaged(errors.New("for the test"))
	until(t, "it to stop", broken.raft.Broken.Load)
	states := make(chan raft.Observation, 100)
	observer := raft.NewObserver(states, false, func(o *raft.Observation) bool { return o.Data == raft.Leader })
	broken.raft.Raft().RegisterObserver(observer)
	until(t, "it to be elected", func() bool {
		m := leaderOf(t, all)
		if err := m.raft.TransferTo(broken.opts.ID, broken.addr); err != nil {
			t.Log(err)
		}
		return len(states) > 0
	})
	broken.raft.Raft().DeregisterObserver(observer)
	until(t, "another one to take writes", func() bool {
		_, err := leaderOf(t, all[:2]).Commit(testContext(t), put("k", "2"))
		return err == nil
	})
}

// Closing the leader hands over: the others need not miss it first.
func TestCloseHandsOver(t *testing.T) {
	slow := func(o *Options) { o.HeartbeatTimeout, o.ElectionTimeout = 5*time.Second, 5*time.Second }
	all := three(t, slow)
	begin := time.Now()
	all[0].stop()
	leaderOf(t, all[1:])
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("a new leader came after %v: nothing was handed over", took)
	}
}

func TestSnapshotInstallAndRestore(t *testing.T) {
	t.Parallel()
	few := func(o *Options) {
		patient(o)
		o.SnapshotInterval, o.SnapshotThreshold, o.TrailingLogs = 20*time.Millisecond, 20, 5
	}
	all := three(t, few)
	a, c := all[0], all[2]
	ctx := testContext(t)
	mustCommit(t, a, "kept", "1")
	var backup bytes.Buffer
	if _, err := a.machine.WriteSnapshot(ctx, &backup); err != nil {
		t.Fatal(err)
	}
	c.stop()
	until(t, "the log to be cut", func() bool {
		index := mustCommit(t, a, "later", "1")
		first, _, _ := a.logs.Size()
		return first > 30 && uint64(index) > first
	})
	c.open()
	if _, err := c.ReadIndex(ctx); err != nil {
		t.Fatal(err)
	}
	if got := c.value("later"); got != "1" {
		t.Errorf("after the install c reads %q", got)
	}
	if s := a.Stats(); s.SnapshotsSent == 0 {
		t.Error("no snapshot was sent: the test does not test")
	}

	damaged := bytes.Clone(backup.Bytes())
	damaged[len(damaged)/2] ^= 1
	err := a.RestoreSnapshot(ctx, bytes.NewReader(damaged))
	if _, ok := errors.AsType[*storage.CorruptError](err); !ok {
		t.Errorf("restoring a damaged snapshot = %v, want a CorruptError", err)
	}
	if err := a.RestoreSnapshot(ctx, bytes.NewReader(backup.Bytes())); err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if _, err := m.ReadIndex(ctx); err != nil {
			t.Fatal(err)
		}
		if m.value("kept") != "1" || m.value("later") != "" {
			t.Errorf("%s after the restore: kept = %q, later = %q", m.opts.ID, m.value("kept"), m.value("later"))
		}
	}
	mustCommit(t, a, "after", "2")
	for _, m := range all {
		m.stop()
	}
	for _, m := range all {
		m.open()
	}
	l := leaderOf(t, all)
	if _, err := l.ReadIndex(ctx); err != nil || l.value("after") != "2" || l.value("later") != "" {
		t.Errorf("after a restart: %v, after = %q, later = %q", err, l.value("after"), l.value("later"))
	}
	if err := all[slices.IndexFunc(all, func(m *member) bool { return m != l })].RestoreSnapshot(ctx, &backup); !errors.Is(err, storage.ErrReadOnly) {
		t.Errorf("restoring on a follower = %v, want ErrReadOnly", err)
	}
}

func TestLogAndMachineMustBelongTogether(t *testing.T) {
	m := single(t, func(o *Options) {
		o.SnapshotInterval, o.SnapshotThreshold, o.TrailingLogs = 10*time.Millisecond, 5, 1
	})
	until(t, "the log to be cut", func() bool {
		mustCommit(t, m, "k", "1")
		first, _, _ := m.logs.Size()
		return first > 2
	})
	m.stop()
	o := m.opts
	var err error
	if o.Machine, err = fsm.Open(tempDir(t), fsm.Options{}); err != nil {
		t.Fatal(err)
	}
	defer o.Machine.Close()
	_, err = Open(o)
	if c, ok := errors.AsType[*storage.CorruptError](err); !ok || c.File == "" {
		t.Errorf("Open with an empty state machine beside a cut log = %v, want a CorruptError", err)
	}
}

func TestDeadServersAreRemovedOnRequest(t *testing.T) {
	t.Parallel()
	all := three(t, patient)
	a := all[0]
	quick := AutopilotConfig{DeadServerLastContactThreshold: 200 * time.Millisecond, LastContactThreshold: 100 * time.Millisecond}
	a.SetAutopilot(quick)
	all[2].stop()
	until(t, "the silence to be noticed", func() bool {
		s, err := a.AutopilotState()
		return err == nil && !s.Healthy && s.FailureTolerance == 0
	})
	until(t, "the node to count as dead", func() bool { return a.health.Dead("c") })
	if len(a.Peers()) != 3 {
		t.Fatal("a dead server was removed although nobody wanted that")
	}
	quick.CleanupDeadServers, quick.MinQuorum = true, 3
	a.SetAutopilot(quick)
	a.removeDeadServers(a.Nodes())
	if len(a.Peers()) != 3 {
		t.Fatal("a dead server was removed below the minimum")
	}
	quick.MinQuorum = 0
	a.SetAutopilot(quick)
	until(t, "the removal", func() bool { return len(a.Peers()) == 2 })
	all[1].stop()
	until(t, "the second node to count as dead", func() bool { return a.health.Dead("b") || !a.IsLeader() })
	a.removeDeadServers(a.Nodes())
	if len(a.Peers()) != 2 {
		t.Error("a dead server was removed although the rest is no quorum")
	}
}

func TestBigLogsKeepFewerEntries(t *testing.T) {
	t.Parallel()
	m := single(t, func(o *Options) { o.MaxLogBytes = 1 << 20 })
	value := string(make([]byte, 1024))
	for range 2 * 1024 {
		mustCommit(t, m, "k", value)
	}
	until(t, "the log to be cut", func() bool {
		mustCommit(t, m, "k", value)
		first, last, bytes := m.logs.Size()
		return last-first < 2*1024 && first > 1 && bytes < 3<<20
	})
	if s := m.Stats(); s.TrailingLogs != 1024 {
		t.Errorf("%d entries are kept, want %d", s.TrailingLogs, 1024)
	}
}

// A node whose disk hangs cannot end, but Close does.
func TestCloseDoesNotHang(t *testing.T) {
	d := &disk{}
	m := single(t, func(o *Options) { o.logFault = d.fault })
	release := d.block()
	go m.Commit(context.Background(), put("k", "1"))
	until(t, "the write to hang", func() bool { return d.hit() > 0 })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := m.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close of a node whose disk hangs = %v", err)
	}
	release()
	m.stop()
}

// The log of a node that leads no more says why.
func TestLogSaysWhyLeadershipEnded(t *testing.T) {
	t.Parallel()
	var log logText
	all := three(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	old := leaderOf(t, all)
	if err := old.TransferLeadership(testContext(t)); err != nil {
		t.Fatal(err)
	}
	until(t, "the log to say that it was handed over", func() bool { return log.count("leadership was handed over") > 0 })
	last := leaderOf(t, all)
	for _, m := range all {
		if m != last {
			m.kill()
		}
	}
	until(t, "the log to say that no majority answers", func() bool { return log.count("no majority of the voters has answered for") > 0 })
}
