// Package token keeps service tokens: it creates, finds, renews and revokes them, and answers the paths of
// the auth/token mount.
//
// It promises that a token is stored only as its keyed hash; that a token which is revoked, expired or used
// up is invalid at once, whatever remains of it in storage; and that with a token all tokens made from it go
// too. Revocation marks first and removes later, so an interrupted one is finished by Sweep.
//
// It assumes that everything that writes runs on the active node. Lookups work on every node, provided that
// Changed is given every change of the feed. Start reading at Entry, then Store, Create and Revoke; Engine
// is the mount.
package token

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// ErrInvalid is the answer to every token or accessor that does not name a valid token.
var ErrInvalid = errors.New("token is not valid")

const (
	systemTTL  = 768 * time.Hour // default and maximum unless Options say otherwise
	cacheItems = 1 << 15
	rootPolicy = "root"
)

// Entry is one token. Entries are shared: do not modify them.
type Entry struct {
	// Key is the keyed hash that the token is stored under. It identifies the token and is not secret, but
	// it is never shown.
	Key      string `json:"-"`
	Accessor string `json:"accessor"`
	// Parent is the Key of the token that this one goes with, "" for an orphan.
	Parent      string            `json:"parent,omitempty"`
	Policies    []string          `json:"policies"` // sorted, lower case
	Path        string            `json:"path"`     // of the request that created it
	Meta        map[string]string `json:"meta,omitempty"`
	DisplayName string            `json:"display_name"`
	// NumUses is how often the token can still be used: 0 is without limit, -1 is used up.
	NumUses        int           `json:"num_uses,omitempty"`
	TTL            time.Duration `json:"ttl,omitempty"` // when created; 0: never expires
	MaxTTL         time.Duration `json:"max_ttl,omitempty"`
	ExplicitMaxTTL time.Duration `json:"explicit_max_ttl,omitempty"`
	Period         time.Duration `json:"period,omitempty"`
	CreatedAt      time.Time     `json:"created_at"`
	ExpiresAt      time.Time     `json:"expires_at,omitzero"` // zero: never
	RenewedAt      time.Time     `json:"renewed_at,omitzero"`
	Renewable      bool          `json:"renewable,omitempty"`
	Type           string        `json:"type"` // "service"
	EntityID       string        `json:"entity_id,omitempty"`
	Namespace      string        `json:"namespace"` // id
	// BoundCIDRs are the networks the token may be used from; none is everywhere.
	BoundCIDRs []netip.Prefix `json:"bound_cidrs,omitempty"`
	Role       string         `json:"role,omitempty"`
	// Revoking is set once the token is being removed.
	Revoking revocation `json:"revoking,omitempty"`
}

// revocation says what becomes of the children of a token that is being removed.
type revocation int

const (
	withChildren  revocation = 1 // they are removed with it
	freeingOrphan revocation = 2 // they become orphans
)

// Orphan reports whether the token goes with no other.
func (e *Entry) Orphan() bool { return e.Parent == "" }

// Root reports whether the token has the root policy.
func (e *Entry) Root() bool { return slices.Contains(e.Policies, rootPolicy) }

