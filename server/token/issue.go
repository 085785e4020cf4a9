package token

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
)

type createInput struct {
	ID              engines.Sensitive  `json:"id" help:"The token to create, instead of a random one. Needs sudo."`
	Policies        engines.StringList `json:"policies" max:"256" help:"Policies of the token; those of the caller if the field is absent."`
	Meta            engines.StringMap  `json:"meta" max:"64" help:"Texts for the audit trail."`
	NoParent        bool               `json:"no_parent" help:"Make the token an orphan. Needs sudo."`
	NoDefaultPolicy bool               `json:"no_default_policy" help:"Leave the default policy out."`
	Renewable       bool               `json:"renewable" default:"true" help:"Whether the token can be renewed."`
	TTL             engines.Duration   `json:"ttl" help:"Lifetime; 0 is the default."`
	Lease           engines.Duration   `json:"lease" help:"Old name of the field ttl."`
	ExplicitMaxTTL  engines.Duration   `json:"explicit_max_ttl" help:"A limit of the lifetime that nothing lifts; 0 is none."`
	DisplayName     string             `json:"display_name" max:"256" help:"Name of the token in the audit trail; \"token-\" is put before it."`
	NumUses         int                `json:"num_uses" help:"How often the token can be used; 0 is without limit."`
	Period          engines.Duration   `json:"period" help:"If set, the token has no maximum lifetime and each renewal gives it this one. Needs sudo."`
	Type            string             `json:"type" enum:"service,batch,default" help:"Kind of token."`
	EntityAlias     string             `json:"entity_alias" help:"Not supported without a role."`
}

type createByRoleInput struct {
	Role string `json:"role" help:"Name of the role."`
	createInput
}

func (e *Engine) createByRole(context.Context, *engines.Request, *createByRoleInput) (*engines.Response, error) {
	return nil, engines.Invalid("token roles are not supported: create the token without a role")
}

func (e *Engine) create(ctx context.Context, req *engines.Request, in *createInput) (*engines.Response, error) {
	return e.issue(ctx, req, in, in.NoParent)
}

func (e *Engine) createOrphan(ctx context.Context, req *engines.Request, in *createInput) (*engines.Response, error) {
	return e.issue(ctx, req, in, true)
}

// issue creates a token on behalf of the caller.
func (e *Engine) issue(ctx context.Context, req *engines.Request, in *createInput, orphan bool) (*engines.Response, error) {
	parent, err := e.tokens.LookupKey(ctx, req.Caller.TokenKey)
	if errors.Is(err, ErrInvalid) {
		return nil, engines.Denied(err)
	}
	if err != nil {
		return nil, err
	}
	if parent.NumUses != 0 {
		return nil, engines.Invalid("restricted use token cannot generate child tokens")
	}
	sudo := parent.Root()
	if !sudo {
		if sudo, err = e.opts.Authorizer.Sudo(ctx, req.Caller, req.Mount.Path+req.Path); err != nil {
			return nil, err
		}
	}
	if err := in.check(sudo); err != nil {
		return nil, err
	}
	p := Params{
		ID: in.ID.Reveal(), Path: req.Mount.Path + req.Path, Meta: in.Meta, DisplayName: displayName(in.DisplayName),
		NumUses: in.NumUses, TTL: time.Duration(in.TTL), ExplicitMaxTTL: time.Duration(in.ExplicitMaxTTL), Period: time.Duration(in.Period),
		NotRenewable: !in.Renewable, Namespace: e.namespace(req),
		DefaultTTL: req.Mount.DefaultLeaseTTL, SystemMaxTTL: req.Mount.MaxLeaseTTL,
	}
	if p.TTL == 0 {
		p.TTL = time.Duration(in.Lease)
	}
	if p.Policies, err = e.policies(in, req.Given("policies"), parent, sudo); err != nil {
		return nil, err
	}
	if !orphan {
		p.Parent, p.EntityID, p.BoundCIDRs = parent.Key, parent.EntityID, parent.BoundCIDRs
	}
	if slices.Contains(p.Policies, rootPolicy) && p.TTL == 0 && p.Period == 0 && p.ExplicitMaxTTL == 0 && !parent.ExpiresAt.IsZero() {
		return nil, engines.Invalid("expiring root tokens cannot create non-expiring root tokens")
	}
	created, err := e.tokens.Create(ctx, p)
	if errors.Is(err, ErrInvalid) {
		return nil, engines.Denied(err) // the parent went meanwhile
	}
	if err != nil {
		return nil, err
	}
	warnings, err := e.missingPolicies(ctx, created.Entry)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Auth: e.tokens.Auth(created), Warnings: append(created.Warnings, warnings...)}, nil
}

