// Package role keeps token roles: what tokens are like that are made by a role, and what the callers that make them may ask for.
//
// It promises that a role which is stored makes sense. Roles are configuration, so they are stored where policies
// are, not with the tokens. The paths that manage them are in package api beside this one, and so is what a role does to a request for a
// token. Start reading at Role, then Store.
package role

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/storage"
)

// The types of tokens.
const (
	TypeService = "service"
	TypeBatch   = "batch"
)

// wrappingPolicy is that of wrapping tokens, which only the server makes.
const wrappingPolicy = "response-wrapping"

// Role is one token role, as it is stored.
type Role struct {
	Format                 int            `json:"format"` // 1
	Name                   string         `json:"name"`
	AllowedPolicies        []string       `json:"allowed_policies,omitempty"`
	AllowedPoliciesGlob    []string       `json:"allowed_policies_glob,omitempty"`
	DisallowedPolicies     []string       `json:"disallowed_policies,omitempty"`
	DisallowedPoliciesGlob []string       `json:"disallowed_policies_glob,omitempty"`
	AllowedEntityAliases   []string       `json:"allowed_entity_aliases,omitempty"` // globs
	Orphan                 bool           `json:"orphan,omitempty"`
	Renewable              bool           `json:"renewable,omitempty"`
	PathSuffix             string         `json:"path_suffix,omitempty"`
	BoundCIDRs             []netip.Prefix `json:"bound_cidrs,omitempty"`
	Period                 time.Duration  `json:"period,omitempty"`
	ExplicitMaxTTL         time.Duration  `json:"explicit_max_ttl,omitempty"`
	NumUses                int            `json:"num_uses,omitempty"`
	NoDefaultPolicy        bool           `json:"no_default_policy,omitempty"`
	Type                   string         `json:"type"` // "service", "batch", "default-service" or "default-batch"
}

// Store keeps the roles of all namespaces. Safe for concurrent use.
type Store struct{ store storage.Store }

// NewStore returns a Store over the decrypted store.
func NewStore(s storage.Store) *Store { return &Store{s} }

func folder(namespace string) storage.Key {
	return storage.Key("s/sys/" + namespace + "/token-roles/")
}

// Get returns a role that belongs to the caller, or storage.ErrNotFound.
func (s *Store) Get(ctx context.Context, namespace, name string) (*Role, error) {
	return get(ctx, s.store, namespace, name)
}

func get(ctx context.Context, from interface {
	Get(context.Context, storage.Key) (storage.Entry, error)
}, namespace, name string) (*Role, error) {
	if !roleName().MatchString(name) {
		return nil, storage.ErrNotFound
	}
	e, err := from.Get(ctx, folder(namespace)+storage.Key(name))
	if err != nil {
		return nil, err
	}
	r := new(Role)
	if err := json.Unmarshal(e.Value, r); err != nil || r.Format != 1 {
		return nil, errors.New("a stored token role has an unknown format")
	}
	return r, nil
}

// List returns the sorted names of at most limit roles after a name; 0 is all.
func (s *Store) List(ctx context.Context, namespace, after string, limit int) ([]string, error) {
	return s.store.List(ctx, folder(namespace), after, limit)
}

// Delete removes a role; one that is not there is fine.
func (s *Store) Delete(ctx context.Context, namespace, name string) error {
	if !roleName().MatchString(name) {
		return nil // there can be none
	}
	_, err := s.store.Commit(ctx, storage.Batch{Deletes: []storage.Key{folder(namespace) + storage.Key(name)}})
	return err
}

// Change runs fn on the stored role, or on a new one, and stores what it made of it, if it makes sense.
func (s *Store) Change(ctx context.Context, namespace, name string, fn func(*Role)) error {
	if !roleName().MatchString(name) {
		return engines.Invalid("field \"role_name\": must be at most 256 letters, digits, dots, dashes and underscores, and begin and end with a letter, digit or underscore")
	}
	_, err := storage.Update(ctx, s.store, func(t *storage.Txn) error {
		r, err := get(ctx, t, namespace, name)
		if errors.Is(err, storage.ErrNotFound) {
			r, err = &Role{Name: name, Renewable: true, Type: "default-service"}, nil
		}
		if err != nil {
			return err
		}
		fn(r)
		if err := r.check(); err != nil {
			return err
		}
		r.Format = 1
		value, err := json.Marshal(r)
		if err != nil {
			return err
		}
		t.Put(folder(namespace)+storage.Key(name), value)
		return nil
	})
	return err
}

var (
	roleName   = engines.Pattern(`^\w([\w.-]{0,254}\w)?$`)
	pathSuffix = engines.Pattern(`^(\w([\w.-]{0,126}\w)?)?$`)
)

