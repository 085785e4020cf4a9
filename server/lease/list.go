package lease

import (
	"context"
	"errors"
	"strings"

	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/server/lease/record"
	"github.com/coffer-project/coffer/storage"
)

// Irrevocable is one lease that was given up.
type Irrevocable struct {
	ID        string
	MountUUID string
	Reason    string
}

// Irrevocable returns up to limit of the leases of ns that were given up, with how many there are at each mount.
// limit 0 or less is no limit. With below, leases of namespaces below ns count too.
func (m *Manager) Irrevocable(ctx context.Context, ns string, below bool, limit int) (list []Irrevocable, byMount map[string]int, err error) {
	if ns == "" {
		ns = record.RootNamespace
	}
	byMount = map[string]int{}
	for name, err := range m.names(ctx, index.StuckPrefix, "") {
		if err != nil {
			return nil, nil, err
		}
		r, ok := index.Parse(name)
		if !ok || r.Namespace != ns && (!below || !m.sees(ctx, ns, r.Namespace)) {
			continue
		}
		byMount[r.Mount]++
		if limit > 0 && len(list) >= limit {
			continue
		}
		rec, err := record.Get(ctx, m.store, r.Namespace, r.ID)
		if errors.Is(err, storage.ErrNotFound) {
			continue
		} else if err != nil {
			return nil, nil, err
		}
		list = append(list, Irrevocable{ID: r.ID, MountUUID: r.Mount, Reason: rec.Reason})
	}
	return list, byMount, nil
}

// List returns what stands directly below prefix among the lease ids of a namespace, folders with a slash.
func (m *Manager) List(ctx context.Context, ns, prefix string) ([]string, error) {
	if ns == "" {
		ns = record.RootNamespace
	}
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return m.store.List(ctx, record.KeyOf(ns, prefix), "", 0)
}

// CountByMount counts what is stored, by uuid of the mount. With below, leases of namespaces below ns count too.
func (m *Manager) CountByMount(ctx context.Context, ns string, below bool) (map[string]int, error) {
	byMount := map[string]int{}
	for _, prefix := range []storage.Key{index.ExpPrefix, index.StuckPrefix} {
		for name, err := range m.names(ctx, prefix, "") {
			if err != nil {
				return nil, err
			}
			if r, ok := index.Parse(name); ok && (r.Namespace == ns || below && m.sees(ctx, ns, r.Namespace)) {
				byMount[r.Mount]++
			}
		}
	}
	return byMount, nil
}

// MountAccessor returns the accessor of a mount, as clients know it, or its uuid if it has none any more.
func (m *Manager) MountAccessor(ctx context.Context, uuid string) string {
	if _, mount, ok := m.opts.Mounts.EngineOf(ctx, uuid); ok && mount.Accessor != "" {
		return mount.Accessor
	}
	return uuid
}
