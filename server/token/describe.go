package token

import (
	"context"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// Auth returns what a client gets to see of a token it is handed, without the policies of its entity.
func (s *Store) Auth(c Created) *engines.Auth {
	e := c.Entry
	return &engines.Auth{
		ClientToken: c.Token.Reveal(), Accessor: e.Accessor, Policies: e.Policies, TokenPolicies: e.Policies,
		Metadata: e.Meta, LeaseDuration: s.SecondsLeft(e), Renewable: e.Renewable, EntityID: e.EntityID,
		TokenType: e.Type, Orphan: e.Orphan(), NumUses: max(e.NumUses, 0), DisplayName: e.DisplayName,
	}
}

// AuthWithIdentity is Auth with the policies of the token's entity.
func (s *Store) AuthWithIdentity(ctx context.Context, c Created) (*engines.Auth, error) {
	a := s.Auth(c)
	identity, err := s.IdentityPolicies(ctx, c.Entry)
	if err != nil {
		return nil, err
	}
	if len(identity) > 0 {
		a.IdentityPolicies = identity
		a.Policies = NormalPolicies(slices.Concat(a.TokenPolicies, identity))
	}
	return a, nil
}

// IdentityPolicies returns the policies that a token has through its entity in its own namespace.
func (s *Store) IdentityPolicies(ctx context.Context, e *Entry) ([]string, error) {
	if e.EntityID == "" || s.opts.Identity == nil {
		return nil, nil
	}
	return s.opts.Identity.IdentityPolicies(ctx, e)
}

// SecondsLeft returns the rest of the token's lifetime, rounded to the nearest second; 0 if it never ends.
func (s *Store) SecondsLeft(e *Entry) int64 {
	if e.ExpiresAt.IsZero() {
		return 0
	}
	return int64(max(e.ExpiresAt.Sub(s.now()), 0).Round(time.Second) / time.Second)
}

// ExternalPolicies returns the policies that a token has through its entity in other namespaces, by namespace.
func (s *Store) ExternalPolicies(ctx context.Context, e *Entry) (map[string][]string, error) {
	if e.EntityID == "" || s.opts.Identity == nil {
		return nil, nil
	}
	return s.opts.Identity.ExternalPolicies(ctx, e)
}
