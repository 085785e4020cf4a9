package mount

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount/unknown"
	"github.com/coffer-project/coffer/storage"
)

// rootNS is the id of the root namespace.
const rootNS = "root"

// Options configure a Table. Store and Factories are required.
type Options struct {
	Store     storage.Store // plaintext
	Factories map[string]engines.Factory
	Logger    *slog.Logger
	// DefaultLeaseTTL and MaxLeaseTTL are the system's; zero means 768h.
	DefaultLeaseTTL time.Duration
	MaxLeaseTTL     time.Duration
	// Lockout is the operator's, until SetLockout.
	Lockout engines.LockoutDefaults

	Namespaces Namespaces // nil: there is only the root
	Cluster    Cluster    // nil: it is not replicated
	Quotas     Quotas     // nil: there are none
	Dependents Dependents // nil: there are none
	Plugins    Plugins    // nil: there are none

	// IdentityToken issues tokens for subjects of a namespace; nil: there is no issuer.
	IdentityToken func(ctx context.Context, namespaceID, subject, audience string, ttl time.Duration) (engines.Sensitive, error)
}

// Plugins are the types that are programs of their own: plugin.Host.
type Plugins interface {
	// Check returns why a plugin cannot be mounted: none with this name and version is registered.
	Check(ctx context.Context, auth bool, name, version string) error
	// Factory returns that of the plugin's mounts, also of one that is not registered any more.
	Factory(auth bool, name, version string) engines.Factory
	// Names are those that Check accepts without a version.
	Names(ctx context.Context, auth bool) ([]string, error)
}

// Namespaces are those that mounts lie in: namespace.Store.
type Namespaces interface {
	// Path returns the path of a namespace, "" for root.
	Path(id string) string
	// At reports whether a path within a namespace falls under another namespace.
	At(ctx context.Context, namespace, path string) (bool, error)
	// Guard makes it a precondition of a transaction that the namespace is there and is not being deleted.
	Guard(ctx context.Context, tx *storage.Txn, namespace string) error
}

// Cluster is this cluster in replication.
type Cluster interface {
	// Secondary reports whether another cluster writes what is shared: then shared mounts are disabled and moved there, and
	// while that one's mounts have not arrived, the server's own paths are there without an entry.
	Secondary() bool
}

// Quotas limit what engines store: quota.Quotas.
type Quotas interface {
	// AdmitWrite is asked before what an engine of the types "kv" and "cubbyhole" writes is committed; its error is the answer.
	AdmitWrite(ctx context.Context, m engines.Mount, b storage.Batch) error
}

// Dependents are what mounts have handed out: leases, tokens, aliases. Both methods may be called again for the same mount.
type Dependents interface {
	// DisableMount ends them once no request reaches the mount any more and before its data goes. A failure is tried again.
	DisableMount(ctx context.Context, m *Mounted) error
	// MoveMount does so before a mount leaves its path.
	MoveMount(ctx context.Context, m *Mounted, to Target) error
}

// Table routes paths to engines. Give Changed every change of the feed. Reads of the routes take no lock. Safe for
// concurrent use.
type Table struct {
	opts   Options
	routes atomic.Pointer[routes]
	// version counts what made the routes stale. They are fresh while they have the version they were built from.
	version atomic.Uint64
	wake    chan struct{} // capacity 1, level-triggered: something is to be finished; never closed
	away    atomic.Bool   // what Cluster.Secondary answered when the role last changed

	lockout atomic.Pointer[engines.LockoutDefaults]

	changing sync.Mutex // one enable, tune, beginning of a disable or of a move at a time on this node
	loading  sync.Mutex

	mu    sync.Mutex
	dirty map[storage.Key]bool // entries that changed since the routes were built
	all   bool                 // any entry may have changed
}

// Mounted is an Entry together with its engine on this node.
type Mounted struct {
	Entry
	Engine engines.Engine
	// Mount is what the engine was built with.
	Mount engines.Mount

	gates *gates
}

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
	if o.Factories["identity"] == nil { // a server without identities still has their path
		o.Factories = maps.Clone(o.Factories)
		o.Factories["identity"] = func(engines.Mount) (engines.Engine, error) { return empty{}, nil }
	}
	t := &Table{opts: o, wake: make(chan struct{}, 1)}
	t.lockout.Store(&o.Lockout)
	t.Clear()
	return t
}

// empty is an engine without paths.
type empty struct{}

