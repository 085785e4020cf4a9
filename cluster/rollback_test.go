package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/raftlog"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

// copyDir copies the files of a stopped node.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// putBack replaces the files of a stopped node by those of a copy.
func putBack(t *testing.T, m *member, from string) {
	t.Helper()
	names, err := os.ReadDir(m.opts.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range names {
		if err := os.RemoveAll(filepath.Join(m.opts.Dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	copyDir(t, from, m.opts.Dir)
}

// distrusts reports whether a node has found that its data is not its cluster's.
func distrusts(m *member) bool {
	_, ok := errors.AsType[*storage.CorruptError](m.Distrusted())
	return ok && m.raft.Broken.Load()
}

// TestRolledBackVoter puts the directory of a follower back to an older copy while the leader that it had acknowledged
// more to is down. The others elect a leader without those entries; the node that has applied them must notice.
func TestRolledBackVoter(t *testing.T) {
	t.Parallel()
	all := three(t, unhurried)
	a, b, c := all[0], all[1], all[2]
	mustCommit(t, a, "before", "1")
	catchUp(t, b, a)
	catchUp(t, c, a)
	b.stop()
	old := t.TempDir()
	copyDir(t, b.opts.Dir, old)
	b.open()
	catchUp(t, b, a)
	c.stop()
	for i := range 20 {
		mustCommit(t, a, fmt.Sprint("lost", i), "1")
	}
	catchUp(t, b, a)
	b.kill()
	a.kill()
	putBack(t, b, old)
	b.open()
	c.open()
	leader := leaderOf(t, []*member{b, c})
	for i := range 40 {
		mustCommit(t, leader, fmt.Sprint("kept", i), "1")
	}

	a.open()
	until(t, "the node that has applied lost entries to notice", func() bool { return distrusts(a) })
	if a.IsLeader() {
		t.Error("it leads")
	}
	a.stop()
	if _, err := fsm.Open(a.opts.Dir, fsm.Options{}); err == nil {
		t.Fatal("the data opens again")
	} else if _, ok := errors.AsType[*storage.CorruptError](err); !ok {
		t.Fatalf("opening the data again: %v, want a *storage.CorruptError", err)
	}
	if _, err := fsm.Quarantine(a.opts.Dir, "corrupt-1"); err != nil {
		t.Fatal(err)
	}
	a.open()
	leader = leaderOf(t, []*member{b, c})
	if err := leader.Join(testContext(t), "a", a.addr, false, true); err != nil {
		t.Fatal(err)
	}
	until(t, "the node to vote again", func() bool { return leader.raft.OtherVoters() == 2 })
	catchUp(t, a, leader)
	for _, m := range []*member{a, b, c} {
		for i := range 40 {
			if got := m.value(fmt.Sprint("kept", i)); got != "1" {
				t.Errorf("%s: kept%d = %q", m.opts.ID, i, got)
			}
		}
		if got := m.value("lost0"); got != "" {
			t.Errorf("%s: lost0 = %q", m.opts.ID, got)
		}
	}
}

// TestStateOfAnotherLog: a state and a log that were not written together are found when the node opens.
func TestStateOfAnotherLog(t *testing.T) {
	t.Parallel()
	m := single(t)
	mustCommit(t, m, "k", "1")
	m.stop()
	l, _, err := raftlog.Open(filepath.Join(m.opts.Dir, raftlog.FileName), false)
	if err != nil {
		t.Fatal(err)
	}
	_, last, _ := l.Size()
	e := &raft.Log{Index: last, Term: 9, Data: make([]byte, 8), AppendedAt: time.Now()}
	if err := errors.Join(l.StoreLog(e), l.Close()); err != nil {
		t.Fatal(err)
	}
	machine, err := fsm.Open(m.opts.Dir, fsm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	if _, ok := errors.AsType[*storage.CorruptError](VerifyLog(m.opts.Dir, machine, storage.FileIdentity{})); !ok {
		t.Errorf("VerifyLog = %v, want a *storage.CorruptError", err)
	}
}

// TestVoteOfARolledBackFollower puts a follower's directory back while its leader stays. It votes again when it has
// everything again.
func TestVoteOfARolledBackFollower(t *testing.T) {
	t.Parallel()
	all := three(t, unhurried)
	a, b, c := all[0], all[1], all[2]
	mustCommit(t, a, "before", "1")
	catchUp(t, c, a)
	c.stop()
	old := t.TempDir()
	copyDir(t, c.opts.Dir, old)
	c.open()
	for i := range 20 {
		mustCommit(t, a, fmt.Sprint("k", i), "1")
	}
	catchUp(t, b, a)
	catchUp(t, c, a)
	if n := a.Stats().VotesWithdrawn; n != 0 {
		t.Fatalf("%d votes were withdrawn already", n)
	}
	c.kill()
	putBack(t, c, old)
	c.open()
	until(t, "its vote to be withdrawn", func() bool { return a.Stats().VotesWithdrawn == 1 })
	until(t, "it to vote again", func() bool { return a.raft.OtherVoters() == 2 })
	catchUp(t, c, a)
	if got := c.value("k19"); got != "1" || c.Distrusted() != nil {
		t.Errorf("after catching up k19 is %q; distrusted: %v", got, c.Distrusted())
	}

	// A node that is only killed, and starts again with what it had, keeps its vote.
	b.kill()
	mustCommit(t, a, "later", "1")
	b.open()
	catchUp(t, b, a)
	if n := a.Stats().VotesWithdrawn; n != 1 || a.raft.OtherVoters() != 2 {
		t.Errorf("%d votes were withdrawn, and there are %d other voters", n, a.raft.OtherVoters())
	}
}
