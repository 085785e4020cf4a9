package workqueue

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// RetryAfter returns what the destination has asked to wait, at most LongestWait.
func RetryAfter(err error) time.Duration {
	var e *destination.Error
	if errors.As(err, &e) {
		return min(e.RetryAfter, LongestWait)
	}
	return 0
}

// Backoff returns the time until the next attempt: longer for failures that need action by an operator.
func Backoff(needsAction bool, attempts int) time.Duration {
	first, longest := 5*time.Second, 5*time.Minute
	if needsAction {
		first, longest = time.Minute, LongestWait
	}
	d := engines.Backoff(first, longest, attempts)
	return d/2 + rand.N(d/2+1) //nolint:gosec // jitter, not a secret
}

// Sleep waits, and reports whether ctx has not ended before.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
