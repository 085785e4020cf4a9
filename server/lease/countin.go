package lease

import (
	"context"
	"strings"
)

// CountWhere returns how many leases there are at the mounts that match says, by namespace id and by the mount's path.
// On the active node it comes from memory; for a moment after Run began it is too low.
func (m *Manager) CountWhere(match func(ns, mountPath string) bool) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts.Where(match)
}

// CountPrefix returns how many leases of a namespace have ids that begin with prefix. It lists them.
func (m *Manager) CountPrefix(ctx context.Context, ns, prefix string) (int, error) {
	folder := prefix[:strings.LastIndexByte(prefix, '/')+1]
	names, err := m.List(ctx, ns, folder)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, name := range names {
		id := folder + name
		switch {
		case !strings.HasSuffix(id, "/"):
			if strings.HasPrefix(id, prefix) {
				n++
			}
		case strings.HasPrefix(id, prefix) || strings.HasPrefix(prefix, id):
			below, err := m.CountPrefix(ctx, ns, longer(id, prefix))
			if err != nil {
				return 0, err
			}
			n += below
		}
	}
	return n, nil
}

func longer(a, b string) string {
	if len(a) > len(b) {
		return a
	}
	return b
}
