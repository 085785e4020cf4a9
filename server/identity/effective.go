package identity

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/coffer-project/coffer/storage"
)

// Effective is what an entity is and, through its groups, may do. It does not change: do not modify it.
type Effective struct {
	Entity Entity
	// Policies are the sorted names of policies by the id of the namespace they are looked up in: the entity's
	// own in its namespace, those of each group in the group's.
	Policies map[string][]string
	Aliases  map[string]Alias // by mount accessor
	Groups   map[string]Group // by id: direct ones and, through their parents, inherited ones
	// Tag is another one whenever anything above is.
	Tag string
}

// Entity is the entity itself.
type Entity struct {
	ID          string
	Name        string
	Metadata    map[string]string
	NamespaceID string
	Disabled    bool
	MergedIDs   []string // of entities that are part of it now
}

// Alias is what one auth mount knows about the entity.
type Alias struct {
	ID             string
	Name           string
	Metadata       map[string]string
	CustomMetadata map[string]string
}

// Group is one that the entity is in.
type Group struct {
	ID          string
	Name        string
	NamespaceID string
	Metadata    map[string]string
	Direct      bool // not only through another group
}

// views are what an entity is, in its own namespace and in those below that it was asked for.
type views struct {
	entity *entity
	own    *Effective

	mu    sync.Mutex
	below map[string]*Effective // by namespace id; at most maxViews
}

const maxViews = 64

// Effective returns what an entity is, looked at from a namespace: with the groups of the entity's namespace and, where
// ns lies below that, of those on the way down to ns. Groups of other namespaces give nothing there. The id of an entity
// that was merged into another answers that one. One that is not there, or not any more, is storage.ErrNotFound. The
// answer is shared.
func (s *Store) Effective(ctx context.Context, entityID, ns string) (*Effective, error) {
	if !validID(entityID) {
		return nil, storage.ErrNotFound
	}
	eff, err := s.effectiveOf(ctx, entityID, ns)
	if !missing(err) {
		return eff, err
	}
	p, err := get[pointer](ctx, s.store, mergedKey(entityID))
	if err != nil {
		return nil, err
	}
	return s.effectiveOf(ctx, p.Owner, ns)
}

// InGroup reports whether an entity is in a group, directly or through other groups.
func (s *Store) InGroup(ctx context.Context, entityID, groupID string) (bool, error) {
	eff, err := s.Effective(ctx, entityID, namespaceOf(groupID))
	if err != nil {
		return false, err
	}
	_, ok := eff.Groups[groupID]
	return ok, nil
}

// HasGroup reports whether a group of any namespace has the id.
func (s *Store) HasGroup(ctx context.Context, id string) (bool, error) {
	if !validID(id) {
		return false, nil
	}
	_, err := s.cachedGroup(ctx, id)
	if missing(err) {
		return false, nil
	}
	return err == nil, err
}

func (s *Store) effectiveOf(ctx context.Context, id, ns string) (*Effective, error) {
	k := entityKey(id)
	v, err := s.effective.Get(ctx, k, func(ctx context.Context) (*views, error) {
		e, err := get[entity](ctx, s.store, k)
		if err != nil {
			return nil, err
		}
		own, err := s.join(ctx, e, nil)
		return &views{entity: e, own: own, below: map[string]*Effective{}}, err
	})
	switch {
	case err != nil:
		return nil, err
	case ns == v.own.Entity.NamespaceID:
		return v.own, nil
	}
	return v.in(ctx, s, ns)
}

// in returns what the entity is in a namespace that is not its own.
func (v *views) in(ctx context.Context, s *Store, ns string) (*Effective, error) {
	v.mu.Lock()
	eff := v.below[ns]
	v.mu.Unlock()
	if eff != nil {
		return eff, nil
	}
	way := s.way(ctx, v.own.Entity.NamespaceID, ns)
	if len(way) == 0 {
		return v.own, nil
	}
	eff, err := s.join(ctx, v.entity, way)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.below) >= maxViews {
		clear(v.below)
	}
	v.below[ns] = eff
	return eff, nil
}

