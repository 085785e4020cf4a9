// Package token keeps tokens: it creates, finds, renews and revokes them, for logins and for the paths of the
// auth/token mount, which package api below it answers.
//
// It promises that a service token is stored only as its keyed hash; that a token which is revoked, expired or
// used up is invalid at once, whatever remains of it in storage; and that with a token all tokens made from it
// go too. Revocation marks first and removes later, so an interrupted one is finished by Sweep. Batch tokens
// are not stored at all: they carry their entry, sealed (package batch).
//
// It assumes that everything that writes runs on the active node. Lookups work on every node, provided that
// Changed is given every change of the feed. What is stored is in package record; start reading there, at Entry, then Store, Create and Revoke.
package token

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/server/token/batch"
	"github.com/coffer-project/coffer/server/token/tally"

	"github.com/coffer-project/coffer/server/token/record"
	"github.com/coffer-project/coffer/server/token/secret"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token/role"
	"github.com/coffer-project/coffer/storage"
)

// ErrInvalid is the answer to every token or accessor that does not name a valid token.
var ErrInvalid = errors.New("token is not valid")

const (
	systemTTL  = 768 * time.Hour // default and maximum unless Options say otherwise
	cacheItems = 1 << 15

	wrappingPolicy = "response-wrapping" // of wrapping tokens, which only the server makes

	typeService = role.TypeService
	typeBatch   = role.TypeBatch
)

// Names that are known to every server.
const (
	RootNamespace = record.RootNamespace
	RootPolicy    = record.RootPolicy
	DefaultPolicy = "default"
)

// Entry is one token. Entries are shared: do not modify them.
type Entry = record.Entry

// Options of a Store.
type Options struct {
	// Store is the decrypted store. Required.
	Store storage.Store
	// Dependents are removed with a token; nil: there are none.
	Dependents Dependents
	// Logins are those whose tokens have a Mount. Nil: their renewal takes what the entry says, and there are no entity aliases.
	Logins Logins
	// BatchKeys has the key of batch tokens. Nil: there are none.
	BatchKeys BatchKeys
	// BatchKeyEntry is where that key is kept: a change there makes another one of it. "" if it never changes.
	BatchKeyEntry storage.Key
	Namespaces    Namespaces // nil: none lies below another, and all paths are ""
	Identity      Identity   // nil: entities have no policies
	Quotas        Quotas     // nil: there are none
	Members       Members    // nil: all are of this version
	// Background runs work beside requests; nil: work is called at once, with the request's context.
	Background Background
	// Logger is told what background work did; nil discards.
	Logger *slog.Logger
	// DefaultTTL and MaxTTL are the system's; 0 is 768 hours.
	DefaultTTL time.Duration
	MaxTTL     time.Duration
}

// Dependents are what belongs to tokens: leases, cubbyholes, wrapped answers. RevokeToken removes those of a token before the token
// itself is removed. It may be called more than once for a token. If it fails, the token stays invalid and Sweep tries again.
type Dependents interface {
	RevokeToken(ctx context.Context, e *Entry) error
}

// Logins are the auth methods that tokens come from: login.Logins.
type Logins interface {
	// RenewTerms returns what governs the renewal of a login's token now, for instance the current settings of its role; an error
	// refuses the renewal. It is asked only about tokens with a Mount: tokens of token roles follow their role, all others what the
	// entry says.
	RenewTerms(ctx context.Context, e *Entry) (Terms, error)
	// EntityByAlias finds or makes the entity that a mount knows by this name.
	EntityByAlias(ctx context.Context, namespace, mountAccessor, name string) (entityID string, err error)
}

// BatchKeys has the 32 bytes that batch tokens are sealed with, the same on all nodes: setkeys.Store.
type BatchKeys interface{ Batch() ([]byte, error) }

// Namespaces are those that tokens are of: namespace.Store.
type Namespaces interface {
	// Below reports whether the namespace id is ancestor itself or below it.
	Below(ctx context.Context, ancestor, id string) bool
	// Path returns the path of a namespace, "" for root, else with a slash at its end.
	Path(id string) string
}

// Identity knows the policies that a token has through its entity: rights.Rights. It is asked only about tokens with an entity.
type Identity interface {
	// IdentityPolicies returns those in the token's own namespace, ExternalPolicies those in others, by namespace.
	IdentityPolicies(ctx context.Context, e *Entry) ([]string, error)
	ExternalPolicies(ctx context.Context, e *Entry) (map[string][]string, error)
}

// Quotas limit how many tokens there may be, and what they wrap: quota.Quotas.
type Quotas interface {
	// AdmitToken is asked before a token is stored, but for those with the root policy; its error is the answer.
	AdmitToken(ctx context.Context, namespace, path, role string, bytes int64) error
}

// Members are those of the cluster: they find tokens and accessors that begin with their time, or not yet.
type Members interface {
	// FormatsAgreed reports whether every one knows what this version stores. Once it does, it is not asked again.
	FormatsAgreed() bool
}

// Background runs work for as long as this node is the active one, and ends its context then. Start calls work in any case, with an
// ended context if need be.
type Background interface {
	Start(work func(context.Context))
}

// Store keeps the tokens. Safe for concurrent use.
type Store struct {
	opts    Options
	store   storage.Store
	now     func() time.Time
	log     *slog.Logger
	entries *storage.Cache[*Entry]
	hasher  *storage.Cache[*secret.Hasher]
	tally   tally.Tally
	agreed  atomic.Bool            // Members have
	opened  *storage.Cache[*Entry] // batch tokens, by Key
	sealer  *storage.Cache[*batch.Sealer]
	roles   *role.Store

	created, createdBatch, revoked, expired atomic.Int64 // tokens, since the start
}

