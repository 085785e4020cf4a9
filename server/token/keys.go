package token

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/server/token/record"
	"github.com/coffer-project/coffer/server/token/secret"

	"github.com/coffer-project/coffer/storage"
)

// name returns what a token or an accessor is stored under.
func (s *Store) name(ctx context.Context, domain, text string) (string, error) {
	h, err := s.hasher.Get(ctx, record.HashKey, func(ctx context.Context) (*secret.Hasher, error) {
		e, err := s.store.Get(ctx, record.HashKey)
		return secret.NewHasher(e.Value), err
	})
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return "", errors.New("the key of the token hashes is missing")
	case err != nil:
		return "", fmt.Errorf("reading the key of the token hashes: %w", err)
	}
	return h.Name(domain, text), nil
}

// InitPuts returns what a new cluster begins with: a random key for the hashes.
func InitPuts() []storage.Put {
	key := make([]byte, 32)
	rand.Read(key) // never fails
	return []storage.Put{{Key: record.HashKey, Value: key}}
}
