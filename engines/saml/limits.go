package saml

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// slots bound how many answers a node verifies at once: each of them may be a mebibyte of XML from a stranger.
type slots chan struct{} // a token for each one that is at work; never closed

func newSlots() slots { return make(slots, max(2, runtime.GOMAXPROCS(0))) }

// take waits for a slot until ctx ends.
func (s slots) take(ctx context.Context) (release func(), err error) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// throttle lets something happen once a second.
type throttle struct {
	mu   sync.Mutex
	last time.Time
}

func (t *throttle) allow(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if since := now.Sub(t.last); since >= 0 && since < time.Second {
		return false
	}
	t.last = now
	return true
}
