package cloud

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const leaseKey storage.Key = "config/lease"

// leaseTerms are the stored terms of credentials of users, as JSON.
type leaseTerms struct {
	Format int           `json:"format"` // 1
	Lease  time.Duration `json:"lease"`
	Max    time.Duration `json:"lease_max"`
}

func (l *leaseTerms) format() *int { return &l.Format }

func readLease(context.Context, *engines.Request, *none) (*engines.Response, error) { panic("todo") }

func writeLease(context.Context, *engines.Request, *none) (*engines.Response, error) { panic("todo") }
