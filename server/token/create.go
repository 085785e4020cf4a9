package token

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Params say what a new token is like. The zero value of every field but Policies and Path is meaningful.
type Params struct {
	ID             string // the token itself; "" for a random one
	Parent         string // Key of the parent; "" for an orphan
	Policies       []string
	Path           string // of the request that asks for it
	Meta           map[string]string
	DisplayName    string
	NumUses        int           // 0: without limit
	TTL            time.Duration // 0: the default; with the root policy and no other limit: never expires
	MaxTTL         time.Duration // a limit below the system's; 0 is none
	ExplicitMaxTTL time.Duration // as MaxTTL, but later changes of the terms do not lift it
	Period         time.Duration // not 0: no maximum but ExplicitMaxTTL, each renewal gives this
	NotRenewable   bool
	EntityID       string
	Namespace      string // id; "" is "root"
	BoundCIDRs     []netip.Prefix
	Role           string
	// DefaultTTL and SystemMaxTTL replace the system's, for instance by those of the mount; 0 keeps them.
	DefaultTTL   time.Duration
	SystemMaxTTL time.Duration
}

// Created is a new token with everything to tell about it.
type Created struct {
	Token    engines.Sensitive
	Entry    *Entry
	Warnings []string
}

// Create stores a new token. ErrInvalid means that the parent is not, or no longer, a valid token without a
// limit of uses: as the parent is a precondition of the write, a token never survives the revocation of its
// parent. Anything wrong with p is an engines.Error of KindInvalid.
func (s *Store) Create(ctx context.Context, p Params) (Created, error) {
	now := s.now().Round(0)
	e := &Entry{
		Accessor: newAccessor(), Parent: p.Parent, Policies: NormalPolicies(p.Policies), Path: p.Path, Meta: p.Meta,
		DisplayName: p.DisplayName, NumUses: p.NumUses, MaxTTL: p.MaxTTL, ExplicitMaxTTL: p.ExplicitMaxTTL, Period: p.Period,
		CreatedAt: now, Renewable: !p.NotRenewable, Type: "service", EntityID: p.EntityID, Namespace: p.Namespace,
		BoundCIDRs: p.BoundCIDRs, Role: p.Role,
	}
	if e.Namespace == "" {
		e.Namespace = "root"
	}
	if err := check(e, p.ID); err != nil {
		return Created{}, err
	}
	warnings := s.limit(e, p)
	token := p.ID
	if token == "" {
		token = newToken()
	}
	var err error
	if e.Key, err = s.hash(ctx, tokenHash, token); err != nil {
		return Created{}, err
	}
	accessor, err := s.hash(ctx, accessorHash, e.Accessor)
	if err != nil {
		return Created{}, err
	}
	if err := s.insert(ctx, e, accessor); err != nil {
		return Created{}, err
	}
	return Created{Token: engines.Sensitive(token), Entry: e, Warnings: warnings}, nil
}

// CreateRoot creates a root token that never expires. id is the token itself; "" makes a random one.
func (s *Store) CreateRoot(ctx context.Context, id string) (engines.Sensitive, error) {
	c, err := s.Create(ctx, Params{ID: id, Policies: []string{rootPolicy}, Path: "auth/token/root", DisplayName: "root"})
	return c.Token, err
}

// insert writes the entry and all its index entries in one batch.
func (s *Store) insert(ctx context.Context, e *Entry, accessor string) error {
	for {
		_, err := storage.Update(ctx, s.store, func(t *storage.Txn) error {
			if e.Parent != "" {
				parent, err := get(ctx, t, e.Parent)
				switch {
				case errors.Is(err, storage.ErrNotFound):
					return ErrInvalid
				case err != nil:
					return err
				case !parent.valid(s.now()) || parent.NumUses != 0:
					return ErrInvalid
				}
				t.Put(childKey(e.Parent, e.Key), present)
			}
			if _, err := t.Get(ctx, idKey(e.Key)); err == nil {
				return engines.Invalid("cannot create a token with a duplicate ID")
			} else if !errors.Is(err, storage.ErrNotFound) {
				return err
			}
			put(t, e, time.Time{})
			t.Put(accessorKey(accessor), accessorRef{Accessor: e.Accessor, Token: e.Key}.encode())
			return nil
		})
		if !errors.Is(err, storage.ErrConflict) || ctx.Err() != nil {
			return err
		}
	}
}

// Limits of what a token may carry.
const (
	maxPolicies    = 256
	maxPolicyBytes = 512
	maxMeta        = 64
	maxMetaKey     = 128
	maxMetaValue   = 512
	maxNameBytes   = 512
)

// check reports what is wrong with a token that is to be created.
func check(e *Entry, id string) error {
	switch {
	case len(e.Policies) > maxPolicies:
		return engines.Invalid("a token has at most %d policies", maxPolicies)
	case slices.ContainsFunc(e.Policies, func(p string) bool { return len(p) > maxPolicyBytes }):
		return engines.Invalid("a policy name is longer than %d bytes", maxPolicyBytes)
	case e.Root() && e.Namespace != "root":
		return engines.Invalid("root tokens may not be created outside the root namespace")
	case len(e.Meta) > maxMeta:
		return engines.Invalid("a token has at most %d entries of metadata", maxMeta)
	case len(e.DisplayName) > maxNameBytes:
		return engines.Invalid("the display name is longer than %d bytes", maxNameBytes)
	case e.NumUses < 0:
		return engines.Invalid("number of uses cannot be negative")
	case e.Period < 0 || e.ExplicitMaxTTL < 0 || e.MaxTTL < 0:
		return engines.Invalid("durations cannot be negative")
	}
	for k, v := range e.Meta {
		if len(k) > maxMetaKey || len(v) > maxMetaValue {
			return engines.Invalid("keys of metadata have at most %d bytes, values %d", maxMetaKey, maxMetaValue)
		}
	}
	return checkID(id)
}

