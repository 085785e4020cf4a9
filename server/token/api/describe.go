package api

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token"
)

// lookupShape is that of the responses: see engines.Route.Returns.
const lookupShape = `accessor, bound_cidrs: [string], creation_time: integer "Unix time.", creation_ttl: integer "Seconds.", display_name, entity_id,
	expire_time: string? "null: never.", explicit_max_ttl: integer "Seconds.", external_namespace_policies: {*: [string]} "Policies of other
	namespaces, by namespace.", id "The token; empty if it was found by its accessor.", identity_policies: [string] "Policies of the entity and its groups.",
	issue_time, last_renewal, last_renewal_time: integer "Unix time.", meta: {*: string}?, namespace_path, num_uses: integer "Uses left; 0: without limit.",
	orphan: boolean, path "Path that made the token.", period: integer "Seconds.", policies: [string], renewable: boolean, role,
	ttl: integer "Seconds left.", type`

// describe returns what the lookup paths answer. secret is "" when the caller knows only the accessor.
func (e *Engine) describe(ctx context.Context, entry *token.Entry, secret engines.Sensitive) (*engines.Response, error) {
	data := map[string]any{
		"accessor":         entry.Accessor,
		"creation_time":    entry.CreatedAt.Unix(),
		"creation_ttl":     seconds(entry.TTL),
		"display_name":     entry.DisplayName,
		"entity_id":        entry.EntityID,
		"expire_time":      nil,
		"explicit_max_ttl": seconds(entry.ExplicitMaxTTL),
		"id":               secret.Reveal(),
		"issue_time":       entry.CreatedAt.UTC().Format(time.RFC3339Nano),
		"meta":             nil,
		"num_uses":         max(entry.NumUses, 0),
		"orphan":           entry.Orphan(),
		"path":             entry.Path,
		"policies":         entry.Policies,
		"renewable":        entry.Renewable,
		"ttl":              e.tokens.SecondsLeft(entry),
		"type":             entry.Type,
		"namespace_path":   e.tokens.NamespacePath(entry.Namespace),
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
	identity, err := e.tokens.IdentityPolicies(ctx, entry)
	if err != nil {
		return nil, err
	}
	external, err := e.tokens.ExternalPolicies(ctx, entry)
	if err != nil {
		return nil, err
	}
	if external == nil {
		external = map[string][]string{}
	}
	data["identity_policies"], data["external_namespace_policies"] = list(identity), external
	return &engines.Response{Data: data}, nil
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }
