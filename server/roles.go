package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/storage"
)

// What the rest of the server does about the role of its cluster in replication.

// roleChanged is told, on every node, that the role may be another one. It does not block.
func (s *Server) roleChanged() {
	select {
	case s.roles <- struct{}{}:
	default:
	}
}

// followRole brings this node in line with the role, at each change, until ctx ends.
func (s *Server) followRole(ctx context.Context) {
	for {
		var again <-chan time.Time
		if err := s.applyRole(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("following the role of the cluster, trying again", "err", err)
			again = time.After(time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.roles:
		case <-again:
		}
	}
}

func (s *Server) applyRole(ctx context.Context) error {
	if s.node.Sealed() {
		return nil
	}
	role, err := s.replicated.Current(ctx)
	if errors.Is(err, storage.ErrSealed) {
		return nil
	}
	if err != nil {
		return err
	}
	s.states.forgetSet()
	s.mounts.RoleChanged()
	s.namespaces.RoleChanged()
	return s.link.Keep(ctx, role.Mode != replicated.Disabled)
}

// wipeKeeps are what a cluster keeps when it becomes a secondary: what makes it a cluster, and how it is run.
var wipeKeeps = []storage.Key{
	"l/seal/", "l/barrier/", "l/cluster/", "l/replication/", "l/token/key", "l/sys/audit/", "l/sys/raft/",
	"l/sys/root/versions/", "l/sys/root/snapshot-auto/",
}

// wipe removes everything that is not in wipeKeeps: tokens and leases first, then what they led to. It can be repeated
// after an interruption.
func (s *Server) wipe(ctx context.Context) error {
	store := s.opts.Lifecycle.Barrier // the fence is up already
	for _, first := range []storage.Key{"l/token/id/", "l/", "s/"} {
		if err := s.wipeBelow(ctx, store, first); err != nil {
			return fmt.Errorf("removing what the cluster held: %w", err)
		}
	}
	// What was kept in memory of it, beside what follows single keys.
	s.changed(storage.Change{Index: s.raw.AppliedIndex(), Reset: true})
	return nil
}

func (s *Server) wipeBelow(ctx context.Context, store storage.Store, prefix storage.Key) error {
	within := slices.ContainsFunc(wipeKeeps, func(k storage.Key) bool { return strings.HasPrefix(string(k), string(prefix)) })
	if slices.ContainsFunc(wipeKeeps, func(k storage.Key) bool { return strings.HasPrefix(string(prefix), string(k)) }) {
		return nil
	}
	if !within {
		return storage.DeletePrefix(ctx, store, prefix)
	}
	names, err := store.List(ctx, prefix, "", 0)
	if err != nil {
		return err
	}
	for _, name := range names {
		key := prefix + storage.Key(name)
		if strings.HasSuffix(name, "/") {
			err = s.wipeBelow(ctx, store, key)
		} else if !slices.Contains(wipeKeeps, key) {
			_, err = store.Commit(ctx, storage.Batch{Deletes: []storage.Key{key}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
