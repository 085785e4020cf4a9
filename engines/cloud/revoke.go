package cloud

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/failure"
)

// userLease is what a lease keeps, as JSON.
type userLease struct {
	Format int `json:"format"` // 1
	made
}

func (l *userLease) RecordFormat() *int { return &l.Format }

// RevokeLease implements engines.Leaser: it removes the user. A user that is not there is one that was removed, unless it
// has just been made: then it may not be visible yet, and a note makes the engine look it up again.
func (e *engine) RevokeLease(ctx context.Context, m engines.Mount, l engines.LeaseRecord) error {
	var u userLease
	if err := json.Unmarshal(l.Internal, &u); err != nil || u.Format != 1 || l.Kind != kindUser || u.Name == "" {
		return fmt.Errorf("not a lease of this engine: kind %q", l.Kind)
	}
	was, err := e.removeUser(ctx, m, u.made)
	if err != nil {
		return failure.ForClient(err)
	}
	if was {
		e.counts.Revoked.Add(1)
		return release(ctx, m, &u.made)
	}
	if settled := l.IssuedAt.Add(settleTime); settled.After(time.Now()) {
		_, err = note(ctx, m, u.made, settled)
		return err
	}
	return release(ctx, m, &u.made)
}

// RenewLease implements engines.Leaser: the terms of config/lease apply as they are now.
func (e *engine) RenewLease(ctx context.Context, m engines.Mount, l engines.LeaseRecord) (engines.Lease, error) {
	terms, err := getLease(ctx, m.Storage, m)
	if err == nil {
		err = extend(ctx, m, l, l.IssuedAt.Add(terms.Max))
	}
	return engines.Lease{TTL: terms.Lease, MaxTTL: terms.Max, Renewable: true}, err
}
