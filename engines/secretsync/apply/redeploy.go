package apply

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// RedeployInterval is how long changes of a destination are collected before it is redeployed, and the least time between two
// redeployments.
const RedeployInterval = 30 * time.Second

// RedeploysBy returns what redeploys a destination, "" if nothing does.
func (s *Syncer) RedeploysBy(d *state.Destination) string {
	c, err := s.Pool.ConfigOf(d)
	if err != nil {
		return ""
	}
	if r, ok := c.(destination.Redeployable); ok {
		return r.Redeploys()
	}
	return ""
}

// needRedeploy records, in the transaction that stores a change of a destination, that a redeployment has to follow.
func needRedeploy(ctx context.Context, tx *storage.Txn, t *target, now time.Time) error {
	var r state.Redeploy
	if _, err := engines.GetRecord(ctx, tx, t.dest.RedeployKey(), &r); err != nil || !r.ChangedAt.IsZero() {
		return err
	}
	r.ChangedAt, r.Owner = now, t.assoc.Owner
	return engines.PutRecord(tx, t.dest.RedeployKey(), &r)
}
