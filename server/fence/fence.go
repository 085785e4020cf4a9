// Package fence is the store that everything but replication itself writes through. It keeps shared data to the primary cluster, keeps
// what a request began with from being written after its cluster became a secondary, and takes nothing that makes the data grow while
// there is no room for it. All three hold at the commit, in the state machine's order. Start reading at Store.Commit.
package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/storage"
)

// A cluster that becomes a secondary loses all that it held. A request that has begun before does not carry anything of that
// over: what it commits afterwards is refused, such as the token of a login by a user whom there is no more.
type lifeKey struct{}

// InLife returns the context of a request that may write, which belongs to the replication set of now.
func InLife(ctx context.Context, r roles.Role) context.Context {
	return context.WithValue(ctx, lifeKey{}, r.SetID)
}

// outlived reports whether what the cluster held when the request began was removed since, or is being removed.
func outlived(ctx context.Context, now *roles.Role) bool {
	set, known := ctx.Value(lifeKey{}).(string)
	return now.Mode == roles.Secondary && (now.Wiping || known && set != now.SetID)
}

var errOutlived = fmt.Errorf("%w: what this cluster held is being removed, as it becomes a secondary", storage.ErrUnavailable)

// noRoomKey marks the context of a request that must not make the stored data grow.
type noRoomKey struct{}

// WithoutRoom returns the context of a request that must not make the stored data grow.
func WithoutRoom(ctx context.Context) context.Context {
	return context.WithValue(ctx, noRoomKey{}, true)
}

// NoRoom reports whether a context is of such a request.
func NoRoom(ctx context.Context) bool { return ctx.Value(noRoomKey{}) != nil }

var errNoRoom = &engines.Error{Kind: engines.KindUnavailable, Detail: "the disk of the active node has no room for writes: nothing was written; " +
	"free space on it or make it larger; until then only reads, deletes, revocations, logins and requests below sys/ are accepted"}

// Options of a Store. All are required.
type Options struct {
	Barrier lifecycle.Barrier
	Cluster Cluster
	Node    Node
	Space   Space
}

// Cluster is this cluster in replication: replicated.Store.
type Cluster interface {
	Current(ctx context.Context) (roles.Role, error)
}

// Node says whether this is the active node.
type Node interface{ Active() bool }

// Space is the room on the disk, which every write takes: freespace.Watch.
type Space interface{ Wrote(bytes int) }

// Store is the store that everything but replication itself writes through. A batch with shared keys is written only
// while this cluster may write them: it has the entry of the cluster's role as a precondition, so that a change of role
// ends such writes at one index of the log, whatever is under way. So has every other batch, for the sake of errOutlived.
type Store struct {
	lifecycle.Barrier
	opts     Options
	rejected atomic.Uint64 // writes, as there was no room
}

// New returns the store in front of a barrier.
func New(o Options) *Store { return &Store{Barrier: o.Barrier, opts: o} }

// Reject counts a write for which there is no room, and returns the client's error.
func (f *Store) Reject() error {
	f.rejected.Add(1)
	return errNoRoom
}

// Rejected returns how many there were.
func (f *Store) Rejected() uint64 { return f.rejected.Load() }

// Commit implements storage.Committer. storage.ErrPrimaryOnly: the batch holds shared keys, which another cluster writes.
func (f *Store) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if len(b.Puts) > 0 && NoRoom(ctx) {
		return 0, f.Reject()
	}
	shared := b.Writes("s/")
	for {
		role, err := f.opts.Cluster.Current(ctx)
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
		with.Reads = append(slices.Clip(b.Reads), storage.Read{Key: roles.RoleKey, Version: role.Version})
		index, err := f.Barrier.Commit(ctx, with)
		if !errors.Is(err, storage.ErrConflict) {
			f.opts.Space.Wrote(b.Bytes())
			return index, err
		}
		now, failed := f.opts.Cluster.Current(ctx)
		if failed != nil {
			return 0, failed
		}
		if now.Version == role.Version {
			return index, err // it was another precondition
		}
	}
}

// may returns why the cluster does not write shared data, or nil.
func (f *Store) may(role roles.Role) error {
	switch {
	case role.Mode != roles.Secondary && role.Fenced == 0:
		return nil
	case !f.opts.Node.Active():
		return storage.ErrReadOnly // the active node knows what to do
	case role.Fenced != 0:
		return &engines.Error{Kind: engines.KindUnavailable, Detail: role.WhyFenced(), Err: storage.ErrPrimaryOnly}
	}
	return storage.ErrPrimaryOnly
}
