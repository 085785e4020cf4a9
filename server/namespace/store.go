package namespace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Options of a Store. Only Store is required.
type Options struct {
	Store  storage.Store // plaintext
	Logger *slog.Logger
	// Contents are what new namespaces hold; nil: nothing.
	Contents Contents
	// Requests are those that run now; nil: none.
	Requests Requests
	// Cluster is this cluster in replication; nil: it is not replicated.
	Cluster Cluster
	// Access says what callers may do in each namespace. Nil: the caller's access looks from the request's namespace.
	Access Access
	// Steps remove what a namespace holds, in order, before its entry goes. Each may be called again after it
	// succeeded, or after it was interrupted.
	Steps []Step
}

// Contents are the mounts and policies of namespaces.
type Contents interface {
	// FirstPuts returns what a new namespace begins with. It is written with its entry.
	FirstPuts(id string) []storage.Put
	// Reserve refuses a new namespace whose name (with a trailing slash) is taken by a mount of the namespace it
	// would lie in. What it reads and writes in tx keeps a mount from appearing there meanwhile.
	Reserve(ctx context.Context, tx *storage.Txn, parent, path string) error
}

// Requests are those that run on this node: process.InFlight.
type Requests interface {
	// Drain waits until those of now have ended: some of them may still write into a namespace that is being deleted.
	Drain(ctx context.Context) error
}

// Cluster is this cluster in replication.
type Cluster interface {
	// Secondary reports whether another cluster writes what is shared, and so does what Run is for.
	Secondary() bool
}

// Access says what callers may do in each namespace: rights.Rights.
type Access interface {
	// MayEnter reports whether the caller may do anything in a namespace.
	MayEnter(ctx context.Context, caller engines.Caller, n *Namespace) (bool, error)
}

// Step removes one sort of what a namespace holds.
type Step struct {
	Name string // for people: "revoke tokens"
	Do   func(ctx context.Context, id string) error
}

// Store keeps the namespaces. Give Changed every change of the feed, before anything that asks for paths by id
// hears of it. Reads take no lock. Safe for concurrent use.
type Store struct {
	opts Options
	tree atomic.Pointer[tree]
	// version counts what made the tree stale. A tree is fresh while it has the version it was built from.
	version atomic.Uint64
	wake    chan struct{} // capacity 1, level-triggered: something is to be deleted; never closed
	jobs    jobs

	creating sync.Mutex // one namespace at a time on this node, as each changes its parent's list of mounts
	loading  sync.Mutex

	mu    sync.Mutex
	dirty map[string]bool // ids whose entry changed since the tree was built
	all   bool            // any entry may have changed
}

// NewStore returns a Store that reads the namespaces when they are first needed.
func NewStore(o Options) *Store {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{opts: o, wake: make(chan struct{}, 1)}
	s.Clear()
	return s
}

// Clear forgets everything, when the server seals.
func (s *Store) Clear() {
	s.Changed(storage.Change{Reset: true})
	s.tree.Store(noTree())
}

// Changed takes every change of the feed. It runs on the apply path and only notes what is stale.
func (s *Store) Changed(ch storage.Change) {
	if !ch.Touches(namespaces) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dirty == nil {
		s.dirty = map[string]bool{}
	}
	s.all = s.all || ch.Reset
	for i := range ch.Entries {
		if name, ok := strings.CutPrefix(string(ch.Entries[i].Key), string(namespaces)); ok && !strings.Contains(name, "/") {
			s.dirty[name] = true
		}
	}
	s.version.Add(1)
}

