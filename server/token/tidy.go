package token

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

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
	return s.TidyBelow(ctx, rootNamespace)
}

// TidyBelow is Tidy for the tokens of a namespace and those below it. Index entries that lead nowhere belong to
// no namespace: only root's run removes them.
func (s *Store) TidyBelow(ctx context.Context, namespace string) (TidyResult, error) {
	var r TidyResult
	steps := []func(context.Context, *TidyResult) error{
		func(ctx context.Context, r *TidyResult) error { return s.tidyTokens(ctx, namespace, r) },
	}
	if namespace == rootNamespace {
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
	for entry, err := range s.scan(ctx, idPrefix) {
		if err != nil {
			return err
		}
		e, err := decode(keyOf(entry), entry.Value)
		if err != nil {
			return err
		}
		if namespace != rootNamespace && !s.below(ctx, namespace, e.Namespace) {
			continue
		}
		r.Tokens++
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
		if err := s.add(ctx, e, accessorKey(hash), e.accessorRef().encode(), &r.Accessors); err != nil {
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

// TidyStatus tells of the runs of Tidy that were started by StartTidy on this node.
type TidyStatus struct {
	State      string // "never", "running", "finished" or "failed"
	Namespace  string // id
	StartedAt  time.Time
	FinishedAt time.Time // zero until then
	Result     TidyResult
}

// tidying is the state of the latest run.
type tidying struct {
	mu     sync.Mutex
	status TidyStatus
}

// begin reports whether a run may begin.
func (t *tidying) begin(now time.Time, namespace string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status.State == "running" {
		return false
	}
	t.status = TidyStatus{State: "running", Namespace: namespace, StartedAt: now}
	return true
}

func (t *tidying) end(now time.Time, r TidyResult, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.status.FinishedAt, t.status.Result, t.status.State = now, r, "finished"
	if err != nil {
		t.status.State = "failed"
	}
}

// StartTidy begins TidyBelow in Options.Background, and reports whether it did: one run goes on at a time.
func (s *Store) StartTidy(ctx context.Context, namespace string) bool {
	if !s.tidying.begin(s.now(), namespace) {
		return false
	}
	work := func(ctx context.Context) {
		r, err := s.TidyBelow(ctx, namespace)
		s.tidying.end(s.now(), r, err)
		if err != nil {
			s.log.Warn("tidying tokens", "err", err)
			return
		}
		s.log.Info("tokens tidied", "tokens", r.Tokens, "accessors", r.Accessors, "children", r.Children, "expiries", r.Expiries, "revoked", r.Revoked)
	}
	if s.opts.Background == nil {
		work(ctx)
	} else {
		s.opts.Background(work)
	}
	return true
}

// TidyStatus returns the state of the latest run.
func (s *Store) TidyStatus() TidyStatus {
	s.tidying.mu.Lock()
	defer s.tidying.mu.Unlock()
	if s.tidying.status.State == "" {
		return TidyStatus{State: "never"}
	}
	return s.tidying.status
}
