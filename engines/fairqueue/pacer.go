package fairqueue

import (
	"context"
	"sync"
	"time"
)

// How fast the responses to rejected logins of one source go out.
const (
	paceBurst    = 20 // at once
	paceInterval = 100 * time.Millisecond
	paceMaxHold  = 15 * time.Second
	maxHeld      = 4096    // responses held at a time; further ones go out at once
	maxPaced     = 1 << 14 // sources remembered
)

// Pacer holds the responses to rejected logins of sources that send many: a client that waits for each response before
// it sends the next guess does not keep the queue full, so that a right login from its address finds it short. A held
// response costs memory, no slot. Safe for concurrent use; the zero Pacer is ready.
type Pacer struct {
	mu   sync.Mutex
	held int
	next map[Source]time.Time // when the next response may go out
}

// Hold returns when the response may go out, or when ctx has ended.
func (p *Pacer) Hold(ctx context.Context, s Source) {
	delay := p.enter(s, time.Now())
	if delay <= 0 {
		return
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held--
}

// enter returns how long to hold a response, which counts as held if that is not 0.
func (p *Pacer) enter(s Source, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = map[Source]time.Time{}
	}
	at, known := p.next[s]
	if idle := now.Add(-(paceBurst - 1) * paceInterval); at.Before(idle) {
		at = idle
	}
	if !known && len(p.next) >= maxPaced && !p.makeRoom(now) {
		return 0
	}
	delay := min(at.Sub(now), paceMaxHold)
	p.next[s] = now.Add(delay).Add(paceInterval)
	if delay <= 0 || p.held >= maxHeld {
		return 0
	}
	p.held++
	return delay
}

// makeRoom drops the sources that have their whole burst again.
func (p *Pacer) makeRoom(now time.Time) bool {
	for s, at := range p.next {
		if now.Sub(at) >= paceBurst*paceInterval {
			delete(p.next, s)
		}
	}
	return len(p.next) < maxPaced
}
