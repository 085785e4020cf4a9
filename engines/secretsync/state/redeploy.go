package state

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Redeploy is what is known of the redeployments of a destination.
type Redeploy struct {
	Format int `json:"format"`
	// ChangedAt is when the first name was written or deleted that no redeployment has followed; zero: all were followed by one, or by the
	// one that runs.
	ChangedAt time.Time `json:"changed_at,omitzero"`
	// StartedAt is when the redeployment was started whose outcome is unknown; zero: none.
	StartedAt time.Time `json:"started_at,omitzero"`
	DoneAt    time.Time `json:"done_at,omitzero"` // the last that succeeded
	Outcome             // of the last one that failed; without a status: none has failed since
	Attempts  int       `json:"attempts,omitempty"` // that have failed since
	FailedAt  time.Time `json:"failed_at,omitzero"` // the last of them
	RetryAt   time.Time `json:"retry_at,omitzero"`
	// Owner is on whose behalf the first change was made.
	Owner engines.Principal `json:"owner"`
}

// RecordFormat implements engines.Record.
func (r *Redeploy) RecordFormat() *int { return &r.Format }

// IsDue reports whether a redeployment must follow.
func (r *Redeploy) IsDue() bool { return !r.ChangedAt.IsZero() || !r.StartedAt.IsZero() }

// RedeployKey is where the redeployments of a destination are stored.
func (d *Destination) RedeployKey() storage.Key { return Area(d.NS, "r/"+d.Type+"/"+d.Name) }

// NeedRedeploy records, in the transaction that stores a change of a destination, that a redeployment has to follow.
func (d *Destination) NeedRedeploy(ctx context.Context, tx *storage.Txn, owner engines.Principal, now time.Time) error {
	var r Redeploy
	if _, err := engines.GetRecord(ctx, tx, d.RedeployKey(), &r); err != nil || !r.ChangedAt.IsZero() {
		return err
	}
	r.ChangedAt, r.Owner = now, owner
	return engines.PutRecord(tx, d.RedeployKey(), &r)
}
