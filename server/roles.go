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
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/setkeys"
	"github.com/coffer-project/coffer/storage"
)

// What the rest of the server does about the role of its cluster in replication.

func (s *Server) newReplicated() *replicated.Store {
	c := clusterOf{s}
	return replicated.NewStore(replicated.Options{
		Store: s.opts.Lifecycle.Barrier, Link: s.link, Node: c, Data: c, Secrets: c, Logger: s.log,
	})
}

// clusterOf is the cluster of a server: a replicated.Node, its replicated.Data and its registry.Secrets.
type clusterOf struct{ *Server }

func (s clusterOf) ClusterID() string           { return s.node.Identity().ID }
func (s clusterOf) APIAddr() string             { return s.opts.Lifecycle.APIAddr }
func (s clusterOf) AppliedIndex() storage.Index { return s.raw.AppliedIndex() }

func (s clusterOf) Health() error {
	if h, ok := s.raw.(interface{ Health() error }); ok {
		return h.Health()
	}
	return nil
}

func (s clusterOf) Wrap(ctx context.Context, path string, ttl time.Duration, data any) (*engines.WrapInfo, error) {
	return s.wraps.Wrap(ctx, namespace.RootID, path, ttl, &engines.Response{Data: data})
}

func (s clusterOf) Parted(ctx context.Context, tx *storage.Txn) error {
	return setkeys.RenewBatch(ctx, tx)
}

// NodeAddrs are the cluster addresses of all nodes, the active one's first.
func (s clusterOf) NodeAddrs() []string {
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

// Active says whether this is the active node, and returns the cluster address of the active one.
func (s clusterOf) Active() (self bool, addr string) {
	if c := s.node.Cluster(); c != nil {
		if p, ok := c.Leader(); ok {
			addr = p.ClusterAddr
		}
	}
	return s.node.Active(), addr
}

// Mounts are the mounts of all namespaces.
func (s clusterOf) Mounts(ctx context.Context) ([]filter.Mount, error) {
	mounts, err := s.mounts.Everywhere(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]filter.Mount, len(mounts))
	for i, m := range mounts {
		infos[i] = filter.Mount{
			NamespaceID: m.Namespace, NamespacePath: s.namespaces.Path(m.Namespace), Path: m.Path, UUID: m.UUID, Type: m.Type,
			Local: m.Local, Builtin: m.Builtin(), Deleting: m.Deleting,
		}
	}
	return infos, nil
}

func (s clusterOf) Namespaces(ctx context.Context) ([]filter.Namespace, error) {
	all, err := s.namespaces.Everything(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]filter.Namespace, len(all))
	for i, n := range all {
		infos[i] = filter.Namespace{ID: n.ID, Path: n.Path}
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
	s.states.ForgetSet()
	s.mounts.RoleChanged()
	s.namespaces.RoleChanged()
	if s.sync != nil {
		s.sync.RoleChanged()
	}
	if s.plugins != nil {
		s.plugins.RoleChanged()
	}
	return s.link.Keep(ctx, role.Mode != roles.Disabled)
}

// wipeKeeps are what a cluster keeps when it becomes a secondary: what makes it a cluster, and how it is run.
var wipeKeeps = []storage.Key{
	"l/seal/", "l/barrier/", "l/cluster/", "l/replication/", "l/token/key", "l/sys/audit/", "l/sys/raft/",
	"l/sys/root/versions/", "l/sys/root/snapshot-auto/",
}

// Wipe removes everything that is not in wipeKeeps: tokens and leases first, then what they led to. It can be repeated
// after an interruption.
func (s clusterOf) Wipe(ctx context.Context) error {
	store := s.opts.Lifecycle.Barrier // the fence is up already
	for _, first := range []storage.Key{"l/token/id/", "l/", "s/"} {
		if err := s.wipeBelow(ctx, store, first); err != nil {
			return fmt.Errorf("removing what the cluster held: %w", err)
		}
	}
	// What was kept in memory of it, beside what follows single keys.
	for _, w := range s.watchers() {
		w.changed(storage.Change{Index: s.raw.AppliedIndex(), Reset: true})
	}
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

// BeforeDrop ends what was handed out of a unit that this secondary is about to lose.
func (s clusterOf) BeforeDrop(ctx context.Context, unit string) {
	kind, id := filter.SplitUnit(unit)
	var errs []error
	switch kind {
	case "mount":
		errs = append(errs, s.mounts.Leave(ctx, id)) // from here on nothing is handed out of it
		_, err := s.leases.RevokeMount(ctx, id)
		_, more := s.tokens.RevokeMount(ctx, id)
		errs = append(errs, err, more, storage.DeletePrefix(ctx, s.barrier, storage.NewKey(storage.Local, id, "")))
	case "ns":
		if id == namespace.RootID {
			return
		}
		all, err := s.mounts.Everywhere(ctx)
		errs = append(errs, err)
		for _, m := range all {
			if m.Namespace == id {
				errs = append(errs, s.mounts.Leave(ctx, m.UUID))
			}
		}
		_, err = s.tokens.RevokeNamespace(ctx, id)
		errs = append(errs, err, storage.DeletePrefix(ctx, s.barrier, storage.NewKey(storage.Local, "sys", id+"/")))
	}
	if err := errors.Join(errs...); err != nil {
		s.log.Warn("ending what was handed out of data that leaves this secondary", "unit", unit, "err", err)
	}
}
