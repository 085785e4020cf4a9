package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/server/token/role"
	"github.com/coffer-project/coffer/storage"
)

type createInput struct {
	ID              engines.Sensitive  `json:"id" help:"The token to create, instead of a random one. Needs sudo."`
	Policies        engines.StringList `json:"policies" form:"name" max:"1024" help:"Policies of the token; those of the caller if the field is absent."`
	Meta            engines.StringMap  `json:"meta" max:"64" help:"Texts for the audit log."`
	NoParent        bool               `json:"no_parent" help:"Make the token an orphan. Needs sudo."`
	NoDefaultPolicy bool               `json:"no_default_policy" help:"Leave the default policy out."`
	Renewable       bool               `json:"renewable" default:"true" help:"Whether the token can be renewed."`
	TTL             engines.Duration   `json:"ttl" help:"Lifetime; 0 is the default."`
	Lease           engines.Duration   `json:"lease" alias:"ttl" help:"Older name of ttl."`
	ExplicitMaxTTL  engines.Duration   `json:"explicit_max_ttl" help:"A limit of the lifetime that nothing lifts; 0 is none."`
	DisplayName     string             `json:"display_name" max:"256" help:"Name of the token in the audit log; \"token-\" is put before it."`
	NumUses         int                `json:"num_uses" help:"How often the token can be used; 0 is without limit."`
	Period          engines.Duration   `json:"period" help:"If set, the token has no maximum lifetime and each renewal gives it this one. Needs sudo."`
	Type            string             `json:"type" enum:"service,batch,default" help:"Kind of token."`
	EntityAlias     string             `json:"entity_alias" form:"lower" help:"Name of the entity alias to create the token for. Needs a role that allows it."`
}

type createByRoleInput struct {
	roleNameInput
	createInput
}

func (e *Engine) createByRole(ctx context.Context, req *engines.Request, in *createByRoleInput) (*engines.Response, error) {
	r, err := e.roles.Get(ctx, namespace(req), in.Role)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, engines.Invalid("unknown token role: see auth/token/roles for those there are")
	}
	if err != nil {
		return nil, err
	}
	return e.issue(ctx, req, &in.createInput, r, r.Orphan)
}

func (e *Engine) create(ctx context.Context, req *engines.Request, in *createInput) (*engines.Response, error) {
	return e.issue(ctx, req, in, nil, in.NoParent)
}

func (e *Engine) createOrphan(ctx context.Context, req *engines.Request, in *createInput) (*engines.Response, error) {
	return e.issue(ctx, req, in, nil, true)
}

// issue creates a token on behalf of the caller, by a role unless it is nil.
func (e *Engine) issue(ctx context.Context, req *engines.Request, in *createInput, r *role.Role, orphan bool) (*engines.Response, error) {
	parent, err := e.callers(ctx, req)
	if errors.Is(err, token.ErrInvalid) {
		return nil, engines.Denied(err)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case parent.Batch():
		return nil, engines.Invalid("batch tokens cannot create tokens")
	case parent.NumUses != 0:
		return nil, engines.Invalid("restricted use token cannot generate child tokens")
	case !orphan && !e.tokens.Below(ctx, parent.Namespace, namespace(req)):
		return nil, engines.Invalid("a child can only be created in the namespace of its parent or below: ask for an orphan")
	}
	sudo := parent.Root() || req.Caller.Access != nil && req.Caller.Access.Sudo(req.Mount.Path+req.Path)
	if err := in.check(sudo, r); err != nil {
		return nil, err
	}
	p, err := in.params(req)
	if err != nil {
		return nil, err
	}
	if p.Policies, err = e.policies(req, in, parent, r, sudo); err != nil {
		return nil, err
	}
	if !orphan {
		p.Parent, p.EntityID, p.BoundCIDRs = parent.Key, parent.EntityID, parent.BoundCIDRs
	}
	var warnings []string
	if r != nil {
		if warnings, err = in.apply(r, &p); err != nil {
			return nil, err
		}
	}
	if in.EntityAlias != "" {
		if p.EntityID, err = e.aliasEntity(ctx, req, in.EntityAlias, r); err != nil {
			return nil, err
		}
	}
	if slices.Contains(p.Policies, token.RootPolicy) && p.TTL == 0 && p.Period == 0 && p.ExplicitMaxTTL == 0 && !parent.ExpiresAt.IsZero() {
		return nil, engines.Invalid("expiring root tokens cannot create non-expiring root tokens")
	}
	return e.created(ctx, p, warnings)
}

