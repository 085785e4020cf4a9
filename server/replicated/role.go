package replicated

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Options of a Store. Store and Link are required; without the other functions the Store knows of nothing.
type Options struct {
	Store  storage.Store // plaintext, without any fence
	Link   Link
	Logger *slog.Logger
	Now    func() time.Time

	// ClusterID is the cluster's own id; it is that within the set until replication was disabled once.
	ClusterID func() string
	// APIAddr is the API address of this cluster, for activation tokens.
	APIAddr func() string
	// NodeAddrs are the cluster addresses of all nodes, the active one's first. Active says whether this is the active
	// node, and what the cluster address of the one is that is.
	NodeAddrs func() []string
	Active    func() (self bool, addr string)

	// Applied is the index of the last log entry applied on this node.
	Applied func() storage.Index

	// Mounts and Namespaces are those of the whole cluster, root included, as they are now.
	Mounts     func(ctx context.Context) ([]MountInfo, error)
	Namespaces func(ctx context.Context) ([]NamespaceInfo, error)
	// Health says what is wrong with this node's disk, nil if nothing is.
	Health func() error
	// Wipe deletes everything that a new secondary must not keep. It may be called again after it was interrupted.
	Wipe func(ctx context.Context) error
	// Parted replaces what all clusters of a set have in common and who has left the set must not be able to use. It is part
	// of the commit by which a secondary is revoked, or this cluster leaves.
	Parted func(ctx context.Context, tx *storage.Txn) error
	// BeforeDrop ends what was handed out of a unit, before the unit is deleted on a secondary.
	BeforeDrop func(ctx context.Context, unit string)
	// Wrap keeps data for whoever has the token that it returns.
	Wrap func(ctx context.Context, ttl time.Duration, data any) (*engines.WrapInfo, error)
}

// fill replaces what is missing.
func (o *Options) fill() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.ClusterID == nil {
		o.ClusterID = func() string { return "" }
	}
	if o.APIAddr == nil {
		o.APIAddr = func() string { return "" }
	}
	if o.NodeAddrs == nil {
		o.NodeAddrs = func() []string { return nil }
	}
	if o.Active == nil {
		o.Active = func() (bool, string) { return true, "" }
	}
	if o.Applied == nil {
		o.Applied = o.Link.Head
	}
	if o.Mounts == nil {
		o.Mounts = func(context.Context) ([]MountInfo, error) { return nil, nil }
	}
	if o.Namespaces == nil {
		o.Namespaces = func(context.Context) ([]NamespaceInfo, error) { return nil, nil }
	}
	if o.Health == nil {
		o.Health = func() error { return nil }
	}
	if o.Wipe == nil {
		o.Wipe = func(context.Context) error { return nil }
	}
	if o.Parted == nil {
		o.Parted = func(context.Context, *storage.Txn) error { return nil }
	}
	if o.BeforeDrop == nil {
		o.BeforeDrop = func(context.Context, string) {}
	}
	if o.Wrap == nil {
		o.Wrap = func(context.Context, time.Duration, any) (*engines.WrapInfo, error) {
			return nil, errors.New("nothing can be wrapped here")
		}
	}
}

// Store is this cluster's place in replication. It is a Guard. Give Changed every change of the feed, on every node. Safe
// for concurrent use.
type Store struct {
	opts  Options
	store storage.Store
	link  Link
	log   *slog.Logger
	// registry fulfils the parts of Guard that are about certificates.
	registry *Registry

	// changes counts announced changes to what the mirror holds; a mirror is fresh while it has that number.
	changes atomic.Uint64
	mirror  atomic.Pointer[mirror]
	// wake tells Active that something below l/replication/ changed; outdated that mounts, namespaces, filters or the
	// registry did. Capacity 1, level-triggered, never closed.
	wake     chan struct{}
	outdated chan struct{}
	ask      chan struct{} // the primary for the filter; as those above

	formers  chan struct{} // that a former primary is to be told of the latest one; as those above
	attempts attempts
	claims   sync.Mutex // held while a claim is looked at

	settling sync.Mutex // held while the cursor of a demoted cluster is written, or one that is left over is removed
}

// mirror is what is kept in memory. Immutable once published.
type mirror struct {
	at   uint64
	role Role
}

// NewStore returns a Store that reads its role when it is first asked for.
func NewStore(o Options) *Store {
	o.fill()
	s := &Store{
		opts: o, store: o.Store, link: o.Link, log: o.Logger,
		wake: make(chan struct{}, 1), outdated: make(chan struct{}, 1), ask: make(chan struct{}, 1),
		formers: make(chan struct{}, 1),
	}
	s.registry = NewRegistry(RegistryOptions{
		Store: o.Store, Addrs: s.Addrs, APIAddr: o.APIAddr, Wrap: o.Wrap, Now: o.Now, Logger: o.Logger,
		Parted: o.Parted,
	})
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
	note := func(k storage.Key) {
		switch {
		case k == RoleKey:
			role, own, scope = true, true, true
		case strings.HasPrefix(string(k), string(ProgressPrefix)):
			// The link's own, and written with every batch.
		case strings.HasPrefix(string(k), string(localPrefix)):
			own, scope = true, true
		case Anchor(k):
			scope = true
		}
	}
	for i := range ch.Puts {
		note(ch.Puts[i].Key)
	}
	for _, k := range ch.Deletes {
		note(k)
	}
	if role || ch.Reset {
		s.changes.Add(1)
	}
	if own || ch.Reset {
		nudge(s.wake)
		nudge(s.formers)
	}
	if scope || ch.Reset {
		nudge(s.outdated)
	}
}

