package token

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/server/token/record"

	"github.com/coffer-project/coffer/storage"
)

// change runs fn on the stored entry in a transaction and stores what it made of it, with its place in the
// expiry index. A token that is not there is ErrInvalid. It tries until it succeeds or ctx ends: every
// conflict means that another change was committed first.
func (s *Store) change(ctx context.Context, key string, fn func(*Entry) error) (*Entry, error) {
	var e *Entry
	for {
		_, err := storage.Update(ctx, s.store, func(t *storage.Txn) error {
			var err error
			if e, err = record.Get(ctx, t, key); errors.Is(err, storage.ErrNotFound) {
				return ErrInvalid
			} else if err != nil {
				return err
			}
			before := e.ExpiresAt
			if err := fn(e); err != nil {
				return err
			}
			record.Put(t, e, before)
			return nil
		})
		if errors.Is(err, storage.ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		return e, nil
	}
}

// Use counts one use of the token. last reports that it was the last one: the token is invalid from now on,
// except for the request that made this use, and the caller must Revoke it when that request is done (if the
// caller never does, Sweep will). ErrInvalid means that the uses ran out meanwhile. Tokens without a limit
// cost nothing.
func (s *Store) Use(ctx context.Context, e *Entry) (last bool, err error) {
	if e.NumUses == 0 {
		return false, nil
	}
	after, err := s.change(ctx, e.Key, func(e *Entry) error {
		now := s.now()
		if !e.Valid(now) || e.NumUses < 0 {
			return ErrInvalid
		}
		if e.NumUses--; e.NumUses == 0 {
			e.NumUses = -1
			if until := now.Add(lastUseGrace); e.ExpiresAt.IsZero() || until.Before(e.ExpiresAt) {
				e.ExpiresAt = until.Round(0)
			}
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("counting a use of a token: %w", err)
	}
	return after.NumUses < 0, nil
}

// lastUseGrace is how long the last request of a token may take before Sweep removes the token: longer than
// any request.
const lastUseGrace = 5 * time.Minute
