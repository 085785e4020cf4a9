package fsm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

// server is one real Raft server over an FSM. Its log survives stop and start, as a log on disk would.
type server struct {
	id    raft.ServerID
	dir   string
	logs  *raft.InmemStore
	trans *raft.InmemTransport
	fsm   *fsm.FSM
	raft  *raft.Raft

	timeout time.Duration
}

func newServer(t *testing.T, id string) *server { return newServerWith(t, id, 700*time.Millisecond) }

// newServerWith starts a server that stands for election after the timeout. One that is alone may have a short one.
func newServerWith(t *testing.T, id string, timeout time.Duration) *server {
	s := &server{id: raft.ServerID(id), dir: t.TempDir(), logs: raft.NewInmemStore(), timeout: timeout}
	s.start(t)
	return s
}

func (s *server) config() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = s.id
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = s.timeout, s.timeout, s.timeout
	c.CommitTimeout = 20 * time.Millisecond
	c.TrailingLogs = 0
	c.NoSnapshotRestoreOnStart = true
	c.Logger = hclog.NewNullLogger()
	return c
}

func (s *server) start(t *testing.T) {
	t.Helper()
	s.fsm = open(t, s.dir)
	_, s.trans = raft.NewInmemTransport(raft.ServerAddress(s.id))
	r, err := raft.NewRaft(s.config(), s.fsm, s.logs, s.logs, s.fsm.SnapshotStore(), s.trans)
	if err != nil {
		t.Fatalf("NewRaft: %v", err)
	}
	s.raft = r
	t.Cleanup(func() { s.raft.Shutdown().Error() })
}

func (s *server) stop(t *testing.T) {
	t.Helper()
	if err := s.raft.Shutdown().Error(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s.fsm)
}

func (s *server) bootstrap(t *testing.T, others ...*server) {
	t.Helper()
	var c raft.Configuration
	for _, o := range append(others, s) {
		c.Servers = append(c.Servers, raft.Server{ID: o.id, Address: raft.ServerAddress(o.id)})
	}
	if err := s.raft.BootstrapCluster(c).Error(); err != nil {
		t.Fatalf("BootstrapCluster: %v", err)
	}
}

func connect(servers ...*server) {
	for _, a := range servers {
		for _, b := range servers {
			if a != b {
				a.trans.Connect(raft.ServerAddress(b.id), b.trans)
			}
		}
	}
}

func disconnect(s *server, others ...*server) {
	s.trans.DisconnectAll()
	for _, o := range others {
		o.trans.Disconnect(raft.ServerAddress(s.id))
	}
}

// leader waits until one of the servers leads and has applied everything before its term.
func leader(t *testing.T, servers ...*server) *server {
	t.Helper()
	won := make(chan *server, len(servers))
	done := make(chan struct{})
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer close(done)
	for _, s := range servers {
		watchers.Go(func() {
			for {
				select {
				case is := <-s.raft.LeaderCh():
					if is {
						select {
						case won <- s:
						case <-done:
						}
					}
				case <-done:
					return
				}
			}
		})
		if s.raft.State() == raft.Leader {
			won <- s
		}
	}
	deadline := time.After(20 * time.Second)
	for {
		select {
		case s := <-won:
			if s.raft.Barrier(5*time.Second).Error() == nil {
				return s
			}
		case <-deadline:
			t.Fatal("no leader")
		}
	}
}

func (s *server) put(t *testing.T, key storage.Key, value string) storage.Index {
	t.Helper()
	cmd, err := fsm.EncodeCommand(0, []storage.Batch{{Puts: []storage.Put{{Key: key, Value: []byte(value)}}}})
	if err != nil {
		t.Fatal(err)
	}
	future := s.raft.Apply(cmd, 10*time.Second)
	if err := future.Error(); err != nil {
		t.Fatalf("Apply: %v", err)
	}
	res, ok := future.Response().(fsm.Result)
	if !ok || res.Errs[0] != nil {
		t.Fatalf("Apply answered %v", future.Response())
	}
	return res.Index
}

func (s *server) fill(t *testing.T, prefix string, n int) (last storage.Index) {
	t.Helper()
	for i := range n {
		last = s.put(t, storage.Key(fmt.Sprintf("s/a/%s%03d", prefix, i)), fmt.Sprintf("%s value %d", prefix, i))
	}
	return last
}

