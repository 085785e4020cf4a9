package cluster

import (
	"errors"
	"testing"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// A vote that is taken stays taken, also after another member has taken the lead, until it is given back.
func TestSetVote(t *testing.T) {
	t.Parallel()
	all := three(t, unhurried)
	a := leaderOf(t, all)
	var b, c *member
	for _, m := range all {
		switch {
		case m == a:
		case b == nil:
			b = m
		default:
			c = m
		}
	}
	ctx := testContext(t)
	rejected := func(err error) bool { _, ok := errors.AsType[RejectedError](err); return ok }
	if err := a.SetVote(ctx, "nobody", false); !rejected(err) {
		t.Errorf("the vote of an unknown member: %v", err)
	}
	if err := b.SetVote(ctx, c.opts.ID, false); !errors.Is(err, storage.ErrReadOnly) {
		t.Errorf("on a follower: %v", err)
	}
	until(t, "all to be healthy", func() bool {
		for _, info := range a.Nodes() {
			if !info.Healthy {
				return false
			}
		}
		return true
	})
	for _, m := range all {
		m.SetAutopilot(AutopilotConfig{ServerStabilizationTime: time.Millisecond, NonVoters: []string{string(c.opts.ID)}})
	}
	for range 2 {
		if err := a.SetVote(ctx, c.opts.ID, false); err != nil {
			t.Fatal(err)
		}
	}
	mustCommit(t, a, "k", "1")
	until(t, "the non-voter to have it", func() bool { return c.value("k") == "1" })
	d := start(t, "d")
	if err := a.Join(ctx, "d", d.addr, false, false); err != nil {
		t.Fatal(err)
	}
	until(t, "another member's vote", func() bool { return a.raft.OtherVoters() == 2 })
	for _, info := range a.Nodes() {
		if want := info.ID != c.opts.ID; info.Voter != want {
			t.Errorf("%s votes: %v, want %v", info.ID, info.Voter, want)
		}
	}
	for _, m := range all {
		m.SetAutopilot(AutopilotConfig{ServerStabilizationTime: time.Hour})
	}
	until(t, "the vote to come back", func() bool { return a.SetVote(ctx, c.opts.ID, true) == nil && a.raft.OtherVoters() == 3 })
}
