package workqueue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Circuit is the state of a circuit. It opens after more than three failures in a row, or when the destination asks to wait, and closes
// with the first call that succeeds.
type Circuit struct {
	Open bool
	// Until is when the next call is made, if it is open. In the past: the next call, which is made alone, tries the destination.
	Until time.Time
	// Asked says that the destination has asked to wait until then.
	Asked bool
	// Cause is what it has opened for, or failed with since.
	Cause *destination.Error
}

// Clock returns a time of day as causes have it.
func Clock(at time.Time) string { return at.UTC().Format("15:04:05 UTC") }

// BackingOff returns a cause with the time of the next attempt.
func (c Circuit) BackingOff(cause string) string {
	return cause + "; backing off until " + Clock(c.Until)
}

// CauseOf returns what a circuit has opened for, if err is that of a call that was not made because it is open; else err.
func CauseOf(err error) error {
	if e, ok := errors.AsType[*rejected](err); ok {
		return e.cause
	}
	return err
}

// rejected is in the chain of the error of a call that was not made.
type rejected struct{ cause *destination.Error }

func (e *rejected) Error() string { return "the circuit is open: " + e.cause.Text }

// breaker is a circuit breaker: it rejects calls while it is open, for longer after each failure, and then lets one call through.
type breaker struct {
	changed func(Circuit)

	mu       sync.Mutex
	failures int // in a row
	open     bool
	until    time.Time
	asked    bool
	cause    *destination.Error
	probe    chan struct{} // closed when the call ends that tries an open circuit; nil: there is none
}

const (
	tolerated  = 3
	firstBreak = 5 * time.Second
	longBreak  = 5 * time.Minute
)

func (b *breaker) circuit(now time.Time) Circuit {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.circuitLocked(now)
}

// circuitLocked returns the state. A circuit that no call has tried for long is not known to be open.
func (b *breaker) circuitLocked(now time.Time) Circuit {
	if !b.open || b.probe == nil && now.Sub(b.until) > longBreak {
		return Circuit{}
	}
	return Circuit{Open: true, Until: b.until, Asked: b.asked, Cause: b.cause}
}

// halfOpen lets the next call through, also if the destination has asked to wait.
func (b *breaker) halfOpen(asked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); b.until.After(now) && (asked || !b.asked) {
		b.until, b.asked = now, false
	}
}

// rejection returns the error of a call that is not made; nil: it is.
func (b *breaker) rejection(now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rejectionLocked(now)
}

func (b *breaker) rejectionLocked(now time.Time) error {
	wait := b.until.Sub(now)
	if wait <= 0 {
		return nil
	}
	return &destination.Error{
		Class: destination.External, Code: b.cause.Code, RetryAfter: wait,
		Text: b.circuitLocked(now).BackingOff(b.cause.Text), Err: &rejected{b.cause},
	}
}

// begin waits for the call that tries an open circuit, if there is one. The caller calls end once it knows how its call has ended, or
// with known false if it does not; calling it again does nothing.
func (b *breaker) begin(ctx context.Context) (end func(known bool, err error), err error) {
	for {
		b.mu.Lock()
		if err := b.rejectionLocked(time.Now()); err != nil {
			b.mu.Unlock()
			return nil, err
		}
		probe := b.probe
		if probe == nil {
			if b.open {
				probe = make(chan struct{})
				b.probe = probe
			}
			b.mu.Unlock()
			var once sync.Once
			return func(known bool, err error) { once.Do(func() { b.end(probe, known, err) }) }, nil
		}
		b.mu.Unlock()
		select {
		case <-probe:
		case <-ctx.Done():
			return nil, throttled("the call was given up while another one tried the destination", ctx.Err())
		}
	}
}

// end counts the outcome of a call.
func (b *breaker) end(probe chan struct{}, known bool, err error) {
	b.mu.Lock()
	before := b.open
	if probe != nil {
		b.probe = nil
		close(probe)
	}
	if known {
		b.countLocked(time.Now(), err)
	}
	now := Circuit{b.open, b.until, b.asked, b.cause}
	b.mu.Unlock()
	if now.Open != before && b.changed != nil {
		b.changed(now)
	}
}

func (b *breaker) countLocked(now time.Time, err error) {
	e, ok := errors.AsType[*destination.Error](err)
	if !ok || e.Class != destination.External {
		b.failures, b.open, b.until, b.asked, b.cause = 0, false, time.Time{}, false, nil
		return
	}
	b.failures++
	b.cause = e
	if e.RetryAfter > 0 {
		b.open, b.asked, b.until = true, true, now.Add(min(e.RetryAfter, LongestWait))
	}
	if b.failures > tolerated {
		b.open = true
		if until := now.Add(engines.Backoff(firstBreak, longBreak, b.failures-tolerated)); until.After(b.until) {
			b.until, b.asked = until, false
		}
	}
}