func waitApplied(t *testing.T, f *fsm.FSM, i storage.Index) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := f.WaitApplied(ctx, i); err != nil {
		t.Fatalf("WaitApplied(%d): %v, at %d", i, err, f.AppliedIndex())
	}
}

func (s *server) snapshot(t *testing.T) {
	t.Helper()
	if err := s.raft.Snapshot().Error(); err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
}

func TestRaftRestart(t *testing.T) {
	tests := []struct {
		name   string
		before func(t *testing.T, s *server)
	}{
		{"log only", func(*testing.T, *server) {}},
		{"snapshot", func(t *testing.T, s *server) { s.snapshot(t) }},
		{"snapshot and more", func(t *testing.T, s *server) { s.snapshot(t); s.fill(t, "more", 5) }},
		{"snapshot after entries the FSM never sees", func(t *testing.T, s *server) {
			for range 3 {
				if err := s.raft.Barrier(0).Error(); err != nil {
					t.Fatal(err)
				}
			}
			s.snapshot(t)
		}},
		{"the same, and then more of them", func(t *testing.T, s *server) {
			s.raft.Barrier(0).Error()
			s.snapshot(t)
			s.raft.Barrier(0).Error()
			s.raft.Barrier(0).Error()
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServerWith(t, "a", 50*time.Millisecond)
			s.bootstrap(t)
			leader(t, s)
			s.fill(t, "k", 20)
			tt.before(t, s)
			want, applied := dump(t, s.fsm), s.fsm.AppliedIndex()
			for range 2 { // the second start is after one without new data
				s.stop(t)
				s.start(t)
				if got := s.fsm.AppliedIndex(); got != applied {
					t.Errorf("applied index is %d after a restart, want %d", got, applied)
				}
				leader(t, s)
				if got := dump(t, s.fsm); got != want {
					t.Errorf("the state changed:\n%s\nwant\n%s", got, want)
				}
				if got := len(s.raft.GetConfiguration().Configuration().Servers); got != 1 {
					t.Errorf("%d servers in the configuration, want 1", got)
				}
			}
			s.fill(t, "after", 3)
		})
	}
}

func TestRaftLaggingFollowerIsInstalled(t *testing.T) {
	servers := []*server{newServer(t, "a"), newServer(t, "b"), newServer(t, "c")}
	connect(servers...)
	servers[0].bootstrap(t, servers[1:]...)
	l := leader(t, servers...)
	first := l.fill(t, "early", 10)
	var lagging *server
	var others []*server
	for _, s := range servers {
		waitApplied(t, s.fsm, first)
		if s != l && lagging == nil {
			lagging = s
		} else {
			others = append(others, s)
		}
	}
	disconnect(lagging, others...)
	for i := range 10 {
		l.put(t, "s/a/early000", fmt.Sprint("again ", i))
	}
	l.fill(t, "late", 200)
	for _, s := range others {
		s.raft.Barrier(0).Error()
		s.raft.Snapshot().Error() // removes all of the log
	}
	resets := make(chan storage.Index, 16) // more than one only if Raft installs twice
	stop := lagging.fsm.OnChange(func(ch storage.Change) {
		if ch.Reset {
			select {
			case resets <- ch.Index:
			default:
			}
		}
	})
	defer stop()
	connect(servers...)
	l = leader(t, servers...)
	last := l.put(t, "s/a/last", "after the install")
	waitApplied(t, lagging.fsm, last)
	select {
	case <-resets:
	default:
		t.Error("the follower caught up without an install, or without announcing it")
	}
	want := dump(t, l.fsm)
	if got := dump(t, lagging.fsm); got != want {
		t.Errorf("the follower's state differs:\n%s\nwant\n%s", got, want)
	}
	lagging.stop(t)
	lagging.start(t)
	connect(servers...)
	last = leader(t, servers...).put(t, "s/a/last", "after the restart")
	waitApplied(t, lagging.fsm, last)
	if got, want := dump(t, lagging.fsm), dump(t, l.fsm); got != want {
		t.Errorf("the follower's state differs after a restart:\n%s\nwant\n%s", got, want)
	}
}

