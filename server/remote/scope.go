package remote

import (
	"context"
	"errors"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/namespace"
)

// Scope is what a secondary has, as its primary looks at it at every call.
type Scope struct {
	Units      map[string]bool // "mount/" and the mount's UUID, "ns/" and the namespace's id
	Mounts     *mount.Table
	Namespaces *namespace.Store
}

// Mount reports whether a mount is one of the secondary's.
func (s Scope) Mount(uuid string) bool { return s.Units["mount/"+uuid] }

// Namespace reports whether a namespace is one of the secondary's.
func (s Scope) Namespace(id string) bool { return s.Units["ns/"+id] }

// Access is what a caller of the secondary may do in a namespace, of what its policies allow.
func (s Scope) Access(ctx context.Context, a engines.Access, ns string) engines.Access {
	return scopedAccess{a, func(path string) bool { return s.path(ctx, ns, path) }}
}

// scopedAccess is what a caller of a secondary may do: nothing with mounts that the secondary does not have, whatever the policies
// allow, for it is the secondary that says whose they are.
type scopedAccess struct {
	engines.Access
	in func(path string) bool
}

func (a scopedAccess) Allowed(op engines.Operation, path string) bool {
	return a.Access.Allowed(op, path) && a.in(path)
}

func (a scopedAccess) AllowedAlways(op engines.Operation, path string) bool {
	return a.Access.AllowedAlways(op, path) && a.in(path)
}

func (a scopedAccess) Sudo(path string) bool { return a.Access.Sudo(path) && a.in(path) }

func (a scopedAccess) AnyUnder(prefix string) bool { return a.Access.AnyUnder(prefix) && a.in(prefix) }

// path reports whether the mount at a path of a namespace is one of a secondary's. Where there is none nothing is reached.
func (s Scope) path(ctx context.Context, ns, path string) bool {
	at, rest, err := s.Namespaces.ResolveFrom(ctx, ns, path)
	if err != nil {
		return false
	}
	m, _, err := s.Mounts.Resolve(ctx, at, rest)
	return err == nil && (m == nil || m.Builtin() || s.Mount(m.UUID))
}

// Target looks at what a path of sys/ is about: a mount or a namespace that the secondary may not have is not there
// for it, and cannot be changed or removed through it either.
func (s Scope) Target(ctx context.Context, ns string, op engines.Operation, pattern, path string) error {
	unit := ""
	kind, _, _ := strings.Cut(pattern, "/")
	path = strings.Trim(path, "/") + "/"
	switch kind {
	case "mounts", "auth":
		if kind == "auth" {
			path = mount.AuthPrefix + path
		}
		at, rest, err := s.Namespaces.ResolveFrom(ctx, ns, path)
		if err != nil {
			return err
		}
		m, _, err := s.Mounts.Resolve(ctx, at, rest)
		if err != nil {
			return err
		}
		if unit = "ns/" + at; m != nil {
			unit = "mount/" + m.UUID
		}
	case "namespaces":
		id, _, err := s.Namespaces.ResolveFrom(ctx, ns, path)
		if err != nil {
			return err
		}
		if op == engines.Delete {
			if err := s.whole(ctx, id); err != nil {
				return err
			}
		}
		unit = "ns/" + id
	}
	if unit != "" && !s.Units[unit] {
		return engines.NotFound("")
	}
	return nil
}

// whole refuses a namespace that holds something which a secondary does not have: with it, that would go too.
func (s Scope) whole(ctx context.Context, id string) error {
	mounts, err := s.Mounts.Everywhere(ctx)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if s.Namespaces.Below(ctx, id, m.Namespace) && !s.Mount(m.UUID) {
			return engines.Denied(errors.New("the namespace holds what the secondary does not have"))
		}
	}
	return nil
}
