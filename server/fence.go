package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/storage"
)

// fenced is the store that everything but replication itself writes through. A batch with shared keys is written only
// while this cluster may write them: it has the entry of the cluster's role as a precondition, so that a change of role
// ends such writes at one index of the log, whatever is under way.
type fenced struct {
	lifecycle.Barrier
	role   func(context.Context) (replicated.Role, error)
	active func() bool
}

// Commit implements storage.Committer. storage.ErrPrimaryOnly: the batch holds shared keys, which another cluster writes.
func (f *fenced) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if !writesShared(&b) {
		return f.Barrier.Commit(ctx, b)
	}
	for {
		role, err := f.role(ctx)
		if err != nil {
			return 0, err
		}
		if err := f.may(role); err != nil {
			return 0, err
		}
		with := b
		with.Reads = append(slices.Clip(b.Reads), storage.Read{Key: replicated.RoleKey, Version: role.Version})
		index, err := f.Barrier.Commit(ctx, with)
		if !errors.Is(err, storage.ErrConflict) {
			return index, err
		}
		now, failed := f.role(ctx)
		if failed != nil {
			return 0, failed
		}
		if now.Version == role.Version {
			return index, err // it was another precondition
		}
	}
}

// may returns why the cluster does not write shared data, or nil.
func (f *fenced) may(role replicated.Role) error {
	switch {
	case role.Mode != replicated.Secondary && role.Fenced == 0:
		return nil
	case !f.active():
		return storage.ErrReadOnly // the active node knows what to do
	case role.Fenced != 0:
		return fmt.Errorf("%w: epoch %d has another one", storage.ErrPrimaryOnly, role.Fenced)
	}
	return storage.ErrPrimaryOnly
}

// writesShared reports whether the batch writes what replicates.
func writesShared(b *storage.Batch) bool {
	return slices.ContainsFunc(b.Puts, func(p storage.Put) bool { return p.Key.Class() == storage.Shared }) ||
		slices.ContainsFunc(b.Deletes, func(k storage.Key) bool { return k.Class() == storage.Shared })
}
