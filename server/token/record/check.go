package record

import "github.com/coffer-project/coffer/engines"

// Limits of what a token may carry.
const (
	maxPolicies    = 1024
	maxPolicyBytes = 512       // of one name
	maxAllBytes    = 128 << 10 // of all names
	maxMeta        = 64
	maxMetaKey     = 128
	maxMetaValue   = 512
	MaxNameBytes   = 512 // of the display name
)

// Check reports what is wrong with a token that is to be created, but for its type.
func (e *Entry) Check() error {
	all := 0
	for _, policy := range e.Policies {
		if all += len(policy); len(policy) > maxPolicyBytes {
			return engines.Invalid("a policy name is longer than %d bytes", maxPolicyBytes)
		}
	}
	switch {
	case len(e.Policies) > maxPolicies:
		return engines.Invalid("a token has at most %d policies", maxPolicies)
	case all > maxAllBytes:
		return engines.Invalid("the names of a token's policies are longer than %d bytes together", maxAllBytes)
	case e.Root() && e.Namespace != RootNamespace:
		return engines.Invalid("root tokens may not be created outside the root namespace")
	case len(e.Meta) > maxMeta:
		return engines.Invalid("a token has at most %d entries of metadata", maxMeta)
	case len(e.DisplayName) > MaxNameBytes:
		return engines.Invalid("the display name is longer than %d bytes", MaxNameBytes)
	case e.NumUses < 0:
		return engines.Invalid("number of uses cannot be negative")
	case e.Period < 0 || e.ExplicitMaxTTL < 0 || e.MaxTTL < 0:
		return engines.Invalid("durations cannot be negative")
	}
	for k, v := range e.Meta {
		if len(k) > maxMetaKey || len(v) > maxMetaValue {
			return engines.Invalid("keys of metadata have at most %d bytes, values %d", maxMetaKey, maxMetaValue)
		}
	}
	return nil
}
