package workqueue

import (
	"context"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Redeploy redeploys the destination, if it can. It counts as a write, and waits while the circuit is open; its outcome says nothing about
// the calls for names, so it does not open or close the circuit.
func (p *RateLimited) Redeploy(ctx context.Context) error {
	r, ok := p.Destination.(destination.Redeployer)
	if !ok {
		return nil
	}
	end, err := p.begin(ctx, p.writes)
	if err != nil {
		return err
	}
	defer end(false, nil)
	within, cancel := context.WithTimeout(ctx, longestCall)
	defer cancel()
	return r.Redeploy(within)
}