// checkID refuses custom tokens that do not travel in a header, or look like those the server makes.
func checkID(id string) error {
	switch {
	case len(id) > maxTokenBytes:
		return engines.Invalid("a custom token ID is longer than %d bytes", maxTokenBytes)
	case strings.ContainsFunc(id, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsGraphic(r) || r == ' ' }):
		return engines.Invalid("a custom token ID must be printable ASCII without spaces")
	case strings.Contains(id, "."):
		return engines.Invalid("a custom token ID cannot contain a dot")
	}
	return nil
}

// limit sets how long a new token lives.
func (s *Store) limit(e *Entry, p Params) (warnings []string) {
	if e.Root() && p.TTL == 0 && e.Period == 0 {
		if e.ExplicitMaxTTL == 0 {
			e.Renewable = false // there is nothing to renew
			return nil
		}
		p.TTL = e.ExplicitMaxTTL
	}
	terms := Terms{TTL: p.TTL, MaxTTL: e.MaxTTL, Period: e.Period, DefaultTTL: p.DefaultTTL, SystemMaxTTL: p.SystemMaxTTL}
	ttl, warnings := s.lifetime(terms, e.ExplicitMaxTTL, 0, e.CreatedAt, e.CreatedAt)
	e.TTL, e.ExpiresAt = ttl, e.CreatedAt.Add(ttl)
	return warnings
}

// Terms govern how long a token lives after it is created or renewed.
type Terms struct {
	TTL          time.Duration // 0: the default
	MaxTTL       time.Duration // counted from the creation; 0: the system's
	Period       time.Duration // see Params
	DefaultTTL   time.Duration // see Params
	SystemMaxTTL time.Duration
}

// maxLifetime keeps times of expiry within what the expiry index can order.
const maxLifetime = 100 * 365 * 24 * time.Hour

// lifetime returns how long a token lives from now on; 0 or less when its maximum is reached. increment is
// what the client asks for, 0 for nothing in particular.
func (s *Store) lifetime(t Terms, explicitMax, increment time.Duration, created, now time.Time) (ttl time.Duration, warnings []string) {
	most := t.SystemMaxTTL
	if most == 0 {
		most = s.opts.MaxTTL
	}
	most = min(most, maxLifetime)
	for _, limit := range []time.Duration{t.MaxTTL, explicitMax} {
		if limit > 0 {
			most = min(most, limit)
		}
	}
	switch {
	case t.Period > 0:
		if ttl = t.Period; ttl > most {
			warnings = append(warnings, fmt.Sprintf("period of %q exceeded the effective max_ttl of %q; period value is capped accordingly", ttl, most))
			ttl = most
		}
		if explicitMax == 0 {
			return ttl, warnings
		}
		most = explicitMax
	case increment > 0:
		ttl = increment
	case t.TTL > 0:
		ttl = t.TTL
	case t.DefaultTTL > 0:
		ttl = t.DefaultTTL
	default:
		ttl = s.opts.DefaultTTL
	}
	if left := created.Add(most).Sub(now); ttl > left {
		warnings = append(warnings, fmt.Sprintf("TTL of %q exceeded the effective max_ttl of %q; TTL value is capped accordingly", ttl, left))
		ttl = left
	}
	return ttl, warnings
}

// Renew gives a token its next lifetime, counted from now; increment is what the client asks for, 0 for
// nothing in particular. ErrInvalid means that there is no such valid token; a token that cannot be renewed
// is an engines.Error of KindInvalid.
func (s *Store) Renew(ctx context.Context, key string, increment time.Duration) (Created, error) {
	current, err := s.LookupKey(ctx, key)
	if err != nil {
		return Created{}, err
	}
	terms := Terms{TTL: current.TTL, MaxTTL: current.MaxTTL, Period: current.Period}
	if s.opts.RenewTerms != nil {
		if terms, err = s.opts.RenewTerms(ctx, current); err != nil {
			return Created{}, err
		}
	}
	var warnings []string
	e, err := s.change(ctx, key, func(e *Entry) error {
		now := s.now().Round(0)
		switch {
		case !e.valid(now):
			return ErrInvalid
		case !e.Renewable || e.NumUses < 0:
			return engines.Invalid("token is not renewable")
		}
		var ttl time.Duration
		if ttl, warnings = s.lifetime(terms, e.ExplicitMaxTTL, increment, e.CreatedAt, now); ttl <= 0 {
			return engines.Invalid("past the max TTL, cannot renew")
		}
		e.ExpiresAt, e.RenewedAt = now.Add(ttl), now
		return nil
	})
	return Created{Entry: e, Warnings: warnings}, err
}

// NormalPolicies returns policy names as tokens carry them: trimmed, lower case, sorted, each once; nothing
// but root if root is among them. It is never nil.
func NormalPolicies(names []string) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		if n = strings.ToLower(strings.TrimSpace(n)); n != "" {
			out = append(out, n)
		}
	}
	if slices.Contains(out, rootPolicy) {
		return []string{rootPolicy}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
