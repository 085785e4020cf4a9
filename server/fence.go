package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/storage"
)

// A cluster that becomes a secondary loses all that it held. A request that has begun before does not carry anything of that
// over: what it commits afterwards is refused, such as the token of a login by a user whom there is no more.
type lifeKey struct{}

// inLife returns the context of a request that may write, which belongs to the replication set of now.
func inLife(ctx context.Context, r replicated.Role) context.Context {
	return context.WithValue(ctx, lifeKey{}, r.SetID)
}

// outlived reports whether what the cluster held when the request began was removed since, or is being removed.
func outlived(ctx context.Context, now *replicated.Role) bool {
	set, known := ctx.Value(lifeKey{}).(string)
	return now.Mode == replicated.Secondary && (now.Wiping || known && set != now.SetID)
}

var errOutlived = fmt.Errorf("%w: what this cluster held is being removed, as it becomes a secondary", storage.ErrUnavailable)

// noRoomKey marks the context of a request that must not make the stored data grow.
type noRoomKey struct{}

// inRoom returns the context that an engine serves a call in. Whether there is room for what it writes is decided once, so that
// nothing is left half done. Deletes, logins, and what operators do to the server may use the room that is kept for them.
func (s *Server) inRoom(ctx context.Context, c *call) context.Context {
	if !s.noRoom() || c.Op == engines.Delete || c.open() || c.has(engines.FreesSpace) || c.mount != nil && c.mount.Type == "system" && c.wrapTTL == 0 {
		return ctx
	}
	return context.WithValue(ctx, noRoomKey{}, true)
}

var errNoRoom = &engines.Error{Kind: engines.KindUnavailable, Detail: "the disk of the active node has no room for writes: nothing was written; " +
	"free space on it or make it larger; until then only reads, deletes, revocations, logins and requests below sys/ are accepted"}

// fenced is the store that everything but replication itself writes through. A batch with shared keys is written only
// while this cluster may write them: it has the entry of the cluster's role as a precondition, so that a change of role
// ends such writes at one index of the log, whatever is under way. So has every other batch, for the sake of errOutlived.
type fenced struct {
	lifecycle.Barrier
	role   func(context.Context) (replicated.Role, error)
	active func() bool
	wrote  func(bytes int)

	rejected atomic.Uint64 // writes, as there was no room
}

// Commit implements storage.Committer. storage.ErrPrimaryOnly: the batch holds shared keys, which another cluster writes.
func (f *fenced) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if len(b.Puts) > 0 && ctx.Value(noRoomKey{}) != nil {
		f.rejected.Add(1)
		return 0, errNoRoom
	}
	shared := writesShared(&b)
	for {
		role, err := f.role(ctx)
		if err != nil {
			return 0, err
		}
		if shared {
			err = f.may(role)
		} else if outlived(ctx, &role) {
			err = errOutlived
		}
		if err != nil {
			return 0, err
		}
		with := b
		with.Reads = append(slices.Clip(b.Reads), storage.Read{Key: replicated.RoleKey, Version: role.Version})
		index, err := f.Barrier.Commit(ctx, with)
		if !errors.Is(err, storage.ErrConflict) {
			f.wrote(b.Bytes())
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
		return &engines.Error{Kind: engines.KindUnavailable, Detail: role.WhyFenced(), Err: storage.ErrPrimaryOnly}
	}
	return storage.ErrPrimaryOnly
}

// writesShared reports whether the batch writes what replicates.
func writesShared(b *storage.Batch) bool {
	return slices.ContainsFunc(b.Puts, func(p storage.Put) bool { return p.Key.Class() == storage.Shared }) ||
		slices.ContainsFunc(b.Deletes, func(k storage.Key) bool { return k.Class() == storage.Shared })
}
