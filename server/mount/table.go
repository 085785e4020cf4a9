package mount

import (
	"context"
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

// Options configure a Table. Store and Factories are required.
type Options struct {
	Store     storage.Store // plaintext
	Factories map[string]engines.Factory
	Logger    *slog.Logger
	// DefaultLeaseTTL and MaxLeaseTTL are the system's; zero means 768h.
	DefaultLeaseTTL time.Duration
	MaxLeaseTTL     time.Duration
}

// Table routes paths to engines. Reads of the routes take no lock. Safe for concurrent use.
type Table struct {
	opts  Options
	stale atomic.Bool // the entries changed since routes was built

	changing sync.Mutex // one enable, disable or tune at a time on this node
	loading  sync.Mutex
	routes   atomic.Pointer[routes]
}

// routes is immutable once published.
type routes struct {
	byPath map[place]*Mounted
	byUUID map[string]*Mounted
	all    []*Mounted // by namespace, then path
}

// place is where a mount is: a namespace id and a path.
type place struct{ namespace, path string }

// NewTable returns an empty table; call Load once storage can be read.
func NewTable(o Options) *Table {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	const day = 24 * time.Hour
	if o.DefaultLeaseTTL == 0 {
		o.DefaultLeaseTTL = 32 * day
	}
	if o.MaxLeaseTTL == 0 {
		o.MaxLeaseTTL = 32 * day
	}
	t := &Table{opts: o}
	t.Clear()
	return t
}

// Clear forgets all routes and engines, when the server seals.
func (t *Table) Clear() {
	t.routes.Store(&routes{})
	t.stale.Store(true)
}

// Changed takes every change of the feed. It runs on the apply path and only marks what is stale.
func (t *Table) Changed(ch storage.Change) {
	r := t.routes.Load()
	if ch.Reset {
		t.stale.Store(true)
		for _, m := range r.all {
			if inv, ok := m.Engine.(engines.Invalidator); ok {
				inv.Changed(storage.Shared, nil, true)
				inv.Changed(storage.Local, nil, true)
			}
		}
		return
	}
	note := func(k storage.Key) {
		area := k.Area()
		if area == "sys" && strings.Contains(k.Path(), "/mounts/") {
			t.stale.Store(true)
			return
		}
		if m := r.byUUID[area]; m != nil {
			if inv, ok := m.Engine.(engines.Invalidator); ok {
				inv.Changed(k.Class(), []storage.Key{storage.Key(k.Path())}, false)
			}
		}
	}
	for i := range ch.Puts {
		note(ch.Puts[i].Key)
	}
	for _, k := range ch.Deletes {
		note(k)
	}
}

// current returns the routes, rebuilt first if an entry changed.
func (t *Table) current(ctx context.Context) (*routes, error) {
	if !t.stale.Load() {
		return t.routes.Load(), nil
	}
	t.loading.Lock()
	defer t.loading.Unlock()
	if !t.stale.Swap(false) {
		return t.routes.Load(), nil
	}
	r, err := t.build(ctx, t.routes.Load())
	if err != nil {
		t.stale.Store(true)
		return nil, fmt.Errorf("loading the mount table: %w", err)
	}
	t.routes.Store(r)
	return r, nil
}

// Load builds the routes from storage.
func (t *Table) Load(ctx context.Context) error {
	t.stale.Store(true)
	_, err := t.current(ctx)
	return err
}

// build reads every entry. Engines of unchanged entries are kept, with what they cache.
func (t *Table) build(ctx context.Context, old *routes) (*routes, error) {
	r := &routes{byPath: map[place]*Mounted{}, byUUID: map[string]*Mounted{}}
	for _, class := range []storage.Class{storage.Shared, storage.Local} {
		namespaces, err := t.opts.Store.List(ctx, storage.NewKey(class, "sys", ""), "", 0)
		if err != nil {
			return nil, err
		}
		for _, ns := range namespaces {
			prefix := storage.NewKey(class, "sys", ns+"mounts/")
			if !strings.HasSuffix(ns, "/") {
				continue
			}
			stored, err := t.opts.Store.Scan(ctx, prefix, "", 0)
			if err != nil {
				return nil, err
			}
			for _, se := range stored {
				e, err := decodeEntry(se)
				if err != nil {
					return nil, err
				}
				m, err := t.mounted(e, old)
				if err != nil {
					return nil, err
				}
				r.byUUID[e.UUID] = m
				r.all = append(r.all, m)
				if !e.Deleting {
					r.byPath[place{e.Namespace, e.Path}] = m
				}
			}
		}
	}
	slices.SortFunc(r.all, func(a, b *Mounted) int {
		return strings.Compare(a.Namespace+"|"+a.Path, b.Namespace+"|"+b.Path)
	})
	return r, nil
}

// mounted returns the running engine of an entry, the one it had if nothing about it changed.
func (t *Table) mounted(e *Entry, old *routes) (*Mounted, error) {
	if was := old.byUUID[e.UUID]; was != nil && string(was.put().Value) == string(e.put().Value) {
		return was, nil
	}
	factory := t.opts.Factories[e.Type]
	if factory == nil {
		return nil, fmt.Errorf("mount %s has type %q, which this version does not have", e.Path, e.Type)
	}
	m := engines.Mount{
		UUID: e.UUID, Accessor: e.Accessor, Type: e.Type, Path: e.Path, Options: e.Options, Local: e.Local,
	}
	m.DefaultLeaseTTL, m.MaxLeaseTTL = e.Config.TTLs(t.opts.DefaultLeaseTTL, t.opts.MaxLeaseTTL)
	m.Storage, m.ClusterStorage = e.stores(t.opts.Store)
	engine, err := factory(m)
	if err != nil {
		return nil, err
	}
	return &Mounted{Entry: *e, Engine: engine, Mount: m}, nil
}

// Resolve returns the mount that path (without namespace) falls under, and the rest of the path below it. It
// returns nil when there is none. The mount's own path may lack its trailing slash.
func (t *Table) Resolve(ctx context.Context, namespace, path string) (*Mounted, string, error) {
	r, err := t.current(ctx)
	if err != nil {
		return nil, "", err
	}
	for i := 0; i < len(path); i++ {
		if path[i] == '/' {
			if m := r.byPath[place{namespace, path[:i+1]}]; m != nil {
				return m, path[i+1:], nil
			}
		}
	}
	if m := r.byPath[place{namespace, path + "/"}]; m != nil {
		return m, "", nil
	}
	return nil, "", nil
}

// All returns the mounts of a namespace in path order, without those being deleted.
func (t *Table) All(ctx context.Context, namespace string) ([]*Mounted, error) {
	r, err := t.current(ctx)
	if err != nil {
		return nil, err
	}
	var out []*Mounted
	for _, m := range r.all {
		if m.Namespace == namespace && !m.Deleting {
			out = append(out, m)
		}
	}
	return out, nil
}

// Get returns the mount at exactly this path, or nil.
func (t *Table) Get(ctx context.Context, namespace, path string) (*Mounted, error) {
	r, err := t.current(ctx)
	if err != nil {
		return nil, err
	}
	return r.byPath[place{namespace, path}], nil
}

// has reports whether the type can be enabled.
func (t *Table) has(kind string) bool { return t.opts.Factories[kind] != nil && !builtin[kind] }

// sequence is written by every change of a namespace's mounts, so that two of them never both succeed on
// what only one of them saw.
func sequence(namespace string) storage.Key {
	return storage.NewKey(storage.Local, "sys", namespace+"/mount-sequence")
}

// Enable adds a mount at e.Path and initialises its engine. The path must be clean (CleanPath).
func (t *Table) Enable(ctx context.Context, e *Entry) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	if !t.has(e.Type) {
		return engines.Invalid("unknown type %q: %s", e.Type, t.hint(e.IsAuth()))
	}
	m, err := t.mounted(e, &routes{})
	if err != nil {
		return err
	}
	_, err = storage.Update(ctx, t.opts.Store, func(tx *storage.Txn) error {
		if _, err := tx.Get(ctx, sequence(e.Namespace)); err != nil && err != storage.ErrNotFound {
			return err
		}
		if err := t.free(ctx, e); err != nil {
			return err
		}
		if init, ok := m.Engine.(engines.Initializer); ok {
			if err := init.Initialize(ctx, m.Mount); err != nil {
				return fmt.Errorf("initialising the engine: %w", err)
			}
		}
		tx.Put(sequence(e.Namespace), []byte(e.UUID))
		tx.Put(e.key(), e.put().Value)
		return nil
	})
	if err == nil {
		t.opts.Logger.Info("mount enabled", "mount", e.Path, "type", e.Type, "accessor", e.Accessor)
	}
	return err
}

