// Package token keeps tokens: it creates, finds, renews and revokes them, for logins and for the paths of the
// auth/token mount, which it answers.
//
// It promises that a service token is stored only as its keyed hash; that a token which is revoked, expired or
// used up is invalid at once, whatever remains of it in storage; and that with a token all tokens made from it
// go too. Revocation marks first and removes later, so an interrupted one is finished by Sweep. Batch tokens
// are not stored at all: they carry their entry, sealed (see batch.go).
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
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// ErrInvalid is the answer to every token or accessor that does not name a valid token.
var ErrInvalid = errors.New("token is not valid")

const (
	systemTTL  = 768 * time.Hour // default and maximum unless Options say otherwise
	cacheItems = 1 << 15

	rootNamespace = "root"

	rootPolicy     = "root"
	defaultPolicy  = "default"
	wrappingPolicy = "response-wrapping" // of wrapping tokens, which only the server makes

	typeService = "service"
	typeBatch   = "batch"
)

// Entry is one token. Entries are shared: do not modify them.
type Entry struct {
	// Key is a keyed hash of the token, which service tokens are stored under. It identifies the token and is
	// not secret, but it is never shown. No Key of a batch token is that of a service token.
	Key      string `json:"-"`
	Accessor string `json:"accessor"` // "" for batch tokens
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
	Type           string        `json:"type"` // "service" or "batch"
	EntityID       string        `json:"entity_id,omitempty"`
	Namespace      string        `json:"namespace"` // id
	// BoundCIDRs are the networks the token may be used from; none is everywhere.
	BoundCIDRs []netip.Prefix `json:"bound_cidrs,omitempty"`
	// Mount is the UUID of the auth mount whose login made the token; "" for tokens of the auth/token mount.
	Mount string `json:"mount,omitempty"`
	// Role is what the auth mount calls its role or user, or the token role if Mount is "".
	Role string `json:"role,omitempty"`
	// Internal is what the auth mount keeps with its token. It is never shown.
	Internal json.RawMessage `json:"internal,omitempty"`
	// AskedPeriod is the part of a token role's token that is not the role's: the period its creator asked for.
	AskedPeriod time.Duration `json:"asked_period,omitempty"`
	// Bytes is how much is stored beside the token: a wrapped response.
	Bytes int64 `json:"bytes,omitempty"`
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

// Batch reports whether it is a batch token: one that is not stored, has no cubbyhole and cannot be renewed or
// revoked.
func (e *Entry) Batch() bool { return e.Type == typeBatch }

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
	OnRevoke func(ctx context.Context, e *Entry) error
	// RenewTerms returns what governs the renewal of a login's token now, for instance the current settings of
	// its role; an error refuses the renewal. Nil takes what the entry says. It is asked only about tokens with a
	// Mount: tokens of token roles follow their role, all others what the entry says.
	RenewTerms func(ctx context.Context, e *Entry) (Terms, error)
	// BatchKey returns the 32 bytes that batch tokens are sealed with, the same on all nodes. If it is nil there
	// are no batch tokens.
	BatchKey func() ([]byte, error)
	// BatchKeyEntry is where that key is kept: a change there makes another one of it. "" if it never changes.
	BatchKeyEntry storage.Key
	// Below reports whether the namespace id is ancestor itself or below it; nil compares.
	Below func(ctx context.Context, ancestor, id string) bool
	// NamespacePath returns the path of a namespace, "" for root, else with a slash at its end; nil is "".
	NamespacePath func(id string) string
	// EntityByAlias finds or makes the entity that a mount knows by this name; nil refuses entity aliases.
	EntityByAlias func(ctx context.Context, namespace, mountAccessor, name string) (entityID string, err error)
	// IdentityPolicies returns the policies that a token has through its entity in its own namespace,
	// ExternalPolicies those in other namespaces, by namespace. Nil is none. They are asked only about tokens
	// with an entity.
	IdentityPolicies func(ctx context.Context, e *Entry) ([]string, error)
	ExternalPolicies func(ctx context.Context, e *Entry) (map[string][]string, error)
	// Admit is asked before a token is stored, but for those with the root policy; its error is the answer. Nil admits all.
	Admit func(ctx context.Context, e *Entry) error
	// Background runs work for as long as this node is the active one, and ends its context then. It must call
	// work in any case, with an ended context if need be. Nil calls it at once, with the request's context.
	Background func(work func(context.Context))
	// Logger is told what background work did; nil discards.
	Logger *slog.Logger
	// DefaultTTL and MaxTTL are the system's; 0 is 768 hours.
	DefaultTTL time.Duration
	MaxTTL     time.Duration
}