func (empty) Router() *engines.Router { return engines.NewRouter() }

// Clear forgets all routes and engines, when the server seals.
func (t *Table) Clear() {
	t.stale(true)
	t.routes.Store(noRoutes())
}

// stale notes what has to be read again.
func (t *Table) stale(all bool, keys ...storage.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = t.all || all
	for _, k := range keys {
		if t.dirty == nil {
			t.dirty = map[storage.Key]bool{}
		}
		t.dirty[k] = true
	}
	t.version.Add(1)
}

// isEntryKey reports whether the key, of the area sys, holds a mount.
func isEntryKey(k storage.Key) bool {
	_, rest, _ := strings.Cut(k.Path(), "/")
	return strings.HasPrefix(rest, "mounts/")
}

// Changed takes every change of the feed. It runs on the apply path and only marks what is stale.
func (t *Table) Changed(ch storage.Change) {
	r := t.routes.Load()
	if ch.Reset {
		t.stale(true)
		for _, m := range r.byUUID.Values() {
			if inv, ok := m.Engine.(engines.Invalidator); ok {
				inv.Changed(storage.Shared, nil, true)
				inv.Changed(storage.Local, nil, true)
			}
		}
		return
	}
	var entries []storage.Key
	for _, area := range ch.Areas {
		var inv engines.Invalidator
		if m, ok := r.byUUID.Get(area); ok {
			inv, _ = m.Engine.(engines.Invalidator)
		}
		if area != "sys" && inv == nil {
			continue
		}
		for i := range ch.Entries {
			switch k := ch.Entries[i].Key; {
			case k.Area() != area:
			case inv != nil:
				inv.Changed(k.Class(), []storage.Key{storage.Key(k.Path())}, false)
			case isEntryKey(k):
				entries = append(entries, k)
			}
		}
	}
	if entries != nil {
		t.stale(false, entries...)
		if t.away.Load() {
			t.signal() // a mount that is being disabled there has handed out something here
		}
	}
}

func (t *Table) elsewhere() bool { return t.opts.Cluster != nil && t.opts.Cluster.Secondary() }

// RoleChanged tells that Cluster.Secondary may answer otherwise now.
func (t *Table) RoleChanged() {
	t.away.Store(t.elsewhere())
	t.stale(true)
	t.signal()
}

// current returns the routes, rebuilt first if an entry changed.
func (t *Table) current(ctx context.Context) (*routes, error) {
	if r := t.routes.Load(); r.version == t.version.Load() {
		return r, nil
	}
	t.loading.Lock()
	defer t.loading.Unlock()
	old := t.routes.Load()
	t.mu.Lock()
	version, all, dirty := t.version.Load(), t.all || old.byUUID.Len() == 0, t.dirty
	if old.version != version {
		t.all, t.dirty = false, nil
	}
	t.mu.Unlock()
	if old.version == version {
		return old, nil
	}
	r, err := t.build(ctx, old, all, dirty)
	if err != nil {
		t.mu.Lock()
		t.all = true
		t.mu.Unlock()
		return nil, fmt.Errorf("loading the mount table: %w", err)
	}
	r.version = version
	t.routes.Store(r)
	return r, nil
}

// Load builds the routes from storage.
func (t *Table) Load(ctx context.Context) error {
	t.stale(true)
	_, err := t.current(ctx)
	return err
}

// build reads every entry, or only those that changed. Engines of unchanged entries are kept, with what they cache.
func (t *Table) build(ctx context.Context, old *routes, all bool, dirty map[storage.Key]bool) (*routes, error) {
	entries, err := t.entries(ctx, all, dirty)
	if err != nil {
		return nil, err
	}
	d := noRoutes().change()
	if !all {
		d = old.change()
		for k := range dirty {
			d.remove(string(k[strings.LastIndexByte(string(k), '/')+1:]))
		}
	}
	for _, e := range entries {
		m, err := t.mounted(e, old)
		if err != nil {
			return nil, err
		}
		d.add(m)
	}
	return d.done(), t.addImplicit(d.routes, old)
}

// implicit are the mounts that operating the server needs.
var implicit = []*Entry{
	{Format: 1, UUID: "implicit-sys", Accessor: "system_implicit", Namespace: rootNS, Path: "sys/", Type: "system"},
	{Format: 1, UUID: "implicit-token", Accessor: "auth_token_implicit", Namespace: rootNS, Path: "auth/token/", Type: "token"},
}

