package filter

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
)

// Mount is what filters need to know of a mount.
type Mount struct {
	NamespaceID string
	// NamespacePath is "" or ends in "/"; Path is relative to it, ends in "/", and of an auth method begins with "auth/".
	NamespacePath, Path string
	UUID                string
	Type                string // of the engine
	Local               bool   // it never leaves its cluster; of a built-in mount it says nothing
	Builtin             bool
	Deleting            bool
}

// FullPath returns the path from the root namespace.
func (m *Mount) FullPath() string { return m.NamespacePath + m.Path }

// Namespace is what filters need to know of a namespace.
type Namespace struct {
	ID   string
	Path string // from the root namespace, "" for it, else ends in "/"
}

// Scope is what a secondary may have.
type Scope struct {
	Units map[string]bool
	// Mounts and Namespaces are the full paths of what it may not, sorted. Mounts that no filter could allow, because they
	// are local, are not among them.
	Mounts, Namespaces []string
}

// Resolve returns the scope of a secondary with this filter; nil: there is none, and it has everything. What the filter does
// not clearly allow is excluded: a mount of a namespace that is not among these, for instance. Mounts that are being
// deleted count until they are gone. Pure.
func Resolve(f *Filter, mounts []Mount, namespaces []Namespace) Scope {
	s := Scope{Units: map[string]bool{Global: true, rootUnit: true}}
	included := map[string]bool{"root": true}
	for _, n := range namespaces {
		if n.ID != "root" && f.namespace(n.Path) {
			included[n.ID] = true
		}
	}
	if f != nil && f.Mode == Allow {
		f.addParents(included, mounts, namespaces)
	}
	for _, n := range namespaces {
		switch {
		case included[n.ID]:
			s.Units[KindNS+"/"+n.ID] = true
		default:
			s.Namespaces = append(s.Namespaces, n.Path)
		}
	}
	for i := range mounts {
		m := &mounts[i]
		switch {
		case m.Local && !m.Builtin:
		case included[m.NamespaceID] && (m.Builtin || f.mount(m)):
			s.Units[KindMount+"/"+m.UUID] = true
		case !m.Builtin:
			s.Mounts = append(s.Mounts, m.FullPath())
		}
	}
	slices.Sort(s.Mounts)
	slices.Sort(s.Namespaces)
	return s
}

// addParents includes the namespaces that lead to what is included, or to a mount that is.
func (f *Filter) addParents(included map[string]bool, mounts []Mount, namespaces []Namespace) {
	needed := map[string]bool{}
	lead := func(path string) {
		for i := range len(path) {
			if path[i] == '/' {
				needed[path[:i+1]] = true
			}
		}
	}
	for _, n := range namespaces {
		if included[n.ID] {
			lead(n.Path)
		}
	}
	for i := range mounts {
		if m := &mounts[i]; (!m.Local || m.Builtin) && f.Lists(m.FullPath()) {
			lead(m.NamespacePath)
		}
	}
	for _, n := range namespaces {
		if needed[n.Path] {
			included[n.ID] = true
		}
	}
}

// namespace reports whether the filter itself lets a namespace through, with everything below it.
func (f *Filter) namespace(path string) bool { return f == nil || (f.Mode == Deny) != f.covers(path) }

// mount reports whether the filter lets a mount through whose namespace is included.
func (f *Filter) mount(m *Mount) bool {
	switch {
	case f == nil:
		return true
	case f.Mode == Deny:
		return !f.covers(m.FullPath())
	}
	return f.Lists(m.FullPath()) || f.covers(m.NamespacePath)
}

// Lists reports whether the path itself is in the filter.
func (f *Filter) Lists(path string) bool {
	_, found := slices.BinarySearch(f.Paths, path)
	return found
}

// covers reports whether the path, or one that it lies below, is in the filter.
func (f *Filter) covers(path string) bool {
	for i := range len(path) {
		if path[i] == '/' && f.Lists(path[:i+1]) {
			return true
		}
	}
	return false
}

// Narrow leaves what o has, too.
func (s *Scope) Narrow(o Scope) {
	maps.DeleteFunc(s.Units, func(unit string, _ bool) bool { return !o.Units[unit] })
	s.Mounts, s.Namespaces = union(s.Mounts, o.Mounts), union(s.Namespaces, o.Namespaces)
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// Version returns a number that changes with the units, the same on every node.
func (s *Scope) Version() uint64 {
	h := sha256.New()
	for _, unit := range slices.Sorted(maps.Keys(s.Units)) {
		h.Write([]byte(unit + "\n"))
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}
