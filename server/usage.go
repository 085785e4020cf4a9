package server

import (
	"context"
	"strings"
	"time"

	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/quota"
	"github.com/coffer-project/coffer/storage"
)

// usage is what quotas count: the leases and tokens, and what is stored.
type usage struct{ s *Server }

// Split implements quota.Usage.
func (u usage) Split(ctx context.Context, path string) (nsPath, mountPath string, err error) {
	ns, rest, err := u.s.namespaces.Resolve(ctx, "", path)
	if err != nil {
		return "", "", err
	}
	mountPath, err = u.MountPath(ctx, ns.ID, rest)
	return ns.Path, mountPath, err
}

// MountPath implements quota.Usage.
func (u usage) MountPath(ctx context.Context, ns, path string) (string, error) {
	m, _, err := u.s.mounts.Resolve(ctx, ns, path)
	if err != nil || m == nil {
		return "", err
	}
	return m.Path, nil
}

// Leases implements quota.Usage.
func (u usage) Leases(ctx context.Context, scope quota.Scope) (int, error) {
	in, _, err := u.s.namespaces.Resolve(ctx, scope.Namespace, "")
	if err != nil {
		return 0, err
	}
	concerns := func(ns string) bool { return ns == in.ID || scope.Below && u.s.namespaces.Below(ctx, in.ID, ns) }
	prefix, more := strings.CutSuffix(scope.Mount+scope.Path, "*")
	below := func(path string) bool {
		if scope.Path != "" && !more {
			return path == prefix
		}
		return strings.HasPrefix(path, prefix)
	}
	n, _, err := u.s.tokens.CountStored(ctx, func(ns, path, role string) bool {
		return concerns(ns) && below(path) && (scope.Role == "" || scope.Role == role)
	})
	if err != nil || scope.Role != "" {
		return n, err
	}
	if scope.Path == "" {
		if err := u.awaitCounts(ctx); err != nil {
			return 0, err
		}
		return n + u.s.leases.CountWhere(func(ns, mountPath string) bool { return concerns(ns) && strings.HasPrefix(mountPath, scope.Mount) }), nil
	}
	if !more {
		prefix += "/"
	}
	leases, err := u.s.leases.CountPrefix(ctx, in.ID, prefix)
	return n + leases, err
}

// awaitCounts waits until the leases are counted, which they are soon after the node became the active one.
func (u usage) awaitCounts(ctx context.Context) error {
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for !u.s.leases.Counted() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
		if !u.s.node.Active() {
			return storage.ErrReadOnly
		}
	}
	return nil
}

// Bytes implements quota.Usage.
func (u usage) Bytes(ctx context.Context, scope quota.Scope) (int64, error) {
	in, _, err := u.s.namespaces.Resolve(ctx, scope.Namespace, "")
	if err != nil {
		return 0, err
	}
	spaces, err := u.s.namespaces.Everything(ctx)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, n := range spaces {
		if n.ID != in.ID && !(scope.Below && u.s.namespaces.Below(ctx, in.ID, n.ID)) {
			continue
		}
		mounts, err := u.s.mounts.All(ctx, n.ID)
		if err != nil {
			return 0, err
		}
		for _, m := range mounts {
			if m.Type != "kv" && m.Type != "cubbyhole" || !strings.HasPrefix(m.Path, scope.Mount) {
				continue
			}
			bytes, err := u.mountBytes(ctx, m)
			if err != nil {
				return 0, err
			}
			sum += bytes
		}
	}
	if scope.Mount != "" {
		return sum, nil
	}
	_, wrapped, err := u.s.tokens.CountStored(ctx, func(ns, _, _ string) bool { return ns == in.ID || scope.Below && u.s.namespaces.Below(ctx, in.ID, ns) })
	return sum + wrapped, err
}

// mountBytes returns how many bytes a mount's data takes, encrypted, with its keys.
func (u usage) mountBytes(ctx context.Context, m *mount.Mounted) (int64, error) {
	const page = 256
	var sum int64
	for _, class := range []storage.Class{storage.Shared, storage.Local} {
		prefix := storage.NewKey(class, m.Entry.UUID, "")
		for after := storage.Key(""); ; {
			entries, err := u.s.raw.Scan(ctx, prefix, after, page)
			if err != nil {
				return 0, err
			}
			for _, e := range entries {
				sum += int64(len(e.Key) + len(e.Value))
			}
			if len(entries) < page {
				break
			}
			after = entries[len(entries)-1].Key
		}
	}
	return sum, nil
}
