package token

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// Auth returns what a client gets to see of a token it is handed, without the policies of its entity.
func (s *Store) Auth(c Created) *engines.Auth {
	e := c.Entry
	return &engines.Auth{
		ClientToken: c.Token.Reveal(), Accessor: e.Accessor, Policies: e.Policies, TokenPolicies: e.Policies,
		Metadata: e.Meta, LeaseDuration: s.secondsLeft(e), Renewable: e.Renewable, EntityID: e.EntityID,
		TokenType: e.Type, Orphan: e.Orphan(), NumUses: max(e.NumUses, 0), DisplayName: e.DisplayName,
	}
}

// AuthWithIdentity is Auth with the policies of the token's entity.
func (s *Store) AuthWithIdentity(ctx context.Context, c Created) (*engines.Auth, error) {
	a := s.Auth(c)
	identity, err := s.identityPolicies(ctx, c.Entry)
	if err != nil {
		return nil, err
	}
	if len(identity) > 0 {
		a.IdentityPolicies = identity
		a.Policies = NormalPolicies(append(list(a.TokenPolicies), identity...))
	}
	return a, nil
}

func (s *Store) identityPolicies(ctx context.Context, e *Entry) ([]string, error) {
	if e.EntityID == "" || s.opts.IdentityPolicies == nil {
		return nil, nil
	}
	return s.opts.IdentityPolicies(ctx, e)
}

// secondsLeft returns the rest of the token's lifetime, rounded to the nearest second; 0 if it never ends.
func (s *Store) secondsLeft(e *Entry) int64 {
	if e.ExpiresAt.IsZero() {
		return 0
	}
	return int64(max(e.ExpiresAt.Sub(s.now()), 0).Round(time.Second) / time.Second)
}

// describe returns what the lookup paths answer. token is "" when the caller knows only the accessor.
func (s *Store) describe(ctx context.Context, entry *Entry, token engines.Sensitive) (*engines.Response, error) {
	data := map[string]any{
		"accessor":         entry.Accessor,
		"creation_time":    entry.CreatedAt.Unix(),
		"creation_ttl":     seconds(entry.TTL),
		"display_name":     entry.DisplayName,
		"entity_id":        entry.EntityID,
		"expire_time":      nil,
		"explicit_max_ttl": seconds(entry.ExplicitMaxTTL),
		"id":               token.Reveal(),
		"issue_time":       entry.CreatedAt.UTC().Format(time.RFC3339Nano),
		"meta":             nil,
		"num_uses":         max(entry.NumUses, 0),
		"orphan":           entry.Orphan(),
		"path":             entry.Path,
		"policies":         entry.Policies,
		"renewable":        entry.Renewable,
		"ttl":              s.secondsLeft(entry),
		"type":             entry.Type,
		"namespace_path":   "",
	}
	if s.opts.NamespacePath != nil {
		data["namespace_path"] = s.opts.NamespacePath(entry.Namespace)
	}
	if !entry.ExpiresAt.IsZero() {
		data["expire_time"] = entry.ExpiresAt.UTC().Format(time.RFC3339Nano)
	}
	if len(entry.Meta) > 0 {
		data["meta"] = entry.Meta
	}
	if entry.Period > 0 {
		data["period"] = seconds(entry.Period)
	}
	if entry.Role != "" && entry.Mount == "" { // what an auth mount calls its role is for that mount only
		data["role"] = entry.Role
	}
	if len(entry.BoundCIDRs) > 0 {
		data["bound_cidrs"] = entry.BoundCIDRs
	}
	if !entry.RenewedAt.IsZero() {
		data["last_renewal"] = entry.RenewedAt.UTC().Format(time.RFC3339Nano)
		data["last_renewal_time"] = entry.RenewedAt.Unix()
	}
	if entry.EntityID == "" {
		return &engines.Response{Data: data}, nil
	}
	identity, err := s.identityPolicies(ctx, entry)
	if err != nil {
		return nil, err
	}
	var external map[string][]string
	if s.opts.ExternalPolicies != nil {
		if external, err = s.opts.ExternalPolicies(ctx, entry); err != nil {
			return nil, err
		}
	}
	if external == nil {
		external = map[string][]string{}
	}
	data["identity_policies"], data["external_namespace_policies"] = list(identity), external
	return &engines.Response{Data: data}, nil
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }
