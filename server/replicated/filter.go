package replicated

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/storage"
)

// FilterMode says what the paths of a Filter mean. The texts are those of the API.
type FilterMode string

const (
	// Allow: the secondary gets the listed mounts, and the listed namespaces with everything below them.
	Allow FilterMode = "allow"
	// Deny: it gets everything but what is listed and what lies below that.
	Deny FilterMode = "deny"
)

// Limits of a filter.
const (
	maxFilterPaths = 4096
	maxFilterBytes = 512 << 10 // all paths together
)

// Filter is what a primary keeps for a secondary. Paths are full ones, sorted, and end in "/"; they may name what does not
// exist.
type Filter struct {
	Format int        `json:"format"` // 1
	Mode   FilterMode `json:"mode"`
	Paths  []string   `json:"paths"`
}

// always are the paths in each namespace that every secondary has, if it has the namespace.
var always = []string{"sys/", "identity/", "cubbyhole/", "auth/token/"}

// NewFilter checks what an operator has written. namespaces are those that there are now.
func NewFilter(mode string, paths []string, namespaces []NamespaceInfo) (*Filter, error) {
	f := &Filter{Format: 1, Mode: FilterMode(mode)}
	if f.Mode != Allow && f.Mode != Deny {
		return nil, engines.Invalid("field \"mode\": must be %q or %q", Allow, Deny)
	}
	if len(paths) > maxFilterPaths {
		return nil, engines.Invalid("field \"paths\": has %d elements, the limit is %d", len(paths), maxFilterPaths)
	}
	size := 0
	for _, written := range paths {
		path := strings.Trim(written, "/") + "/"
		size += len(path)
		if err := checkFilterPath(path); err != nil {
			return nil, err
		}
		if f.Mode == Deny && isAlways(path, namespaces) {
			return nil, engines.Invalid("field \"paths\": %q is part of every secondary that has its namespace and cannot be denied; deny the namespace instead", path)
		}
		f.Paths = append(f.Paths, path)
	}
	if size > maxFilterBytes {
		return nil, engines.Invalid("field \"paths\": is %d bytes, the limit is %d", size, maxFilterBytes)
	}
	slices.Sort(f.Paths)
	f.Paths = slices.Compact(f.Paths)
	return f, nil
}

// checkFilterPath refuses what cannot be the path of a mount or a namespace.
func checkFilterPath(path string) error {
	if path == "/" {
		return engines.Invalid("field \"paths\": the root namespace is part of every secondary; list mounts and namespaces, such as \"secret/\" or \"team/\"")
	}
	if !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl) {
		return engines.Invalid("field \"paths\": a path has characters that no mount's path has")
	}
	for segment := range strings.SplitSeq(strings.TrimSuffix(path, "/"), "/") {
		if segment == "" || segment == "." || segment == ".." || strings.TrimSpace(segment) != segment {
			return engines.Invalid("field \"paths\": %q is not the path of a mount or a namespace", path)
		}
	}
	return nil
}

// isAlways reports whether the path is that of a built-in mount, in the root or in one of the namespaces.
func isAlways(path string, namespaces []NamespaceInfo) bool {
	for _, name := range always {
		namespace, is := strings.CutSuffix(path, name)
		if is && (namespace == "" || slices.ContainsFunc(namespaces, func(n NamespaceInfo) bool { return n.Path == namespace })) {
			return true
		}
	}
	return false
}

func filterKey(id string) storage.Key { return filters + storage.Key(hex.EncodeToString([]byte(id))) }

// readFilters returns the filters that are stored under the ids.
func readFilters(ctx context.Context, from getter, ids ...string) ([]*Filter, error) {
	var found []*Filter
	for _, id := range ids {
		if id == "" {
			continue
		}
		var f Filter
		switch e, err := read(ctx, from, filterKey(id), &f); {
		case err != nil:
			return nil, err
		case e.Key == "":
		case f.Format != 1:
			return nil, fmt.Errorf("a paths filter has format %d, this version knows 1", f.Format)
		default:
			found = append(found, &f)
		}
	}
	return found, nil
}

