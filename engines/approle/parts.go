package approle

import (
	"cmp"
	"context"
	"strconv"

	"github.com/coffer-project/coffer/engines"
)

// The inputs of the paths that hold one field of a role each, under its names.
type (
	policiesIn struct {
		roleIn
		TokenPolicies engines.StringList `json:"token_policies" form:"name" max:"256" help:"Policies of the token."`
		Policies      engines.StringList `json:"policies" alias:"token_policies" form:"name" max:"256" help:"Older name of token_policies."`
	}
	bindSecretIDIn struct {
		roleIn
		BindSecretID bool `json:"bind_secret_id" help:"Whether logins need a secret id."`
	}
	secretIDBoundCIDRsIn struct {
		roleIn
		SecretIDBoundCIDRs engines.StringList `json:"secret_id_bound_cidrs" form:"network" max:"256" help:"Addresses and networks that may log in."`
	}
	boundCIDRListIn struct {
		roleIn
		BoundCIDRList engines.StringList `json:"bound_cidr_list" alias:"secret_id_bound_cidrs" form:"network" max:"256" help:"Older name of secret_id_bound_cidrs."`
	}
	secretIDNumUsesIn struct {
		roleIn
		SecretIDNumUses int `json:"secret_id_num_uses" help:"How many logins a secret id is good for; 0 is without limit."`
	}
	secretIDTTLIn struct {
		roleIn
		SecretIDTTL engines.Duration `json:"secret_id_ttl" help:"Lifetime of a secret id; 0 is without end."`
	}
	periodIn struct {
		roleIn
		TokenPeriod engines.Duration `json:"token_period" help:"If set, the token never reaches a maximum and each renewal gives it this lifetime."`
		Period      engines.Duration `json:"period" alias:"token_period" help:"Older name of token_period."`
	}
	tokenTTLIn struct {
		roleIn
		TokenTTL engines.Duration `json:"token_ttl" help:"Initial lifetime of the token; 0 is the mount's default."`
	}
	tokenMaxTTLIn struct {
		roleIn
		TokenMaxTTL engines.Duration `json:"token_max_ttl" help:"Longest lifetime of the token, renewals included; 0 is the mount's maximum."`
	}
	tokenNumUsesIn struct {
		roleIn
		TokenNumUses int `json:"token_num_uses" help:"How often the token can be used; 0 is without limit."`
	}
	tokenBoundCIDRsIn struct {
		roleIn
		TokenBoundCIDRs engines.StringList `json:"token_bound_cidrs" form:"network" max:"256" help:"Addresses and networks that may log in and use the token."`
	}
)

// parts declares the paths of single fields.
func parts(r *engines.Router) {
	part(r, "policies", "token_policies", "policies", "[string]", policiesIn{}, func(ro *role, in *policiesIn) {
		if ro.Token.TokenPolicies = in.TokenPolicies; len(in.TokenPolicies) == 0 {
			ro.Token.TokenPolicies = in.Policies
		}
	})
	part(r, "bind-secret-id", "bind_secret_id", "", "boolean", bindSecretIDIn{BindSecretID: true}, func(ro *role, in *bindSecretIDIn) {
		ro.BindSecretID = in.BindSecretID
	})
	part(r, "secret-id-bound-cidrs", "secret_id_bound_cidrs", "", "[string]", secretIDBoundCIDRsIn{}, func(ro *role, in *secretIDBoundCIDRsIn) {
		ro.SecretIDBoundCIDRs = in.SecretIDBoundCIDRs
	})
	part(r, "bound-cidr-list", "secret_id_bound_cidrs", "bound_cidr_list", "[string]", boundCIDRListIn{}, func(ro *role, in *boundCIDRListIn) {
		ro.SecretIDBoundCIDRs = in.BoundCIDRList
	})
	part(r, "secret-id-num-uses", "secret_id_num_uses", "", "integer", secretIDNumUsesIn{}, func(ro *role, in *secretIDNumUsesIn) {
		ro.SecretIDNumUses = in.SecretIDNumUses
	})
	part(r, "secret-id-ttl", "secret_id_ttl", "", "integer", secretIDTTLIn{}, func(ro *role, in *secretIDTTLIn) {
		ro.SecretIDTTL = in.SecretIDTTL
	})
	part(r, "period", "token_period", "period", "integer", periodIn{}, func(ro *role, in *periodIn) {
		ro.Token.TokenPeriod = cmp.Or(in.TokenPeriod, in.Period)
	})
	part(r, "token-ttl", "token_ttl", "", "integer", tokenTTLIn{}, func(ro *role, in *tokenTTLIn) {
		ro.Token.TokenTTL = in.TokenTTL
	})
	part(r, "token-max-ttl", "token_max_ttl", "", "integer", tokenMaxTTLIn{}, func(ro *role, in *tokenMaxTTLIn) {
		ro.Token.TokenMaxTTL = in.TokenMaxTTL
	})
	part(r, "token-num-uses", "token_num_uses", "", "integer", tokenNumUsesIn{}, func(ro *role, in *tokenNumUsesIn) {
		ro.Token.TokenNumUses = in.TokenNumUses
	})
	part(r, "token-bound-cidrs", "token_bound_cidrs", "", "[string]", tokenBoundCIDRsIn{}, func(ro *role, in *tokenBoundCIDRsIn) {
		ro.Token.TokenBoundCIDRs = in.TokenBoundCIDRs
	})
	readPart(r, "local-secret-ids", "local_secret_ids", "", "boolean")
}

// part declares how one field of a role is read, written and brought back to its default, which is what set makes
// of unset. older is the field's older name on this path, or "", kind its type in responses.
func part[In any](r *engines.Router, path, field, older, kind string, unset In, set func(*role, *In)) {
	readPart(r, path, field, older, kind)
	pattern := "role/{role_name}/" + path
	engines.On(r, engines.Update, pattern, "Change the role's "+field+".", 0,
		func(ctx context.Context, req *engines.Request, in *In) (*engines.Response, error) {
			if !req.Given(field) && (older == "" || !req.Given(older)) {
				return nil, engines.Invalid("field %s: is required", strconv.Quote(cmp.Or(older, field)))
			}
			return nil, changeRole(ctx, req, req.Param("role_name"), func(ro *role) { set(ro, in) })
		})
	engines.On(r, engines.Delete, pattern, "Bring the role's "+field+" back to the default.", 0,
		func(ctx context.Context, req *engines.Request, in *roleIn) (*engines.Response, error) {
			return nil, changeRole(ctx, req, in.RoleName, func(ro *role) { set(ro, &unset) })
		})
}

// readPart declares how one field of a role is read: under both names, if there are two.
func readPart(r *engines.Router, path, field, older, kind string) {
	shape := field + ": " + kind
	if older != "" {
		shape += ", " + older + ": " + kind
	}
	engines.On(r, engines.Read, "role/{role_name}/"+path, "Read the role's "+field+".", 0,
		func(ctx context.Context, req *engines.Request, in *roleIn) (*engines.Response, error) {
			ro, err := findRole(ctx, req.Mount.Storage, in.RoleName, engines.NotFound(""))
			if err != nil {
				return nil, err
			}
			value := ro.data()[field]
			data := map[string]any{field: value}
			if older != "" {
				data[older] = value
			}
			return &engines.Response{Data: data}, nil
		}).Returns(shape)
}