// hint lists what could have been meant.
func (t *Table) hint(auth bool) string {
	var kinds []string
	for kind := range t.opts.Factories {
		if t.has(kind) && (authTypes[kind] == auth) {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	if len(kinds) == 0 {
		return "this version has no type that can be enabled there"
	}
	return "the types here are " + strings.Join(kinds, ", ")
}

// authTypes are the types mounted below auth/. The others are secrets engines.
var authTypes = map[string]bool{"userpass": true, "approle": true, "saml": true, "token": true}

// free reports whether nothing is mounted at, above or below the path. Deleted mounts still occupy theirs
// until their data is gone.
func (t *Table) free(ctx context.Context, e *Entry) error {
	r, err := t.current(ctx)
	if err != nil {
		return err
	}
	if authTypes[e.Type] != e.IsAuth() {
		if e.IsAuth() {
			return engines.Invalid("%q is a secrets engine, not an auth method: %s", e.Type, t.hint(true))
		}
		return engines.Invalid("%q is an auth method, not a secrets engine: enable it at sys/auth", e.Type)
	}
	if !e.IsAuth() && (e.Path == AuthPrefix || strings.HasPrefix(e.Path, "sys/") || strings.HasPrefix(e.Path, "ui/") || strings.HasPrefix(e.Path, "v1/")) {
		return engines.Invalid("cannot mount at %q: the path is reserved", e.Path)
	}
	for _, m := range r.all {
		if m.Namespace == e.Namespace && (strings.HasPrefix(m.Path, e.Path) || strings.HasPrefix(e.Path, m.Path)) {
			return engines.Invalid("path is already in use at %s", m.Path)
		}
	}
	return nil
}

// change rewrites the entry at path in one transaction.
func (t *Table) change(ctx context.Context, namespace, path string, edit func(*Entry) error) (*Entry, error) {
	m, err := t.Get(ctx, namespace, path)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, engines.Invalid("no mount at %q", path)
	}
	var changed *Entry
	_, err = storage.Update(ctx, t.opts.Store, func(tx *storage.Txn) error {
		se, err := tx.Get(ctx, m.key())
		if err != nil {
			return err
		}
		e, err := decodeEntry(se)
		if err != nil {
			return err
		}
		if err := edit(e); err != nil {
			return err
		}
		changed = e
		tx.Put(e.key(), e.put().Value)
		return nil
	})
	return changed, err
}

// Tune changes a mount's configuration, description or options.
func (t *Table) Tune(ctx context.Context, namespace, path string, edit func(*Entry) error) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	e, err := t.change(ctx, namespace, path, edit)
	if err == nil {
		t.opts.Logger.Info("mount tuned", "mount", e.Path)
	}
	return err
}

