package identity

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

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

// Effective returns what an entity is. The id of an entity that was merged into another answers that one. One
// that is not there, or not any more, is storage.ErrNotFound. The answer is shared.
func (s *Store) Effective(ctx context.Context, entityID string) (*Effective, error) {
	if !validID(entityID) {
		return nil, storage.ErrNotFound
	}
	eff, err := s.effectiveOf(ctx, entityID)
	if !missing(err) {
		return eff, err
	}
	p, err := get[pointer](ctx, s.store, mergedKey(entityID))
	if err != nil {
		return nil, err
	}
	return s.effectiveOf(ctx, p.Owner)
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

func (s *Store) effectiveOf(ctx context.Context, id string) (*Effective, error) {
	k := entityKey(id)
	return s.effective.Get(ctx, k, func(ctx context.Context) (*Effective, error) {
		e, err := get[entity](ctx, s.store, k)
		if err != nil {
			return nil, err
		}
		return s.join(ctx, e)
	})
}

// join puts together what an entity and its groups say.
func (s *Store) join(ctx context.Context, e *entity) (*Effective, error) {
	all, err := s.groupsOf(ctx, e)
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

// groupsOf returns all groups an entity is in, direct ones first. Memberships that do not count any more are
// left out.
func (s *Store) groupsOf(ctx context.Context, e *entity) ([]inGroup, error) {
	var all []inGroup
	seen := map[string]bool{}
	for _, m := range e.Groups {
		g, err := s.cachedGroup(ctx, m.Group)
		if missing(err) || err == nil && !g.counts(m) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !seen[g.ID] {
			seen[g.ID] = true
			all = append(all, inGroup{g, true})
		}
	}
	for i := 0; i < len(all); i++ {
		for _, parent := range all[i].Parents {
			if seen[parent] {
				continue
			}
			g, err := s.cachedGroup(ctx, parent)
			if missing(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			seen[parent] = true
			all = append(all, inGroup{g, false})
		}
	}
	return all, nil
}

// cachedGroup returns a group that must not be modified, or storage.ErrNotFound.
func (s *Store) cachedGroup(ctx context.Context, id string) (*group, error) {
	return s.groups.Get(ctx, groupKey(id), func(ctx context.Context) (*group, error) {
		return get[group](ctx, s.store, groupKey(id))
	})
}

// FillIn returns the value of a name in a policy's template, such as "identity.entity.metadata.team", for policies
// of a namespace. It reports false for names that mean nothing and for values that are absent or empty. Groups by
// name are those of the policy's namespace, because whoever rules another one can name and describe groups as they
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
