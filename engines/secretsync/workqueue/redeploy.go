package workqueue

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Redeploy redeploys the destination, if it can. It counts as a write, and waits while the circuit is open; its outcome says nothing about
// the calls for names, so it does not open or close the circuit.
func (p *RateLimited) Redeploy(ctx context.Context) error {
	r, ok := p.Destination.(destination.Redeployer)
	if !ok {
		return nil
	}
	if err := p.breaker.allow(time.Now()); err != nil {
		return err
	}
	if err := p.writes.Wait(ctx); err != nil {
		return &destination.Error{Class: destination.Internal, Code: destination.Throttled, Text: "the rate limit of the destination does not allow this call in time", Err: err}
	}
	within, cancel := context.WithTimeout(ctx, longestCall)
	defer cancel()
	return r.Redeploy(within)
}