// Disable takes the mount out of the routes at once, then deletes its data and its entry, also if ctx ends
// meanwhile. One that was interrupted goes on. Disabling a path with no mount is not an error, as clients of
// the family expect.
func (t *Table) Disable(ctx context.Context, namespace, path string) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	r, err := t.current(ctx)
	if err != nil {
		return err
	}
	if m := r.byPath[place{namespace, path}]; m != nil {
		if m.Builtin() {
			return engines.Invalid("cannot disable %q: it is part of the server", path)
		}
		if _, err := t.change(ctx, namespace, path, func(e *Entry) error { e.Deleting = true; return nil }); err != nil {
			return err
		}
		if r, err = t.current(ctx); err != nil {
			return err
		}
	}
	return t.wipe(context.WithoutCancel(ctx), r, func(m *Mounted) bool { return m.Namespace == namespace && m.Path == path })
}

// wipe removes what is left of the mounts that are being disabled.
func (t *Table) wipe(ctx context.Context, r *routes, which func(*Mounted) bool) error {
	for _, m := range r.all {
		if !m.Deleting || !which(m) {
			continue
		}
		if err := m.wipe(ctx, t.opts.Store); err != nil {
			return err
		}
		t.opts.Logger.Info("mount disabled", "mount", m.Path, "type", m.Type, "accessor", m.Accessor)
	}
	return nil
}

// Resume finishes what an interrupted Disable left. The active node calls it when it takes over.
func (t *Table) Resume(ctx context.Context) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	r, err := t.current(ctx)
	if err != nil {
		return err
	}
	return t.wipe(ctx, r, func(*Mounted) bool { return true })
}
