package token

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token/record"
	"github.com/coffer-project/coffer/server/token/role"
)

// CreateLogin makes the token of a successful login. m is the auth mount, mountType the token type in its
// settings ("default-service", "default-batch", or "service" or "batch", which its roles cannot change; "" is
// default-service), path that of the request, relative to the namespace. The error of a role that asks for
// something no token has is an engines.Error of KindInvalid.
func (s *Store) CreateLogin(ctx context.Context, m engines.Mount, mountType, path string, l engines.Login, entityID string) (Created, error) {
	f := l.Token
	policies := NormalPolicies(f.TokenPolicies)
	for _, never := range []string{RootPolicy, wrappingPolicy} {
		if slices.Contains(policies, never) {
			return Created{}, engines.Invalid("auth methods cannot create tokens with the policy %q: take it from the token_policies of the role", never)
		}
	}
	if !f.TokenNoDefaultPolicy {
		policies = append(policies, DefaultPolicy)
	}
	cidrs, err := role.Networks("token_bound_cidrs", f.TokenBoundCIDRs)
	if err != nil {
		return Created{}, err
	}
	p := Params{
		Type: loginType(mountType, f.TokenType), Policies: policies, Path: path, Meta: l.Metadata, DisplayName: loginName(m, l.DisplayName),
		NumUses: f.TokenNumUses, ExplicitMaxTTL: time.Duration(f.TokenExplicitMaxTTL), NotRenewable: l.NotRenewable,
		EntityID: entityID, Namespace: m.NamespaceID, BoundCIDRs: cidrs, Mount: m.UUID, Role: l.Role, Internal: l.Internal,
	}
	terms := TermsOf(m, f)
	p.TTL, p.MaxTTL, p.Period, p.DefaultTTL, p.SystemMaxTTL = terms.TTL, terms.MaxTTL, terms.Period, terms.DefaultTTL, terms.SystemMaxTTL
	if p.Type == typeBatch && (p.NumUses != 0 || p.Period != 0) {
		return Created{}, engines.Invalid("batch tokens have neither token_num_uses nor token_period: take these from the role, or change the token_type of the role or the mount")
	}
	return s.Create(ctx, p)
}

// loginType returns the type of a login's token.
func loginType(mount, role string) string {
	if mount == typeService || mount == typeBatch {
		return mount
	}
	switch role {
	case typeService, "default-service":
		return typeService
	case typeBatch, "default-batch":
		return typeBatch
	}
	if mount == "default-batch" {
		return typeBatch
	}
	return typeService
}

// loginName is where a user logged in and under which name: "userpass-bob", or "team-ldap-bob" for a mount at
// team/ldap.
func loginName(m engines.Mount, name string) string {
	where := strings.TrimSuffix(strings.TrimPrefix(m.Path, "auth/"), "/")
	full := strings.ReplaceAll(where, "/", "-") + "-" + name
	if len(full) > record.MaxNameBytes {
		full = strings.ToValidUTF8(full[:record.MaxNameBytes], "")
	}
	return strings.Trim(full, "-")
}