// check reports what is wrong with a role that is to be stored.
func (r *Role) check() error {
	switch {
	case slices.Contains(r.AllowedPolicies, wrappingPolicy):
		return engines.Invalid("field \"allowed_policies\": cannot assign policy %q", wrappingPolicy)
	case !pathSuffix().MatchString(r.PathSuffix):
		return engines.Invalid("field \"path_suffix\": must be at most 128 letters, digits, dots, dashes and underscores, and begin and end with a letter, digit or underscore")
	case r.NumUses < 0:
		return engines.Invalid("field \"token_num_uses\": must not be negative")
	case r.Type != TypeBatch:
		return nil
	case !r.Orphan:
		return engines.Invalid("field \"token_type\": batch needs orphan=true")
	case r.Renewable:
		return engines.Invalid("field \"token_type\": batch needs renewable=false, as batch tokens cannot be renewed")
	case r.Period > 0:
		return engines.Invalid("field \"token_type\": batch needs token_period=0, as batch tokens cannot be periodic")
	case r.ExplicitMaxTTL > 0:
		return engines.Invalid("field \"token_type\": batch needs token_explicit_max_ttl=0: ask for a ttl instead")
	case r.NumUses > 0:
		return engines.Invalid("field \"token_type\": batch needs token_num_uses=0, as nothing counts the uses of batch tokens")
	}
	return nil
}

// Restricts reports whether the role says which policies its tokens may have. If it does, they need not be a
// part of their creator's.
func (r *Role) Restricts() bool {
	return len(r.AllowedPolicies)+len(r.AllowedPoliciesGlob)+len(r.DisallowedPolicies)+len(r.DisallowedPoliciesGlob) > 0
}

// Allows reports whether the role names the policy as allowed, or none at all.
func (r *Role) Allows(policy string) bool {
	if len(r.AllowedPolicies)+len(r.AllowedPoliciesGlob) == 0 {
		return true
	}
	return slices.Contains(r.AllowedPolicies, policy) || matchesAny(r.AllowedPoliciesGlob, policy)
}

// AllowsAlias reports whether tokens may be made for an entity alias of this name.
func (r *Role) AllowsAlias(name string) bool {
	return matchesAny(r.AllowedEntityAliases, strings.ToLower(name))
}

// Disallows reports whether the role names the policy as one that its tokens may not have.
func (r *Role) Disallows(policy string) bool {
	return slices.Contains(r.DisallowedPolicies, policy) || matchesAny(r.DisallowedPoliciesGlob, policy)
}

// PeriodOf returns the period of a token of which asked was asked for: the smaller one, or the only one.
func (r *Role) PeriodOf(asked time.Duration) time.Duration { return Lesser(r.Period, asked) }

// TypeOf returns the type of a token of which asked ("" for nothing in particular) was asked for.
func (r *Role) TypeOf(asked string) string {
	switch {
	case r.Type == TypeService || r.Type == TypeBatch:
		return r.Type
	case asked != "":
		return asked
	case r.Type == "default-batch":
		return TypeBatch
	}
	return TypeService
}

// Lesser returns the smaller of two limits, where 0 is none.
func Lesser[T int | time.Duration](a, b T) T {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

func matchesAny(globs []string, text string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool { return matches(glob, text) })
}

// matches reports whether text fits a glob, in which each "*" stands for any text, also none.
func matches(glob, text string) bool {
	parts := strings.Split(glob, "*")
	if len(parts) == 1 {
		return glob == text
	}
	last := len(parts) - 1
	text, ok := strings.CutPrefix(text, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1:last] {
		if _, text, ok = strings.Cut(text, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(text, parts[last])
}

// Narrow returns the networks that two lists have in common, where an empty list is everywhere. ok is false if
// they have nothing in common.
func Narrow(a, b []netip.Prefix) (common []netip.Prefix, ok bool) {
	if len(a) == 0 || len(b) == 0 {
		return append(slices.Clone(a), b...), true
	}
	for _, p := range a {
		for _, q := range b {
			smaller := p
			if q.Bits() > p.Bits() {
				smaller = q
			}
			if p.Overlaps(q) && !slices.Contains(common, smaller) {
				common = append(common, smaller)
			}
		}
	}
	return common, len(common) > 0
}

// Networks reads addresses and networks.
func Networks(field string, texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		network, err := input.ParseNetwork(text)
		if err != nil {
			return nil, engines.Invalid("field %q: must be a list of addresses or networks such as \"10.0.0.0/8\"", field)
		}
		out = append(out, network)
	}
	return out, nil
}
