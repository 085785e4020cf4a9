package api

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token/role"
	"github.com/coffer-project/coffer/storage"
)

// rolePaths declares auth/token/roles. Roles are configuration, so these paths are not local to the cluster.
func (e *Engine) rolePaths() {
	r := e.router
	engines.On(r, engines.List, "roles", "List the token roles.", 0, e.listRoles).Returns("keys: [string]")
	engines.On(r, engines.Read, "roles/{role_name}", "Read a token role.", 0, e.readRole).
		Returns(`allowed_entity_aliases: [string], allowed_policies: [string], allowed_policies_glob: [string], bound_cidrs: [string],
			disallowed_policies: [string], disallowed_policies_glob: [string], explicit_max_ttl: integer, name, orphan: boolean,
			path_suffix, period: integer, renewable: boolean, token_bound_cidrs: [string], token_explicit_max_ttl: integer,
			token_no_default_policy: boolean, token_num_uses: integer, token_period: integer, token_type`)
	engines.On(r, engines.Update, "roles/{role_name}", "Create a token role, or change the given fields of one.", 0, e.writeRole).Exists = e.roleExists
	engines.On(r, engines.Delete, "roles/{role_name}", "Delete a token role. Its tokens stay, but cannot be renewed.", 0, e.deleteRole)
}

type roleNameInput struct {
	Role string `json:"role_name" help:"Name of the role."`
}

type listRolesInput struct {
	After string `json:"after" help:"Only names after this one."`
	Limit int    `json:"limit" help:"At most this many names; 0 is all."`
}

type roleInput struct {
	roleNameInput
	AllowedPolicies        engines.StringList `json:"allowed_policies" form:"lower" max:"256" help:"Policies that tokens may have, whatever their creator has. With none asked for, a token has all of them."`
	AllowedPoliciesGlob    engines.StringList `json:"allowed_policies_glob" form:"lower" max:"256" help:"As allowed_policies, but each * stands for any text."`
	DisallowedPolicies     engines.StringList `json:"disallowed_policies" form:"lower" max:"256" help:"Policies that tokens may not have. If nothing is allowed by name, all others may be given."`
	DisallowedPoliciesGlob engines.StringList `json:"disallowed_policies_glob" form:"lower" max:"256" help:"As disallowed_policies, but each * stands for any text."`
	AllowedEntityAliases   engines.StringList `json:"allowed_entity_aliases" form:"lower" max:"256" help:"Entity aliases that tokens may be made for, in any case; each * stands for any text."`
	Orphan                 bool               `json:"orphan" help:"Whether tokens are orphans."`
	Renewable              bool               `json:"renewable" default:"true" help:"Whether tokens can be renewed."`
	PathSuffix             string             `json:"path_suffix" max:"128" help:"Text behind the role in the path of tokens, by which they can be revoked."`
	TokenBoundCIDRs        engines.StringList `json:"token_bound_cidrs" form:"network" max:"256" help:"Addresses and networks that tokens may be used from."`
	BoundCIDRs             engines.StringList `json:"bound_cidrs" alias:"token_bound_cidrs" form:"network" max:"256" help:"Older name of token_bound_cidrs."`
	TokenPeriod            engines.Duration   `json:"token_period" help:"If set, tokens never reach a maximum and each renewal gives them this lifetime."`
	Period                 engines.Duration   `json:"period" alias:"token_period" help:"Older name of token_period."`
	TokenExplicitMaxTTL    engines.Duration   `json:"token_explicit_max_ttl" help:"A limit of the lifetime that nothing lifts; 0 is none."`
	ExplicitMaxTTL         engines.Duration   `json:"explicit_max_ttl" alias:"token_explicit_max_ttl" help:"Older name of token_explicit_max_ttl."`
	TokenNumUses           int                `json:"token_num_uses" help:"How often a token can be used; 0 is without limit."`
	TokenNoDefaultPolicy   bool               `json:"token_no_default_policy" help:"Leave the default policy out."`
	TokenType              string             `json:"token_type" enum:"default,service,batch,default-service,default-batch" help:"The kind of tokens. With a default- the creator may ask for the other one."`
}

func (e *Engine) listRoles(ctx context.Context, req *engines.Request, in *listRolesInput) (*engines.Response, error) {
	return engines.Listed(e.roles.List(ctx, namespace(req), in.After, in.Limit))
}

