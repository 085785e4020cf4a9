package apply

import (
	"context"
	"errors"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/source"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/template"
)

// desiredState returns the names and values that should be at the destination. The error says why nothing may be changed there.
func (s *Syncer) desiredState(ctx context.Context, t *target) ([]template.Item, error) {
	if t.assoc.Removing || t.assoc.Gone {
		return nil, nil
	}
	var err error
	if t.secret, err = source.Latest(ctx, t.mount, t.key.Secret); err != nil {
		return nil, err
	}
	if err := source.CheckOwner(ctx, s.Host, t.assoc.Owner, t.mount, t.key.Secret); err != nil {
		return nil, err
	}
	if !t.secret.Live {
		return nil, nil
	}
	src := template.NewSource(t.dest.Type, t.dest.Name, s.Host.NamespacePath(t.key.NS), t.key.NS, t.mount.Path, t.assoc.Accessor, t.key.Secret)
	items, err := t.assoc.Plan(t.dest.Rules).Items(src, t.secret.Data)
	if err != nil {
		code := "template"
		if _, many := errors.AsType[template.TooManyKeys](err); many {
			code = "too_many_keys"
		}
		return nil, &destination.Error{Class: destination.Client, Code: code, Text: err.Error()}
	}
	return items, nil
}

// OwnerReads reports whether the owner of an association can read a secret. An association with a prefix covers only secrets that its
// owner can read; the names of others are not shown.
func (s *Syncer) OwnerReads(ctx context.Context, a *state.Association, m *engines.Mounted, secret string) (bool, error) {
	err := source.CheckOwner(ctx, s.Host, a.Owner, m, secret)
	if source.IsLostAccess(err) {
		return false, nil
	}
	return err == nil, err
}
