package token

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/coffer-project/coffer/server/token/record"
	"github.com/coffer-project/coffer/server/token/secret"

	"github.com/coffer-project/coffer/storage"
)

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
	return s.TidyBelow(ctx, RootNamespace)
}

// TidyBelow is Tidy for the tokens of a namespace and those below it. Index entries that lead nowhere belong to
// no namespace: only root's run removes them.
func (s *Store) TidyBelow(ctx context.Context, namespace string) (TidyResult, error) {
	var r TidyResult
	steps := []func(context.Context, *TidyResult) error{
		func(ctx context.Context, r *TidyResult) error { return s.tidyTokens(ctx, namespace, r) },
	}
	if namespace == RootNamespace {
		steps = append(steps, s.tidyAccessors, s.tidyChildren, s.tidyExpiries)
	}
	for _, step := range steps {
		if err := step(ctx, &r); err != nil {
			return r, fmt.Errorf("tidying tokens: %w", err)
		}
	}
	return r, nil
}

// tidyTokens adds the index entries that tokens lack, and revokes tokens without their parent.
func (s *Store) tidyTokens(ctx context.Context, namespace string, r *TidyResult) error {
	for entry, err := range record.Scan(ctx, s.store, record.IDPrefix) {
		if err != nil {
			return err
		}
		e, err := record.Decode(keyOf(entry), entry.Value)
		if err != nil {
			return err
		}
		if namespace != RootNamespace && !s.Below(ctx, namespace, e.Namespace) {
			continue
		}
		r.Tokens++
		if e.Parent != "" {
			_, err := s.store.Get(ctx, record.IDKey(e.Parent))
			if errors.Is(err, storage.ErrNotFound) {
				if err := s.revokeStray(ctx, e, r); err != nil {
					return err
				}
				continue
			} else if err != nil {
				return err
			}
			if err := s.add(ctx, e, record.ChildKey(e.Parent, e.Key), record.Present, &r.Children); err != nil {
				return err
			}
		}
		if !e.ExpiresAt.IsZero() {
			if err := s.add(ctx, e, record.ExpiryKey(e.ExpiresAt, e.Key), record.Present, &r.Expiries); err != nil {
				return err
			}
		}
		name, err := s.name(ctx, secret.AccessorDomain, e.Accessor)
		if err != nil {
			return err
		}
		if err := s.add(ctx, e, record.AccessorKey(name), e.Ref().Encode(), &r.Accessors); err != nil {
			return err
		}
	}
	return nil
}

// revokeStray revokes a token whose parent was found missing, unless it changed since: a parent that leaves
// its children as orphans frees them before it goes.
func (s *Store) revokeStray(ctx context.Context, e *Entry, r *TidyResult) error {
	now, err := record.Get(ctx, s.store, e.Key)
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
		now, err := record.Get(ctx, t, e.Key)
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
	return s.drop(ctx, record.AccessorPrefix, &r.Accessors, func(k storage.Key, value []byte) (string, func(*Entry) bool) {
		ref, err := record.DecodeAccessor(value)
		return ref.Token, func(e *Entry) bool { return err == nil && e.Accessor == ref.Accessor }
	})
}

func (s *Store) tidyChildren(ctx context.Context, r *TidyResult) error {
	return s.drop(ctx, record.ChildPrefix, &r.Children, func(k storage.Key, _ []byte) (string, func(*Entry) bool) {
		parent, key, _ := strings.Cut(string(k[len(record.ChildPrefix):]), "/")
		return key, func(e *Entry) bool { return e.Parent == parent }
	})
}

func (s *Store) tidyExpiries(ctx context.Context, r *TidyResult) error {
	return s.drop(ctx, record.ExpiryPrefix, &r.Expiries, func(k storage.Key, _ []byte) (string, func(*Entry) bool) {
		at, key, ok := record.SplitExpiryKey(k)
		return key, func(e *Entry) bool { return ok && e.ExpiresAt.Equal(at) }
	})
}

// drop removes the index entries below prefix that do not fit their token. about tells which token an entry
// is about, and whether it fits.
func (s *Store) drop(ctx context.Context, prefix storage.Key, count *int, about func(storage.Key, []byte) (string, func(*Entry) bool)) error {
	for index, err := range record.Scan(ctx, s.store, prefix) {
		if err != nil {
			return err
		}
		key, fits := about(index.Key, index.Value)
		dangles := false
		_, err := storage.Update(ctx, s.store, func(t *storage.Txn) error {
			e, err := record.Get(ctx, t, key)
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