// Store keeps the tokens. Safe for concurrent use.
type Store struct {
	opts    Options
	store   storage.Store
	now     func() time.Time
	log     *slog.Logger
	entries *storage.Cache[*Entry]
	hasher  *storage.Cache[*hasher]
	tally   tally
	opened  *storage.Cache[*Entry] // batch tokens, by Key
	sealer  *storage.Cache[*sealer]
	tidying tidying

	created, createdBatch, revoked, expired atomic.Int64 // tokens, since the start
}

// New returns a Store.
func New(o Options) *Store {
	s := &Store{
		opts: o, store: o.Store, now: o.Now, log: o.Logger,
		entries: storage.NewCache[*Entry](cacheItems), hasher: storage.NewCache[*hasher](1),
		opened: storage.NewCache[*Entry](openedItems), sealer: storage.NewCache[*sealer](1),
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
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
	if at := s.opts.BatchKeyEntry; at != "" && ch.Touches(at) {
		s.opened.Clear()
		s.sealer.Apply(ch)
	}
	if ch.Reset {
		s.tally.replaced.Store(true)
		s.opened.Apply(ch)
		s.sealer.Apply(ch)
	}
}

// Clear forgets everything, for instance when the server seals.
func (s *Store) Clear() { s.Changed(storage.Change{Reset: true}) }

// Numbers are counts since the start, for metrics.
func (s *Store) Numbers() map[string]float64 {
	return map[string]float64{
		"tokens_created_total":       float64(s.created.Load()),
		"tokens_batch_created_total": float64(s.createdBatch.Load()),
		"tokens_revoked_total":       float64(s.revoked.Load()),
		"tokens_expired_total":       float64(s.expired.Load()),
	}
}

// NamespacePath returns the path of a namespace, "" for root, else with a slash at its end.
func (s *Store) NamespacePath(id string) string {
	if s.opts.NamespacePath == nil {
		return ""
	}
	return s.opts.NamespacePath(id)
}

// below reports whether a namespace is ancestor or below it.
func (s *Store) below(ctx context.Context, ancestor, id string) bool {
	return ancestor == id || s.opts.Below != nil && s.opts.Below(ctx, ancestor, id)
}

// Lookup returns the entry of a valid token, or ErrInvalid.
func (s *Store) Lookup(ctx context.Context, token string) (*Entry, error) {
	if strings.HasPrefix(token, batchPrefix) {
		return s.lookupBatch(ctx, token)
	}
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

// LookupKey returns the entry of the service token with this Key, or ErrInvalid. It also finds a token during
// its last use, for the request that makes it. Batch tokens are found by the token only.
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

// Accessors returns the accessors of all stored tokens, sorted.
func (s *Store) Accessors(ctx context.Context) ([]string, error) {
	return s.accessorsWhere(ctx, func(string) bool { return true })
}

// AccessorsBelow returns the accessors of the stored tokens of a namespace and those below it, sorted.
func (s *Store) AccessorsBelow(ctx context.Context, namespace string) ([]string, error) {
	return s.accessorsWhere(ctx, func(ns string) bool { return s.below(ctx, namespace, ns) })
}

// Count returns how many tokens are stored for a namespace and those below it. It reads them all.
func (s *Store) Count(ctx context.Context, namespace string) (int, error) {
	all, err := s.AccessorsBelow(ctx, namespace)
	return len(all), err
}

func (s *Store) accessorsWhere(ctx context.Context, wanted func(namespace string) bool) ([]string, error) {
	var out []string
	for e, err := range s.scan(ctx, accessorPrefix) {
		if err != nil {
			return nil, err
		}
		ref, err := decodeAccessor(e.Value)
		if err != nil {
			return nil, err
		}
		if wanted(ref.Namespace) {
			out = append(out, ref.Accessor)
		}
	}
	slices.Sort(out)
	return out, nil
}
