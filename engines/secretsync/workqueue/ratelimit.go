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
	breaker       *breaker
}

// NewRateLimited returns a destination, which has not been called yet, with a rate limit. onCircuit is called when its circuit opens and
// when it closes; nil: not.
func NewRateLimited(d destination.Destination, r destination.Rate, onCircuit func(Circuit)) *RateLimited {
	return &RateLimited{
		Destination: d,
		reads:       rate.NewLimiter(rate.Limit(r.Reads), r.ReadBurst),
		writes:      rate.NewLimiter(rate.Limit(r.Writes), r.WriteBurst),
		breaker:     &breaker{changed: onCircuit},
	}
}

// Share replaces the limiters and the circuit of p with those of another RateLimited, whose configuration was changed: the next call
// tries whether that has helped. Not safe concurrently with calls of p.
func (p *RateLimited) Share(with *RateLimited) {
	p.reads, p.writes, p.breaker = with.reads, with.writes, with.breaker
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
	end, err := p.begin(ctx, budget)
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

// begin waits until a call may be made; see breaker.begin.
func (p *RateLimited) begin(ctx context.Context, budget *rate.Limiter) (end func(known bool, err error), err error) {
	if err := p.breaker.rejection(time.Now()); err != nil { // before it takes from the budget
		return nil, err
	}
	if err := budget.Wait(ctx); err != nil {
		return nil, &destination.Error{Class: destination.Internal, Code: destination.Throttled, Text: "the rate limit of the destination does not allow this call in time", Err: err}
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