// AllowsIP reports whether the token may be used from addr.
func (e *Entry) AllowsIP(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return len(e.BoundCIDRs) == 0 ||
		slices.ContainsFunc(e.BoundCIDRs, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// expired reports whether the token's time is over.
func (e *Entry) expired(now time.Time) bool { return !e.ExpiresAt.IsZero() && !now.Before(e.ExpiresAt) }

// valid reports whether the token may be used. A used-up token is still valid for its last request.
func (e *Entry) valid(now time.Time) bool { return e.Revoking == 0 && !e.expired(now) }

// Options of a Store.
type Options struct {
	// Store is the decrypted store. Required.
	Store storage.Store
	// Now tells the time; nil is time.Now.
	Now func() time.Time
	// OnRevoke removes what belongs to a token (its cubbyhole, its leases) before the token itself is
	// removed; nil does nothing. It may be called more than once for a token. If it fails, the token stays
	// invalid and Sweep tries again.
	OnRevoke func(ctx context.Context, tokenKey string) error
	// RenewTerms returns what governs the renewal of a token now, for instance the current settings of its
	// role; an error refuses the renewal. Nil takes what the entry says.
	RenewTerms func(ctx context.Context, e *Entry) (Terms, error)
	// DefaultTTL and MaxTTL are the system's; 0 is 768 hours.
	DefaultTTL time.Duration
	MaxTTL     time.Duration
}

// Store keeps the tokens. Safe for concurrent use.
type Store struct {
	opts    Options
	store   storage.Store
	now     func() time.Time
	entries *storage.Cache[*Entry]
	hasher  *storage.Cache[*hasher]
}

// New returns a Store.
func New(o Options) *Store {
	s := &Store{opts: o, store: o.Store, now: o.Now, entries: storage.NewCache[*Entry](cacheItems), hasher: storage.NewCache[*hasher](1)}
	if s.now == nil {
		s.now = time.Now
	}
	if s.opts.DefaultTTL == 0 {
		s.opts.DefaultTTL = systemTTL
	}
	if s.opts.MaxTTL == 0 {
		s.opts.MaxTTL = systemTTL
	}
	return s
}

// Changed forgets what a change made stale. It is meant for storage.Feed's OnChange.
func (s *Store) Changed(ch storage.Change) {
	if ch.Touches(idPrefix) {
		s.entries.Apply(ch)
	}
	if ch.Touches(hashKeyKey) {
		s.hasher.Apply(ch)
	}
}

// Clear forgets everything, for instance when the server seals.
func (s *Store) Clear() { s.Changed(storage.Change{Reset: true}) }

// Lookup returns the entry of a valid token, or ErrInvalid.
func (s *Store) Lookup(ctx context.Context, token string) (*Entry, error) {
	if token == "" || len(token) > maxTokenBytes {
		return nil, ErrInvalid
	}
	key, err := s.hash(ctx, tokenHash, token)
	if err != nil {
		return nil, err
	}
	e, err := s.LookupKey(ctx, key)
	if err == nil && e.NumUses < 0 {
		return nil, ErrInvalid
	}
	return e, err
}

// LookupKey returns the entry of the token with this Key, or ErrInvalid. It also finds a token during its
// last use, for the request that makes it.
func (s *Store) LookupKey(ctx context.Context, key string) (*Entry, error) {
	e, err := s.entries.Get(ctx, idKey(key), func(ctx context.Context) (*Entry, error) { return get(ctx, s.store, key) })
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return nil, ErrInvalid
	case err != nil:
		return nil, err
	case !e.valid(s.now()):
		return nil, ErrInvalid
	}
	return e, nil
}

// LookupAccessor returns the entry of the valid token with this accessor, or ErrInvalid.
func (s *Store) LookupAccessor(ctx context.Context, accessor string) (*Entry, error) {
	if accessor == "" || len(accessor) > maxTokenBytes {
		return nil, ErrInvalid
	}
	id, err := s.hash(ctx, accessorHash, accessor)
	if err != nil {
		return nil, err
	}
	found, err := s.store.Get(ctx, accessorKey(id))
	if errors.Is(err, storage.ErrNotFound) {
		return nil, ErrInvalid
	}
	if err != nil {
		return nil, err
	}
	ref, err := decodeAccessor(found.Value)
	if err != nil {
		return nil, err
	}
	e, err := s.LookupKey(ctx, ref.Token)
	if err != nil {
		return nil, err
	}
	if e.NumUses < 0 || subtle.ConstantTimeCompare([]byte(e.Accessor), []byte(accessor)) != 1 {
		return nil, ErrInvalid
	}
	return e, nil
}

// TokenPolicies returns the policies of a valid token.
func (s *Store) TokenPolicies(ctx context.Context, token string) ([]string, error) {
	e, err := s.Lookup(ctx, token)
	if err != nil {
		return nil, err
	}
	return e.Policies, nil
}

// AccessorPolicies returns the policies of the valid token with this accessor.
func (s *Store) AccessorPolicies(ctx context.Context, accessor string) ([]string, error) {
	e, err := s.LookupAccessor(ctx, accessor)
	if err != nil {
		return nil, err
	}
	return e.Policies, nil
}

// Accessors returns the accessors of all stored tokens, sorted.
func (s *Store) Accessors(ctx context.Context) ([]string, error) {
	var out []string
	for e, err := range s.scan(ctx, accessorPrefix) {
		if err != nil {
			return nil, err
		}
		ref, err := decodeAccessor(e.Value)
		if err != nil {
			return nil, err
		}
		out = append(out, ref.Accessor)
	}
	slices.Sort(out)
	return out, nil
}

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
// conflict means that somebody else's change got through.
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

var _ engines.Engine = (*Engine)(nil)