// created creates the token and returns what the client gets to see.
func (e *Engine) created(ctx context.Context, p token.Params, warnings []string) (*engines.Response, error) {
	created, err := e.tokens.Create(ctx, p)
	if errors.Is(err, token.ErrInvalid) {
		return nil, engines.Denied(err) // the parent went meanwhile
	}
	if err != nil {
		return nil, err
	}
	missing, err := e.missingPolicies(ctx, created.Entry)
	if err != nil {
		return nil, err
	}
	auth, err := e.tokens.AuthWithIdentity(ctx, created)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Auth: auth, Warnings: slices.Concat(warnings, created.Warnings, missing)}, nil
}

// check refuses what the input asks for and the caller may not have.
func (in *createInput) check(sudo bool, r *role.Role) error {
	switch {
	case in.EntityAlias != "" && r == nil:
		return engines.Invalid("field \"entity_alias\": is only possible with a token role: create the token at auth/token/create/<role>")
	case in.ID != "" && !sudo:
		return engines.Invalid("root or sudo privileges required to specify token id")
	case in.NoParent && !sudo && r == nil:
		return engines.Invalid("root or sudo privileges required to create orphan token")
	case in.Period > 0 && !sudo:
		return engines.Invalid("root or sudo privileges required to create periodic token")
	}
	return nil
}

// params returns what the input itself says of the token.
func (in *createInput) params(req *engines.Request) (token.Params, error) {
	p := token.Params{
		ID: in.ID.Reveal(), Type: in.Type, Path: req.Mount.Path + req.Path, Meta: in.Meta, DisplayName: displayName(in.DisplayName),
		NumUses: in.NumUses, TTL: time.Duration(in.TTL), ExplicitMaxTTL: time.Duration(in.ExplicitMaxTTL), Period: time.Duration(in.Period),
		NotRenewable: !in.Renewable, Namespace: namespace(req),
		DefaultTTL: req.Mount.DefaultLeaseTTL, SystemMaxTTL: req.Mount.MaxLeaseTTL,
	}
	if p.Type == "default" {
		p.Type = ""
	}
	if p.TTL == 0 {
		p.TTL = time.Duration(in.Lease)
	}
	if p.NumUses < 0 {
		return p, engines.Invalid("number of uses cannot be negative")
	}
	return p, nil
}

// apply changes the parameters to what a role says. What is asked for may only be less.
func (in *createInput) apply(r *role.Role, p *token.Params) (warnings []string, err error) {
	p.Role = r.Name
	if r.PathSuffix != "" {
		p.Path += "/" + r.PathSuffix
	}
	if in.NoParent && !r.Orphan {
		warnings = append(warnings, "the field no_parent is ignored: the role decides")
	}
	if r.ExplicitMaxTTL > 0 && p.ExplicitMaxTTL > r.ExplicitMaxTTL {
		warnings = append(warnings, fmt.Sprintf("explicit_max_ttl is that of the role, %s", r.ExplicitMaxTTL))
	}
	p.ExplicitMaxTTL = role.Lesser(p.ExplicitMaxTTL, r.ExplicitMaxTTL)
	p.NumUses = role.Lesser(p.NumUses, r.NumUses)
	p.NotRenewable = p.NotRenewable || !r.Renewable
	p.AskedPeriod, p.Period = p.Period, r.PeriodOf(p.Period)
	asked := p.Type
	if p.Type = r.TypeOf(asked); asked != "" && asked != p.Type {
		warnings = append(warnings, fmt.Sprintf("the token is a %s token: the role decides", p.Type))
	}
	var ok bool
	if p.BoundCIDRs, ok = role.Narrow(p.BoundCIDRs, r.BoundCIDRs); !ok {
		return nil, engines.Invalid("the networks that the caller's token and the role are bound to have no address in common")
	}
	return warnings, nil
}

