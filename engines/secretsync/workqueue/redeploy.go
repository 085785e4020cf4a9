package workqueue

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// RedeployInterval is how long changes of a destination are collected before it is redeployed, and the least time between two
// redeployments.
const RedeployInterval = 30 * time.Second

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
