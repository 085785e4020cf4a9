package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/storage"
)

// What the rest of the server does about the role of its cluster in replication.

func (s *Server) newReplicated() *replicated.Store {
	return replicated.NewStore(replicated.Options{
		Store: s.opts.Lifecycle.Barrier, Link: s.link, Logger: s.log,
		ClusterID: func() string { return s.node.Identity().ID },
		APIAddr:   func() string { return s.opts.Lifecycle.APIAddr },
		NodeAddrs: s.nodeAddrs, Active: s.activeAddr,
		Applied: func() storage.Index { return s.raw.AppliedIndex() },
		Mounts:  s.mountInfos, Namespaces: s.namespaceInfos,
		Health: func() error {
			if h, ok := s.raw.(interface{ Health() error }); ok {
				return h.Health()
			}
			return nil
		},
		Wipe: s.wipe, BeforeDrop: s.unitDropped, Parted: newBatchKey,
		Wrap: func(ctx context.Context, ttl time.Duration, data any) (*engines.WrapInfo, error) {
			const path = "sys/replication/performance/primary/secondary-token"
			return s.wraps.Wrap(ctx, namespace.RootID, path, ttl, &engines.Response{Data: data})
		},
	})
}

// healthOfReplication is what sys/health says of it.
func (s *Server) healthOfReplication() (mode, clusterID string, canaryMS int64) {
	role := s.replicated.Role()
	if role.Mode == replicated.Secondary {
		if age, ok := s.replicated.CanaryAge(context.Background()); ok {
			canaryMS = age.Milliseconds()
		}
	}
	return string(role.Mode), role.ClusterID, canaryMS
}

// nodeAddrs are the cluster addresses of all nodes, the active one's first.
func (s *Server) nodeAddrs() []string {
	c := s.node.Cluster()
	if c == nil {
		return nil
	}
	peers, err := c.Peers()
	if err != nil {
		return nil
	}
	var addrs []string
	for _, p := range peers {
		switch {
		case p.ClusterAddr == "":
		case p.Leader:
			addrs = slices.Insert(addrs, 0, p.ClusterAddr)
		default:
			addrs = append(addrs, p.ClusterAddr)
		}
	}
	return addrs
}

// activeAddr says whether this is the active node, and what the cluster address of the one is that is.
func (s *Server) activeAddr() (self bool, addr string) {
	if c := s.node.Cluster(); c != nil {
		if p, ok := c.Leader(); ok {
			addr = p.ClusterAddr
		}
	}
	return s.node.Active(), addr
}

// mountInfos are the mounts of all namespaces.
func (s *Server) mountInfos(ctx context.Context) ([]replicated.MountInfo, error) {
	mounts, err := s.mounts.Everywhere(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]replicated.MountInfo, len(mounts))
	for i, m := range mounts {
		infos[i] = replicated.MountInfo{
			NamespaceID: m.Namespace, NamespacePath: s.namespacePath(m.Namespace), Path: m.Path, UUID: m.UUID, Type: m.Type,
			Local: m.Local, Builtin: m.Builtin(), Deleting: m.Deleting,
		}
	}
	return infos, nil
}

func (s *Server) namespaceInfos(ctx context.Context) ([]replicated.NamespaceInfo, error) {
	all, err := s.namespaces.Everything(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]replicated.NamespaceInfo, len(all))
	for i, n := range all {
		infos[i] = replicated.NamespaceInfo{ID: n.ID, Path: n.Path}
	}
	return infos, nil
}

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
	if s.sync != nil {
		s.sync.RoleChanged()
	}
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
