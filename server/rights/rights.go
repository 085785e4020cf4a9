// Package rights says what a token may do: by its own policies, and by those of the entity it belongs to and of the entity's groups, in
// whatever namespace they are. Nothing is kept: a change of any of them counts from the next request on. Start reading at Rights.Of.
package rights

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

// Rights looks them up.
type Rights struct {
	Policies   *policy.Store
	Identity   *identity.Store
	Namespaces *namespace.Store
	Tokens     *token.Store
}

// Policies returns the policies that a token has in its own namespace.
func Policies(entry *token.Entry, who *identity.Effective) []string {
	if who == nil || len(who.Policies[entry.Namespace]) == 0 {
		return entry.Policies
	}
	all := slices.Concat(entry.Policies, who.Policies[entry.Namespace])
	slices.Sort(all)
	return slices.Compact(all)
}

// IdentityPolicies returns the policies that a token has through its entity in its own namespace.
func (r *Rights) IdentityPolicies(ctx context.Context, entry *token.Entry) ([]string, error) {
	who, err := r.entity(ctx, entry)
	if err != nil || who == nil {
		return nil, err
	}
	return who.Policies[entry.Namespace], nil
}

// ExternalPolicies returns those that it has through its entity and groups of other namespaces, by namespace id.
func (r *Rights) ExternalPolicies(ctx context.Context, entry *token.Entry) (map[string][]string, error) {
	who, err := r.entity(ctx, entry)
	if err != nil || who == nil {
		return nil, err
	}
	return PoliciesElsewhere(entry, who), nil
}

// entity returns the entity of a token; nil if it is gone.
func (r *Rights) entity(ctx context.Context, entry *token.Entry) (*identity.Effective, error) {
	who, err := r.Identity.Effective(ctx, entry.EntityID, entry.Namespace)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	return who, err
}

// PoliciesElsewhere returns those that a token has through its entity and groups of other namespaces, by namespace id.
func PoliciesElsewhere(entry *token.Entry, who *identity.Effective) map[string][]string {
	out := map[string][]string{}
	for ns, names := range who.Policies {
		if ns != entry.Namespace {
			out[ns] = names
		}
	}
	return out
}

// Of returns the entity that a token belongs to, nil if it has none, and what the token may do in the namespace with
// the id ns, looking from root. A token whose entity is gone or disabled may do nothing.
func (r *Rights) Of(ctx context.Context, entry *token.Entry, ns string) (*identity.Effective, *policy.ACL, error) {
	if entry.EntityID == "" {
		scope, ok := r.scope(ctx, entry.Namespace, entry.Policies)
		if !ok {
			return nil, nil, engines.Denied(errors.New("the token's namespace is gone"))
		}
		acl, err := r.Policies.ACL(ctx, nil, scope)
		return nil, acl, err
	}
	who, err := r.Identity.Effective(ctx, entry.EntityID, ns)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return nil, nil, engines.Denied(errors.New("the token's entity is gone"))
	case err != nil:
		return nil, nil, err
	case who.Entity.Disabled:
		return nil, nil, engines.Denied(errors.New("the token's entity is disabled"))
	}
	own, ok := r.scope(ctx, entry.Namespace, Policies(entry, who))
	if !ok {
		return nil, nil, engines.Denied(errors.New("the token's namespace is gone"))
	}
	scopes := []policy.Scope{own}
	for in, names := range who.Policies {
		if in == entry.Namespace {
			continue
		}
		if scope, ok := r.scope(ctx, in, names); ok {
			scopes = append(scopes, scope)
		}
	}
	slices.SortFunc(scopes, func(a, b policy.Scope) int { return cmp.Compare(a.Path, b.Path) })
	acl, err := r.Policies.ACL(ctx, subject{who}, scopes...)
	return who, acl, err
}

// subject is the entity that templates are filled for.
type subject struct{ *identity.Effective }

// Tag implements policy.Subject.
func (s subject) Tag() string { return s.Effective.Tag }

// scope places policies in their namespace; false if that is gone.
func (r *Rights) scope(ctx context.Context, ns string, names []string) (policy.Scope, bool) {
	if ns == namespace.RootID {
		return policy.Scope{Namespace: ns, Names: names}, true
	}
	n, err := r.Namespaces.ByID(ctx, ns)
	if err != nil || n == nil {
		return policy.Scope{}, false
	}
	return policy.Scope{Namespace: ns, Path: n.Path, Names: names}, true
}

// In returns what a token may do in a namespace, looking from there.
func (r *Rights) In(ctx context.Context, entry *token.Entry, ns string) (*policy.ACL, error) {
	_, acl, err := r.Of(ctx, entry, ns)
	if err != nil {
		return nil, err
	}
	if ns == namespace.RootID {
		return acl, nil
	}
	return acl.In(r.Namespaces.Path(ns)), nil
}

// MayEnter reports whether a caller may do anything in a namespace. Groups there count, too.
func (r *Rights) MayEnter(ctx context.Context, c engines.Caller, n *namespace.Namespace) (bool, error) {
	entry, err := r.Tokens.Lookup(ctx, c.Token.Reveal())
	if err != nil {
		return false, err
	}
	acl, err := r.In(ctx, entry, n.ID)
	return err == nil && acl.AnyUnder(""), err
}
