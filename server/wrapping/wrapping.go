// Package wrapping keeps responses for another client to take: the answer to a request goes into storage, and its
// caller gets a token that takes it out, once.
//
// It promises that a response leaves at most once: taking it out uses up the wrapping token in the same
// transaction-guarded step that every limited token goes through, so of two takers one gets an error, and who finds
// the token used knows that another client took it. A response is never stored without its token, nor longer than
// it. Start reading at Wrap, then take.
package wrapping

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

// Policy is the one policy of wrapping tokens.
const Policy = "response-wrapping"

// MaxTTL is the longest life of a wrapping token.
const MaxTTL = 32 * 24 * time.Hour

// ErrInvalid is the one answer to every token that takes out nothing.
var ErrInvalid = engines.Invalid("wrapping token is not valid or does not exist")

// record is a stored response.
type record struct {
	Format       int                `json:"format"` // 1
	CreationPath string             `json:"creation_path"`
	CreatedAt    time.Time          `json:"created_at"`
	TTL          time.Duration      `json:"ttl"`
	Data         json.RawMessage    `json:"data,omitempty"`
	Auth         *engines.Auth      `json:"auth,omitempty"`
	Warnings     []string           `json:"warnings,omitempty"`
	Lease        *engines.HeldLease `json:"lease,omitempty"`
	Accessor     string             `json:"accessor,omitempty"` // of a credential in Data
}

// prefix holds one record for each wrapping token, under its key.
const prefix storage.Key = "l/wrapping/"

// Store keeps the responses. Safe for concurrent use.
type Store struct {
	store  storage.Store // decrypted
	tokens *token.Store
}

// NewStore returns a Store.
func NewStore(s storage.Store, tokens *token.Store) *Store { return &Store{s, tokens} }

// Wrap stores a response and returns what stands for it. path is that of the request, with its namespace; ns is the
// namespace's id. The response must be complete: its token issued, its lease registered.
func (s *Store) Wrap(ctx context.Context, ns, path string, ttl time.Duration, r *engines.Response) (*engines.WrapInfo, error) {
	data, err := r.EncodedData()
	if err != nil {
		return nil, err
	}
	return s.put(ctx, ns, record{
		CreationPath: path, CreatedAt: time.Now().UTC(), TTL: ttl,
		Data: data, Auth: r.Auth, Warnings: r.Warnings, Lease: r.Held, Accessor: r.Accessor,
	})
}

func (s *Store) put(ctx context.Context, ns string, r record) (*engines.WrapInfo, error) {
	r.Format = 1
	value, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	created, err := s.tokens.Create(ctx, token.Params{
		Policies: []string{Policy}, Path: strings.TrimPrefix(r.CreationPath, s.tokens.NamespacePath(ns)), NumUses: 1, TTL: r.TTL, ExplicitMaxTTL: r.TTL,
		NotRenewable: true, Namespace: ns, Bytes: int64(len(value)),
		Also: func(key string) []storage.Put { return []storage.Put{{Key: prefix + storage.Key(key), Value: value}} },
	})
	if errors.Is(err, storage.ErrTooLarge) {
		return nil, &engines.Error{Kind: engines.KindTooLarge, Detail: "the response is too large to be wrapped: the limit is 1 MiB"}
	}
	if err != nil {
		return nil, fmt.Errorf("creating a wrapping token: %w", err)
	}
	info := &engines.WrapInfo{
		Token: created.Token.Reveal(), Accessor: created.Entry.Accessor, TTL: int64(r.TTL / time.Second),
		CreationTime: r.CreatedAt.Format(time.RFC3339Nano), CreationPath: r.CreationPath,
		WrappedAccessor: r.Accessor,
	}
	if r.Auth != nil {
		info.WrappedAccessor = r.Auth.Accessor
	}
	return info, nil
}

// Drop removes what belongs to a token that is revoked, if anything does.
func (s *Store) Drop(ctx context.Context, tokenKey string) error {
	key := prefix + storage.Key(tokenKey)
	if _, err := s.store.Get(ctx, key); errors.Is(err, storage.ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	_, err := s.store.Commit(ctx, storage.Batch{Deletes: []storage.Key{key}})
	return err
}

// UnwrapPath is where a wrapping token is traded for what it holds.
const UnwrapPath = "sys/wrapping/unwrap"

// Takes reports whether a request to path, in its namespace, takes out what the caller's own token wraps.
func Takes(path string) bool { return path == UnwrapPath || path == "sys/wrapping/rewrap" }

// IsWrapping reports whether a token is a wrapping token.
func IsWrapping(e *token.Entry) bool { return slices.Equal(e.Policies, []string{Policy}) }

// get returns the record of a wrapping token.
func (s *Store) get(ctx context.Context, tokenKey string) (record, error) {
	e, err := s.store.Get(ctx, prefix+storage.Key(tokenKey))
	if errors.Is(err, storage.ErrNotFound) {
		return record{}, ErrInvalid
	}
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(e.Value, &r); err != nil || r.Format != 1 {
		return record{}, errors.New("a wrapped response has an unknown format")
	}
	return r, nil
}

// lookup returns the entry of a wrapping token that has not been used.
func (s *Store) lookup(ctx context.Context, id engines.Sensitive) (*token.Entry, error) {
	e, err := s.tokens.Lookup(ctx, id.Reveal())
	if errors.Is(err, token.ErrInvalid) || err == nil && !IsWrapping(e) {
		return nil, ErrInvalid
	}
	return e, err
}

// take uses up the wrapping token, which is the caller's own or, if given, another, and returns what it holds.
func (s *Store) take(ctx context.Context, req *engines.Request, id engines.Sensitive) (record, error) {
	if id == "" || id == req.Caller.Token {
		// The pipeline has counted the use, and revokes the token when this request is over.
		if req.Caller.TokenKey == "" {
			return record{}, engines.Invalid("missing wrapping token: send it as the client token, or in the field \"token\"")
		}
		return s.get(ctx, req.Caller.TokenKey)
	}
	e, err := s.lookup(ctx, id)
	if err != nil {
		return record{}, err
	}
	if _, err := s.tokens.Use(ctx, e); errors.Is(err, token.ErrInvalid) {
		return record{}, ErrInvalid
	} else if err != nil {
		return record{}, err
	}
	r, err := s.get(ctx, e.Key)
	if err != nil {
		return record{}, err
	}
	// The token is used up, and no other client gets what it held: if it cannot be removed now, that is left to Sweep.
	_ = s.tokens.Revoke(context.WithoutCancel(ctx), e.Key)
	return r, nil
}
