package token

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token/batch"
	"github.com/coffer-project/coffer/server/token/secret"
	"github.com/coffer-project/coffer/storage"
)

// Nothing is stored of a batch token, so there is nothing to renew, to count or to revoke: it ends when its time is over or its
// parent ends.
const (
	openedItems = 1 << 12

	// batchKeyPrefix begins the Key of a batch token. No Key of a service token has a dot.
	batchKeyPrefix = "b."
)

// IsBatchKey reports whether a Key is that of a batch token.
func IsBatchKey(key string) bool { return strings.HasPrefix(key, batchKeyPrefix) }

// contentOf returns what the token of an entry carries.
func contentOf(e *Entry) batch.Content {
	return batch.Content{
		Policies: e.Policies, Namespace: e.Namespace, Path: e.Path, DisplayName: e.DisplayName, Meta: e.Meta,
		EntityID: e.EntityID, Parent: e.Parent, BoundCIDRs: e.BoundCIDRs, Mount: e.Mount, Role: e.Role,
		CreatedAt: e.CreatedAt.UnixNano(), TTL: e.TTL,
	}
}

// entryOf returns the entry of a batch token.
func entryOf(key string, r *batch.Content) (*Entry, error) {
	// Every cluster of a replication set has the key. None of them makes a root token of another one, whatever it seals.
	r.Policies = NormalPolicies(r.Policies)
	if slices.Contains(r.Policies, RootPolicy) || slices.Contains(r.Policies, wrappingPolicy) {
		return nil, ErrInvalid
	}
	created := time.Unix(0, r.CreatedAt)
	return &Entry{
		Key: key, Type: typeBatch, Policies: r.Policies, Namespace: r.Namespace, Path: r.Path, DisplayName: r.DisplayName,
		Meta: r.Meta, EntityID: r.EntityID, Parent: r.Parent, BoundCIDRs: r.BoundCIDRs, Mount: r.Mount, Role: r.Role,
		CreatedAt: created, TTL: r.TTL, ExpiresAt: created.Add(r.TTL),
	}, nil
}

// batchSealer returns the sealer, or ErrInvalid if there are no batch tokens.
func (s *Store) batchSealer(ctx context.Context) (*batch.Sealer, error) {
	if s.opts.BatchKeys == nil {
		return nil, ErrInvalid
	}
	return s.sealer.Get(ctx, s.opts.BatchKeyEntry, func(context.Context) (*batch.Sealer, error) {
		key, err := s.opts.BatchKeys.Batch()
		if err != nil {
			return nil, fmt.Errorf("deriving the key of batch tokens: %w", err)
		}
		return batch.NewSealer(key)
	})
}

// checkBatch reports what a batch token cannot have.
func checkBatch(e *Entry, p Params) error {
	switch {
	case e.Root():
		return engines.Invalid("batch tokens cannot be root tokens")
	case p.ID != "":
		return engines.Invalid("field \"id\": batch tokens cannot have a custom token ID")
	case e.NumUses != 0:
		return engines.Invalid("field \"num_uses\": batch tokens cannot have a limit of uses, as nothing counts them")
	case e.Period != 0:
		return engines.Invalid("field \"period\": batch tokens cannot be periodic, as they cannot be renewed")
	case p.Also != nil:
		return engines.Invalid("batch tokens cannot be stored with anything")
	}
	return nil
}

// createBatch makes the token of an entry whose lifetime is set.
func (s *Store) createBatch(ctx context.Context, e *Entry) (string, error) {
	e.MaxTTL, e.ExplicitMaxTTL = 0, 0 // the lifetime keeps within them, and never changes
	sealer, err := s.batchSealer(ctx)
	switch {
	case errors.Is(err, ErrInvalid):
		return "", engines.Invalid("batch tokens are not supported here: ask for a service token")
	case err != nil:
		return "", err
	}
	if e.Parent != "" {
		parent, err := s.LookupKey(ctx, e.Parent)
		if err != nil {
			return "", err
		}
		if parent.NumUses != 0 {
			return "", ErrInvalid
		}
	}
	token, err := sealer.Seal(contentOf(e))
	if err != nil {
		return "", fmt.Errorf("sealing a batch token: %w", err)
	}
	if len(token) > batch.MaxBytes {
		return "", engines.Invalid("the batch token would be longer than %d bytes: use fewer policies, metadata or bound networks, or a service token", batch.MaxBytes)
	}
	if e.Key, err = s.batchKey(ctx, token); err != nil {
		return "", err
	}
	s.createdBatch.Add(1)
	return token, nil
}

func (s *Store) batchKey(ctx context.Context, token string) (string, error) {
	name, err := s.name(ctx, secret.BatchDomain, token)
	return batchKeyPrefix + name, err
}

// lookupBatch is Lookup for batch tokens. It remembers what it opened.
func (s *Store) lookupBatch(ctx context.Context, token string) (*Entry, error) {
	if len(token) > batch.MaxBytes {
		return nil, ErrInvalid
	}
	key, err := s.batchKey(ctx, token)
	if err != nil {
		return nil, err
	}
	e, err := s.opened.Get(ctx, storage.Key(key), func(ctx context.Context) (*Entry, error) {
		sealer, err := s.batchSealer(ctx)
		if err != nil {
			return nil, err
		}
		content, err := sealer.Open(token)
		if errors.Is(err, batch.ErrInvalid) {
			return nil, ErrInvalid
		}
		if err != nil {
			return nil, err
		}
		return entryOf(key, content)
	})
	switch {
	case err != nil:
		return nil, err
	case !e.Valid(s.now()):
		return nil, ErrInvalid
	case e.Parent != "":
		if _, err := s.LookupKey(ctx, e.Parent); err != nil {
			return nil, err
		}
	}
	return e, nil
}
