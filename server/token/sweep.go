package token

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// TidyResult counts what Tidy saw and mended.
type TidyResult struct {
	Tokens    int // seen
	Accessors int // accessor entries that led nowhere, removed, or were missing, added
	Children  int // child index entries that led nowhere, removed, or were missing, added
	Expiries  int // expiry index entries that led nowhere, removed, or were missing, added
	Revoked   int // tokens whose parent is gone, revoked
}

// Tidy compares all tokens with their index entries and mends what does not fit. Nothing should ever need
// it: all entries of a token change together. It reads everything, and checks each finding again in the
// transaction that mends it.
func (s *Store) Tidy(ctx context.Context) (TidyResult, error) {
	var r TidyResult
	for _, step := range []func(context.Context, *TidyResult) error{s.tidyTokens, s.tidyAccessors, s.tidyChildren, s.tidyExpiries} {
		if err := step(ctx, &r); err != nil {
			return r, fmt.Errorf("tidying tokens: %w", err)
		}
	}
	return r, nil
}

// tidyTokens adds the index entries that tokens lack, and revokes tokens without their parent.
func (s *Store) tidyTokens(ctx context.Context, r *TidyResult) error {
	for entry, err := range s.scan(ctx, idPrefix) {
		if err != nil {
			return err
		}
		r.Tokens++
		e, err := decode(string(entry.Key[len(idPrefix):]), entry.Value)
		if err != nil {
			return err
		}
		if e.Parent != "" {
			_, err := s.store.Get(ctx, idKey(e.Parent))
			if errors.Is(err, storage.ErrNotFound) {
				if err := s.revokeStray(ctx, e, r); err != nil {
					return err
				}
				continue
			} else if err != nil {
				return err
			}
			if err := s.add(ctx, e, childKey(e.Parent, e.Key), present, &r.Children); err != nil {
				return err
			}
		}
		if !e.ExpiresAt.IsZero() {
			if err := s.add(ctx, e, expiryKey(e.ExpiresAt, e.Key), present, &r.Expiries); err != nil {
				return err
			}
		}
		hash, err := s.hash(ctx, accessorHash, e.Accessor)
		if err != nil {
			return err
		}
		ref := accessorRef{Accessor: e.Accessor, Token: e.Key}.encode()
		if err := s.add(ctx, e, accessorKey(hash), ref, &r.Accessors); err != nil {
			return err
		}
	}
	return nil
}

// revokeStray revokes a token whose parent was found missing, unless it changed since: a parent that leaves
// its children as orphans frees them before it goes.
func (s *Store) revokeStray(ctx context.Context, e *Entry, r *TidyResult) error {
	now, err := get(ctx, s.store, e.Key)
	if errors.Is(err, storage.ErrNotFound) || err == nil && now.Parent != e.Parent {
		return nil
	} else if err != nil {
		return err
	}
	r.Revoked++
	return s.Revoke(ctx, e.Key)
}

// add writes an index entry of e if it is missing and e has not changed.
func (s *Store) add(ctx context.Context, e *Entry, index storage.Key, value []byte, count *int) error {
	if _, err := s.store.Get(ctx, index); !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	added := false
	_, err := storage.Update(ctx, s.store, func(t *storage.Txn) error {
		added = false
		now, err := get(ctx, t, e.Key)
		if errors.Is(err, storage.ErrNotFound) || err == nil && (now.Parent != e.Parent || !now.ExpiresAt.Equal(e.ExpiresAt)) {
			return nil
		} else if err != nil {
			return err
		}
		added = true
		t.Put(index, value)
		return nil
	})
	if added && err == nil {
		*count++
	}
	return err
}

func (s *Store) tidyAccessors(ctx context.Context, r *TidyResult) error {
	return s.drop(ctx, accessorPrefix, &r.Accessors, func(k storage.Key, value []byte) (string, func(*Entry) bool) {
		ref, err := decodeAccessor(value)
		return ref.Token, func(e *Entry) bool { return err == nil && e.Accessor == ref.Accessor }
	})
}

func (s *Store) tidyChildren(ctx context.Context, r *TidyResult) error {
	return s.drop(ctx, childPrefix, &r.Children, func(k storage.Key, _ []byte) (string, func(*Entry) bool) {
		parent, key, _ := strings.Cut(string(k[len(childPrefix):]), "/")
		return key, func(e *Entry) bool { return e.Parent == parent }
	})
}

func (s *Store) tidyExpiries(ctx context.Context, r *TidyResult) error {
	return s.drop(ctx, expiryPrefix, &r.Expiries, func(k storage.Key, _ []byte) (string, func(*Entry) bool) {
		at, key, ok := splitExpiryKey(k)
		return key, func(e *Entry) bool { return ok && e.ExpiresAt.Equal(at) }
	})
}

// drop removes the index entries below prefix that do not fit their token. about tells which token an entry
// is about, and whether it fits.
func (s *Store) drop(ctx context.Context, prefix storage.Key, count *int, about func(storage.Key, []byte) (string, func(*Entry) bool)) error {
	for index, err := range s.scan(ctx, prefix) {
		if err != nil {
			return err
		}
		key, fits := about(index.Key, index.Value)
		dangles := false
		_, err := storage.Update(ctx, s.store, func(t *storage.Txn) error {
			e, err := get(ctx, t, key)
			if err != nil && !errors.Is(err, storage.ErrNotFound) {
				return err
			}
			if dangles = err != nil || !fits(e); dangles {
				t.Delete(index.Key)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if dangles {
			*count++
		}
	}
	return nil
}
