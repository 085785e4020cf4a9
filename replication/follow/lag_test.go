package follow

import (
	"testing"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/secondary"
	"github.com/coffer-project/coffer/storage"
)

// TestHeardByRecords: records that come after the last heartbeat tell where the primary was, too.
func TestHeardByRecords(t *testing.T) {
	now := time.Now()
	beat := now.Add(-5 * time.Second)
	at := func(i storage.Index) storage.Position { return storage.Position{Epoch: 1, Index: i} }
	st := measures{lastHeard: beat, progress: secondary.Progress{
		State: replication.Streaming, Head: at(24), Cursor: at(35), TimeMS: beat.Add(2 * time.Second).UnixMilli(),
	}}
	if got := st.describe(now); got.Head != at(35) || got.LastHeard.Before(got.EqualAt) || got.LagEntries != 0 {
		t.Errorf("heard at %s at %v, equal at %s, %d entries behind", got.Head, got.LastHeard, got.EqualAt, got.LagEntries)
	}
	st.progress.Head, st.lastHeard = storage.Position{}, time.Time{} // this node has heard nothing
	if got := st.describe(now); !got.Head.IsZero() || !got.LastHeard.IsZero() {
		t.Errorf("heard at %s at %v", got.Head, got.LastHeard)
	}
}

// TestLagOfOneThatHangs: what was heard is good for some seconds only.
func TestLagOfOneThatHangs(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		equal, heard time.Duration // ago; negative: never
		equalNow     bool
		want         float64
	}{
		{time.Second, time.Second, true, 0}, {2 * time.Second, time.Second, false, 2}, {9 * time.Second, 4 * time.Second, true, 9},
		{-1, time.Second, true, 0}, {-1, time.Hour, false, 0},
	} {
		var equal time.Time
		if tt.equal >= 0 {
			equal = now.Add(-tt.equal)
		}
		if got := LagSince(now, equal, now.Add(-tt.heard), tt.equalNow); got != tt.want {
			t.Errorf("equal %v ago, heard %v ago, equal as far as is known %v: %v, want %v", tt.equal, tt.heard, tt.equalNow, got, tt.want)
		}
	}
}
