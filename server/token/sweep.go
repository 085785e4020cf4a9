package token

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// Sweep removes up to limit tokens whose time is over, with what goes with them, and finishes revocations
// that were interrupted. It returns how many it removed, and when to come again: the time the next token
// expires, in the past if there is more to do now, or zero if nothing is left to expire. A token that cannot
// be removed does not keep others from it; the errors are joined. The active node calls it.
func (s *Store) Sweep(ctx context.Context, limit int) (n int, next time.Time, err error) {
	now := s.now()
	var problems []error
	for entry, err := range s.scan(ctx, expiryPrefix) {
		if err != nil {
			return n, now, errors.Join(append(problems, err)...)
		}
		at, key, ok := splitExpiryKey(entry.Key)
		if ok && (at.After(now) || n >= limit) {
			next = at
			break
		}
		if err := s.sweepOne(ctx, entry.Key, at, key, ok); err == nil {
			n++
		} else if problems = append(problems, err); ctx.Err() != nil || isOutage(err) {
			break
		}
	}
	if problems != nil {
		next = now
	}
	return n, next, errors.Join(problems...)
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
			e, err := get(ctx, t, key)
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
