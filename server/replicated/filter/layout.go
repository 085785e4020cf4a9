package filter

import (
	"strings"

	"github.com/coffer-project/coffer/storage"
)

// Kinds of units: what filters act upon, and what is compared as a whole. A unit is its kind and an id, "mount/<uuid>" and
// "ns/<namespace id>", or Global.
const (
	KindMount = "mount"
	KindNS    = "ns"
	// Global is the unit of what concerns the whole set: audit devices, the set's own keys.
	Global = "global"
)

// rootUnit is the root namespace's. Every secondary has it.
const rootUnit = KindNS + "/root"

// Areas of shared keys that replicate, besides those of mounts.
const (
	sysPrefix       storage.Key = "s/sys/"
	identityPrefix  storage.Key = "s/identity/"
	namespacePrefix storage.Key = "s/namespace/"
)

// isGlobalArea reports whether a segment that stands below s/sys/ where namespace ids do is none.
func isGlobalArea(s string) bool { return s == "audit" || s == "set" }

// Unit returns the unit that a shared key belongs to, and false for one that does not replicate: keys of unknown areas, and
// the index of namespaces by name, which every cluster makes itself.
func Unit(key storage.Key) (string, bool) {
	if key.Class() != storage.Shared {
		return "", false
	}
	area := key.Area()
	first, rest, deeper := strings.Cut(key.Path(), "/")
	switch {
	case area == "sys" && isGlobalArea(first):
		return named(Global, "", rest != "")
	case area == "sys" && strings.HasPrefix(rest, "mounts/"):
		id := strings.TrimPrefix(rest, "mounts/")
		return named(KindMount, id, isNamespaceID(first) && isUUID(id))
	case area == "sys" || area == "identity":
		return named(KindNS, first, rest != "" && isNamespaceID(first))
	case area == "namespace":
		return named(KindNS, first, !deeper && isNamespaceID(first))
	}
	return named(KindMount, area, first != "" && isUUID(area))
}

// named returns the name of a unit if there is one.
func named(kind, id string, ok bool) (string, bool) {
	switch {
	case !ok:
		return "", false
	case kind == Global:
		return Global, true
	}
	return kind + "/" + id, true
}

// Anchor reports whether the key makes its unit visible: the entry of a mount, the record of a namespace. The root
// namespace and Global have none.
func Anchor(key storage.Key) bool {
	sys := strings.HasPrefix(string(key), string(sysPrefix))
	if !sys && !strings.HasPrefix(string(key), string(namespacePrefix)) {
		return false // most keys: this is asked at each write
	}
	unit, ok := Unit(key)
	return ok && (!sys || strings.HasPrefix(unit, KindMount+"/"))
}

// Prefixes returns, in byte order, prefixes that hold all keys of a unit but its anchor; there are keys of other units
// below them. Nil for what is not a unit.
func Prefixes(unit string) []storage.Key {
	switch kind, id := SplitUnit(unit); kind {
	case Global:
		return []storage.Key{sysPrefix + "audit/", sysPrefix + "set/"}
	case KindNS:
		return []storage.Key{identityPrefix + storage.Key(id+"/"), sysPrefix + storage.Key(id+"/")}
	case KindMount:
		return []storage.Key{storage.NewKey(storage.Shared, id, "")}
	default:
		return nil
	}
}

// SplitUnit returns the kind and the id of a unit; the kind is "" if it is none. Global has no id.
func SplitUnit(unit string) (kind, id string) {
	kind, id, _ = strings.Cut(unit, "/")
	switch {
	case kind == Global && id == "", kind == KindNS && isNamespaceID(id), kind == KindMount && isUUID(id):
		return kind, id
	}
	return "", ""
}

// isNamespaceID reports whether a segment can be the id of a namespace.
func isNamespaceID(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return s != "" && len(s) <= 64 && !isGlobalArea(s)
}

// isUUID reports whether a segment is a mount's UUID, in the one form that they are written in.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, c := range []byte(s) {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (c == '-') {
			return false
		} else if !dash && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
