package work

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Paced holds the calls of a destination to its budget, and leaves it alone while it has trouble. It is a Destination
// itself; Write and Delete count as writes, everything else as reads.
type Paced struct {
	destination.Destination
	reads, writes *rate.Limiter
	breaker       breaker
}

// NewPaced holds a destination, which has not been called yet, to a budget.
func NewPaced(d destination.Destination, r destination.Rate) *Paced {
	return &Paced{
		Destination: d,
		reads:       rate.NewLimiter(rate.Limit(r.Reads), r.ReadBurst),
		writes:      rate.NewLimiter(rate.Limit(r.Writes), r.WriteBurst),
	}
}

// Share gives p what another Paced has left of its budget, which both use up from then on. Nothing of p is called meanwhile.
func (p *Paced) Share(with *Paced) { p.reads, p.writes = with.reads, with.writes }

// Resting returns until when no call is made, because several have failed; zero: calls are made.
func (p *Paced) Resting() time.Time { return p.breaker.open(time.Now()) }

// longestCall bounds a call, so that a place that does not answer cannot hold up a lane.
const longestCall = time.Minute

// call makes one call within the budget.
func (p *Paced) call(ctx context.Context, budget *rate.Limiter, do func(ctx context.Context) error) error {
	if err := p.breaker.allow(time.Now()); err != nil {
		return err
	}
	if err := budget.Wait(ctx); err != nil {
		return &destination.Error{Class: destination.Internal, Code: destination.Throttled, Text: "the budget of calls to the destination leaves no room for this one in time", Err: err}
	}
	if err := p.breaker.allow(time.Now()); err != nil { // it was a long wait
		return err
	}
	within, cancel := context.WithTimeout(ctx, longestCall)
	defer cancel()
	err := do(within)
	if ctx.Err() == nil {
		p.breaker.seen(time.Now(), err)
	}
	return err
}

func (p *Paced) Read(ctx context.Context, name string) (f destination.Found, err error) {
	err = p.call(ctx, p.reads, func(ctx context.Context) error { f, err = p.Destination.Read(ctx, name); return err })
	return f, err
}

func (p *Paced) Write(ctx context.Context, it destination.Item, was destination.Found) (h destination.Held, err error) {
	err = p.call(ctx, p.writes, func(ctx context.Context) error { h, err = p.Destination.Write(ctx, it, was); return err })
	return h, err
}

func (p *Paced) Delete(ctx context.Context, was destination.Found) error {
	return p.call(ctx, p.writes, func(ctx context.Context) error { return p.Destination.Delete(ctx, was) })
}

// List counts as one read for each page of a hundred.
func (p *Paced) List(ctx context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		n := 0
		nothing := func(context.Context) error { return nil }
		if err := p.call(ctx, p.reads, nothing); err != nil {
			yield(destination.Found{}, err)
			return
		}
		for f, err := range p.Destination.List(ctx) {
			if err != nil && ctx.Err() == nil {
				p.breaker.seen(time.Now(), err)
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

// breaker stops calling somebody who has failed several times in a row, for longer and longer, until one call succeeds.
type breaker struct {
	mu       sync.Mutex
	failures int
	until    time.Time // no calls before
}

const (
	tolerated  = 3
	firstBreak = 5 * time.Second
	longBreak  = 5 * time.Minute
)

// allow returns why no call may be made now.
func (b *breaker) allow(now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if wait := b.until.Sub(now); wait > 0 {
		return &destination.Error{
			Class: destination.External, Code: destination.Unavailable, RetryAfter: wait,
			Text: "the destination has failed several times in a row, or wants to be left alone for a while",
		}
	}
	return nil
}

// seen learns how a call ended.
func (b *breaker) seen(now time.Time, err error) {
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
		pause := min(firstBreak<<min(b.failures-tolerated-1, 10), longBreak)
		if until := now.Add(pause); until.After(b.until) {
			b.until = until
		}
	}
}

// open returns until when no call is made; zero: calls are made.
func (b *breaker) open(now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until.After(now) {
		return b.until
	}
	return time.Time{}
}
