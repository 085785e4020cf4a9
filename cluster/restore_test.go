package cluster

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// No write that came before a restore is applied to the restored state.
func TestRestoreLeavesWaitingWritesBehind(t *testing.T) {
	t.Parallel()
	d := &disk{}
	m := single(t, func(o *Options) { o.logFault, o.stallAfter = d.fault, time.Hour })
	mustCommit(t, m, "kept", "1")
	var backup bytes.Buffer
	if _, err := m.machine.WriteSnapshot(testContext(t), &backup); err != nil {
		t.Fatal(err)
	}
	count := func() (under, waiting int) {
		c := m.raft.Numbers()
		return c.UnderWay, c.QueuedOps
	}
	until(t, "the node's own first writes to be done", func() bool {
		under, waiting := count()
		return m.ClusterFormats() == Formats && under == 0 && waiting == 0
	})
	release := d.block()
	defer release()
	commit := func(key string) <-chan error {
		answer := make(chan error, 1)
		ctx := testContext(t)
		go func() { _, err := m.Commit(ctx, put(key, "x")); answer <- err }()
		return answer
	}
	var underWay []<-chan error
	for n := range 2 { // the first is in Raft's hands, the second waits for them
		underWay = append(underWay, commit("under"))
		until(t, "a write under way", func() bool { under, _ := count(); return under == n+1 })
	}
	until(t, "the disk to hang", func() bool { return d.hit() > 0 })
	restore := func(ctx context.Context) (left, restored <-chan error) {
		left = commit("left")
		until(t, "a write to wait", func() bool { _, waiting := count(); return waiting == 1 })
		answer := make(chan error, 1)
		go func() { answer <- m.RestoreSnapshot(ctx, bytes.NewReader(backup.Bytes())) }()
		return left, answer
	}

	givesUp, cancel := context.WithCancel(testContext(t))
	left, restored := restore(givesUp)
	if err := <-left; !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("what waited = %v, want ErrUnavailable", err)
	}
	if err := m.RestoreSnapshot(testContext(t), bytes.NewReader(backup.Bytes())); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("a second restore = %v, want ErrUnavailable", err)
	}
	cancel()
	if err := <-restored; !errors.Is(err, storage.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("a restore whose caller gave up = %v", err)
	}

	left, restored = restore(testContext(t))
	if err := <-left; !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("what waited = %v, want ErrUnavailable", err)
	}
	if _, err := m.Commit(testContext(t), put("meanwhile", "x")); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("what came meanwhile = %v, want ErrUnavailable", err)
	}
	release()
	if err := <-restored; err != nil {
		t.Fatal(err)
	}
	for _, answer := range underWay {
		if err := <-answer; err != nil {
			t.Errorf("what was under way = %v", err)
		}
	}
	if _, err := m.ReadIndex(testContext(t)); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"kept": "1", "under": "", "left": "", "meanwhile": ""} {
		if got := m.value(key); got != want {
			t.Errorf("after the restore %s = %q, want %q", key, got, want)
		}
	}
	mustCommit(t, m, "after", "1")
	if m.value("after") != "1" || m.raft.Raft().State() != raft.Leader {
		t.Error("after the restore the node takes no writes")
	}
}
