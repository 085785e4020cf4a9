package engines

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/coffer-project/coffer/engines/input"
)

// TokenFields are the fields of an auth method's role that say what its tokens are like. Embed it in the
// input struct of the role's write route.
type TokenFields struct {
	AliasMetadata        StringMap  `json:"alias_metadata" help:"Metadata of the entity alias of each login." max:"64"`
	TokenTTL             Duration   `json:"token_ttl" help:"Initial lifetime of the token; 0 is the mount's default."`
	TokenMaxTTL          Duration   `json:"token_max_ttl" help:"Longest lifetime of the token, renewals included; 0 is the mount's maximum."`
	TokenPolicies        StringList `json:"token_policies" form:"name" help:"Policies of the token." max:"1024"`
	TokenBoundCIDRs      StringList `json:"token_bound_cidrs" form:"network" help:"Addresses and networks that may log in and use the token." max:"256"`
	TokenExplicitMaxTTL  Duration   `json:"token_explicit_max_ttl" help:"A limit of the lifetime that later changes of the mount do not lift; 0 is none."`
	TokenNoDefaultPolicy bool       `json:"token_no_default_policy" help:"Leave the default policy out."`
	TokenNumUses         int        `json:"token_num_uses" help:"How often the token can be used; 0 is without limit."`
	TokenPeriod          Duration   `json:"token_period" help:"If set, the token never reaches a maximum and each renewal gives it this lifetime."`
	TokenType            string     `json:"token_type" help:"The kind of token." enum:"default,service,batch,default-service,default-batch"`
}

// Keep completes a partial update: what the request did not give is taken from old.
func (t *TokenFields) Keep(req *Request, old TokenFields) {
	keep(req, "alias_metadata", &t.AliasMetadata, old.AliasMetadata)
	keep(req, "token_ttl", &t.TokenTTL, old.TokenTTL)
	keep(req, "token_max_ttl", &t.TokenMaxTTL, old.TokenMaxTTL)
	keep(req, "token_policies", &t.TokenPolicies, old.TokenPolicies)
	keep(req, "token_bound_cidrs", &t.TokenBoundCIDRs, old.TokenBoundCIDRs)
	keep(req, "token_explicit_max_ttl", &t.TokenExplicitMaxTTL, old.TokenExplicitMaxTTL)
	keep(req, "token_no_default_policy", &t.TokenNoDefaultPolicy, old.TokenNoDefaultPolicy)
	keep(req, "token_num_uses", &t.TokenNumUses, old.TokenNumUses)
	keep(req, "token_period", &t.TokenPeriod, old.TokenPeriod)
	keep(req, "token_type", &t.TokenType, old.TokenType)
}

func keep[T any](req *Request, field string, v *T, old T) {
	if !req.Given(field) {
		*v = old
	}
}

// Limits of the metadata of entities' aliases.
const (
	maxMetadataKeyBytes   = 128
	maxMetadataValueBytes = 512
)

// Validate brings the fields into the stored form (policies in lower case, sorted, each once; networks as
// prefixes; the type filled in) and reports everything that is wrong with them in one Error of KindInvalid.
func (t *TokenFields) Validate() error {
	var problems []string
	wrong := func(field, text string) { problems = append(problems, `field "`+field+`": `+text) }

	for k, v := range t.AliasMetadata {
		switch {
		case k == "" || len(k) > maxMetadataKeyBytes:
			wrong("alias_metadata", fmt.Sprintf("each key must have 1 to %d bytes", maxMetadataKeyBytes))
		case len(v) > maxMetadataValueBytes:
			wrong("alias_metadata", fmt.Sprintf("each value must have at most %d bytes", maxMetadataValueBytes))
		case strings.ContainsFunc(k, unicode.IsControl) || strings.ContainsFunc(v, unicode.IsControl):
			wrong("alias_metadata", "must not contain control characters")
		}
	}
	t.TokenPolicies = cleanPolicies(t.TokenPolicies)
	if slices.Contains(t.TokenPolicies, "root") {
		wrong("token_policies", "must not contain \"root\"")
	}
	for i, cidr := range t.TokenBoundCIDRs {
		prefix, err := input.ParseNetwork(cidr)
		if err != nil {
			wrong("token_bound_cidrs", "must be a list of addresses or networks such as \"10.0.0.0/8\"")
			break
		}
		t.TokenBoundCIDRs[i] = prefix.String()
	}
	if t.TokenMaxTTL > 0 && t.TokenTTL > t.TokenMaxTTL {
		wrong("token_ttl", "must not be greater than token_max_ttl")
	}
	if t.TokenExplicitMaxTTL > 0 && t.TokenTTL > t.TokenExplicitMaxTTL {
		wrong("token_ttl", "must not be greater than token_explicit_max_ttl")
	}
	if t.TokenNumUses < 0 {
		wrong("token_num_uses", "must not be negative")
	}
	if t.TokenType == "" {
		t.TokenType = "default"
	}
	if t.TokenType == "batch" {
		if t.TokenPeriod > 0 {
			wrong("token_period", "must not be set for batch tokens")
		}
		if t.TokenNumUses > 0 {
			wrong("token_num_uses", "must not be set for batch tokens")
		}
	}
	if problems != nil {
		return Invalid("%s", strings.Join(problems, "; "))
	}
	return nil
}

// Data returns the fields as a role's read answers them: durations in seconds, lists never null.
func (t *TokenFields) Data() map[string]any {
	kind := t.TokenType
	if kind == "" {
		kind = "default"
	}
	metadata := StringMap{}
	maps.Copy(metadata, t.AliasMetadata)
	return map[string]any{
		"alias_metadata":          metadata,
		"token_ttl":               t.TokenTTL.Seconds(),
		"token_max_ttl":           t.TokenMaxTTL.Seconds(),
		"token_policies":          append(StringList{}, t.TokenPolicies...),
		"token_bound_cidrs":       ShownNetworks(t.TokenBoundCIDRs),
		"token_explicit_max_ttl":  t.TokenExplicitMaxTTL.Seconds(),
		"token_no_default_policy": t.TokenNoDefaultPolicy,
		"token_num_uses":          t.TokenNumUses,
		"token_period":            t.TokenPeriod.Seconds(),
		"token_type":              kind,
	}
}

// ShownNetworks returns stored networks as clients read them: a host is its address.
func ShownNetworks(list StringList) StringList {
	shown := make(StringList, len(list))
	for i, text := range list {
		network, err := input.ParseNetwork(text)
		if err == nil && network.IsSingleIP() {
			text = network.Addr().String()
		}
		shown[i] = text
	}
	return shown
}

// Allows reports whether a caller at this address may log in. Without bound networks everybody may; a
// network that does not parse allows no client.
func (t *TokenFields) Allows(addr netip.Addr) bool {
	for _, cidr := range t.TokenBoundCIDRs {
		if prefix, err := input.ParseNetwork(cidr); err == nil && prefix.Contains(addr.Unmap().WithZone("")) {
			return true
		}
	}
	return len(t.TokenBoundCIDRs) == 0
}

func cleanPolicies(policies StringList) StringList {
	clean := StringList{}
	for _, name := range policies {
		if name = strings.ToLower(strings.TrimSpace(name)); name != "" {
			clean = append(clean, name)
		}
	}
	slices.Sort(clean)
	return slices.Compact(clean)
}