// aliasEntity returns the entity of an alias that the role allows.
func (e *Engine) aliasEntity(ctx context.Context, req *engines.Request, alias string, r *role.Role) (string, error) {
	if !r.AllowsAlias(alias) {
		return "", engines.Invalid("field \"entity_alias\": is not among the role's allowed_entity_aliases")
	}
	return e.tokens.EntityByAlias(ctx, namespace(req), req.Mount.Accessor, alias)
}

// policies decides on the policies of a new token. No token gives more than it has, except that sudo gives
// everything but root, and that a role may say what can be given. A list of policies that turns out to be empty
// is not the same as none: a caller that filled it from an empty variable did not mean to pass on everything.
func (e *Engine) policies(req *engines.Request, in *createInput, parent *token.Entry, r *role.Role, sudo bool) ([]string, error) {
	given, here := req.Given("policies"), parent.Namespace == namespace(req)
	wanted := token.NormalPolicies(in.Policies)
	var withDefault bool // if it is not asked for
	switch {
	case r != nil && r.Restricts():
		withDefault = !r.Disallows(token.DefaultPolicy)
		if !given && len(r.AllowedPolicies) > 0 {
			wanted = token.NormalPolicies(r.AllowedPolicies)
		} else if !given && len(r.AllowedPoliciesGlob) == 0 && here {
			wanted = slices.Clone(parent.Policies)
		}
	case !here && !sudo:
		return nil, engines.Invalid("sudo is needed to create a token in another namespace than that of the caller's token")
	case !given && here:
		wanted = slices.Clone(parent.Policies)
	default:
		withDefault = sudo || slices.Contains(parent.Policies, token.DefaultPolicy)
	}
	if err := e.checkPolicies(wanted, parent, r, sudo, withDefault); err != nil {
		return nil, err
	}
	switch {
	case in.NoDefaultPolicy || r != nil && r.NoDefaultPolicy:
		wanted = slices.DeleteFunc(wanted, func(name string) bool { return name == token.DefaultPolicy })
	case withDefault:
		wanted = append(wanted, token.DefaultPolicy)
	}
	return token.NormalPolicies(wanted), nil
}

// checkPolicies refuses policies that the caller may not give.
func (e *Engine) checkPolicies(wanted []string, parent *token.Entry, r *role.Role, sudo, withDefault bool) error {
	byRole := r != nil && r.Restricts()
	for _, name := range wanted {
		switch {
		case !e.opts.Policies.Assignable(name):
			return engines.Invalid("cannot assign policy %q", name)
		case name == token.RootPolicy && !parent.Root():
			return engines.Invalid("root tokens may not be created without parent token being root")
		case byRole && r.Disallows(name):
			return engines.Invalid("token policy %q is disallowed by this role", name)
		case byRole && !r.Allows(name) && !(name == token.DefaultPolicy && withDefault):
			return engines.Invalid("token policy %q is not among the role's allowed policies", name)
		case !byRole && !sudo && !slices.Contains(parent.Policies, name):
			return engines.Invalid("child policies must be subset of parent")
		}
	}
	return nil
}

// missingPolicies warns of policies that do not exist (yet).
func (e *Engine) missingPolicies(ctx context.Context, entry *token.Entry) (warnings []string, err error) {
	for _, name := range entry.Policies {
		ok, err := e.opts.Policies.Exists(ctx, entry.Namespace, name)
		var invalid *engines.Error
		if err != nil && !errors.As(err, &invalid) {
			return nil, err
		}
		if !ok {
			warnings = append(warnings, fmt.Sprintf("Policy %q does not exist", name))
		}
	}
	return warnings, nil
}

// displayName is "token", or "token-" and what the client asked for, with letters, digits and dashes only.
func displayName(asked string) string {
	if asked == "" {
		return "token"
	}
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, asked)
	return strings.TrimSuffix("token-"+clean, "-")
}