// addImplicit stands in for the server's own mounts while a secondary has not got them from its primary.
func (t *Table) addImplicit(r, old *routes) error {
	for _, e := range implicit {
		at := place{e.Namespace, e.Path}
		if m, ok := r.byPath.Get(at); !ok || m.UUID == e.UUID {
			r.byPath = r.byPath.Without(at)
			if !t.elsewhere() {
				continue
			}
			m, err := t.mounted(e, old)
			if err != nil {
				return err
			}
			r.byPath = r.byPath.With(at, m)
		}
	}
	return nil
}

// entries reads all entries, or those with the given keys that are still there.
func (t *Table) entries(ctx context.Context, all bool, keys map[storage.Key]bool) ([]*Entry, error) {
	var stored []storage.Entry
	if all {
		for _, class := range []storage.Class{storage.Shared, storage.Local} {
			folders, err := t.opts.Store.List(ctx, storage.NewKey(class, "sys", ""), "", 0)
			if err != nil {
				return nil, err
			}
			for _, ns := range folders {
				if !strings.HasSuffix(ns, "/") {
					continue
				}
				found, err := t.opts.Store.Scan(ctx, storage.NewKey(class, "sys", ns+"mounts/"), "", 0)
				if err != nil {
					return nil, err
				}
				stored = append(stored, found...)
			}
		}
	}
	if !all {
		for k := range keys {
			se, err := t.opts.Store.Get(ctx, k)
			if errors.Is(err, storage.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			stored = append(stored, se)
		}
	}
	var out []*Entry
	for _, se := range stored {
		e, err := decodeEntry(se)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// SetLockout takes other settings of the operator. Engines that they concern are made again, as after a tune.
func (t *Table) SetLockout(d engines.LockoutDefaults) {
	t.lockout.Store(&d)
	t.stale(true)
}

func (t *Table) lockoutOf(e *Entry) engines.Lockout {
	var own engines.LockoutSettings
	if e.Config.UserLockout != nil {
		own = *e.Config.UserLockout
	}
	return t.lockout.Load().For(e.Type, own)
}

// mounted returns the running engine of an entry, the one it had if nothing about it changed.
func (t *Table) mounted(e *Entry, old *routes) (*Mounted, error) {
	was, _ := old.byUUID.Get(e.UUID)
	if was != nil && was.gates.left.Load() {
		if was.gates.version.Load() == uint64(e.version) {
			return was, nil // its entry is still to go
		}
		was = nil
	}
	out := &Mounted{Entry: *e, gates: &gates{}}
	if was != nil {
		out.gates = was.gates
	}
	out.gates.version.Store(uint64(e.version))
	lockout := t.lockoutOf(e)
	if was != nil && was.Mount.Lockout == lockout && string(was.put().Value) == string(e.put().Value) {
		return was, nil
	}
	if was != nil {
		out.gates.reopen(e)
	}
	m := engines.Mount{
		UUID: e.UUID, Accessor: e.Accessor, Type: e.Type, Path: e.Path, NamespaceID: e.Namespace, Options: e.Options, Local: e.Local,
		RequestHeaders: e.Config.PassthroughRequestHeaders, ResponseHeaders: e.Config.AllowedResponseHeaders,
	}
	if t.opts.Namespaces != nil {
		m.Namespace = t.opts.Namespaces.Path(e.Namespace)
	}
	m.DefaultLeaseTTL, m.MaxLeaseTTL = e.Config.TTLs(t.opts.DefaultLeaseTTL, t.opts.MaxLeaseTTL)
	m.Lockout = lockout
	gated := gated{Store: t.opts.Store, gate: &out.gates.commits}
	if e.Type == "kv" || e.Type == "cubbyhole" {
		gated.quotas, gated.mount = t.opts.Quotas, m
	}
	m.Storage, m.ClusterStorage = e.stores(gated)
	if issue := t.opts.IdentityToken; issue != nil {
		kind := "secret"
		if e.IsAuth() {
			kind = "auth"
		}
		ns, subject := m.NamespaceID, kind+":"+m.Accessor
		m.IdentityToken = func(ctx context.Context, audience string, ttl time.Duration) (engines.Sensitive, error) {
			return issue(ctx, ns, subject, audience, ttl)
		}
	}
	out.Mount = m
	factory := t.factory(e)
	if factory == nil { // its trouble only: everything else must go on
		t.opts.Logger.Error("a mount has a type that this version does not have", "mount", m.Namespace+e.Path, "type", e.Type)
		out.Engine = unknown.New(e.Path, e.Type, e.IsAuth())
		return out, nil
	}
	var err error
	out.Engine, err = factory(m)
	return out, err
}

// factory returns that of a mount: the server's own, or a plugin's. nil: there is none.
func (t *Table) factory(e *Entry) engines.Factory {
	switch {
	case !e.Plugin:
		return t.opts.Factories[e.Type]
	case t.opts.Plugins == nil:
		return nil
	}
	return t.opts.Plugins.Factory(e.IsAuth(), e.Type, e.PluginVersion)
}

// stores returns the engine's two views.
func (e *Entry) stores(s storage.Store) (data, cluster storage.Store) {
	local := storage.NewView(s, storage.NewKey(storage.Local, e.UUID, ""))
	if e.Local {
		return local, local
	}
	return storage.NewView(s, storage.NewKey(storage.Shared, e.UUID, "")), local
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
			if m := r.at(namespace, path[:i+1]); m != nil {
				return m, path[i+1:], nil
			}
		}
	}
	return r.at(namespace, path+"/"), "", nil
}

// Everywhere returns the mounts of all namespaces, those being deleted or moved too, in no order.
func (t *Table) Everywhere(ctx context.Context) ([]*Mounted, error) {
	r, err := t.current(ctx)
	if err != nil {
		return nil, err
	}
	return r.byUUID.Values(), nil
}

// HasType reports whether a mount of the type is there, in any namespace.
func (t *Table) HasType(ctx context.Context, kind string) (bool, error) {
	r, err := t.current(ctx)
	return err == nil && r.types[kind] > 0, err
}

// All returns the mounts of a namespace in path order, without those being deleted.
func (t *Table) All(ctx context.Context, namespace string) ([]*Mounted, error) {
	r, err := t.current(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(r.under(namespace, ""), func(m *Mounted) bool { return m.Deleting }), nil
}

// Get returns the mount at exactly this path, or nil.
func (t *Table) Get(ctx context.Context, namespace, path string) (*Mounted, error) {
	r, err := t.current(ctx)
	if err != nil {
		return nil, err
	}
	return r.at(namespace, path), nil
}

// ByAccessor returns the mount of a namespace with this accessor, or nil. One being deleted is not found.
func (t *Table) ByAccessor(ctx context.Context, namespace, accessor string) (*Mounted, error) {
	r, err := t.current(ctx)
	if err != nil {
		return nil, err
	}
	if m, ok := r.byAccessor.Get(accessor); ok && m.Namespace == namespace && !m.Deleting {
		return m, nil
	}
	return nil, nil
}

// ByUUID returns a mount, also one that is being deleted or moved: what it handed out can be revoked to the end.
// It returns nil when there is none.
func (t *Table) ByUUID(ctx context.Context, uuid string) (*Mounted, error) {
	r, err := t.current(ctx)
	if err != nil {
		return nil, err
	}
	m, _ := r.byUUID.Get(uuid)
	return m, nil
}

// Describe returns what responses say of the mount of a namespace with this accessor; false if there is none.
func (t *Table) Describe(ctx context.Context, namespace, accessor string) (path, kind string, local, ok bool) {
	m, err := t.ByAccessor(ctx, namespace, accessor)
	if err != nil || m == nil {
		return "", "", false, false
	}
	return m.Path, m.Type, m.Local, true
}

// HasAccessor reports whether a mount of a namespace has this accessor.
func (t *Table) HasAccessor(ctx context.Context, namespace, accessor string) (bool, error) {
	m, err := t.ByAccessor(ctx, namespace, accessor)
	return m != nil, err
}

// EngineOf returns the engine of a mount, also while it is being disabled, and false only if the mount is gone for good. The engine
// is nil if the table cannot be read now.
func (t *Table) EngineOf(ctx context.Context, uuid string) (engines.Engine, engines.Mount, bool) {
	m, err := t.ByUUID(ctx, uuid)
	switch {
	case err != nil:
		return nil, engines.Mount{}, true
	case m == nil:
		return nil, engines.Mount{}, false
	}
	return m.Engine, m.Mount, true
}

// Numbers returns gauges for metrics.
func (t *Table) Numbers() map[string]float64 {
	return map[string]float64{"mounts": float64(t.routes.Load().byUUID.Len())}
}