func TestRaftUserRestore(t *testing.T) {
	servers := []*server{newServer(t, "a"), newServer(t, "b")}
	connect(servers...)
	servers[0].bootstrap(t, servers[1])
	l := leader(t, servers...)
	l.fill(t, "kept", 50)
	want := dump(t, l.fsm)
	var stream bytes.Buffer
	info, err := l.fsm.WriteSnapshot(context.Background(), &stream)
	if err != nil {
		t.Fatal(err)
	}
	l.fill(t, "lost", 30)
	meta := &raft.SnapshotMeta{Version: 1, Index: uint64(info.Index), Term: info.Term, Size: info.Bytes}
	saved := stream.Bytes()

	damaged := bytes.Clone(saved)
	damaged[len(damaged)/2] ^= 1
	before := dump(t, l.fsm)
	if err := l.raft.Restore(meta, bytes.NewReader(damaged), 10*time.Second); err == nil {
		t.Error("Restore of a damaged snapshot succeeded")
	}
	if got := dump(t, l.fsm); got != before {
		t.Error("Restore of a damaged snapshot changed the state")
	}
	var restored error
	for range 20 { // a busy machine may lose a leader, whose successor restores the same
		l = leader(t, servers...)
		restored = l.raft.Restore(meta, bytes.NewReader(saved), 10*time.Second)
		if !errors.Is(restored, raft.ErrLeadershipLost) && !errors.Is(restored, raft.ErrNotLeader) {
			break
		}
	}
	if restored != nil {
		t.Fatalf("Restore: %v", restored)
	}
	if got := dump(t, l.fsm); got != want {
		t.Errorf("restored state:\n%s\nwant\n%s", got, want)
	}
	last := l.put(t, "s/a/new", "after the restore")
	for _, s := range servers {
		waitApplied(t, s.fsm, last)
		if got, want := dump(t, s.fsm), dump(t, l.fsm); got != want {
			t.Errorf("server %s has another state:\n%s\nwant\n%s", s.id, got, want)
		}
	}
	for _, s := range servers {
		s.stop(t)
		s.start(t)
	}
	connect(servers...)
	l = leader(t, servers...)
	l.put(t, "s/a/new", "after the restart")
}

func TestRaftRecoverCluster(t *testing.T) {
	s := newServer(t, "a")
	s.bootstrap(t)
	leader(t, s)
	s.fill(t, "k", 20)
	s.snapshot(t)
	s.fill(t, "more", 5)
	want := dump(t, s.fsm)
	s.stop(t)

	f := open(t, s.dir)
	_, trans := raft.NewInmemTransport("new")
	c := raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "new"}}}
	if err := raft.RecoverCluster(s.config(), f, s.logs, s.logs, f.SnapshotStore(), trans, c); err != nil {
		t.Fatalf("RecoverCluster: %v", err)
	}
	mustClose(t, f)

	s.start(t)
	if got := s.raft.GetConfiguration().Configuration().Servers[0].Address; got != "new" {
		t.Errorf("address is %q after the recovery, want %q", got, "new")
	}
	if got := dump(t, s.fsm); got != want {
		t.Errorf("state after the recovery:\n%s\nwant\n%s", got, want)
	}
}

// A snapshot from another store is a plain stream, and takes its place in the log from itself. The file that it becomes is
// this node's.
func TestRestoreForeignStream(t *testing.T) {
	dir, owner := t.TempDir(), storage.NewFileIdentity("a")
	from := open(t, t.TempDir())
	to, err := fsm.Open(dir, fsm.Options{Identity: owner})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, from, 5, puts("s/a/x", "1"))
	var stream bytes.Buffer
	if _, err := from.WriteSnapshot(context.Background(), &stream); err != nil {
		t.Fatal(err)
	}
	if err := to.Restore(io.NopCloser(&stream)); err != nil {
		t.Fatalf("Restore: %v", err)
	}
	if got, want := dump(t, to), dump(t, from); got != want || to.AppliedIndex() != 5 {
		t.Errorf("restored %s at %d, want %s at 5", got, to.AppliedIndex(), want)
	}
	mustClose(t, to)
	var foreign *storage.ForeignError
	if _, err := fsm.Open(dir, fsm.Options{Identity: storage.NewFileIdentity("a")}); !errors.As(err, &foreign) || foreign.Is.Incarnation != owner.Incarnation {
		t.Errorf("opened for another incarnation: %v", err)
	}
}