// names returns what a filter for this id can be stored under, the one for new filters first: a secondary is called by its
// cluster id or by the id of its token, and somebody may write a filter before the secondary is known.
func (s *Store) names(ctx context.Context, id string) ([]string, error) {
	if id == "" || len(id) > enrol.MaxIDBytes || strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return nil, engines.Invalid("field \"id\": must be the cluster id of a secondary, or the id of its token: 1 to %d bytes that print", enrol.MaxIDBytes)
	}
	t, err := s.registry.load(ctx)
	if err != nil {
		return nil, err
	}
	p, known := t.secondaries[id]
	if !known {
		p = t.secondaries[t.clusters[id]]
	}
	names := []string{id}
	for _, name := range []string{p.ClusterID, p.ID} {
		if name != "" {
			names = append([]string{name}, slices.DeleteFunc(names, func(n string) bool { return n == name })...)
		}
	}
	return names, nil
}

// Filter returns the filter of a secondary, by its cluster id or the id of its token; a 404 if there is none.
func (s *Store) Filter(ctx context.Context, id string) (*Filter, error) {
	found, err := s.filtersOf(ctx, id)
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

// filtersOf returns at least one filter, or a 404. There are several only if they were written under different ids before
// these were known to mean the same secondary.
func (s *Store) filtersOf(ctx context.Context, id string) ([]*Filter, error) {
	names, err := s.names(ctx, id)
	if err != nil {
		return nil, err
	}
	found, err := readFilters(ctx, s.store, names...)
	if err == nil && len(found) == 0 {
		return nil, engines.NotFound("")
	}
	return found, err
}

// SetFilter replaces the filter of a secondary; nil removes it.
func (s *Store) SetFilter(ctx context.Context, id string, f *Filter) error {
	names, err := s.names(ctx, id)
	if err != nil {
		return err
	}
	_, err = storage.Update(ctx, s.store, func(tx *storage.Txn) error {
		if err := wantPrimary(ctx, tx); err != nil {
			return err
		}
		for _, name := range names {
			tx.Delete(filterKey(name))
		}
		if f != nil {
			tx.Put(filterKey(names[0]), encoded(f))
		}
		return nil
	})
	return err
}

// wantPrimary makes it a precondition that this cluster is a primary.
func wantPrimary(ctx context.Context, from getter) error {
	r, err := readRole(ctx, from)
	if err == nil && r.Mode != Primary {
		return engines.Invalid("this cluster is not a replication primary (mode: %s): send the request to the primary", r.Mode)
	}
	return err
}

// Excluded returns what a secondary does not get at present, sorted; a 404 if it has no filter.
func (s *Store) Excluded(ctx context.Context, id string) (Scope, error) {
	found, err := s.filtersOf(ctx, id)
	if err != nil {
		return Scope{}, err
	}
	return s.resolve(ctx, found...)
}

// resolve applies filters to what there is now: what any of them excludes is excluded.
func (s *Store) resolve(ctx context.Context, found ...*Filter) (Scope, error) {
	mounts, err := s.opts.Mounts(ctx)
	if err != nil {
		return Scope{}, fmt.Errorf("listing the mounts: %w", err)
	}
	namespaces, err := s.opts.Namespaces(ctx)
	if err != nil {
		return Scope{}, fmt.Errorf("listing the namespaces: %w", err)
	}
	if len(found) == 0 {
		return Resolve(nil, mounts, namespaces), nil
	}
	scope := Resolve(found[0], mounts, namespaces)
	for _, f := range found[1:] {
		scope.narrow(Resolve(f, mounts, namespaces))
	}
	return scope, nil
}

// Scope returns the units that the secondary may have at present, and a number that changes with them.
func (s *Store) Scope(ctx context.Context, p Peer) (units map[string]bool, version uint64, err error) {
	if p.ID == "" {
		return nil, 0, errors.New("a secondary without an id has no scope")
	}
	found, err := readFilters(ctx, s.store, p.ID, p.ClusterID)
	if err != nil {
		return nil, 0, fmt.Errorf("reading a paths filter: %w", err)
	}
	scope, err := s.resolve(ctx, found...)
	if err != nil {
		return nil, 0, err
	}
	return scope.Units, scope.Version(), nil
}
