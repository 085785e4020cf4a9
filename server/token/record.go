package token

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// record is the stored form of an Entry.
type record struct {
	Format int `json:"format"` // 1
	Entry
}

func encode(e *Entry) []byte {
	value, err := json.Marshal(record{Format: 1, Entry: *e})
	if err != nil {
		panic(err) // texts, numbers, times and networks only
	}
	return value
}

func decode(key string, value []byte) (*Entry, error) {
	var r record
	if err := json.Unmarshal(value, &r); err != nil || r.Format != 1 {
		return nil, errors.New("a stored token has an unknown format")
	}
	r.Key = key
	return &r.Entry, nil
}

// getter is a storage.Reader or a storage.Txn.
type getter interface {
	Get(ctx context.Context, key storage.Key) (storage.Entry, error)
}

// get reads an entry that belongs to the caller, or storage.ErrNotFound.
func get(ctx context.Context, from getter, key string) (*Entry, error) {
	e, err := from.Get(ctx, idKey(key))
	if err != nil {
		return nil, err
	}
	return decode(key, e.Value)
}

// change runs fn on the stored entry in a transaction and stores what it made of it, with its place in the
// expiry index. A token that is not there is ErrInvalid. It tries until it succeeds or ctx ends: every
// conflict means that another change was committed first.
func (s *Store) change(ctx context.Context, key string, fn func(*Entry) error) (*Entry, error) {
	var e *Entry
	for {
		_, err := storage.Update(ctx, s.store, func(t *storage.Txn) error {
			var err error
			if e, err = get(ctx, t, key); errors.Is(err, storage.ErrNotFound) {
				return ErrInvalid
			} else if err != nil {
				return err
			}
			before := e.ExpiresAt
			if err := fn(e); err != nil {
				return err
			}
			put(t, e, before)
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

// put writes the entry and moves it in the expiry index. before is where it was, zero for nowhere.
func put(t *storage.Txn, e *Entry, before time.Time) {
	t.Put(idKey(e.Key), encode(e))
	if !before.IsZero() {
		t.Delete(expiryKey(before, e.Key))
	}
	if !e.ExpiresAt.IsZero() {
		t.Put(expiryKey(e.ExpiresAt, e.Key), present)
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
		if !e.valid(now) || e.NumUses < 0 {
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
