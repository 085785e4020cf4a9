package token

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/coffer-project/coffer/server/token/record"
	"github.com/coffer-project/coffer/server/token/secret"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Params say what a new token is like. The zero value of every field but Policies and Path is meaningful.
type Params struct {
	ID             string // the token itself; "" for a random one
	Type           string // "service", or "" for it, or "batch"
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
	AskedPeriod    time.Duration // see Entry
	NotRenewable   bool
	EntityID       string
	Namespace      string // id; "" is "root"
	BoundCIDRs     []netip.Prefix
	Mount          string          // see Entry
	Role           string          // see Entry
	Internal       json.RawMessage // see Entry
	// DefaultTTL and SystemMaxTTL replace the system's, for instance by those of the mount; 0 keeps them.
	DefaultTTL   time.Duration
	SystemMaxTTL time.Duration
	// Also returns what is written in the same transaction as the token, for instance a wrapped response; nil is
	// nothing. It is called once, and not for batch tokens, which write nothing: they cannot have it.
	Also func(tokenKey string) []storage.Put
	// Bytes is the size of that, for quotas.
	Bytes int64
}

// Created is a new token with everything to tell about it.
type Created struct {
	Token    engines.Sensitive
	Entry    *Entry
	Warnings []string
}

// Create makes a new token, and stores it unless it is a batch token. ErrInvalid means that the parent is not,
// or no longer, a valid service token without a limit of uses: as the parent is a precondition of the write, a
// token never survives the revocation of its parent. Anything wrong with p is an engines.Error of KindInvalid.
func (s *Store) Create(ctx context.Context, p Params) (Created, error) {
	e := s.entry(p)
	if err := check(e, p); err != nil {
		return Created{}, err
	}
	warnings := s.limit(e, p)
	var token string
	var err error
	if e.Batch() {
		token, err = s.createBatch(ctx, e)
	} else if err = s.admit(ctx, e); err == nil {
		token, err = s.createService(ctx, e, p)
	}
	if err != nil {
		return Created{}, err
	}
	return Created{Token: engines.Sensitive(token), Entry: e, Warnings: warnings}, nil
}

func (s *Store) admit(ctx context.Context, e *Entry) error {
	if s.opts.Quotas == nil || e.Root() {
		return nil
	}
	return s.opts.Quotas.AdmitToken(ctx, e.Namespace, e.Path, e.Role, e.Bytes)
}

// entry returns what p says, without a Key and a lifetime.
func (s *Store) entry(p Params) *Entry {
	e := &Entry{
		Parent: p.Parent, Policies: NormalPolicies(p.Policies), Path: p.Path, Meta: p.Meta, DisplayName: p.DisplayName,
		NumUses: p.NumUses, MaxTTL: p.MaxTTL, ExplicitMaxTTL: p.ExplicitMaxTTL, Period: p.Period, AskedPeriod: p.AskedPeriod,
		CreatedAt: s.now().Round(0), Renewable: !p.NotRenewable, Type: p.Type, EntityID: p.EntityID, Namespace: p.Namespace,
		BoundCIDRs: p.BoundCIDRs, Mount: p.Mount, Role: p.Role, Internal: p.Internal, Bytes: p.Bytes,
	}
	if e.Namespace == "" {
		e.Namespace = RootNamespace
	}
	switch e.Type {
	case typeBatch:
		e.Renewable, e.Internal = false, nil // which only renewals need
	case "":
		e.Type = typeService
		fallthrough
	default:
		e.Accessor = secret.NewAccessor(e.Namespace, s.prefixTime(e))
	}
	return e
}

func (s *Store) createService(ctx context.Context, e *Entry, p Params) (token string, err error) {
	if token = p.ID; token == "" {
		token = secret.NewToken(e.Namespace, s.prefixTime(e))
	}
	if e.Key, err = s.name(ctx, secret.TokenDomain, token); err != nil {
		return "", err
	}
	accessor, err := s.name(ctx, secret.AccessorDomain, e.Accessor)
	if err != nil {
		return "", err
	}
	var also []storage.Put
	if p.Also != nil {
		also = p.Also(e.Key)
	}
	if err := s.insert(ctx, e, accessor, p.ID != "", also); err != nil {
		s.tally.Doubt(err, s.now())
		return "", err
	}
	s.created.Add(1)
	s.tally.Add(e, 1)
	return token, nil
}

// prefixTime returns the time that a token and its accessor begin with; zero: none. Root tokens have none, as they are to have the length of a
// one-time password.
func (s *Store) prefixTime(e *Entry) time.Time {
	if e.Root() {
		return time.Time{}
	}
	if !s.agreed.Load() && s.opts.Members != nil {
		if !s.opts.Members.FormatsAgreed() {
			return time.Time{}
		}
		s.agreed.Store(true)
	}
	return e.CreatedAt
}

// CreateRoot creates a root token that never expires. id is the token itself; "" makes a random one.
func (s *Store) CreateRoot(ctx context.Context, id string) (engines.Sensitive, error) {
	c, err := s.Create(ctx, Params{ID: id, Policies: []string{RootPolicy}, Path: "auth/token/root", DisplayName: "root"})
	return c.Token, err
}

// insert writes the entry, all its index entries and what goes with it in one batch. given: the creator chose the text, so that it may exist.
func (s *Store) insert(ctx context.Context, e *Entry, accessor string, given bool, also []storage.Put) error {
	for {
		_, err := storage.Update(ctx, s.store, func(t *storage.Txn) error {
			if e.Parent != "" {
				parent, err := s.LookupKey(ctx, e.Parent)
				switch {
				case err != nil:
					return err
				case parent.NumUses != 0:
					return ErrInvalid
				}
				t.Expect(record.IDKey(e.Parent), parent.Version)
				t.Put(record.ChildKey(e.Parent, e.Key), record.Present)
			}
			if given {
				if _, err := t.Get(ctx, record.IDKey(e.Key)); err == nil {
					return engines.Invalid("cannot create a token with a duplicate ID")
				} else if !errors.Is(err, storage.ErrNotFound) {
					return err
				}
			}
			record.Put(t, e, time.Time{})
			t.Put(record.AccessorKey(accessor), e.Ref().Encode())
			for _, p := range also {
				t.Put(p.Key, p.Value)
			}
			return nil
		})
		if !errors.Is(err, storage.ErrConflict) || ctx.Err() != nil {
			return err
		}
	}
}

// check reports what is wrong with a token that is to be created.
func check(e *Entry, p Params) error {
	switch {
	case e.Type != typeService && e.Type != typeBatch:
		return engines.Invalid("field \"type\": must be \"service\" or \"batch\"")
	case e.Batch():
		if err := checkBatch(e, p); err != nil {
			return err
		}
	}
	if err := e.Check(); err != nil {
		return err
	}
	return checkID(p.ID)
}

// checkID refuses custom tokens that do not travel in a header, or look like those the server makes.
func checkID(id string) error {
	switch {
	case len(id) > secret.MaxBytes:
		return engines.Invalid("a custom token ID is longer than %d bytes", secret.MaxBytes)
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

// NormalPolicies returns policy names as tokens carry them: trimmed, lower case, sorted, each once; nothing
// but root if root is among them. It is never nil.
func NormalPolicies(names []string) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		if n = strings.ToLower(strings.TrimSpace(n)); n != "" {
			out = append(out, n)
		}
	}
	if slices.Contains(out, RootPolicy) {
		return []string{RootPolicy}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
