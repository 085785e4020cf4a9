package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// AwaitDurable counts state files, not logs: what it confirms is what sealed nodes can read.
func TestAwaitDurable(t *testing.T) {
	t.Parallel()
	all := three(t)
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
	ctx, cancel := context.WithTimeout(testContext(t), 20*time.Millisecond)
	defer cancel()
	err := leader.AwaitDurable(ctx, leader.machine.AppliedIndex()+1000)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "a, b, c") {
		t.Errorf("AwaitDurable of what is nowhere = %v, want a timeout that names the voters", err)
	}
}
