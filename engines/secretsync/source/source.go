// Package source reads the secrets that are synced, on behalf of the owners of their associations: the newest version of a secret, from
// the engine of its mount, and whether the owner may read it still. Its errors say why nothing may be changed at the destination.
// Start reading at Latest.
package source

import (
	"context"
	"errors"
	"slices"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

// Latest returns the newest version of a secret, if the mount has any.
func Latest(ctx context.Context, m *engines.Mounted, secret string) (engines.Secret, error) {
	if m == nil {
		return engines.Secret{}, &destination.Error{
			Class: destination.Client, Code: noMount, Text: "the mount of the secret is not there; nothing is changed at the destination",
		}
	}
	source, ok := m.Engine.(engines.SecretSource)
	if !ok {
		return engines.Secret{}, &destination.Error{
			Class: destination.Client, Code: notKV2, Text: "the mount is not a KV version 2 engine; nothing is changed at the destination",
		}
	}
	return source.LatestSecret(ctx, m.Mount, secret)
}

// CheckOwner returns an error, of which IsLostAccess is true, if the owner of an association cannot read its secret any more.
func CheckOwner(ctx context.Context, host engines.Host, who engines.Principal, m *engines.Mounted, secret string) error {
	source := m.Engine.(engines.SecretSource)
	ok, err := host.MayRead(ctx, who, m.NamespaceID, m.Path+source.ReadPath(secret))
	if err != nil {
		return err
	}
	if !ok {
		return &destination.Error{
			Class: destination.Client, Code: ownerLostAccess,
			Text: "the association owner cannot read the secret any more; nothing is changed at the destination until a user who can read it associates it again",
		}
	}
	return nil
}

// IsLostAccess reports whether an error is that the owner of an association cannot read its secret any more.
func IsLostAccess(err error) bool {
	e, ok := errors.AsType[*destination.Error](err)
	return ok && e.Code == ownerLostAccess
}

// Codes of errors that may recover without a change of the secret, the association or the destination.
const (
	ownerLostAccess = "owner_lost_access"
	noMount         = "no_mount"
	notKV2          = "not_kv2"
)

// MayRecover reports whether what has the code may be over without a change of the secret, the association or the destination.
func MayRecover(code string) bool {
	return slices.Contains([]string{ownerLostAccess, noMount, notKV2, state.CodeInternal}, code)
}
