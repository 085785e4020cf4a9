package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lease/record"
	"github.com/coffer-project/coffer/storage"
)

// Renew gives a lease of namespace ns, or of one below it, its next lifetime, counted from now. increment is what
// the client asks for, 0 for nothing in particular. The engine is asked for its terms first, and may refuse.
// ErrNotFound, ErrNotRenewable and ErrExpired say why it cannot be renewed.
func (m *Manager) Renew(ctx context.Context, ns, id string, increment time.Duration) (Info, error) {
	rec, err := m.find(ctx, ns, id)
	if err != nil {
		return Info{}, err
	}
	if err := m.renewable(rec, m.clock.Now()); err != nil {
		return Info{}, err
	}
	terms, mount, err := m.terms(ctx, rec)
	if err != nil {
		return Info{}, err
	}
	wanted := increment
	if wanted <= 0 {
		wanted = terms.TTL
	}
	if wanted <= 0 {
		wanted = mount.DefaultLeaseTTL
	}
	var info Info
	err = m.update(ctx, func(t *storage.Txn) ([]step, error) {
		// Again: it may have been renewed, or marked, while the engine was thinking.
		now := m.clock.Now()
		before, err := record.Get(ctx, t, rec.Namespace, rec.ID)
		if errors.Is(err, storage.ErrNotFound) {
			return nil, ErrNotFound
		} else if err != nil {
			return nil, err
		}
		if err := m.renewable(before, now); err != nil {
			return nil, err
		}
		after := *before
		after.MaxTTL = record.Shortest(terms.MaxTTL, mount.MaxLeaseTTL)
		ttl, warnings := after.Lifetime(wanted, now)
		if ttl <= 0 {
			return nil, engines.Invalid("past the max TTL, cannot renew")
		}
		after.TTL, after.ExpiresAt, after.RenewedAt = ttl, now.Add(ttl), now
		after.Renewable = terms.Renewable
		if moves(before.IndexedAt, after.ExpiresAt, ttl) {
			after.IndexedAt = after.ExpiresAt
			t.Delete(before.IndexKey())
			t.Put(after.IndexKey(), record.Present)
		}
		t.Put(after.Key(), after.Encode())
		info = Info{ID: after.ID, TTL: ttl, Renewable: after.Renewable, Warnings: warnings}
		return []step{{before.IndexKey(), after.IndexKey()}}, nil
	})
	if err != nil {
		return Info{}, err
	}
	m.renewed.Add(1)
	return info, nil
}

// renewable reports why the lease cannot be renewed, or nil. While the brake is on, the clock is not to be
// trusted, and what was not marked yet has its chance.
func (m *Manager) renewable(rec *record.Record, now time.Time) error {
	switch {
	case rec.State != record.Living:
		return ErrExpired
	case !rec.Renewable:
		return ErrNotRenewable
	case !rec.ExpiresAt.After(now) && !m.braking():
		return ErrExpired
	}
	return nil
}

// terms asks the engine what holds for a renewal.
func (m *Manager) terms(ctx context.Context, rec *record.Record) (engines.Lease, engines.Mount, error) {
	engine, mount, ok := m.opts.Mounts.EngineOf(ctx, rec.Mount)
	if !ok {
		return engines.Lease{}, mount, engines.Invalid("the mount of the lease is gone")
	}
	if engine == nil {
		return engines.Lease{}, mount, fmt.Errorf("finding the engine of a lease: %w", storage.ErrUnavailable)
	}
	leaser, ok := engine.(engines.Leaser)
	if !ok {
		return engines.Lease{}, mount, ErrNotRenewable
	}
	terms, err := leaser.RenewLease(ctx, mount, rec.ForEngine())
	return terms, mount, err
}

// moves reports whether a renewal is worth moving the index entry. A slightly later expiry is not: at
// the old time the lease is re-indexed. An earlier one always is.
func moves(indexed, expires time.Time, ttl time.Duration) bool {
	later := expires.Sub(indexed)
	return later < 0 || later > min(ttl/10, time.Minute)
}