// way returns the namespaces from right below one down to another, nil if that does not lie below it.
func (s *Store) way(ctx context.Context, from, to string) []string {
	above := s.opts.Namespaces.Above(ctx, to)
	i := slices.Index(above, from)
	if i < 0 {
		return nil
	}
	way := append([]string{to}, above[:i]...)
	slices.Reverse(way)
	return way
}

// join puts together what an entity and its groups say, those of its own namespace and of the ones on the way down.
func (s *Store) join(ctx context.Context, e *entity, way []string) (*Effective, error) {
	all, err := s.groupsOf(ctx, e, way)
	if err != nil {
		return nil, err
	}
	ns := namespaceOf(e.ID)
	eff := &Effective{
		Entity:   Entity{ID: e.ID, Name: e.Name, Metadata: e.Metadata, NamespaceID: ns, Disabled: e.Disabled, MergedIDs: e.MergedIDs},
		Policies: map[string][]string{}, Aliases: map[string]Alias{}, Groups: map[string]Group{},
	}
	eff.addPolicies(ns, e.Policies)
	for _, a := range e.Aliases {
		eff.Aliases[a.Accessor] = Alias{ID: a.ID, Name: a.Name, Metadata: a.Metadata, CustomMetadata: a.CustomMetadata}
	}
	for _, g := range all {
		ns := namespaceOf(g.ID)
		eff.Groups[g.ID] = Group{ID: g.ID, Name: g.Name, NamespaceID: ns, Metadata: g.Metadata, Direct: g.direct}
		eff.addPolicies(ns, g.Policies)
	}
	for ns, names := range eff.Policies {
		slices.Sort(names)
		eff.Policies[ns] = slices.Compact(names)
	}
	text, err := json.Marshal(eff) // maps in order
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	eff.Tag = base64.RawURLEncoding.EncodeToString(sum[:])
	return eff, nil
}

func (eff *Effective) addPolicies(ns string, names []string) {
	if len(names) > 0 {
		eff.Policies[ns] = append(eff.Policies[ns], names...)
	}
}

// inGroup is a group that an entity is in.
type inGroup struct {
	*group
	direct bool
}

// groupsOf returns all groups of the entity's namespace, and of those on the way down, that the entity is in. Memberships
// that do not count any more are left out.
func (s *Store) groupsOf(ctx context.Context, e *entity, way []string) ([]inGroup, error) {
	f := finder{s: s, seen: map[string]bool{}}
	for _, m := range e.Groups {
		if err := f.add(ctx, m.Group, &m, namespaceOf(e.ID)); err != nil {
			return nil, err
		}
	}
	if err := f.ascend(ctx, 0, namespaceOf(e.ID)); err != nil {
		return nil, err
	}
	for _, ns := range way {
		if err := f.descend(ctx, e, ns); err != nil {
			return nil, err
		}
	}
	return f.found, nil
}

// finder collects the groups that an entity is in, namespace by namespace.
type finder struct {
	s     *Store
	found []inGroup
	seen  map[string]bool
}

// add takes a group of the namespace ns; by is the entity's membership, nil if it is in the group through another one.
func (f *finder) add(ctx context.Context, id string, by *membership, ns string) error {
	if f.seen[id] || namespaceOf(id) != ns {
		return nil
	}
	g, err := f.s.cachedGroup(ctx, id)
	if missing(err) || err == nil && by != nil && !g.counts(*by) {
		return nil
	}
	if err != nil {
		return err
	}
	f.seen[id] = true
	f.found = append(f.found, inGroup{g, by != nil})
	return nil
}

// ascend adds the parents in the namespace ns of the groups from found[first] on, and theirs.
func (f *finder) ascend(ctx context.Context, first int, ns string) error {
	for i := first; i < len(f.found); i++ {
		for _, parent := range f.found[i].Parents {
			if err := f.add(ctx, parent, nil, ns); err != nil {
				return err
			}
		}
	}
	return nil
}

