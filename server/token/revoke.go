package token

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/coffer-project/coffer/server/token/record"
	"github.com/coffer-project/coffer/server/token/secret"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// batchTokens is how many tokens one batch marks or removes. With the largest entries there are, it is
// below storage.MaxBatchBytes.
const batchTokens = 32

// Revoke removes a token with all tokens made from it; one that is not there is fine. The token is invalid
// from the first write on, and no child can be added from then on; Revoke returns when everything is gone.
// If it is interrupted, Sweep finishes it. A batch token is an engines.Error of KindInvalid.
func (s *Store) Revoke(ctx context.Context, key string) error {
	return s.revoke(ctx, key, record.WithChildren)
}

// RevokeOrphan removes only this token: its children become orphans. A token that is not there is fine.
func (s *Store) RevokeOrphan(ctx context.Context, key string) error {
	return s.revoke(ctx, key, record.FreeingOrphan)
}

func (s *Store) revoke(ctx context.Context, key string, how record.Revocation) error {
	if IsBatchKey(key) {
		return engines.Invalid("batch tokens cannot be revoked: they end when their time is over or their parent is revoked")
	}
	marked, err := s.mark(ctx, []string{key}, how)
	if err != nil {
		return fmt.Errorf("marking a token for revocation: %w", err)
	}
	if err := s.removeAll(ctx, marked); err != nil {
		return fmt.Errorf("revoking a token: %w", err)
	}
	return nil
}

// removeAll removes marked tokens, and below them what goes with them, the deepest first. A token is removed
// once it has no children: as it is marked, none come after. The stack holds one batch for each level.
func (s *Store) removeAll(ctx context.Context, marked []*Entry) error {
	stack := slices.Clone(marked)
	for len(stack) > 0 {
		top := stack[len(stack)-1]
		names, err := s.store.List(ctx, record.ChildrenKey(top.Key), "", batchTokens)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			if err := s.remove(ctx, []*Entry{top}); err != nil {
				return err
			}
			stack = stack[:len(stack)-1]
			continue
		}
		if top.Revoking == record.FreeingOrphan {
			if err := s.free(ctx, top.Key, names); err != nil {
				return err
			}
			continue
		}
		inner, err := s.removeLeaves(ctx, top.Key, names)
		if err != nil {
			return err
		}
		stack = append(stack, inner...)
	}
	return nil
}

// removeLeaves marks these children of parent, removes those without children, and returns the others.
func (s *Store) removeLeaves(ctx context.Context, parent string, names []string) (inner []*Entry, err error) {
	children, err := s.mark(ctx, names, record.WithChildren)
	if err != nil {
		return nil, err
	}
	if err := s.dropDangling(ctx, parent, names, children); err != nil {
		return nil, err
	}
	var leaves []*Entry
	for _, c := range children {
		below, err := s.store.List(ctx, record.ChildrenKey(c.Key), "", 1)
		if err != nil {
			return nil, err
		}
		if len(below) == 0 {
			leaves = append(leaves, c)
		} else {
			inner = append(inner, c)
		}
	}
	return inner, s.remove(ctx, leaves)
}

// dropDangling removes child index entries whose token is gone, or they would be met again and again.
func (s *Store) dropDangling(ctx context.Context, parent string, names []string, found []*Entry) error {
	var b storage.Batch
	for _, name := range names {
		isChild := func(e *Entry) bool { return e.Key == name && e.Parent == parent }
		if !slices.ContainsFunc(found, isChild) {
			b.Deletes = append(b.Deletes, record.ChildKey(parent, name))
		}
	}
	if b.Empty() {
		return nil
	}
	_, err := s.store.Commit(ctx, b)
	return err
}

