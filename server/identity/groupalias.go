package identity

import (
	"context"
	"fmt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

type groupAliasFields struct {
	Name          string `json:"name" help:"Name that the auth method knows the group by; case counts." max:"1024"`
	MountAccessor string `json:"mount_accessor" help:"Accessor of the auth method." max:"256"`
	CanonicalID   string `json:"canonical_id" help:"Id of the external group; without it, a new alias gets a new group." max:"128"`
}

type groupAliasIn struct {
	ID string `json:"id" help:"Id of the alias to update; without it, name and mount_accessor decide." max:"128"`
	groupAliasFields
}

type groupAliasIDIn struct {
	ID string `json:"id" help:"Id of the alias."`
	groupAliasFields
}

func (g *group) putAlias(t *storage.Txn) {
	a := g.Alias
	put(t, groupAliasKey(namespaceOf(g.ID), a.Accessor, a.Name), &pointer{ID: a.ID, Owner: g.ID, Source: a.Source})
	put(t, groupAliasIDKey(a.ID), &pointer{Owner: g.ID})
}

func (g *group) deleteAlias(t *storage.Txn) {
	t.Delete(groupAliasKey(namespaceOf(g.ID), g.Alias.Accessor, g.Alias.Name))
	t.Delete(groupAliasIDKey(g.Alias.ID))
}

func (s *Store) writeGroupAliasByID(ctx context.Context, req *engines.Request, in *groupAliasIDIn) (*engines.Response, error) {
	return s.writeGroupAlias(ctx, req, &groupAliasIn{in.ID, in.groupAliasFields})
}

func (s *Store) writeGroupAlias(ctx context.Context, req *engines.Request, in *groupAliasIn) (*engines.Response, error) {
	w := groupAliasWrite{s: s, in: in, ns: namespace(req.Mount)}
	var id, owner string
	err := s.update(ctx, func(t *storage.Txn) (err error) {
		w.t, w.ended = t, ""
		id, owner, err = w.run(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	if w.ended != "" {
		if err := storage.DeletePrefix(ctx, s.store, w.ended); err != nil {
			return nil, err
		}
	}
	return &engines.Response{Data: map[string]any{"id": id, "canonical_id": owner}}, nil
}

// groupAliasWrite is one attempt to write the alias of a group.
type groupAliasWrite struct {
	s  *Store
	t  *storage.Txn
	in *groupAliasIn
	ns string
	// ended is where the member keys are that the alias as it was had made.
	ended storage.Key
}

func (w *groupAliasWrite) run(ctx context.Context) (id, owner string, err error) {
	from, err := w.current(ctx)
	if err != nil {
		return "", "", err
	}
	a := alias{ID: newID(w.ns), CreatedAt: now()}
	if from != nil {
		a = *from.Alias
	}
	if w.in.Name != "" {
		a.Name = w.in.Name
	}
	if w.in.MountAccessor != "" {
		a.Accessor = w.in.MountAccessor
	}
	a.UpdatedAt = now()
	if err := checkAliasName(a.Name); err != nil {
		return "", "", err
	}
	if _, err := w.s.checkMount(ctx, w.ns, a.Accessor); err != nil {
		return "", "", err
	}
	to, err := w.target(ctx, from)
	if err != nil {
		return "", "", err
	}
	return a.ID, to.ID, w.place(ctx, from, to, a)
}

// current returns the group whose alias is meant, or nil if it is a new one.
func (w *groupAliasWrite) current(ctx context.Context) (*group, error) {
	k := groupAliasKey(w.ns, w.in.MountAccessor, w.in.Name)
	if w.in.ID != "" {
		g, err := groupOfAlias(ctx, w.t, w.ns, w.in.ID)
		if missing(err) {
			return nil, engines.NotFound("no alias has this id")
		}
		return g, err
	}
	p, err := get[pointer](ctx, w.t, k)
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	g, err := groupOfAlias(ctx, w.t, w.ns, p.ID)
	if err != nil {
		return nil, fmt.Errorf("reading the group of alias %s: %w", p.ID, notThere(err))
	}
	return g, nil
}

// groupOfAlias returns the group that has the alias, or storage.ErrNotFound.
func groupOfAlias(ctx context.Context, r getter, ns, id string) (*group, error) {
	if !validID(id) || namespaceOf(id) != ns {
		return nil, storage.ErrNotFound
	}
	p, err := get[pointer](ctx, r, groupAliasIDKey(id))
	if err != nil {
		return nil, err
	}
	g, err := getGroup(ctx, r, p.Owner)
	if err == nil && (g.Alias == nil || g.Alias.ID != id) {
		return nil, storage.ErrNotFound
	}
	return g, err
}

func (w *groupAliasWrite) target(ctx context.Context, from *group) (*group, error) {
	id := w.in.CanonicalID
	if from != nil && (id == "" || id == from.ID) {
		return from, nil
	}
	if id == "" {
		return newGroup(ctx, w.t, w.ns, &groupIn{groupFields: groupFields{Type: external}})
	}
	g, err := groupWithin(ctx, w.t, w.ns, id)
	switch {
	case missing(err):
		return nil, engines.Invalid(`field "canonical_id": no group of this namespace has this id`)
	case err != nil:
		return nil, err
	case g.Type != external:
		return nil, engines.Invalid(`field "canonical_id": the group is internal: only groups of type external have an alias`)
	case g.Alias != nil:
		return nil, engines.Invalid(`field "canonical_id": the group already has an alias: update or delete that one`)
	}
	return g, nil
}

// place puts the alias where it belongs and takes it from where it was. An alias whose name, mount or group is
// another one gets another source: who was in the group because of the old one is not any more.
func (w *groupAliasWrite) place(ctx context.Context, from, to *group, a alias) error {
	p, err := get[pointer](ctx, w.t, groupAliasKey(w.ns, a.Accessor, a.Name))
	switch {
	case err == nil && p.ID != a.ID:
		return engines.Invalid(`field "name": another alias of this auth method has this name`)
	case err != nil && !missing(err):
		return err
	}
	was := alias{}
	if from != nil {
		was = *from.Alias
		from.deleteAlias(w.t)
		if from != to {
			from.Alias = nil
			from.put(w.t)
		}
	}
	if from != to || was.Name != a.Name || was.Accessor != a.Accessor {
		a.Source = newID(rootNamespace)
		if from != nil {
			w.ended = membersKey(from.ID, was.Source)
		}
	}
	to.Alias = &a
	to.putAlias(w.t)
	to.put(w.t)
	return nil
}

func (s *Store) readGroupAlias(ctx context.Context, req *engines.Request, in *idIn) (*engines.Response, error) {
	g, err := groupOfAlias(ctx, s.store, namespace(req.Mount), in.ID)
	if err != nil {
		return nil, found(err)
	}
	return &engines.Response{Data: s.describeGroupAlias(ctx, g)}, nil
}

func (s *Store) describeGroupAlias(ctx context.Context, g *group) map[string]any {
	a := g.Alias
	return s.mountInfo(ctx, namespaceOf(g.ID), a.Accessor, map[string]any{
		"id": a.ID, "canonical_id": g.ID, "name": a.Name, "metadata": a.Metadata, "namespace_id": namespaceOf(g.ID),
		"merged_from_canonical_ids": a.MergedFrom, "creation_time": a.CreatedAt, "last_update_time": a.UpdatedAt,
	})
}

func (s *Store) listGroupAliases(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return list(ctx, s, req, "group-alias-id", in, func(l *listing, id string, _ *pointer) error {
		g, err := groupOfAlias(ctx, s.store, namespace(req.Mount), id)
		if missing(err) {
			return nil // deleted since
		}
		if err != nil {
			return err
		}
		l.add(id, s.mountInfo(ctx, namespaceOf(g.ID), g.Alias.Accessor, map[string]any{"name": g.Alias.Name, "canonical_id": g.ID}))
		return nil
	})
}

func (s *Store) deleteGroupAlias(ctx context.Context, req *engines.Request, in *idIn) (*engines.Response, error) {
	var ended storage.Key
	err := s.update(ctx, func(t *storage.Txn) error {
		g, err := groupOfAlias(ctx, t, namespace(req.Mount), in.ID)
		if err != nil {
			return err
		}
		ended = membersKey(g.ID, g.Alias.Source)
		g.deleteAlias(t)
		g.Alias = nil
		g.put(t)
		return nil
	})
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return nil, storage.DeletePrefix(ctx, s.store, ended)
}
