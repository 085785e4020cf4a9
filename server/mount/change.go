package mount

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// has reports whether the type is one of the server's own that can be enabled.
func (t *Table) has(kind string) bool { return t.opts.Factories[kind] != nil && !builtin[kind] }

// choose says whether a mount's type is a plugin's, or why it cannot be enabled where the mount is.
func (t *Table) choose(ctx context.Context, e *Entry) error {
	own := t.has(e.Type) && e.PluginVersion == ""
	if own && authTypes[e.Type] == e.IsAuth() {
		return nil
	}
	var missing error
	if t.opts.Plugins != nil && !builtin[e.Type] {
		missing = t.opts.Plugins.Check(ctx, e.IsAuth(), e.Type, e.PluginVersion)
		if e.Plugin = missing == nil; e.Plugin || e.PluginVersion != "" {
			return missing
		}
	}
	switch {
	case own && e.IsAuth():
		return engines.Invalid("%q is a secrets engine, not an auth method: %s", e.Type, t.hint(ctx, true))
	case own:
		return engines.Invalid("%q is an auth method, not a secrets engine: enable it at sys/auth", e.Type)
	}
	if missing != nil {
		return engines.Invalid("unknown type %q: %v; %s", e.Type, missing, t.hint(ctx, e.IsAuth()))
	}
	return engines.Invalid("unknown type %q: %s", e.Type, t.hint(ctx, e.IsAuth()))
}

// sequence is written by every change of a namespace's mounts, so that two of them never both succeed on
// what only one of them saw.
func sequence(namespace string) storage.Key {
	return storage.NewKey(storage.Local, "sys", namespace+"/mount-sequence")
}

// claim makes tx fail when the mounts of the namespace change meanwhile, or the namespace goes. What tx reads
// after it is current.
func (t *Table) claim(ctx context.Context, tx *storage.Txn, namespace, by string) error {
	if _, err := tx.Get(ctx, sequence(namespace)); err != nil && !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	tx.Put(sequence(namespace), []byte(by))
	if t.opts.Namespaces != nil {
		return t.opts.Namespaces.Guard(ctx, tx, namespace)
	}
	return nil
}

// Enable adds a mount at e.Path and initialises its engine. The path must be clean (CleanPath).
func (t *Table) Enable(ctx context.Context, e *Entry) error {
	if err := t.choose(ctx, e); err != nil {
		return err
	}
	m, err := t.mounted(e, noRoutes())
	if err != nil {
		return err
	}
	if err := t.free(ctx, e); err != nil {
		return err
	}
	if init, ok := m.Engine.(engines.Initializer); ok { // a plugin takes a while to start, in which others change mounts
		if err := init.Initialize(ctx, m.Mount); err != nil {
			return fmt.Errorf("initialising the engine: %w", err)
		}
	}
	t.changing.Lock()
	defer t.changing.Unlock()
	_, err = storage.Update(ctx, t.opts.Store, func(tx *storage.Txn) error {
		if err := t.claim(ctx, tx, e.Namespace, e.UUID); err != nil {
			return err
		}
		if err := t.free(ctx, e); err != nil {
			return err
		}
		tx.Put(e.key(), e.put().Value)
		return nil
	})
	if err == nil {
		t.opts.Logger.Info("mount enabled", "mount", m.Mount.Namespace+e.Path, "type", e.Type, "accessor", e.Accessor)
	}
	return err
}

