package system

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// Clients of the family ask for a licence and for feature flags to decide what they show. Everything there is here
// is always on.
var (
	features = []string{
		"Performance Replication", "Performance Standby", "Namespaces", "MFA", "Lease Count Quotas", "Secrets Sync",
	}
	activated = []string{"secrets-sync"}
)

func (s *System) gatePaths() {
	r := s.router
	const anybody = engines.Unauthenticated
	engines.On(r, engines.Read, "license/features", "List the features of the family that this server has.", anybody, fixed(both(map[string]any{"features": features}))).
		Returns("top; features: [string]")
	engines.On(r, engines.Read, "license/status", "Describe the licence: there is none, and none is needed.", 0, licenseStatus).
		Returns(`autoloaded: {customer_id, expiration_time, features: [string], installation_id, license_id, performance_standby_count:
			integer, start_time, terminated: boolean, termination_time}, autoloading_used: boolean, persisted_autoload: {license_id}?`)
	engines.On(r, engines.Read, "activation-flags", "List the features that are activated: all.", anybody, fixed(activationFlags())).
		Returns(activationFlagsShape)
	engines.On(r, engines.Update, "activation-flags/{name}/activate", "Activate a feature: it is already.", engines.RootNamespace, activate).
		Returns(activationFlagsShape)

	engines.On(r, engines.Read, "internal/ui/version", "Tell the version, for the web UI.", engines.AnyToken, s.uiVersion).
		Returns("coffer_version, version")
	engines.On(r, engines.Read, "internal/ui/feature-flags", "List the flags that the web UI looks at.", anybody, featureFlags).
		Returns("json; feature_flags: [string]")
	engines.On(r, engines.Read, "internal/ui/default-auth-methods", "Tell which auth methods the web UI offers first.", anybody, fixed(&engines.Response{Data: map[string]any{
		"default_auth_type": "", "backup_auth_types": []string{}, "disable_inheritance": false,
	}})).Returns("backup_auth_types: [string], default_auth_type, disable_inheritance: boolean")
	none := &engines.Response{Data: map[string]any{"keys": []string{}, "key_info": map[string]any{}}}
	for _, op := range []engines.Operation{engines.Read, engines.List} {
		engines.On(r, op, "internal/ui/unauthenticated-messages", "List the messages to show before the login.", anybody, fixed(none)).
			Returns("key_info: {*: {title}}, keys: [string]")
		engines.On(r, op, "internal/ui/authenticated-messages", "List the messages to show after the login.", engines.AnyToken, fixed(none)).
			Returns("key_info: {*: {title}}, keys: [string]")
	}
}

// fixed answers the same to everybody. Answers may be completed on their way out, so each is a copy.
func fixed(answer *engines.Response) engines.Handler[none] {
	return func(context.Context, *engines.Request, *none) (*engines.Response, error) {
		out := *answer
		return &out, nil
	}
}

func activationFlags() *engines.Response {
	return &engines.Response{Data: map[string]any{"activated": activated, "unactivated": []string{}}}
}

type flagInput struct {
	Name string `json:"name" max:"64" help:"Name of the feature."`
}

func activate(_ context.Context, _ *engines.Request, in *flagInput) (*engines.Response, error) {
	for _, name := range activated {
		if name == in.Name {
			return activationFlags(), nil
		}
	}
	return nil, engines.Invalid("there is no feature %q to activate: list them with sys/activation-flags", in.Name)
}

// licenseStatus has the shape that clients decode, of a licence that never ends.
func licenseStatus(context.Context, *engines.Request, *none) (*engines.Response, error) {
	never := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	return &engines.Response{Data: map[string]any{
		"autoloading_used": false, "persisted_autoload": nil,
		"autoloaded": map[string]any{
			"license_id": "none", "customer_id": "", "installation_id": "*", "features": features, "terminated": false,
			"start_time": rfc3339(time.Time{}), "expiration_time": rfc3339(never), "termination_time": rfc3339(never),
			"performance_standby_count": 9999,
		},
	}}, nil
}

func (s *System) uiVersion(context.Context, *engines.Request, *none) (*engines.Response, error) {
	return &engines.Response{Data: map[string]any{"version": s.opts.Version.API, "coffer_version": s.opts.Version.Product}}, nil
}

// featureFlags has no envelope, as in the family.
func featureFlags(context.Context, *engines.Request, *none) (*engines.Response, error) {
	return plain(0, map[string]any{"feature_flags": []string{}})
}

// The shapes of responses that several routes have: see engines.Route.Returns.
const (
	activationFlagsShape = "activated: [string], unactivated: [string]"
)
