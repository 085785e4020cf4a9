package apply

import (
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/state"
)

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
