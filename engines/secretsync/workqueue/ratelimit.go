package workqueue

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// RateLimited holds the calls to a destination to its rate, and makes none while its circuit is open. It is a Destination itself;
// Write and Delete count as writes, everything else as reads.
type RateLimited struct {
	destination.Destination
	reads, writes *rate.Limiter
	breaker       breaker
}

// NewRateLimited returns a destination, which has not been called yet, with a rate limit.
func NewRateLimited(d destination.Destination, r destination.Rate) *RateLimited {
	return &RateLimited{
		Destination: d,
		reads:       rate.NewLimiter(rate.Limit(r.Reads), r.ReadBurst),
		writes:      rate.NewLimiter(rate.Limit(r.Writes), r.WriteBurst),
	}
}

// Share replaces the limiters of p with those of another RateLimited. Not safe concurrently with calls of p.
func (p *RateLimited) Share(with *RateLimited) { p.reads, p.writes = with.reads, with.writes }

// CircuitOpenUntil returns when the circuit closes that failed calls have opened; zero: it is closed.
func (p *RateLimited) CircuitOpenUntil() time.Time { return p.breaker.openUntil(time.Now()) }

// longestCall is the timeout of a call, so that a destination that does not respond cannot block its partition.
const longestCall = time.Minute

// call makes one call within the rate limit.
func (p *RateLimited) call(ctx context.Context, budget *rate.Limiter, do func(ctx context.Context) error) error {
	if err := p.breaker.allow(time.Now()); err != nil {
		return err
	}
	if err := budget.Wait(ctx); err != nil {
		return &destination.Error{Class: destination.Internal, Code: destination.Throttled, Text: "the rate limit of the destination does not allow this call in time", Err: err}
	}
	if err := p.breaker.allow(time.Now()); err != nil { // it was a long wait
		return err
	}
	within, cancel := context.WithTimeout(ctx, longestCall)
	defer cancel()
	err := do(within)
	if ctx.Err() == nil {
		p.breaker.record(time.Now(), err)
	}
	return err
}

func (p *RateLimited) Read(ctx context.Context, name string) (f destination.Found, err error) {
	err = p.call(ctx, p.reads, func(ctx context.Context) error { f, err = p.Destination.Read(ctx, name); return err })
	return f, err
}

func (p *RateLimited) Write(ctx context.Context, it destination.Item, was destination.Found) (h destination.Held, err error) {
	err = p.call(ctx, p.writes, func(ctx context.Context) error { h, err = p.Destination.Write(ctx, it, was); return err })
	return h, err
}

func (p *RateLimited) Delete(ctx context.Context, was destination.Found) error {
	return p.call(ctx, p.writes, func(ctx context.Context) error { return p.Destination.Delete(ctx, was) })
}

// List counts as one read for each page of a hundred.
func (p *RateLimited) List(ctx context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		n := 0
		nothing := func(context.Context) error { return nil }
		if err := p.call(ctx, p.reads, nothing); err != nil {
			yield(destination.Found{}, err)
			return
		}
		for f, err := range p.Destination.List(ctx) {
			if err != nil && ctx.Err() == nil {
				p.breaker.record(time.Now(), err)
			}
			if n++; n%100 == 0 && err == nil {
				if waited := p.reads.Wait(ctx); waited != nil {
					err = waited
				}
			}
			if !yield(f, err) || err != nil {
				return
			}
		}
	}
}

// breaker is a circuit breaker: after several failures in a row it rejects calls, for longer each time, until one call succeeds.
type breaker struct {
	mu       sync.Mutex
	failures int
	until    time.Time // the circuit is open
}

const (
	tolerated  = 3
	firstBreak = 5 * time.Second
	longBreak  = 5 * time.Minute
)

// allow returns an error while the circuit is open.
func (b *breaker) allow(now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if wait := b.until.Sub(now); wait > 0 {
		return &destination.Error{
			Class: destination.External, Code: destination.Unavailable, RetryAfter: wait,
			Text: "the destination has failed several times in a row, or has asked for a pause with Retry-After",
		}
	}
	return nil
}

// record counts the outcome of a call.
func (b *breaker) record(now time.Time, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var e *destination.Error
	if !errors.As(err, &e) || e.Class != destination.External {
		b.failures = 0
		return
	}
	b.failures++
	if e.RetryAfter > 0 {
		b.until = now.Add(min(e.RetryAfter, LongestWait))
	}
	if b.failures > tolerated {
		if until := now.Add(engines.Backoff(firstBreak, longBreak, b.failures-tolerated)); until.After(b.until) {
			b.until = until
		}
	}
}

// openUntil returns when the circuit closes; zero: it is closed.
func (b *breaker) openUntil(now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until.After(now) {
		return b.until
	}
	return time.Time{}
}