// check refuses what the input asks for and the caller may not have.
func (in *createInput) check(sudo bool) error {
	switch {
	case in.Type == "batch":
		return engines.Invalid("batch tokens are not supported: leave out type, or set it to service")
	case in.EntityAlias != "":
		return engines.Invalid("entity_alias is only possible with a token role, and these are not supported")
	case in.ID != "" && !sudo:
		return engines.Invalid("root or sudo privileges required to specify token id")
	case in.NoParent && !sudo:
		return engines.Invalid("root or sudo privileges required to create orphan token")
	case in.Period > 0 && !sudo:
		return engines.Invalid("root or sudo privileges required to create periodic token")
	}
	return nil
}

// policies decides on the policies of a new token. Nobody gives more than they have, except that sudo gives
// everything but root. A list of policies that turns out to be empty is not the same as none: whoever filled it
// from a variable did not mean to pass on everything they have.
func (e *Engine) policies(in *createInput, given bool, parent *Entry, sudo bool) ([]string, error) {
	wanted := NormalPolicies(in.Policies)
	inherit := !given
	if inherit {
		wanted = slices.Clone(parent.Policies)
	}
	for _, name := range wanted {
		switch {
		case !e.opts.Policies.Assignable(name):
			return nil, engines.Invalid("cannot assign policy %q", name)
		case name == rootPolicy && !parent.Root():
			return nil, engines.Invalid("root tokens may not be created without parent token being root")
		case !sudo && !slices.Contains(parent.Policies, name):
			return nil, engines.Invalid("child policies must be subset of parent")
		}
	}
	switch {
	case in.NoDefaultPolicy:
		wanted = slices.DeleteFunc(wanted, func(name string) bool { return name == defaultPolicy })
	case !inherit && !slices.Contains(wanted, rootPolicy) && (sudo || slices.Contains(parent.Policies, defaultPolicy)):
		wanted = append(wanted, defaultPolicy)
	}
	return NormalPolicies(wanted), nil
}

const defaultPolicy = "default"

// missingPolicies warns of policies that do not exist (yet).
func (e *Engine) missingPolicies(ctx context.Context, entry *Entry) (warnings []string, err error) {
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

// Auth returns what a client gets to see of a token it is handed.
func (s *Store) Auth(c Created) *engines.Auth {
	e := c.Entry
	return &engines.Auth{
		ClientToken: c.Token.Reveal(), Accessor: e.Accessor, Policies: e.Policies, TokenPolicies: e.Policies,
		Metadata: e.Meta, LeaseDuration: s.secondsLeft(e), Renewable: e.Renewable, EntityID: e.EntityID,
		TokenType: e.Type, Orphan: e.Orphan(), NumUses: max(e.NumUses, 0),
	}
}

// secondsLeft returns the rest of the token's lifetime, rounded to the nearest second; 0 if it never ends.
func (s *Store) secondsLeft(e *Entry) int64 {
	if e.ExpiresAt.IsZero() {
		return 0
	}
	return int64(max(e.ExpiresAt.Sub(s.now()), 0).Round(time.Second) / time.Second)
}

// describe returns what the lookup paths answer. token is "" when the caller knows only the accessor.
func (e *Engine) describe(entry *Entry, token engines.Sensitive) map[string]any {
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
		"ttl":              e.tokens.secondsLeft(entry),
		"type":             entry.Type,
		"namespace_path":   "",
	}
	if e.opts.NamespacePath != nil {
		data["namespace_path"] = e.opts.NamespacePath(entry.Namespace)
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
	if entry.Role != "" {
		data["role"] = entry.Role
	}
	if len(entry.BoundCIDRs) > 0 {
		data["bound_cidrs"] = entry.BoundCIDRs
	}
	if !entry.RenewedAt.IsZero() {
		data["last_renewal"] = entry.RenewedAt.UTC().Format(time.RFC3339Nano)
		data["last_renewal_time"] = entry.RenewedAt.Unix()
	}
	return data
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }
