package state

import "testing"

func TestSummaryIsTheWorst(t *testing.T) {
	of := func(all ...string) (items []Item) {
		for _, status := range all {
			items = append(items, Item{Outcome: Outcome{Status: status}})
		}
		return items
	}
	for _, c := range []struct {
		items []Item
		live  bool
		want  string
	}{
		{nil, true, Synced}, {nil, false, Unsynced}, {of(Synced, Synced), true, Synced}, {of(Synced, Conflict, Synced), true, Conflict},
		{of(ExternalError, Pending), true, ExternalError}, {of(Unsyncing, Synced), false, Unsyncing}, {of(ClientError, InternalError, Conflict), true, InternalError},
	} {
		if got := WorstOutcome(c.items, c.live); got.Status != c.want {
			t.Errorf("%v: %s, want %s", c.items, got.Status, c.want)
		}
	}
}
