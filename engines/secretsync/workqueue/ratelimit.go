package workqueue

import (
	"context"
	"iter"
	"time"

	"golang.org/x/time/rate"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// RateLimited holds the calls to a destination to its rate, and makes none while its circuit is open. It is a Destination itself;
// Write and Delete count as writes, everything else as reads.
type RateLimited struct {
	destination.Destination
	reads, writes *rate.Limiter
	atOnce        chan struct{} // has one element for each call that is being made, but for List
	breaker       *breaker
}

// LinksAtOnce returns how many links of a destination to sync at once. Most of their time is that of commits, which many links share, so
// there are more of them than calls at once; but no more than are written in a tenth of a second, so that none of them has long to wait
// between its intent and its write.
func LinksAtOnce(r destination.Rate) int {
	return max(r.Concurrency, min(int(r.Writes/10), 16*r.Concurrency))
}

// NamesAtOnce returns for how many names of a link to store intents at once: 20, or what is certainly written within eight minutes, so that
// the time of a write tells whose it is. Each name waits for a call of every other link at most twice: see leaveReserve.
func NamesAtOnce(r destination.Rate) int {
	return max(1, min(20, int(8*60*r.Writes/float64(2*max(r.Concurrency, 1)))))
}

// NewRateLimited returns a destination, which has not been called yet, with a rate limit. onCircuit is called when its circuit opens and
// when it closes; nil: not.
func NewRateLimited(d destination.Destination, r destination.Rate, onCircuit func(Circuit)) *RateLimited {
	return &RateLimited{
		Destination: d,
		reads:       rate.NewLimiter(rate.Limit(r.Reads), r.ReadBurst),
		writes:      rate.NewLimiter(rate.Limit(r.Writes), r.WriteBurst),
		atOnce:      make(chan struct{}, max(r.Concurrency, 1)),
		breaker:     &breaker{changed: onCircuit},
	}
}

// Share replaces the limiters and the circuit of p with those of another RateLimited, whose configuration was changed: the next call
// tries whether that has helped. Not safe concurrently with calls of p.
func (p *RateLimited) Share(with *RateLimited) {
	p.reads, p.writes, p.atOnce, p.breaker = with.reads, with.writes, with.atOnce, with.breaker
	p.breaker.halfOpen(true)
}

// Circuit returns the state of the circuit.
func (p *RateLimited) Circuit() Circuit { return p.breaker.circuit(time.Now()) }

// HalfOpen lets the next call of an open circuit through, unless the destination has asked to wait. It returns the state before.
func (p *RateLimited) HalfOpen() Circuit {
	before := p.Circuit()
	p.breaker.halfOpen(false)
	return before
}

// longestCall is the timeout of a call, so that a destination that does not respond cannot block its partition.
const longestCall = time.Minute

// call makes one call within the rate limit.
func (p *RateLimited) call(ctx context.Context, budget *rate.Limiter, do func(ctx context.Context) error) (err error) {
	if err := p.wait(ctx, budget); err != nil {
		return err
	}
	select {
	case p.atOnce <- struct{}{}:
		defer func() { <-p.atOnce }()
	case <-ctx.Done():
		return throttled("the destination takes no more calls at once, and the others did not end in time", ctx.Err())
	}
	end, err := p.breaker.begin(ctx)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, longestCall)
	defer cancel()
	ended := false
	defer func() { end(ended && ctx.Err() == nil, err) }() // also after a panic
	err = do(within)
	ended = true
	return err
}

// wait waits until the budget has a call.
func (p *RateLimited) wait(ctx context.Context, budget *rate.Limiter) error {
	if err := p.breaker.rejection(time.Now()); err != nil { // before it takes from the budget
		return err
	}
	if ctx.Value(further{}) != nil {
		p.leaveReserve(ctx, budget)
	}
	if err := budget.Wait(ctx); err != nil {
		return throttled("the rate limit of the destination does not allow this call in time", err)
	}
	return nil
}

// Further returns the context of the calls for the names of a secret that follow the first one. They leave a reserve of the rate to other
// secrets, so that a secret of many keys does not delay those.
func Further(ctx context.Context) context.Context { return context.WithValue(ctx, further{}, true) }

type further struct{}

// leaveReserve waits until the budget has more than an eighth of its burst. If other secrets use that up all the time, it waits for
// as long as it takes them to have a call each.
func (p *RateLimited) leaveReserve(ctx context.Context, budget *rate.Limiter) {
	wait := func(calls float64) time.Duration {
		return time.Duration(calls / float64(budget.Limit()) * float64(time.Second))
	}
	reserve := float64(budget.Burst() / 8)
	for end := time.Now().Add(wait(float64(cap(p.atOnce)))); ; {
		missing, left := wait(reserve+1-budget.Tokens()), time.Until(end)
		if reserve == 0 || missing <= 0 || left <= 0 || !Sleep(ctx, min(missing+time.Millisecond, left)) {
			return
		}
	}
}

func throttled(text string, err error) error {
	return &destination.Error{Class: destination.Internal, Code: destination.Throttled, Text: text, Err: err}
}

// begin waits until a call may be made that is not one of those at once; see breaker.begin.
func (p *RateLimited) begin(ctx context.Context, budget *rate.Limiter) (end func(known bool, err error), err error) {
	if err := p.wait(ctx, budget); err != nil {
		return nil, err
	}
	return p.breaker.begin(ctx)
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

// List counts as one read for each page of a hundred. What comes first, a name or an error, is its outcome for the circuit.
func (p *RateLimited) List(ctx context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		end, err := p.begin(ctx, p.reads)
		if err != nil {
			yield(destination.Found{}, err)
			return
		}
		n, ended := 0, false
		defer func() { end(ended, nil) }() // also after a panic
		for f, err := range p.Destination.List(ctx) {
			if n == 0 || err != nil {
				end(ctx.Err() == nil, err)
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
		ended = ctx.Err() == nil
	}
}
