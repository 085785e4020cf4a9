package lease

import (
	"context"
	"errors"
	"strings"

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
		ns = rootNS
	}
	byMount = map[string]int{}
	for name, err := range m.names(ctx, stuckPrefix, "") {
		if err != nil {
			return nil, nil, err
		}
		r, ok := parseName(name)
		if !ok || r.ns != ns && (!below || !m.sees(ctx, ns, r.ns)) {
			continue
		}
		byMount[r.mount]++
		if limit > 0 && len(list) >= limit {
			continue
		}
		rec, err := get(ctx, m.store, r.ns, r.id)
		if errors.Is(err, storage.ErrNotFound) {
			continue
		} else if err != nil {
			return nil, nil, err
		}
		list = append(list, Irrevocable{ID: r.id, MountUUID: r.mount, Reason: rec.Reason})
	}
	return list, byMount, nil
}

// List returns what stands directly below prefix among the lease ids of a namespace, folders with a slash.
func (m *Manager) List(ctx context.Context, ns, prefix string) ([]string, error) {
	if ns == "" {
		ns = rootNS
	}
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return m.store.List(ctx, recordKey(ns, prefix), "", 0)
}

// countByMount counts what is stored, by uuid of the mount. With below, leases of namespaces below ns count too.
func (m *Manager) countByMount(ctx context.Context, ns string, below bool) (map[string]int, error) {
	byMount := map[string]int{}
	for _, prefix := range []storage.Key{expPrefix, stuckPrefix} {
		for name, err := range m.names(ctx, prefix, "") {
			if err != nil {
				return nil, err
			}
			if r, ok := parseName(name); ok && (r.ns == ns || below && m.sees(ctx, ns, r.ns)) {
				byMount[r.mount]++
			}
		}
	}
	return byMount, nil
}