// New returns a Store.
func New(o Options) *Store {
	s := &Store{
		opts: o, store: o.Store, now: time.Now, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
		entries: storage.NewCache[*Entry](cacheItems), hasher: storage.NewCache[*secret.Hasher](1),
		roles: role.NewStore(o.Store), opened: storage.NewCache[*Entry](openedItems), sealer: storage.NewCache[*batch.Sealer](1),
	}
	s.opts.DefaultTTL, s.opts.MaxTTL = cmp.Or(o.DefaultTTL, systemTTL), cmp.Or(o.MaxTTL, systemTTL)
	return s
}

// Changed forgets what a change made stale. It is meant for storage.Feed's OnChange.
func (s *Store) Changed(ch storage.Change) {
	if ch.Touches(record.IDPrefix) {
		s.entries.Apply(ch)
	}
	if ch.Touches(record.HashKey) {
		s.hasher.Apply(ch)
	}
	if at := s.opts.BatchKeyEntry; at != "" && ch.Touches(at) {
		s.opened.Clear()
		s.sealer.Apply(ch)
	}
	if ch.Reset {
		s.agreed.Store(false) // a restored state may be of a time before they had
		s.tally.Replaced()
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
	if s.opts.Namespaces == nil {
		return ""
	}
	return s.opts.Namespaces.Path(id)
}

// Roles returns the token roles.
func (s *Store) Roles() *role.Store { return s.roles }

// EntityByAlias finds or makes the entity that a mount knows by this name.
func (s *Store) EntityByAlias(ctx context.Context, namespace, mountAccessor, name string) (entityID string, err error) {
	if s.opts.Logins == nil {
		return "", engines.Invalid("field \"entity_alias\": there are no entities here: leave it out")
	}
	return s.opts.Logins.EntityByAlias(ctx, namespace, mountAccessor, name)
}

// Now tells the time.
func (s *Store) Now() time.Time { return s.now() }

// InBackground runs work in Options.Background, or at once if there is none.
func (s *Store) InBackground(ctx context.Context, work func(context.Context, *slog.Logger)) {
	run := func(ctx context.Context) { work(ctx, s.log) }
	if s.opts.Background == nil {
		run(ctx)
	} else {
		s.opts.Background.Start(run)
	}
}

// Below reports whether a namespace is ancestor or below it.
func (s *Store) Below(ctx context.Context, ancestor, id string) bool {
	return ancestor == id || s.opts.Namespaces != nil && s.opts.Namespaces.Below(ctx, ancestor, id)
}

// Lookup returns the entry of a valid token, or ErrInvalid.
func (s *Store) Lookup(ctx context.Context, token string) (*Entry, error) {
	if strings.HasPrefix(token, batch.Prefix) {
		return s.lookupBatch(ctx, token)
	}
	if token == "" || len(token) > secret.MaxBytes {
		return nil, ErrInvalid
	}
	key, err := s.name(ctx, secret.TokenDomain, token)
	if err != nil {
		return nil, err
	}
	e, err := s.LookupKey(ctx, key)
	if err == nil && e.NumUses < 0 {
		return nil, ErrInvalid
	}
	return e, err
}

// CheckKey returns the error of LookupKey.
func (s *Store) CheckKey(ctx context.Context, key string) error {
	_, err := s.LookupKey(ctx, key)
	return err
}

// LookupKey returns the entry of the service token with this Key, or ErrInvalid. It also finds a token during
// its last use, for the request that makes it. Batch tokens are found by the token only.
func (s *Store) LookupKey(ctx context.Context, key string) (*Entry, error) {
	e, err := s.entries.Get(ctx, record.IDKey(key), func(ctx context.Context) (*Entry, error) { return record.Get(ctx, s.store, key) })
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return nil, ErrInvalid
	case err != nil:
		return nil, err
	case !e.Valid(s.now()):
		return nil, ErrInvalid
	}
	return e, nil
}

// LookupAccessor returns the entry of the valid token with this accessor, or ErrInvalid.
func (s *Store) LookupAccessor(ctx context.Context, accessor string) (*Entry, error) {
	if accessor == "" || len(accessor) > secret.MaxBytes {
		return nil, ErrInvalid
	}
	id, err := s.name(ctx, secret.AccessorDomain, accessor)
	if err != nil {
		return nil, err
	}
	found, err := s.store.Get(ctx, record.AccessorKey(id))
	if errors.Is(err, storage.ErrNotFound) {
		return nil, ErrInvalid
	}
	if err != nil {
		return nil, err
	}
	ref, err := record.DecodeAccessor(found.Value)
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
	return s.accessorsWhere(ctx, func(ns string) bool { return s.Below(ctx, namespace, ns) })
}

// Count returns how many tokens are stored for a namespace and those below it. It reads them all.
func (s *Store) Count(ctx context.Context, namespace string) (int, error) {
	all, err := s.AccessorsBelow(ctx, namespace)
	return len(all), err
}

func (s *Store) accessorsWhere(ctx context.Context, wanted func(namespace string) bool) ([]string, error) {
	var out []string
	for e, err := range record.Scan(ctx, s.store, record.AccessorPrefix) {
		if err != nil {
			return nil, err
		}
		ref, err := record.DecodeAccessor(e.Value)
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
