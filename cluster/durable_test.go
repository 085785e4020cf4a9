package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// AwaitDurable counts state files, not logs: what it confirms is what sealed nodes can read.
func TestAwaitDurable(t *testing.T) {
	t.Parallel()
	all := three(t, unhurried)
	leader := leaderOf(t, all)
	for range 5 {
		index := mustCommit(t, leader, "k", "1")
		for _, m := range all {
			m.FoldNow() // without it a fold comes a moment later
		}
		if err := leader.AwaitDurable(testContext(t), index); err != nil {
			t.Fatalf("AwaitDurable = %v", err)
		}
		durable := 0
		for _, m := range all {
			if m.machine.DurableIndex() >= index {
				durable++
			}
		}
		if durable < 2 || leader.machine.DurableIndex() < index {
			t.Fatalf("%d state files have entry %d, the leader's is at %d", durable, index, leader.machine.DurableIndex())
		}
	}
	ctx, cancel := context.WithTimeout(testContext(t), 300*time.Millisecond) // the state file becomes durable first
	defer cancel()
	err := leader.AwaitDurable(ctx, leader.machine.AppliedIndex()+1000)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "a, b, c") {
		t.Errorf("AwaitDurable of what is nowhere = %v, want a timeout that names the voters", err)
	}
}

// AwaitMembers counts those that the leader is in contact with: not one that it has not heard of for long.
func TestAwaitMembers(t *testing.T) {
	t.Parallel()
	all := three(t, unhurried)
	leader := leaderOf(t, all)
	healthy := func(nodes []NodeInfo) bool {
		for _, info := range nodes {
			if !info.Healthy {
				return false
			}
		}
		return len(nodes) == 3
	}
	until(t, "all to be healthy", func() bool { return healthy(leader.Nodes()) })
	mustCommit(t, leader, "k", "1")
	if err := leader.AwaitMembers(testContext(t), time.Minute); err != nil {
		t.Fatalf("AwaitMembers = %v", err)
	}
	gone := all[0]
	if gone == leader {
		gone = all[1]
	}
	if err := gone.AwaitMembers(testContext(t), time.Minute); err == nil {
		t.Error("a follower knows what the others have")
	}
	gone.stop()
	mustCommit(t, leader, "k", "2")
	ended, cancel := context.WithCancel(testContext(t))
	cancel()
	for _, tt := range []struct {
		ctx      context.Context
		patience time.Duration
		want     error
	}{{testContext(t), 100 * time.Millisecond, context.DeadlineExceeded}, {ended, time.Minute, context.Canceled}} {
		if err := leader.AwaitMembers(tt.ctx, tt.patience); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), string(gone.opts.ID)) {
			t.Errorf("AwaitMembers without one = %v, want %v that names it", err, tt.want)
		}
	}
}

// A node without a state that enters a cluster does not use a log that was left: its entries could be another cluster's.
func TestEnteringNodeHasNoLog(t *testing.T) {
	t.Parallel()
	m := single(t)
	mustCommit(t, m, "k", "1")
	m.stop()
	if err := os.Remove(filepath.Join(m.opts.Dir, "fsm.db")); err != nil {
		t.Fatal(err)
	}
	m.opts.Entering = true
	m.open()
	if last := m.raft.Raft().LastIndex(); last != 0 || len(m.raft.Servers()) != 0 {
		t.Errorf("it begins at entry %d with the members %v", last, m.raft.Servers())
	}
	if left, _ := filepath.Glob(filepath.Join(m.opts.Dir, "unused-*", "raft.db")); len(left) != 1 {
		t.Errorf("the log was not kept: %v", left)
	}
}