// hint lists what could have been meant.
func (t *Table) hint(ctx context.Context, auth bool) string {
	var kinds []string
	if t.opts.Plugins != nil {
		kinds, _ = t.opts.Plugins.Names(ctx, auth) // it is a hint
	}
	for kind := range t.opts.Factories {
		if t.has(kind) && (authTypes[kind] == auth) {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	if len(kinds) == 0 {
		return "this version has no type that can be enabled there"
	}
	return "the types here are " + strings.Join(kinds, ", ")
}

// authTypes are the types mounted below auth/. The others are secrets engines.
var authTypes = map[string]bool{"userpass": true, "approle": true, "saml": true, "cert": true, "token": true}

// free reports whether e may be at its place: nothing is mounted at, above or below the path, and no namespace is
// there. Deleted mounts still occupy theirs until their data is gone, moving ones occupy two.
func (t *Table) free(ctx context.Context, e *Entry) error {
	if !e.IsAuth() && (e.Path == AuthPrefix || strings.HasPrefix(e.Path, "sys/") || strings.HasPrefix(e.Path, "ui/") || strings.HasPrefix(e.Path, "v1/")) {
		return engines.Invalid("cannot mount at %q: the path is reserved", e.Path)
	}
	if t.opts.Namespaces != nil {
		taken, err := t.opts.Namespaces.At(ctx, e.Namespace, e.Path)
		if err != nil {
			return err
		}
		if taken {
			return engines.Invalid("cannot mount at %q: a namespace is there", e.Path)
		}
	}
	return t.unused(ctx, e.Namespace, e.Path, e.UUID)
}

// unused reports whether no mount but the one with this UUID is, or is about to be, at, above or below the path.
func (t *Table) unused(ctx context.Context, namespace, path, uuid string) error {
	r, err := t.current(ctx)
	if err != nil {
		return err
	}
	overlaps := func(m *Mounted, other string) error {
		if m.UUID != uuid && (strings.HasPrefix(other, path) || strings.HasPrefix(path, other)) {
			return engines.Invalid("path is already in use at %s", other)
		}
		return nil
	}
	mounts := r.under(namespace, path)
	for i := range path {
		if path[i] == '/' {
			above, _ := r.ordered.Get(place{namespace, path[:i+1]}.order())
			mounts = append(mounts, above...)
		}
	}
	for _, m := range mounts {
		if err := overlaps(m, m.Path); err != nil {
			return err
		}
	}
	for _, m := range r.moving {
		if m.Moving.Namespace != namespace {
			continue
		}
		if err := overlaps(m, m.Moving.Path); err != nil {
			return err
		}
	}
	return nil
}

// Reserve refuses a path, which ends in a slash, that a mount of the namespace is at, above or below, and makes tx
// fail if one appears there meanwhile. New namespaces take their places with it.
func (t *Table) Reserve(ctx context.Context, tx *storage.Txn, namespace, path string) error {
	if err := t.claim(ctx, tx, namespace, path); err != nil {
		return err
	}
	return t.unused(ctx, namespace, path, "")
}

// EnsureDefaults adds the mounts that a namespace made by an older version lacks. The active node calls it once
// no node of an older version is left, which may not have their types.
func (t *Table) EnsureDefaults(ctx context.Context) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	r, err := t.current(ctx)
	if err != nil {
		return err
	}
	types := map[string]map[string]bool{} // by namespace
	for _, m := range r.byUUID.Values() {
		if types[m.Namespace] == nil {
			types[m.Namespace] = map[string]bool{}
		}
		types[m.Namespace][m.Type] = !m.Deleting || !m.Builtin()
	}
	for ns, has := range types {
		if !has["system"] {
			continue // being deleted
		}
		for _, e := range defaults(ns) {
			if has[e.Type] {
				continue
			}
			if err := t.addDefault(ctx, e); err != nil {
				return fmt.Errorf("adding mount %s: %w", e.Path, err)
			}
		}
	}
	return nil
}

func (t *Table) addDefault(ctx context.Context, e *Entry) error {
	_, err := storage.Update(ctx, t.opts.Store, func(tx *storage.Txn) error {
		if err := t.claim(ctx, tx, e.Namespace, e.UUID); err != nil {
			return err
		}
		if err := t.unused(ctx, e.Namespace, e.Path, e.UUID); err != nil {
			return err
		}
		tx.Put(e.key(), e.put().Value)
		return nil
	})
	var refusal *engines.Error
	if errors.As(err, &refusal) {
		t.opts.Logger.Error("a mount of the server cannot be added: move what is at its path", "mount", e.Path, "err", err)
		return nil
	}
	return err
}

// change rewrites the entry at path in one transaction.
func (t *Table) change(ctx context.Context, namespace, path string, edit func(*storage.Txn, *Entry) error) (*Mounted, error) {
	m, err := t.Get(ctx, namespace, path)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, engines.Invalid("no mount at %q", path)
	}
	if err := m.known(); err != nil {
		return nil, err
	}
	_, err = storage.Update(ctx, t.opts.Store, func(tx *storage.Txn) error {
		e, err := read(ctx, tx, m.key())
		if err != nil {
			return err
		}
		if err := edit(tx, e); err != nil {
			return err
		}
		tx.Put(e.key(), e.put().Value)
		return nil
	})
	return m, err
}

// read gets an entry in a transaction.
func read(ctx context.Context, tx *storage.Txn, key storage.Key) (*Entry, error) {
	se, err := tx.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	return decodeEntry(se)
}

// Tune changes a mount's configuration, description or options.
func (t *Table) Tune(ctx context.Context, namespace, path string, edit func(*Entry) error) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	m, err := t.change(ctx, namespace, path, func(_ *storage.Txn, e *Entry) error {
		plugin, version := e.PluginVersion, e.Options["version"]
		if err := edit(e); err != nil {
			return err
		}
		if e.PluginVersion != plugin && t.opts.Plugins != nil {
			if err := t.opts.Plugins.Check(ctx, e.IsAuth(), e.Type, e.PluginVersion); err != nil {
				return err
			}
		}
		if e.Options["version"] != version {
			return t.upgrade(ctx, e)
		}
		return nil
	})
	if err == nil {
		t.opts.Logger.Info("mount tuned", "mount", m.Mount.Namespace+m.Path)
	}
	return err
}

// upgrade prepares what a mount has stored for another version of its engine.
func (t *Table) upgrade(ctx context.Context, e *Entry) error {
	m, err := t.mounted(e, noRoutes())
	if err != nil {
		return err
	}
	if u, ok := m.Engine.(engines.Upgrader); ok {
		return u.Upgrade(ctx, m.Mount)
	}
	return nil
}
