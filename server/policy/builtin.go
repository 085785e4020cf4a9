package policy

import (
	"github.com/coffer-project/coffer/storage"
)

// rootNS is the id of the root namespace.
const rootNS = "root"

const (
	// DefaultName is the policy that tokens get unless they ask not to.
	DefaultName = "default"
	// WrappingName is the policy of the tokens that carry wrapped responses. No other token may have it.
	WrappingName = "response-wrapping"
)

// defaultText is what the default policy holds until an operator changes it.
const defaultText = `# What every token may do unless it was created without the default policy.

# Know, extend and give up itself.
path "auth/token/lookup-self" { capabilities = ["read"] }
path "auth/token/renew-self"  { capabilities = ["update"] }
path "auth/token/revoke-self" { capabilities = ["update"] }

# Learn what it may do. The web UI asks for the second.
path "sys/capabilities-self"           { capabilities = ["update"] }
path "sys/internal/ui/resultant-acl"   { capabilities = ["read"] }

# Look after leases whose ids it knows.
path "sys/renew"         { capabilities = ["update"] }
path "sys/leases/renew"  { capabilities = ["update"] }
path "sys/leases/lookup" { capabilities = ["update"] }

# Keep things in its own cubbyhole.
path "cubbyhole/*" { capabilities = ["create", "read", "update", "delete", "list"] }

# Wrap data, and look at and open what was wrapped for it.
path "sys/wrapping/wrap"   { capabilities = ["update"] }
path "sys/wrapping/lookup" { capabilities = ["update"] }
path "sys/wrapping/unwrap" { capabilities = ["update"] }

# Read what is known of its own entity.
path "identity/entity/id/{{identity.entity.id}}"     { capabilities = ["read"] }
path "identity/entity/name/{{identity.entity.name}}" { capabilities = ["read"] }

# Hash data of its own.
path "sys/tools/hash"   { capabilities = ["update"] }
path "sys/tools/hash/*" { capabilities = ["update"] }
`

const wrappingText = `path "cubbyhole/response"   { capabilities = ["create", "read"] }
path "sys/wrapping/unwrap" { capabilities = ["update"] }
`

var wrapping = mustParse(WrappingName, wrappingText)

func mustParse(name, text string) *Policy {
	p, err := Parse(name, text)
	if err != nil {
		panic(err)
	}
	return p
}

// Defaults returns the entries that a new namespace begins with.
func Defaults(ns string) []storage.Put {
	return []storage.Put{{Key: key(ns, DefaultName), Value: encode(defaultText)}}
}
