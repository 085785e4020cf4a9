package server

import (
	"context"
	"fmt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

// dependents are what mounts, tokens and namespaces have left in other parts.
type dependents struct{ s *Server }

// DisableMount implements mount.Dependents.
func (d dependents) DisableMount(ctx context.Context, m *mount.Mounted) error {
	s := d.s
	if s.sync != nil && (m.Local || !s.Secondary()) {
		if err := s.sync.MountGone(ctx, m.UUID); err != nil {
			return err
		}
	}
	return d.endMount(ctx, m)
}

// endMount removes what a mount gave out: its leases, the tokens of its logins, the names it knew people by.
func (d dependents) endMount(ctx context.Context, m *mount.Mounted) error {
	s := d.s
	if s.Secondary() && !m.Local { // the rest is the primary's
		return d.revokeAll(ctx, m)
	}
	if err := s.quotas.Drop(ctx, m.Mount.Namespace+m.Path); err != nil {
		return err
	}
	if err := d.revokeAll(ctx, m); err != nil || !m.IsAuth() {
		return err
	}
	return s.identity.DropMount(ctx, m.Namespace, m.Accessor)
}

// MoveMount implements mount.Dependents. The names stay, unless the people behind them stay behind.
func (d dependents) MoveMount(ctx context.Context, m *mount.Mounted, to mount.Target) error {
	s := d.s
	if to.Namespace != m.Namespace {
		return d.endMount(ctx, m)
	}
	if err := d.revokeAll(ctx, m); err != nil {
		return err
	}
	return s.quotas.Move(ctx, m.Mount.Namespace+m.Path, m.Mount.Namespace+to.Path)
}

// revokeAll revokes the leases and the tokens of a mount.
func (d dependents) revokeAll(ctx context.Context, m *mount.Mounted) error {
	s := d.s
	if _, err := s.leases.RevokeMount(ctx, m.UUID); err != nil {
		return err
	}
	if leaver, ok := m.Engine.(engines.Leaver); ok {
		if err := leaver.Leave(ctx, m.Mount); err != nil {
			return err
		}
	}
	if !m.IsAuth() {
		return nil
	}
	_, err := s.tokens.RevokeMount(ctx, m.UUID)
	return err
}

// RevokeToken implements token.Dependents: it removes the leases of a token, its cubbyhole, the answer it wraps.
func (d dependents) RevokeToken(ctx context.Context, e *token.Entry) error {
	s := d.s
	if err := s.leases.RevokeToken(ctx, e.Key); err != nil {
		return fmt.Errorf("revoking the leases of a token: %w", err)
	}
	if err := s.wraps.Drop(ctx, e.Key); err != nil {
		return fmt.Errorf("dropping a wrapped answer: %w", err)
	}
	m, err := s.mounts.Get(ctx, e.Namespace, "cubbyhole/")
	if err != nil || m == nil {
		return err
	}
	if err := storage.DeletePrefix(ctx, m.Mount.ClusterStorage, storage.Key(e.Key+"/")); err != nil {
		return fmt.Errorf("wiping the cubbyhole of a revoked token: %w", err)
	}
	return nil
}

// FirstPuts implements namespace.Contents.
func (dependents) FirstPuts(id string) []storage.Put { return namespacePuts(id) }

// Reserve implements namespace.Contents.
func (d dependents) Reserve(ctx context.Context, tx *storage.Txn, parent, path string) error {
	return d.s.mounts.Reserve(ctx, tx, parent, path)
}

// steps remove what a namespace holds.
func (d dependents) steps() []namespace.Step {
	return []namespace.Step{
		{Name: "revoke tokens", Do: d.revokeTokens},
		{Name: "remove synced secrets", Do: d.removeSynced},
		{Name: "disable mounts", Do: d.disableMounts},
		{Name: "delete identities", Do: d.deleteIdentities},
		{Name: "delete configuration", Do: d.deleteConfiguration},
	}
}

func (d dependents) revokeTokens(ctx context.Context, ns string) error {
	_, err := d.s.tokens.RevokeNamespace(ctx, ns)
	return err
}

// removeSynced has what was synced from a namespace removed before its mounts are.
func (d dependents) removeSynced(ctx context.Context, ns string) error {
	if d.s.sync == nil {
		return nil
	}
	return d.s.sync.NamespaceGone(ctx, ns)
}

func (d dependents) disableMounts(ctx context.Context, ns string) error {
	return d.s.mounts.DropNamespace(ctx, ns)
}

func (d dependents) deleteIdentities(ctx context.Context, ns string) error {
	return d.s.identity.DropNamespace(ctx, ns)
}

// deleteConfiguration removes all that is left of a namespace: policies, token roles, password policies.
func (d dependents) deleteConfiguration(ctx context.Context, id string) error {
	s := d.s
	if path := s.namespaces.Path(id); path != "" {
		if err := s.quotas.Drop(ctx, path); err != nil {
			return err
		}
	}
	for _, class := range []storage.Class{storage.Shared, storage.Local} {
		if err := storage.DeletePrefix(ctx, s.barrier, storage.NewKey(class, "sys", id+"/")); err != nil {
			return err
		}
	}
	return nil
}
