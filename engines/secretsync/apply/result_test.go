package apply

import (
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/state"
)

func TestSummaryIsTheWorst(t *testing.T) {
	of := func(all ...string) (items []state.Item) {
		for _, status := range all {
			items = append(items, state.Item{Outcome: state.Outcome{Status: status}})
		}
		return items
	}
	for _, c := range []struct {
		items []state.Item
		live  bool
		want  string
	}{
		{nil, true, state.Synced}, {nil, false, state.Unsynced}, {of(state.Synced, state.Synced), true, state.Synced}, {of(state.Synced, state.Conflict, state.Synced), true, state.Conflict},
		{of(state.ExternalError, state.Pending), true, state.ExternalError}, {of(state.Unsyncing, state.Synced), false, state.Unsyncing}, {of(state.ClientError, state.InternalError, state.Conflict), true, state.InternalError},
	} {
		if got := worstOutcome(c.items, c.live); got.Status != c.want {
			t.Errorf("%v: %s, want %s", c.items, got.Status, c.want)
		}
	}
}

func TestBackoffGrowsAndEnds(t *testing.T) {
	for _, c := range []struct {
		status   string
		attempts int
		most     time.Duration
	}{
		{state.ExternalError, 1, 5 * time.Second}, {state.ExternalError, 2, 10 * time.Second}, {state.ExternalError, 1000, 5 * time.Minute},
		{state.ClientError, 1, time.Minute}, {state.Conflict, 1, time.Minute}, {state.Conflict, 50, time.Hour}, {state.Unsyncing, 1, 5 * time.Second},
	} {
		for range 20 {
			if got := backoff(state.Outcome{Status: c.status}, c.attempts); got < c.most/2 || got > c.most {
				t.Errorf("%s, attempt %d: %v, want %v to %v", c.status, c.attempts, got, c.most/2, c.most)
			}
		}
	}
}
