package apply

import (
	"context"
	"errors"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/template"
)

// LatestSecret returns the newest version of a secret, if the mount has any.
func LatestSecret(ctx context.Context, m *engines.Mounted, secret string) (engines.Secret, error) {
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

// desiredState returns the names and values that should be at the destination. The error says why nothing may be changed there.
func (s *Syncer) desiredState(ctx context.Context, t *target) ([]template.Item, error) {
	if t.assoc.Removing || t.assoc.Gone {
		return nil, nil
	}
	var err error
	if t.secret, err = LatestSecret(ctx, t.mount, t.key.Secret); err != nil {
		return nil, err
	}
	if err := s.mayRead(ctx, t.assoc.Owner, t.mount, t.key.Secret); err != nil {
		return nil, err
	}
	if !t.secret.Live {
		return nil, nil
	}
	src := template.NewSource(t.dest.Type, t.dest.Name, s.Host.NamespacePath(t.key.NS), t.key.NS, t.mount.Path, t.assoc.Accessor, t.key.Secret)
	items, err := t.assoc.Plan(t.destType.Rules).Items(src, t.secret.Data)
	if err != nil {
		code := "template"
		if _, many := errors.AsType[template.TooManyKeys](err); many {
			code = "too_many_keys"
		}
		return nil, &destination.Error{Class: destination.Client, Code: code, Text: err.Error()}
	}
	return items, nil
}

// mayRead reports whether the owner of an association can still read its secret.
func (s *Syncer) mayRead(ctx context.Context, who engines.Principal, m *engines.Mounted, secret string) error {
	source := m.Engine.(engines.SecretSource)
	ok, err := s.Host.MayRead(ctx, who, m.NamespaceID, m.Path+source.ReadPath(secret))
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

// OwnerReads reports whether the owner of an association can read a secret. An association with a prefix covers only secrets that its
// owner can read; the names of others are not shown.
func (s *Syncer) OwnerReads(ctx context.Context, a *state.Association, m *engines.Mounted, secret string) (bool, error) {
	err := s.mayRead(ctx, a.Owner, m, secret)
	if isLostAccess(err) {
		return false, nil
	}
	return err == nil, err
}

func isLostAccess(err error) bool {
	e, ok := errors.AsType[*destination.Error](err)
	return ok && e.Code == ownerLostAccess
}

// Codes of desiredState that may recover without a change of the secret, the association or the destination.
const (
	ownerLostAccess = "owner_lost_access"
	noMount         = "no_mount"
	notKV2          = "not_kv2"
)

var recoverableCodes = []string{ownerLostAccess, noMount, notKV2, codeInternal}
