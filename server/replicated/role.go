package replicated

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/server/replicated/primaries"
	"github.com/coffer-project/coffer/server/replicated/registry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/scopes"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// Options of a Store. All but Logger are required.
type Options struct {
	Store   storage.Store // plaintext, without any fence
	Link    traffic.Link
	Node    Node
	Data    Data
	Secrets registry.Secrets
	Logger  *slog.Logger // nil: discard
}

// Node is the node that a Store runs on, and its cluster.
type Node interface {
	// ClusterID is the cluster's own id; it is that within the set until replication was disabled once.
	ClusterID() string
	// APIAddr is the API address of this cluster, for activation tokens.
	APIAddr() string
	// NodeAddrs are the cluster addresses of all nodes, the active one's first. Active says whether this is the active
	// node, and returns the cluster address of the active one.
	NodeAddrs() []string
	Active() (self bool, addr string)
	// AppliedIndex is the index of the last log entry applied on this node.
	AppliedIndex() storage.Index
	// Health says what is wrong with this node's disk, nil if nothing is.
	Health() error
}

// Data is what the cluster holds, and has handed out.
type Data interface {
	scopes.Contents
	// Wipe deletes everything that a new secondary must not keep. It may be called again after it was interrupted.
	Wipe(ctx context.Context) error
	// BeforeDrop ends what was handed out of a unit, before the unit is deleted on a secondary.
	BeforeDrop(ctx context.Context, unit string)
}

// Store is this cluster's place in replication. It answers what link.Guard asks. Give Changed every change of the feed, on
// every node. Safe for concurrent use.
type Store struct {
	*scopes.Scopes // what each secondary gets

	opts  Options
	store storage.Store
	link  traffic.Link
	log   *slog.Logger
	// registry fulfils what link.Admission asks about certificates.
	registry *registry.Registry
	others   *primaries.Known

	// changes counts announced changes to what the mirror holds; a mirror is fresh while it has that number.
	changes atomic.Uint64
	mirror  atomic.Pointer[mirror]
	// wake tells Active that something below l/replication/ changed; outdated that mounts, namespaces, filters or the
	// registry did. Capacity 1, level-triggered, never closed.
	wake     chan struct{}
	outdated chan struct{}
	ask      chan struct{} // the primary for the filter; as those above

	cursorMu sync.Mutex // held while the cursor of a demoted cluster is written, or one that is left over is removed
}

// mirror is what is kept in memory. Immutable once published.
type mirror struct {
	at   uint64
	role roles.Role
}

// NewStore returns a Store that reads its role when it is first asked for.
func NewStore(o Options) *Store {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{
		opts: o, store: o.Store, link: o.Link, log: o.Logger,
		wake: make(chan struct{}, 1), outdated: make(chan struct{}, 1), ask: make(chan struct{}, 1),
	}
	s.others = primaries.New(primaries.Options{Store: o.Store, Link: o.Link, Cluster: s, Logger: o.Logger})
	s.registry = registry.New(registry.Options{Store: o.Store, Cluster: s, Secrets: o.Secrets, Primaries: s.others, Logger: o.Logger})
	s.Scopes = scopes.New(scopes.Options{Store: o.Store, Link: o.Link, Secondaries: s.registry, Contents: o.Data})
	return s
}

// Load reads the role, after unsealing.
func (s *Store) Load(ctx context.Context) error {
	s.changes.Add(1)
	_, err := s.Current(ctx)
	return err
}

// Clear forgets everything, when the server seals.
func (s *Store) Clear() {
	s.changes.Add(1)
	s.mirror.Store(nil)
	s.registry.Clear()
}

// localPrefix is where everything of this package and of the link is kept.
const localPrefix storage.Key = "l/replication/"

// Changed takes every change of the feed. It runs on the apply path, and only notes what is to be read again.
func (s *Store) Changed(ch storage.Change) {
	s.registry.Changed(ch)
	var role, own, scope bool
	for i := range ch.Entries {
		switch k := ch.Entries[i].Key; {
		case k == roles.RoleKey:
			role, own, scope = true, true, true
		case strings.HasPrefix(string(k), string(ProgressPrefix)):
			// The link's own, and written with every batch.
		case strings.HasPrefix(string(k), string(localPrefix)):
			own, scope = true, true
		case filter.Anchor(k):
			scope = true
		}
	}
	if role || ch.Reset {
		s.changes.Add(1)
	}
	if own || ch.Reset {
		signal(s.wake)
		s.others.Wake()
	}
	if scope || ch.Reset {
		signal(s.outdated)
	}
}

// signal fills a level-triggered channel.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Current returns the role as of the last applied change. It costs an atomic load as long as the role does not change. A
// write to shared data has Read{RoleKey, Version} of it among its preconditions.
func (s *Store) Current(ctx context.Context) (roles.Role, error) {
	if m := s.mirror.Load(); m != nil && m.at == s.changes.Load() {
		return m.role, nil
	}
	at := s.changes.Load()
	r, err := roles.Read(ctx, s.store)
	if err != nil {
		return roles.Role{}, err
	}
	s.mirror.Store(&mirror{at: at, role: r})
	return r, nil
}

// Role returns the last known role: Disabled while sealed.
func (s *Store) Role() roles.Role {
	if r, err := s.Current(context.Background()); err == nil {
		return r
	}
	if m := s.mirror.Load(); m != nil {
		return m.role
	}
	return roles.Role{Mode: roles.Disabled}
}

// change makes another role of the present one, in one commit with whatever else fn puts into the transaction, and wakes
// what depends on it. It returns the new role.
func (s *Store) change(ctx context.Context, fn func(tx *storage.Txn, r *roles.Role) error) (roles.Role, error) {
	var next roles.Role
	index, err := storage.Update(ctx, s.store, func(tx *storage.Txn) error {
		r, err := roles.Read(ctx, tx)
		if err != nil {
			return err
		}
		next = r
		if err := fn(tx, &next); err != nil {
			return err
		}
		next.Format = 1
		tx.Put(roles.RoleKey, entry.Encode(&next))
		return nil
	})
	if err != nil {
		return roles.Role{}, err
	}
	s.RoleWritten()
	next.Version = index
	if n := len(next.Lineage); n > 0 && next.Lineage[n-1].Base == 0 && next.Lineage[n-1].ClusterID == next.ClusterID {
		next.Lineage[n-1].Base = index
	}
	s.log.Info("replication role changed", "mode", next.Mode, "cluster_id", next.ClusterID, "epoch", next.Lineage.Epoch(), "index", index)
	return next, nil
}

// RoleWritten wakes what depends on the role, after it was written.
func (s *Store) RoleWritten() {
	s.changes.Add(1)
	signal(s.wake)
	s.link.Refresh()
}