// current returns the tree, rebuilt first if an entry changed.
func (s *Store) current(ctx context.Context) (*tree, error) {
	if t := s.tree.Load(); t.version == s.version.Load() {
		return t, nil
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	old := s.tree.Load()
	s.mu.Lock()
	version, all, dirty := s.version.Load(), s.all || old.byID.Len() == 0, s.dirty
	s.all, s.dirty = false, nil
	s.mu.Unlock()
	if old.version == version {
		return old, nil
	}
	t, err := s.build(ctx, old, all, dirty)
	if err != nil {
		s.mu.Lock()
		s.all = true
		s.mu.Unlock()
		return nil, fmt.Errorf("loading the namespaces: %w", err)
	}
	t.version = version
	s.tree.Store(t)
	return t, nil
}

// Load reads the namespaces from storage.
func (s *Store) Load(ctx context.Context) error {
	s.Changed(storage.Change{Reset: true})
	_, err := s.current(ctx)
	return err
}

// build reads every entry, or only those that changed, and links them.
func (s *Store) build(ctx context.Context, old *tree, all bool, dirty map[string]bool) (*tree, error) {
	if !all {
		t := *old
		for id := range dirty {
			e, err := s.opts.Store.Get(ctx, recordKey(id))
			if errors.Is(err, storage.ErrNotFound) {
				t.remove(id)
				continue
			}
			if err != nil {
				return nil, err
			}
			if err := t.put(e); err != nil {
				return nil, err
			}
		}
		return &t, nil
	}
	entries, err := s.opts.Store.Scan(ctx, namespaces, "", 0)
	if err != nil {
		return nil, err
	}
	t := noTree()
	t.link(record{ID: RootID, Path: RootPath})
	for _, e := range entries {
		if strings.Contains(e.Key.Path(), "/") {
			continue
		}
		if err := t.put(e); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func notFound() error { return engines.NotFound("namespace not found") }

// Resolve finds the namespace of a request. header is the path that the client gave apart ("", "/" and "root" are
// the root), which must exist as a whole; leading segments of path that are namespaces are taken, too. rest is
// what is left of path. The error is of KindNotFound.
func (s *Store) Resolve(ctx context.Context, header, path string) (ns *Namespace, rest string, err error) {
	t, err := s.current(ctx)
	if err != nil {
		return nil, "", err
	}
	ns = t.get(RootID)
	if header = strings.Trim(header, "/"); header != "" && header != RootID {
		if ns = t.find(ns, header); ns == nil || ns.Deleting {
			return nil, "", notFound()
		}
	}
	ns, rest = t.enter(ns, path)
	return ns, rest, nil
}

// ResolveFrom follows path from the namespace with the id base: leading segments that are namespaces below it are
// taken, rest is what is left.
func (s *Store) ResolveFrom(ctx context.Context, base, path string) (id, rest string, err error) {
	t, ns, err := s.from(ctx, base)
	if err != nil {
		return "", "", err
	}
	ns, rest = t.enter(ns, strings.TrimPrefix(path, "/"))
	return ns.ID, rest, nil
}

// Everything returns all namespaces, the root and those being deleted too, in no order.
func (s *Store) Everything(ctx context.Context) ([]*Namespace, error) {
	t, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	return t.byID.Values(), nil
}

// ByID returns a namespace, also one that is being deleted. "" is the root. The error is of KindNotFound.
func (s *Store) ByID(ctx context.Context, id string) (*Namespace, error) {
	_, n, err := s.from(ctx, id)
	return n, err
}

// from is ByID, with the tree that the namespace is in.
func (s *Store) from(ctx context.Context, id string) (*tree, *Namespace, error) {
	t, err := s.current(ctx)
	if err != nil {
		return nil, nil, err
	}
	if id == "" {
		id = RootID
	}
	if n := t.get(id); n != nil {
		return t, n, nil
	}
	return nil, nil, notFound()
}

// Path returns the full path of a namespace, "" for root and for ids that are not known.
func (s *Store) Path(id string) string {
	if id == RootID {
		return RootPath
	}
	n, err := s.ByID(context.Background(), id) // at most a read of this node's own state
	if err != nil {
		return RootPath
	}
	return n.Path
}

// Below reports whether id is ancestor itself or lies below it. What cannot be read is not.
func (s *Store) Below(ctx context.Context, ancestor, id string) bool {
	if ancestor == "" {
		ancestor = RootID
	}
	if ancestor == id {
		return true
	}
	n, err := s.ByID(ctx, id)
	for err == nil && n != nil {
		if n.ID == ancestor {
			return true
		}
		n = n.parent
	}
	return false
}

// Above returns the ids of the namespaces that one lies in, the nearest first. What cannot be read has none.
func (s *Store) Above(ctx context.Context, id string) []string {
	n, err := s.ByID(ctx, id)
	if err != nil {
		return nil
	}
	var ids []string
	for n = n.parent; n != nil; n = n.parent {
		ids = append(ids, n.ID)
	}
	return ids
}

// Children returns the namespaces right below one, by name, also those being deleted.
func (s *Store) Children(ctx context.Context, id string) ([]*Namespace, error) {
	t, n, err := s.from(ctx, id)
	if err != nil {
		return nil, err
	}
	return t.children(n), nil
}

// At reports whether path, relative to the namespace with this id, falls under a namespace below it, so that no
// mount can be there. One being deleted still counts.
func (s *Store) At(ctx context.Context, id, path string) (bool, error) {
	t, n, err := s.from(ctx, id)
	if err != nil {
		return false, err
	}
	name, _, _ := strings.Cut(path, "/")
	return t.child(n, name) != nil, nil
}

// Guard makes it a precondition of tx that the namespace is there and is not being deleted. The error is of
// KindNotFound.
func (s *Store) Guard(ctx context.Context, tx *storage.Txn, id string) error {
	n, err := s.ByID(ctx, id)
	if err != nil {
		return err
	}
	for ; n.parent != nil; n = n.parent {
		r, err := get(ctx, tx, n.ID)
		if err != nil {
			return err
		}
		if r.Deleting {
			return notFound()
		}
	}
	return nil
}

// get reads an entry in a transaction. The error of one that is gone is of KindNotFound.
func get(ctx context.Context, tx *storage.Txn, id string) (record, error) {
	e, err := tx.Get(ctx, recordKey(id))
	if errors.Is(err, storage.ErrNotFound) {
		return record{}, notFound()
	}
	if err != nil {
		return record{}, err
	}
	return decodeRecord(e)
}

// Numbers returns gauges for metrics.
func (s *Store) Numbers() map[string]float64 {
	all, deleting := s.tree.Load().byID.Values(), 0
	for _, n := range all {
		if n.Deleting {
			deleting++
		}
	}
	return map[string]float64{"namespaces": float64(len(all)), "namespaces_deleting": float64(deleting)}
}