// mark makes tokens invalid, in one batch, and returns those that are there. Their place in the expiry index
// becomes now, so that Sweep finds them. A token that is marked already keeps its mark.
func (s *Store) mark(ctx context.Context, keys []string, how record.Revocation) (marked []*Entry, err error) {
	var revoked, expired int64
	err = s.batched(ctx, keys, func(t *storage.Txn, keys []string) ([]*Entry, error) {
		var batch []*Entry
		revoked, expired = 0, 0
		for _, key := range keys {
			e, err := record.Get(ctx, t, key)
			if errors.Is(err, storage.ErrNotFound) {
				continue
			} else if err != nil {
				return nil, err
			}
			batch = append(batch, e)
			if e.Revoking != 0 {
				continue
			}
			before, now := e.ExpiresAt, s.now().Round(0)
			if e.Revoking = how; before.IsZero() || now.Before(before) {
				e.ExpiresAt = now
				revoked++
			} else {
				expired++
			}
			record.Put(t, e, before)
		}
		return batch, nil
	}, func(batch []*Entry) {
		marked = append(marked, batch...)
		s.revoked.Add(revoked)
		s.expired.Add(expired)
	})
	return marked, err
}

// free makes these children of parent orphans.
func (s *Store) free(ctx context.Context, parent string, names []string) error {
	return s.batched(ctx, names, func(t *storage.Txn, keys []string) ([]*Entry, error) {
		for _, key := range keys {
			t.Delete(record.ChildKey(parent, key))
			e, err := record.Get(ctx, t, key)
			if errors.Is(err, storage.ErrNotFound) || err == nil && e.Parent != parent {
				continue
			} else if err != nil {
				return nil, err
			}
			e.Parent = ""
			record.Put(t, e, e.ExpiresAt)
		}
		return nil, nil
	}, nil)
}

// remove deletes marked tokens without children, after what belongs to them.
func (s *Store) remove(ctx context.Context, tokens []*Entry) error {
	keys := make([]string, len(tokens))
	for i, e := range tokens {
		keys[i] = e.Key
		if s.opts.Dependents == nil {
			continue
		}
		if err := s.opts.Dependents.RevokeToken(ctx, e); err != nil {
			return fmt.Errorf("removing what belongs to a token: %w", err)
		}
	}
	err := s.batched(ctx, keys, func(t *storage.Txn, keys []string) (gone []*Entry, err error) {
		for _, key := range keys {
			// Again: it may be gone and, if its name was chosen by hand, back as another token.
			e, err := record.Get(ctx, t, key)
			if errors.Is(err, storage.ErrNotFound) || err == nil && e.Revoking == 0 {
				continue
			} else if err != nil {
				return nil, err
			}
			accessor, err := s.name(ctx, secret.AccessorDomain, e.Accessor)
			if err != nil {
				return nil, err
			}
			t.Delete(record.IDKey(key))
			t.Delete(record.AccessorKey(accessor))
			if e.Parent != "" {
				t.Delete(record.ChildKey(e.Parent, key))
			}
			if !e.ExpiresAt.IsZero() {
				t.Delete(record.ExpiryKey(e.ExpiresAt, key))
			}
			gone = append(gone, e)
		}
		return gone, nil
	}, func(gone []*Entry) {
		for _, e := range gone {
			s.tally.Add(e, -1)
		}
	})
	s.tally.Doubt(err, s.now())
	return err
}

// batched runs fn in a transaction over all keys, and hands what it returned to done once that is committed.
// Under contention, or if the batch is too large, it goes on with halves; for one key, until it succeeds or
// ctx ends.
func (s *Store) batched(ctx context.Context, keys []string, fn func(*storage.Txn, []string) ([]*Entry, error), done func([]*Entry)) error {
	if len(keys) == 0 {
		return nil
	}
	var batch []*Entry
	_, err := storage.Update(ctx, s.store, func(t *storage.Txn) (err error) {
		batch, err = fn(t, keys)
		return err
	})
	switch {
	case err == nil:
		if done != nil {
			done(batch)
		}
		return nil
	case errors.Is(err, storage.ErrConflict) && len(keys) == 1 && ctx.Err() == nil:
		return s.batched(ctx, keys, fn, done)
	case (errors.Is(err, storage.ErrConflict) || errors.Is(err, storage.ErrTooLarge)) && len(keys) > 1:
		if err := s.batched(ctx, keys[:len(keys)/2], fn, done); err != nil {
			return err
		}
		return s.batched(ctx, keys[len(keys)/2:], fn, done)
	}
	return err
}
