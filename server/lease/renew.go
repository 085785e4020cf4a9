package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// maxLifetime keeps times of expiry within what the index can order.
const maxLifetime = 100 * 365 * 24 * time.Hour

// shortest returns the smallest of the limits that are set, and maxLifetime if none is.
func shortest(limits ...time.Duration) time.Duration {
	least := maxLifetime
	for _, l := range limits {
		if l > 0 {
			least = min(least, l)
		}
	}
	return least
}

// lifetime returns how long the lease may last from now on if wanted is what it should; 0 or less when its
// maximum is reached.
func (r *record) lifetime(wanted time.Duration, now time.Time) (ttl time.Duration, warnings []string) {
	left := r.IssuedAt.Add(r.MaxTTL).Sub(now)
	if !r.Until.IsZero() {
		left = min(left, r.Until.Sub(now))
	}
	if wanted > left {
		if left > 0 {
			warnings = append(warnings, fmt.Sprintf("TTL of %q exceeded the effective max_ttl of %q; TTL value is capped accordingly", wanted, left))
		}
		return left, warnings
	}
	return wanted, nil
}

// Renew gives a lease of namespace ns, or of one below it, its next lifetime, counted from now. increment is what
// the client asks for, 0 for nothing in particular. The engine is asked for its terms first, and may refuse.
// ErrNotFound, ErrNotRenewable and ErrExpired say why it cannot be renewed.
func (m *Manager) Renew(ctx context.Context, ns, id string, increment time.Duration) (Info, error) {
	rec, err := m.find(ctx, ns, id)
	if err != nil {
		return Info{}, err
	}
	if err := m.renewable(rec, m.clock.now()); err != nil {
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
		now := m.clock.now()
		before, err := get(ctx, t, rec.Namespace, rec.ID)
		if errors.Is(err, storage.ErrNotFound) {
			return nil, ErrNotFound
		} else if err != nil {
			return nil, err
		}
		if err := m.renewable(before, now); err != nil {
			return nil, err
		}
		after := *before
		after.MaxTTL = shortest(terms.MaxTTL, mount.MaxLeaseTTL)
		ttl, warnings := after.lifetime(wanted, now)
		if ttl <= 0 {
			return nil, engines.Invalid("past the max TTL, cannot renew")
		}
		after.TTL, after.ExpiresAt, after.RenewedAt = ttl, now.Add(ttl), now
		after.Renewable = terms.Renewable
		if moves(before.IndexedAt, after.ExpiresAt, ttl) {
			after.IndexedAt = after.ExpiresAt
			t.Delete(before.indexKey())
			t.Put(after.indexKey(), present)
		}
		t.Put(after.key(), after.encode())
		info = Info{ID: after.ID, TTL: ttl, Renewable: after.Renewable, Warnings: warnings}
		return []step{{before.indexKey(), after.indexKey()}}, nil
	})
	if err != nil {
		return Info{}, err
	}
	m.renewed.Add(1)
	return info, nil
}

// renewable reports why the lease cannot be renewed, or nil. While the brake is on, the clock is not to be
// trusted, and what was not marked yet has its chance.
func (m *Manager) renewable(rec *record, now time.Time) error {
	switch {
	case rec.State != living:
		return ErrExpired
	case !rec.Renewable:
		return ErrNotRenewable
	case !rec.ExpiresAt.After(now) && !m.braking():
		return ErrExpired
	}
	return nil
}

// terms asks the engine what holds for a renewal.
func (m *Manager) terms(ctx context.Context, rec *record) (engines.Lease, engines.Mount, error) {
	engine, mount, ok := m.opts.Mount(ctx, rec.Mount)
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
	terms, err := leaser.RenewLease(ctx, mount, rec.forEngine())
	return terms, mount, err
}

// moves reports whether a renewal is worth moving the index entry. A slightly later expiry is not: at
// the old time the lease is re-indexed. An earlier one always is.
func moves(indexed, expires time.Time, ttl time.Duration) bool {
	later := expires.Sub(indexed)
	return later < 0 || later > min(ttl/10, time.Minute)
}
