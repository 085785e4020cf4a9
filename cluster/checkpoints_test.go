package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/storage/record"
)

// openStored opens the state file of a stopped node, and the checksums beside it.
func openStored(t *testing.T, m *member) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(filepath.Join(m.opts.Dir, "fsm.db"), "", boltstore.Options{Sums: filepath.Join(m.opts.Dir, "fsm.sums"), WholeBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tamper changes single records in the state file of a stopped node, and what the file, and the checksums beside it, say of them.
func tamper(t *testing.T, m *member, change func(w *boltstore.Writer)) {
	t.Helper()
	s := openStored(t, m)
	w, err := s.Begin()
	if err != nil {
		t.Fatal(err)
	}
	pos := w.Position()
	change(w)
	w.Commit(pos)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// stored returns what the state file of a stopped node has under a key of the tests.
func stored(t *testing.T, m *member, key string) []byte {
	t.Helper()
	s := openStored(t, m)
	defer s.Close()
	v, err := s.View()
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	rec, err := v.Get("l/test/" + key)
	if err != nil || rec == nil {
		t.Fatalf("%s: %x, %v", key, rec, err)
	}
	return rec
}

// rejoin lets a stopped node fetch everything from the others, as the program does when its data is damaged.
func rejoin(t *testing.T, m *member, others []*member) {
	t.Helper()
	if machine, err := fsm.Open(m.opts.Dir, fsm.Options{WholeBytes: -1}); err == nil {
		machine.Close()
		t.Fatal("the data opens again")
	}
	if _, err := fsm.Quarantine(m.opts.Dir, "corrupt-1"); err != nil {
		t.Fatal(err)
	}
	m.open()
	leader := leaderOf(t, others)
	if err := leader.Join(testContext(t), m.opts.ID, m.addr, false, true); err != nil {
		t.Fatal(err)
	}
	until(t, "the node to vote again, with a state that is verified", func() bool { return leader.raft.OtherVoters() == 2 && m.Verified() })
	catchUp(t, m, leader)
}

// TestTamperedFollower restores the former value of one key and removes another one from one node's disk.
func TestTamperedFollower(t *testing.T) {
	t.Parallel()
	all := three(t, patient)
	a, b, c := all[0], all[1], all[2]
	mustCommit(t, a, "token", "valid")
	mustCommit(t, a, "device", "audit")
	catchUp(t, c, a)
	c.stop()
	old := stored(t, c, "token")
	c.open()
	mustCommit(t, a, "token", "revoked")
	catchUp(t, c, a)
	c.stop()
	tamper(t, c, func(w *boltstore.Writer) { w.Put("l/test/token", old) })
	c.open()
	until(t, "the node with a restored value to notice", func() bool { return distrusts(c) })
	if c.value("token") != "valid" || c.Verified() {
		t.Errorf("the restored value is %q, and the node is verified: %v", c.value("token"), c.Verified())
	}
	c.stop()
	rejoin(t, c, []*member{a, b})
	if got := c.value("token"); got != "revoked" {
		t.Errorf("after rejoining the value is %q", got)
	}

	c.stop()
	tamper(t, c, func(w *boltstore.Writer) { w.Delete("l/test/device") })
	c.open()
	until(t, "the node without a value to notice", func() bool { return distrusts(c) })
	if c.Verified() {
		t.Error("the node without a value is verified")
	}
	until(t, "a leader to count the member that differs", func() bool { return a.Stats().Differing > 0 || b.Stats().Differing > 0 })
	for _, m := range []*member{a, b} {
		if m.value("token") != "revoked" || m.value("device") != "audit" || m.Distrusted() != nil || !m.Verified() {
			t.Errorf("%s: token %q, device %q, distrusted %v, verified %v", m.opts.ID, m.value("token"), m.value("device"), m.Distrusted(), m.Verified())
		}
	}
}

// TestTamperedLeader has the node with the other state lead the cluster after all were down.
func TestTamperedLeader(t *testing.T) {
	t.Parallel()
	all := three(t)
	a, b, c := all[0], all[1], all[2]
	mustCommit(t, a, "token", "revoked")
	catchUp(t, b, a)
	catchUp(t, c, a)
	for _, m := range []*member{c, b, a} {
		m.stop()
	}
	tamper(t, a, func(w *boltstore.Writer) {
		w.Put("l/test/token", record.New(record.Header{Version: 3}, []byte("valid")))
	})
	led := make(chan bool, 1)
	for _, m := range []*member{b, c, a} {
		m.opts.HeartbeatTimeout, m.opts.ElectionTimeout = 5*time.Second, 5*time.Second
		if m == a {
			m.opts.HeartbeatTimeout, m.opts.ElectionTimeout, m.opts.LeaderLeaseTimeout = 300*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond
		}
		m.open()
	}
	observer := raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		if s, ok := o.Data.(raft.RaftState); ok && s == raft.Leader {
			select {
			case led <- true:
			default:
			}
		}
		return false
	})
	a.raft.Raft().RegisterObserver(observer)
	compared := make(chan error, 1)
	go func(n *Node, ctx context.Context) { compared <- n.Compare(ctx) }(a.Node, testContext(t)) // for a snapshot
	until(t, "the leader that differs to notice", func() bool {
		if a.Verified() {
			t.Fatal("it is verified")
		}
		return distrusts(a)
	})
	if err := <-compared; err == nil {
		t.Error("a snapshot of it could be taken")
	}
	select {
	case <-led:
	case <-time.After(5 * time.Second):
		t.Error("it has not led: the test does not test")
	}
	a.raft.Raft().DeregisterObserver(observer)
	leaderOf(t, []*member{b, c})
	until(t, "the others to be verified", func() bool { return b.Verified() && c.Verified() })
	until(t, "a write", func() bool { // on a busy machine the impatient node may be elected again in between
		_, err := leaderOf(t, []*member{b, c}).Commit(testContext(t), put("k", "v"))
		return err == nil
	})
	a.stop()
	rejoin(t, a, []*member{b, c})
	if got := a.value("token"); got != "revoked" {
		t.Errorf("after rejoining the value is %q", got)
	}
}

// diverge writes one key into the state of a running node alone.
func diverge(t *testing.T, m *member, key, value string) {
	t.Helper()
	pos, term := m.machine.Applied()
	command, err := fsm.EncodeCommand(0, []storage.Batch{put(key, value)})
	if err != nil {
		t.Fatal(err)
	}
	m.machine.Apply(&raft.Log{Index: pos + 1, Term: term, Type: raft.LogCommand, Data: command})
	if m.value(key) != value {
		t.Fatal("the state does not differ")
	}
	_, _ = m.Commit(testContext(t), put("next", "")) // takes the entry that the node has applied already
}

// TestSnapshotOfDifferingState: a leader whose state came to differ gives it neither to an operator nor to a node that joins.
func TestSnapshotOfDifferingState(t *testing.T) {
	t.Parallel()
	for _, joins := range []bool{false, true} {
		all := three(t, patient, func(o *Options) { o.SnapshotInterval, o.SnapshotThreshold, o.TrailingLogs = 10*time.Millisecond, 5, 30 })
		a, b, c := all[0], all[1], all[2]
		mustCommit(t, a, "token", "revoked")
		for range 2 {
			applied := a.machine.AppliedIndex()
			if err := a.Compare(testContext(t)); err != nil || a.machine.Confirmed() < applied {
				t.Fatalf("Compare = %v, confirmed %d, applied before %d", err, a.machine.Confirmed(), applied)
			}
		}
		for i := range 50 {
			mustCommit(t, a, fmt.Sprint(i), "v")
		}
		until(t, "the log to be shortened", func() bool { first, _, _ := a.logs.Size(); return first > 10 })
		catchUp(t, b, a) // otherwise a follower might need the leader's state, and no two be left to decide
		catchUp(t, c, a)
		diverge(t, a, "token", "valid")
		if !joins {
			if err := a.Compare(testContext(t)); !errors.Is(err, storage.ErrUnavailable) {
				t.Errorf("Compare of a state that differs = %v", err)
			}
		} else {
			d := start(t, "d")
			_ = a.Join(testContext(t), d.opts.ID, d.addr, false, true)
			until(t, "the joining node to have a state", func() bool { return d.value("19") == "v" })
			if got := d.value("token"); got != "revoked" {
				t.Errorf("the joining node was given %q", got)
			}
		}
		until(t, "the leader to notice", func() bool { return distrusts(a) })
		for _, m := range []*member{b, c} {
			if m.value("token") != "revoked" || m.Distrusted() != nil {
				t.Errorf("%s has %q, distrusted %v", m.opts.ID, m.value("token"), m.Distrusted())
			}
		}
	}
}

// TestUnverifiedStateIsNotGiven: a voter that lost its data gets none from one that nothing has confirmed since its start.
func TestUnverifiedStateIsNotGiven(t *testing.T) {
	t.Parallel()
	all := three(t, patient, func(o *Options) {
		o.SnapshotInterval, o.SnapshotThreshold, o.TrailingLogs, o.compareFor = 10*time.Millisecond, 5, 1, time.Second
	})
	a, b, c := all[0], all[1], all[2]
	for i := range 20 {
		mustCommit(t, a, fmt.Sprint(i), "v")
	}
	catchUp(t, b, a)
	catchUp(t, c, a)
	until(t, "the log to be shortened", func() bool { first, _, _ := a.logs.Size(); return first > 10 })
	for _, m := range []*member{c, b, a} {
		m.stop()
	}
	b.opts.Dir = tempDir(t)
	b.open()
	a.open()
	until(t, "the only node with a state to withhold it", func() bool { return a.states.HasWithheld() })
	until(t, "it to stop leading", func() bool { return a.raft.Raft().State() != raft.Leader })
	if got := b.value("19"); got != "" || a.Verified() {
		t.Errorf("the voter without data has %q; the other one is verified: %v", got, a.Verified())
	}
	c.open()
	until(t, "the voter without data to get it", func() bool { return b.value("19") == "v" })
	if !a.Verified() && !c.Verified() {
		t.Error("neither node that gave it is verified")
	}
}

// TestNoMajority: where two of three differ and the third is down, neither is verified until that one decides.
func TestNoMajority(t *testing.T) {
	t.Parallel()
	all := three(t)
	a, b, c := all[0], all[1], all[2]
	mustCommit(t, a, "k", "v")
	catchUp(t, b, a)
	catchUp(t, c, a)
	for _, m := range []*member{c, b, a} {
		m.stop()
	}
	tamper(t, b, func(w *boltstore.Writer) { w.Delete("l/test/k") })
	a.open()
	b.open()
	leader := leaderOf(t, []*member{a, b})
	until(t, "a comparison of the two", func() bool { return leader.Stats().Undecided })
	if a.Verified() || b.Verified() || a.Distrusted() != nil || b.Distrusted() != nil {
		t.Errorf("verified: %v, %v; distrusted: %v, %v", a.Verified(), b.Verified(), a.Distrusted(), b.Distrusted())
	}
	c.open()
	until(t, "the third to decide", func() bool { return distrusts(b) && a.Verified() && c.Verified() })
	if a.Distrusted() != nil || c.Distrusted() != nil {
		t.Errorf("distrusted: %v, %v", a.Distrusted(), c.Distrusted())
	}
}

// TestFormatsAreAgreed: nothing that a member of an earlier build does not read is written while there is one.
func TestFormatsAreAgreed(t *testing.T) {
	t.Parallel()
	all := three(t, func(o *Options) { o.unnumbered = true })
	for i, m := range all {
		mustCommit(t, leaderOf(t, all), fmt.Sprint(i), "v")
		m.stop()
		m.opts.unnumbered = false
		m.open()
		leader := leaderOf(t, all)
		catchUp(t, m, leader)
		until(t, "all to be verified, or to have nothing to compare with", func() bool {
			return all[0].Verified() && all[1].Verified() && all[2].Verified()
		})
		if index, _ := leader.machine.Digest(); i < 2 && (leader.ClusterFormats() != 0 || index != 0) {
			t.Fatalf("with %d of 3 members of this build the cluster writes formats of generation %d, and a mark at %d", i+1, leader.ClusterFormats(), index)
		}
	}
	until(t, "the formats to be raised, and the states to be compared", func() bool {
		for _, m := range all {
			if m.ClusterFormats() != Formats || m.machine.Confirmed() == 0 {
				return false
			}
		}
		return true
	})
	_, public, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	_, err = leaderOf(t, all).Admit(testContext(t), Joiner{ID: "late", ClusterAddr: "127.0.0.1:1", PublicKey: public, Rejoin: true})
	if _, ok := errors.AsType[RejectedError](err); !ok {
		t.Errorf("a node of an earlier build joins: %v", err)
	}
	if err := CheckFormats(t.Context(), all[0].machine); err != nil {
		t.Error(err)
	}
	leader := leaderOf(t, all)
	snapshot := func() *bytes.Reader {
		var b bytes.Buffer
		if _, err := leader.machine.WriteSnapshot(testContext(t), &b); err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(b.Bytes())
	}
	own := snapshot()
	_, version, err := leader.clusterFormats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leader.Commit(testContext(t), storage.Batch{
		Reads: []storage.Read{{Key: formatsKey, Version: version}},
		Puts:  []storage.Put{{Key: formatsKey, Value: fmt.Append(nil, Formats+1)}},
	}); err != nil {
		t.Fatal(err)
	}
	if err := CheckFormats(t.Context(), leader.machine); err == nil {
		t.Error("this build would go on with a state of a later one")
	}
	later := snapshot()

	// A snapshot of a later build is rejected, and nothing changes; one of this build is not, also while a member is away.
	other := single(t)
	mustCommit(t, other, "k", "1")
	if err := other.RestoreSnapshot(testContext(t), later); !strings.Contains(fmt.Sprint(err), fmt.Sprintf("generation %d", Formats+1)) {
		t.Errorf("a snapshot of a later build is restored: %v", err)
	} else if _, ok := errors.AsType[RejectedError](err); !ok || other.value("k") != "1" {
		t.Errorf("after %v the value is %q", err, other.value("k"))
	}
	until(t, "the formats of a cluster of one", func() bool {
		formats, _, err := other.clusterFormats(t.Context())
		return err == nil && formats == Formats
	})
	if err := other.Join(testContext(t), "away", "127.0.0.1:1", true, true); err != nil {
		t.Fatal(err)
	}
	if err := other.RestoreSnapshot(testContext(t), own); err != nil || other.value("0") != "v" {
		t.Errorf("a snapshot of this build: %v, the value is %q", err, other.value("0"))
	}
}
