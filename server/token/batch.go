package token

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// A batch token is "hvb." and, in base64url, 24 random bytes, the sealed entry and a tag of 16 bytes. The first
// 12 random bytes and Options.BatchKey give the key that seals this one token, with AES-256-GCM; the other 12
// are the nonce. With one key for all tokens, random nonces would be at risk of repeating after 2^32 of them,
// which a busy cluster makes in days.
//
// Nothing is stored, so there is nothing to renew, to count or to revoke: such a token ends when its time is
// over or its parent ends.
const (
	batchPrefix   = "hvb."
	maxBatchBytes = 8 << 10 // proxies in between often take no longer headers
	saltBytes     = 12
	nonceBytes    = 12
	batchPurpose  = "coffer batch token 1" // authenticated with each token
	openedItems   = 1 << 12

	// batchKeyPrefix begins the Key of a batch token. No Key of a service token has a dot.
	batchKeyPrefix = "b."
)

var strictBase64 = base64.RawURLEncoding.Strict() // a token has one spelling, and so one Key

func isBatchKey(key string) bool { return strings.HasPrefix(key, batchKeyPrefix) }

// batchRecord is what a batch token carries. The names are short because it travels with every request.
type batchRecord struct {
	Format      int               `json:"v"` // 1
	Policies    []string          `json:"p"`
	Namespace   string            `json:"n"`
	Path        string            `json:"w"`
	DisplayName string            `json:"d,omitempty"`
	Meta        map[string]string `json:"m,omitempty"`
	EntityID    string            `json:"e,omitempty"`
	Parent      string            `json:"o,omitempty"`
	BoundCIDRs  []netip.Prefix    `json:"b,omitempty"`
	Mount       string            `json:"u,omitempty"`
	Role        string            `json:"r,omitempty"`
	CreatedAt   int64             `json:"c"` // nanoseconds
	TTL         time.Duration     `json:"t"`
}

func encodeBatch(e *Entry) []byte {
	text, err := json.Marshal(batchRecord{
		Format: 1, Policies: e.Policies, Namespace: e.Namespace, Path: e.Path, DisplayName: e.DisplayName, Meta: e.Meta,
		EntityID: e.EntityID, Parent: e.Parent, BoundCIDRs: e.BoundCIDRs, Mount: e.Mount, Role: e.Role,
		CreatedAt: e.CreatedAt.UnixNano(), TTL: e.TTL,
	})
	if err != nil {
		panic(err) // texts, numbers and networks
	}
	return text
}

func decodeBatch(key string, text []byte) (*Entry, error) {
	var r batchRecord
	if err := json.Unmarshal(text, &r); err != nil || r.Format != 1 {
		return nil, ErrInvalid // made by another version
	}
	// Every cluster of a replication set has the key. None of them makes a root token of another one, whatever it seals.
	r.Policies = NormalPolicies(r.Policies)
	if slices.Contains(r.Policies, rootPolicy) || slices.Contains(r.Policies, wrappingPolicy) {
		return nil, ErrInvalid
	}
	created := time.Unix(0, r.CreatedAt)
	return &Entry{
		Key: key, Type: typeBatch, Policies: r.Policies, Namespace: r.Namespace, Path: r.Path, DisplayName: r.DisplayName,
		Meta: r.Meta, EntityID: r.EntityID, Parent: r.Parent, BoundCIDRs: r.BoundCIDRs, Mount: r.Mount, Role: r.Role,
		CreatedAt: created, TTL: r.TTL, ExpiresAt: created.Add(r.TTL),
	}, nil
}

// sealer seals and opens batch tokens.
type sealer struct{ key []byte }

// sealer returns the sealer, or ErrInvalid if there are no batch tokens.
func (s *Store) batchSealer(ctx context.Context) (*sealer, error) {
	if s.opts.BatchKey == nil {
		return nil, ErrInvalid
	}
	return s.sealer.Get(ctx, s.opts.BatchKeyEntry, func(context.Context) (*sealer, error) {
		key, err := s.opts.BatchKey()
		if err != nil {
			return nil, fmt.Errorf("deriving the key of batch tokens: %w", err)
		}
		if len(key) != 32 {
			return nil, errors.New("the key of batch tokens is not 32 bytes long")
		}
		return &sealer{key}, nil
	})
}

// cipher returns the cipher of the one token with this salt.
func (s *sealer) cipher(salt []byte) (cipher.AEAD, error) {
	key, err := hkdf.Expand(sha256.New, s.key, batchPurpose+"\x00"+string(salt), 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func (s *sealer) seal(text []byte) (string, error) {
	random := make([]byte, saltBytes+nonceBytes, saltBytes+nonceBytes+len(text)+16)
	rand.Read(random) // never fails
	aead, err := s.cipher(random[:saltBytes])
	if err != nil {
		return "", err
	}
	sealed := aead.Seal(random, random[saltBytes:], text, []byte(batchPurpose))
	return batchPrefix + strictBase64.EncodeToString(sealed), nil
}

// open returns ErrInvalid for everything that seal did not make.
func (s *sealer) open(token string) ([]byte, error) {
	encoded := strings.TrimPrefix(token, batchPrefix)
	if strings.ContainsAny(encoded, "\r\n") { // which the decoder would skip
		return nil, ErrInvalid
	}
	sealed, err := strictBase64.DecodeString(encoded)
	if err != nil || len(sealed) < saltBytes+nonceBytes {
		return nil, ErrInvalid
	}
	aead, err := s.cipher(sealed[:saltBytes])
	if err != nil {
		return nil, err
	}
	text, err := aead.Open(nil, sealed[saltBytes:saltBytes+nonceBytes], sealed[saltBytes+nonceBytes:], []byte(batchPurpose))
	if err != nil {
		return nil, ErrInvalid
	}
	return text, nil
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
	token, err := sealer.seal(encodeBatch(e))
	if err != nil {
		return "", fmt.Errorf("sealing a batch token: %w", err)
	}
	if len(token) > maxBatchBytes {
		return "", engines.Invalid("the batch token would be longer than %d bytes: use fewer policies, metadata or bound networks, or a service token", maxBatchBytes)
	}
	if e.Key, err = s.batchKey(ctx, token); err != nil {
		return "", err
	}
	s.createdBatch.Add(1)
	return token, nil
}

func (s *Store) batchKey(ctx context.Context, token string) (string, error) {
	hash, err := s.hash(ctx, batchHash, token)
	return batchKeyPrefix + hash, err
}

// lookupBatch is Lookup for batch tokens. It remembers what it opened.
func (s *Store) lookupBatch(ctx context.Context, token string) (*Entry, error) {
	if len(token) > maxBatchBytes {
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
		text, err := sealer.open(token)
		if err != nil {
			return nil, err
		}
		return decodeBatch(key, text)
	})
	switch {
	case err != nil:
		return nil, err
	case !e.valid(s.now()):
		return nil, ErrInvalid
	case e.Parent != "":
		if _, err := s.LookupKey(ctx, e.Parent); err != nil {
			return nil, err
		}
	}
	return e, nil
}
