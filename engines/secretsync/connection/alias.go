package connection

import (
	"maps"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

// TypeNamed returns the type with a name, or with an alias unless the operator does not want those.
func (p *Pool) TypeNamed(name string) (destination.Type, bool) {
	if kind, ok := p.Types[name]; ok {
		return kind, true
	}
	for _, kind := range p.Types {
		if kind.Alias == name && name != "" && !p.opts.Operator.NoAliases {
			return kind, true
		}
	}
	return destination.Type{}, false
}

// TypeNames returns the names by which a type is accepted, its own first.
func (p *Pool) TypeNames(kind destination.Type) []string {
	if kind.Alias == "" || p.opts.Operator.NoAliases {
		return []string{kind.Name}
	}
	return []string{kind.Name, kind.Alias}
}

// ListedType returns the name of a destination's type in lists: the one that it was created by, if that is accepted.
func (p *Pool) ListedType(d *state.Destination) string {
	if _, ok := p.TypeNamed(d.CreatedAs); ok {
		return d.CreatedAs
	}
	return d.Type
}

// AllTypeNames returns all names of types.
func (p *Pool) AllTypeNames() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(p.Types)) {
		names = append(names, p.TypeNames(p.Types[name])...)
	}
	return names
}

// Synonym is engines.Router.Synonym of the paths below sys/, for the name of the type in a path. Policies and quotas speak of vendors' names
// also if requests may not.
func (p *Pool) Synonym(path string) (other, neutral string) {
	const before = "sync/destinations/"
	rest, ok := strings.CutPrefix(path, before)
	name, _, _ := strings.Cut(rest, "/")
	if !ok || name == "" {
		return "", ""
	}
	after := rest[len(name):]
	for _, kind := range p.Types {
		switch {
		case kind.Alias == "":
		case name == kind.Name:
			return before + kind.Alias + after, before + engines.Unnamed + after
		case name == kind.Alias:
			return before + kind.Name + after, before + engines.Unnamed + after
		}
	}
	return "", ""
}
