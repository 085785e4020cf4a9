package lease

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/server/lease/record"
	"github.com/coffer-project/coffer/storage"
)

// marking says why leases are marked.
type marking int

const (
	whenDue marking = iota // those whose time has come; others get their right place in the index
	byHand                 // all, and those that were given up get another six tries
	byForce                // the same, and they are removed whatever the engine says
)

// mark makes leases end, in as few log entries as possible, and returns those that are now, or were already, to be
// revoked. Under contention, or if that is too large for one, it goes on with halves.
func (m *Manager) mark(ctx context.Context, refs []index.Ref, how marking) ([]*record.Record, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	var marked []*record.Record
	err := m.update(ctx, func(t *storage.Txn) (steps []step, err error) {
		marked = nil
		now := m.clock.Now()
		for _, r := range refs {
			rec, s, err := markOne(ctx, t, r, how, now)
			if err != nil {
				return nil, err
			}
			steps = append(steps, s)
			if rec != nil {
				marked = append(marked, rec)
			}
		}
		return steps, nil
	})
	if len(refs) > 1 && (errors.Is(err, storage.ErrConflict) || errors.Is(err, storage.ErrTooLarge)) {
		first, err := m.mark(ctx, refs[:len(refs)/2], how)
		if err != nil {
			return first, err
		}
		second, err := m.mark(ctx, refs[len(refs)/2:], how)
		return append(first, second...), err
	}
	if err != nil {
		return nil, err
	}
	return marked, nil
}

// markOne marks one lease. rec is nil if it is not to be revoked.
func markOne(ctx context.Context, t *storage.Txn, r index.Ref, how marking, now time.Time) (rec *record.Record, s step, err error) {
	rec, err = record.Get(ctx, t, r.Namespace, r.ID)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return nil, step{}, err
	}
	if r.Name != "" {
		if stale := index.ExpPrefix + storage.Key(r.Name); err != nil || stale != rec.IndexKey() {
			return nil, step{was: drop(ctx, t, stale)}, nil
		}
	}
	if err != nil {
		return nil, step{}, nil
	}
	before := rec.IndexKey()
	switch {
	case how == whenDue && rec.State == record.Revoking:
		return rec, step{}, nil
	case how == whenDue && rec.ExpiresAt.After(now):
		rec.IndexedAt = rec.ExpiresAt // it was renewed
		record.Put(t, rec, before)
		return nil, step{before, rec.IndexKey()}, nil
	}
	if rec.IndexedAt.After(now) || rec.State == record.Irrevocable {
		rec.IndexedAt = now
	}
	rec.State, rec.Tries, rec.Reason = record.Revoking, 0, ""
	rec.Force = rec.Force || how == byForce
	record.Put(t, rec, before)
	return rec, step{before, rec.IndexKey()}, nil
}

// drop deletes an index entry that leads nowhere, and returns its key, or "" if it was not there.
func drop(ctx context.Context, t *storage.Txn, key storage.Key) storage.Key {
	if _, err := t.Get(ctx, key); err != nil {
		return "" // gone, or for the next caller
	}
	t.Delete(key)
	return key
}