// nudge fills a level-triggered channel.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Current returns the role as of the last applied change. It costs an atomic load as long as the role does not change. A
// write to shared data has Read{RoleKey, Version} of it among its preconditions.
func (s *Store) Current(ctx context.Context) (Role, error) {
	if m := s.mirror.Load(); m != nil && m.at == s.changes.Load() {
		return m.role, nil
	}
	at := s.changes.Load()
	r, err := readRole(ctx, s.store)
	if err != nil {
		return Role{}, err
	}
	s.mirror.Store(&mirror{at: at, role: r})
	return r, nil
}

// Role returns the last known role: Disabled while sealed.
func (s *Store) Role() Role {
	if r, err := s.Current(context.Background()); err == nil {
		return r
	}
	if m := s.mirror.Load(); m != nil {
		return m.role
	}
	return Role{Mode: Disabled}
}

// TakesWrites reports whether a cluster in this role writes shared data by itself. A secondary does not, and neither does a
// primary that knows of a later one.
func (r *Role) TakesWrites() bool { return r.Mode == Disabled || r.Mode == Primary && r.Fenced == 0 }

// getter is a storage.Reader or a storage.Txn.
type getter interface {
	Get(ctx context.Context, key storage.Key) (storage.Entry, error)
}

// readRole returns the stored role; an absent one is Disabled.
func readRole(ctx context.Context, from getter) (Role, error) {
	r := Role{Format: 1, Mode: Disabled}
	found, err := read(ctx, from, RoleKey, &r)
	if err != nil || found.Key == "" {
		return r, err
	}
	if r.Format != 1 {
		return Role{}, fmt.Errorf("the replication role has format %d, this version knows 1", r.Format)
	}
	r.Version = found.Version
	// The index at which a primary became one is that of the entry that says so: it is not known before that is written.
	if n := len(r.Lineage); n > 0 && r.Lineage[n-1].Base == 0 && r.Lineage[n-1].ClusterID == r.ClusterID {
		r.Lineage = slices.Clone(r.Lineage)
		r.Lineage[n-1].Base = found.Version
	}
	return r, nil
}

// read decodes an entry into v, which stays as it is if there is none. The entry's Version is 0 then, and in a
// transaction that wrote it.
func read(ctx context.Context, from getter, key storage.Key, v any) (storage.Entry, error) {
	e, err := from.Get(ctx, key)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return storage.Entry{}, nil
	case err != nil:
		return storage.Entry{}, err
	}
	if err := json.Unmarshal(e.Value, v); err != nil {
		return storage.Entry{}, fmt.Errorf("decoding %s: %w", key, err)
	}
	return e, nil
}

// encoded returns the stored form of one of this package's records.
func encoded(v any) []byte {
	value, err := json.Marshal(v)
	if err != nil {
		panic(err) // texts, numbers and times only
	}
	return value
}

// change makes another role of the present one, in one commit with whatever else fn puts into the transaction, and wakes
// what depends on it. It returns the new role.
func (s *Store) change(ctx context.Context, fn func(tx *storage.Txn, r *Role) error) (Role, error) {
	var next Role
	index, err := storage.Update(ctx, s.store, func(tx *storage.Txn) error {
		r, err := readRole(ctx, tx)
		if err != nil {
			return err
		}
		next = r
		if err := fn(tx, &next); err != nil {
			return err
		}
		next.Format = 1
		tx.Put(RoleKey, encoded(&next))
		return nil
	})
	if err != nil {
		return Role{}, err
	}
	s.changes.Add(1)
	nudge(s.wake)
	s.link.Refresh()
	next.Version = index
	if n := len(next.Lineage); n > 0 && next.Lineage[n-1].Base == 0 && next.Lineage[n-1].ClusterID == next.ClusterID {
		next.Lineage[n-1].Base = index
	}
	s.log.Info("replication role changed", "mode", next.Mode, "cluster_id", next.ClusterID, "epoch", next.Lineage.Epoch(), "index", index)
	return next, nil
}

// readUpstream returns what a secondary has for its connection; nil if there is nothing.
func readUpstream(ctx context.Context, from getter) (*Upstream, error) {
	var up Upstream
	switch found, err := read(ctx, from, upstreamKey, &up); {
	case err != nil:
		return nil, err
	case found.Key == "":
		return nil, nil
	case up.Format != 1:
		return nil, fmt.Errorf("the upstream of replication has format %d, this version knows 1", up.Format)
	}
	return &up, nil
}