func (e *Engine) roleExists(ctx context.Context, req *engines.Request) (bool, error) {
	_, err := e.roles.Get(ctx, namespace(req), req.Param("role_name"))
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (e *Engine) readRole(ctx context.Context, req *engines.Request, in *roleNameInput) (*engines.Response, error) {
	r, err := e.roles.Get(ctx, namespace(req), in.Role)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, engines.NotFound("")
	}
	if err != nil {
		return nil, err
	}
	cidrs := make(engines.StringList, len(r.BoundCIDRs))
	for i, p := range r.BoundCIDRs {
		cidrs[i] = p.String()
	}
	cidrs = engines.ShownNetworks(cidrs)
	return &engines.Response{Data: map[string]any{
		"name":                     r.Name,
		"allowed_policies":         list(r.AllowedPolicies),
		"allowed_policies_glob":    list(r.AllowedPoliciesGlob),
		"disallowed_policies":      list(r.DisallowedPolicies),
		"disallowed_policies_glob": list(r.DisallowedPoliciesGlob),
		"allowed_entity_aliases":   list(r.AllowedEntityAliases),
		"orphan":                   r.Orphan,
		"renewable":                r.Renewable,
		"path_suffix":              r.PathSuffix,
		"token_bound_cidrs":        cidrs,
		"bound_cidrs":              cidrs,
		"token_period":             seconds(r.Period),
		"period":                   seconds(r.Period),
		"token_explicit_max_ttl":   seconds(r.ExplicitMaxTTL),
		"explicit_max_ttl":         seconds(r.ExplicitMaxTTL),
		"token_num_uses":           r.NumUses,
		"token_no_default_policy":  r.NoDefaultPolicy,
		"token_type":               r.Type,
	}}, nil
}

// list makes an empty list of none.
func list(texts []string) []string { return append([]string{}, texts...) }

func (e *Engine) writeRole(ctx context.Context, req *engines.Request, in *roleInput) (*engines.Response, error) {
	warnings := in.modernise(req)
	cidrs, err := role.Networks("token_bound_cidrs", in.TokenBoundCIDRs)
	if err != nil {
		return nil, err
	}
	err = e.roles.Change(ctx, namespace(req), in.Role, func(r *role.Role) {
		set(req, "allowed_policies", &r.AllowedPolicies, normalNames(in.AllowedPolicies))
		set(req, "allowed_policies_glob", &r.AllowedPoliciesGlob, normalNames(in.AllowedPoliciesGlob))
		set(req, "disallowed_policies", &r.DisallowedPolicies, normalNames(in.DisallowedPolicies))
		set(req, "disallowed_policies_glob", &r.DisallowedPoliciesGlob, normalNames(in.DisallowedPoliciesGlob))
		set(req, "allowed_entity_aliases", &r.AllowedEntityAliases, normalNames(in.AllowedEntityAliases))
		set(req, "orphan", &r.Orphan, in.Orphan)
		set(req, "renewable", &r.Renewable, in.Renewable)
		set(req, "path_suffix", &r.PathSuffix, in.PathSuffix)
		setEither(req, "token_bound_cidrs", "bound_cidrs", &r.BoundCIDRs, cidrs)
		setEither(req, "token_period", "period", &r.Period, time.Duration(in.TokenPeriod))
		setEither(req, "token_explicit_max_ttl", "explicit_max_ttl", &r.ExplicitMaxTTL, time.Duration(in.TokenExplicitMaxTTL))
		set(req, "token_num_uses", &r.NumUses, in.TokenNumUses)
		set(req, "token_no_default_policy", &r.NoDefaultPolicy, in.TokenNoDefaultPolicy)
		if req.Given("token_type") {
			if r.Type = in.TokenType; r.Type == "" || r.Type == "default" {
				r.Type = "default-service"
			}
		}
	})
	if err != nil || warnings == nil {
		return nil, err
	}
	return &engines.Response{Warnings: warnings}, nil
}

// modernise takes the old names of fields for the new ones, unless both are given.
func (in *roleInput) modernise(req *engines.Request) (warnings []string) {
	for _, f := range []struct {
		name, old string
		take      func()
	}{
		{"token_bound_cidrs", "bound_cidrs", func() { in.TokenBoundCIDRs = in.BoundCIDRs }},
		{"token_period", "period", func() { in.TokenPeriod = in.Period }},
		{"token_explicit_max_ttl", "explicit_max_ttl", func() { in.TokenExplicitMaxTTL = in.ExplicitMaxTTL }},
	} {
		switch {
		case !req.Given(f.old):
		case req.Given(f.name):
			warnings = append(warnings, "the old field "+f.old+" is ignored, as "+f.name+" is given too")
		default:
			f.take()
		}
	}
	return warnings
}

// set changes a field of a role if the request gives it.
func set[T any](req *engines.Request, field string, v *T, to T) { setEither(req, field, field, v, to) }

func setEither[T any](req *engines.Request, field, old string, v *T, to T) {
	if req.Given(field) || req.Given(old) {
		*v = to
	}
}

// normalNames returns names or globs in lower case, sorted, each once.
func normalNames(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = strings.ToLower(n)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (e *Engine) deleteRole(ctx context.Context, req *engines.Request, in *roleNameInput) (*engines.Response, error) {
	return nil, e.roles.Delete(ctx, namespace(req), in.Role)
}
