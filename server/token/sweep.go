package token

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/coffer-project/coffer/server/token/record"

	"github.com/coffer-project/coffer/storage"
)

// Sweep removes up to limit tokens whose time is over, with what goes with them, and finishes revocations
// that were interrupted. It returns how many it removed, and when to come again: the time the next token
// expires, in the past if there is more to do now, or zero if nothing is left to expire. A token that cannot
// be removed does not keep others from it; the errors are joined. The active node calls it.
func (s *Store) Sweep(ctx context.Context, limit int) (n int, next time.Time, err error) {
	now := s.now()
	var batch []dueToken
	var problems []error
	flush := func() (outage bool) {
		done, errs := s.sweepBatch(ctx, batch)
		n, batch = n+done, nil
		problems = append(problems, errs...)
		return slices.ContainsFunc(errs, func(err error) bool { return ctx.Err() != nil || isOutage(err) })
	}
	for entry, err := range record.Scan(ctx, s.store, record.ExpiryPrefix) {
		if err != nil {
			return n, now, errors.Join(append(problems, err)...)
		}
		at, key, ok := record.SplitExpiryKey(entry.Key)
		if ok && (at.After(now) || n+len(batch) >= limit) {
			next = at
			break
		}
		batch = append(batch, dueToken{entry.Key, at, key, ok})
		if len(batch) == batchTokens && flush() {
			break
		}
	}
	if len(batch) > 0 {
		flush()
	}
	if problems != nil {
		next = now
	}
	return n, next, errors.Join(problems...)
}

// dueToken is one entry of the expiry index whose time has come.
type dueToken struct {
	index storage.Key
	at    time.Time
	key   string // of the token
	ok    bool   // the index key could be read
}

// sweepBatch handles some of them, together as long as nothing fails: that takes two writes, one that marks and one
// that removes. It returns how many it handled.
func (s *Store) sweepBatch(ctx context.Context, batch []dueToken) (done int, errs []error) {
	if len(batch) == 0 {
		return 0, nil
	}
	if s.sweepTogether(ctx, batch) == nil {
		return len(batch), nil
	}
	for _, d := range batch {
		err := s.sweepOne(ctx, d.index, d.at, d.key, d.ok)
		if err == nil {
			done++
			continue
		}
		if errs = append(errs, err); ctx.Err() != nil || isOutage(err) {
			break
		}
	}
	return done, errs
}

func (s *Store) sweepTogether(ctx context.Context, batch []dueToken) error {
	var marked []*Entry
	var expired int64
	_, err := storage.Update(ctx, s.store, func(t *storage.Txn) error {
		marked, expired = nil, 0
		for _, d := range batch {
			e, err := dueEntry(ctx, t, d)
			if err != nil {
				return err
			}
			if e == nil {
				t.Delete(d.index) // it points nowhere
				continue
			}
			if e.Revoking == 0 {
				e.Revoking = record.WithChildren
				record.Put(t, e, e.ExpiresAt)
				expired++
			}
			marked = append(marked, e)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.expired.Add(expired)
	var leaves, inner []*Entry
	for _, e := range marked {
		below, err := s.store.List(ctx, record.ChildrenKey(e.Key), "", 1)
		switch {
		case err != nil:
			return err
		case len(below) == 0:
			leaves = append(leaves, e)
		default:
			inner = append(inner, e)
		}
	}
	if err := s.remove(ctx, leaves); err != nil {
		return err
	}
	return s.removeAll(ctx, inner)
}

// dueEntry returns the token that an entry of the expiry index is about, nil if its time is another one or it is gone.
func dueEntry(ctx context.Context, t *storage.Txn, d dueToken) (*Entry, error) {
	if !d.ok {
		return nil, nil
	}
	e, err := record.Get(ctx, t, d.key)
	if errors.Is(err, storage.ErrNotFound) || err == nil && !e.ExpiresAt.Equal(d.at) {
		return nil, nil
	}
	return e, err
}

// isOutage reports whether the next write will meet the same error.
func isOutage(err error) bool {
	return errors.Is(err, storage.ErrUnavailable) || errors.Is(err, storage.ErrReadOnly) ||
		errors.Is(err, storage.ErrSealed) || errors.Is(err, storage.ErrOutcomeUnknown)
}

// sweepOne handles one due entry of the expiry index.
func (s *Store) sweepOne(ctx context.Context, index storage.Key, at time.Time, key string, ok bool) error {
	due := false
	_, err := storage.Update(ctx, s.store, func(t *storage.Txn) error {
		due = false
		if ok {
			e, err := record.Get(ctx, t, key)
			if err != nil && !errors.Is(err, storage.ErrNotFound) {
				return err
			}
			if due = err == nil && e.ExpiresAt.Equal(at); due {
				return nil
			}
		}
		t.Delete(index) // it points nowhere
		return nil
	})
	if err != nil || !due {
		return err
	}
	return s.Revoke(ctx, key)
}