// descend adds the groups of a namespace below all that were asked before.
func (f *finder) descend(ctx context.Context, e *entity, ns string) error {
	above := len(f.found)
	for _, m := range e.Groups { // of version 1
		if err := f.add(ctx, m.Group, &m, ns); err != nil {
			return err
		}
	}
	for _, id := range append([]string{e.ID}, e.MergedIDs...) {
		if err := f.guests(ctx, ns, id, &membership{}); err != nil {
			return err
		}
	}
	for _, g := range f.found[:above] {
		for _, parent := range g.Parents { // of version 1
			if err := f.add(ctx, parent, nil, ns); err != nil {
				return err
			}
		}
		if err := f.guests(ctx, ns, g.ID, nil); err != nil {
			return err
		}
	}
	return f.ascend(ctx, above, ns)
}

// guests adds the groups of a namespace that have a member of one above.
func (f *finder) guests(ctx context.Context, ns, member string, by *membership) error {
	groups, err := f.s.store.List(ctx, guestsKey(ns, member), "", 0)
	if err != nil {
		return err
	}
	for _, id := range groups {
		if err := f.add(ctx, id, by, ns); err != nil {
			return err
		}
	}
	return nil
}

// cachedGroup returns a group that must not be modified, or storage.ErrNotFound.
func (s *Store) cachedGroup(ctx context.Context, id string) (*group, error) {
	return s.groups.Get(ctx, groupKey(id), func(ctx context.Context) (*group, error) {
		return get[group](ctx, s.store, groupKey(id))
	})
}

// FillIn returns the value of a name in a policy's template, such as "identity.entity.metadata.team", for policies
// of a namespace. It reports false for names that mean nothing and for values that are absent or empty. Groups by
// name are those of the policy's namespace, because administrators of another one can name and describe groups as they
// like.
func (eff *Effective) FillIn(ns, name string) (string, bool) {
	value := eff.fill(ns, name)
	return value, value != ""
}

func (eff *Effective) fill(ns, name string) string {
	rest, ok := strings.CutPrefix(name, "identity.")
	if !ok {
		return ""
	}
	kind, rest, _ := strings.Cut(rest, ".")
	if kind == "entity" {
		return eff.fillEntity(rest)
	}
	by, rest, _ := strings.Cut(rest, ".")
	switch {
	case kind == "groups" && by == "ids":
		return eff.fillGroup(rest, func(g *Group) (string, bool) { return g.ID, true })
	case kind == "groups" && by == "names":
		return eff.fillGroup(rest, func(g *Group) (string, bool) { return g.Name, g.NamespaceID == ns })
	}
	return ""
}

func (eff *Effective) fillEntity(rest string) string {
	what, field, _ := strings.Cut(rest, ".")
	switch what {
	case "metadata":
		return eff.Entity.Metadata[field]
	case "aliases":
		accessor, field, _ := strings.Cut(field, ".")
		a, ok := eff.Aliases[accessor]
		if !ok {
			return ""
		}
		if k, ok := strings.CutPrefix(field, "custom_metadata."); ok {
			return a.CustomMetadata[k]
		}
		return described(field, a.ID, a.Name, a.Metadata)
	}
	return described(rest, eff.Entity.ID, eff.Entity.Name, nil)
}

// fillGroup finds the group whose key, which may hold dots, rest begins with. The longest key counts.
func (eff *Effective) fillGroup(rest string, key func(*Group) (string, bool)) string {
	best, value := -1, ""
	for _, g := range eff.Groups {
		k, ok := key(&g)
		if !ok || len(k) <= best {
			continue
		}
		if field, ok := strings.CutPrefix(rest, k+"."); ok {
			if v := described(field, g.ID, g.Name, g.Metadata); v != "" {
				best, value = len(k), v
			}
		}
	}
	return value
}

func described(field, id, name string, metadata map[string]string) string {
	switch field {
	case "id":
		return id
	case "name":
		return name
	}
	if k, ok := strings.CutPrefix(field, "metadata."); ok {
		return metadata[k]
	}
	return ""
}
