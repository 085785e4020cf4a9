package identity

import (
	"context"
	"errors"
	"slices"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

type aliasFields struct {
	Name           string            `json:"name" help:"Name that the auth method knows the entity by; case counts." max:"1024"`
	MountAccessor  string            `json:"mount_accessor" help:"Accessor of the auth method." max:"256"`
	CanonicalID    string            `json:"canonical_id" help:"Id of the entity; a new entity if there is none." max:"128"`
	EntityID       string            `json:"entity_id" alias:"canonical_id" help:"Older name of canonical_id." max:"128"`
	CustomMetadata engines.StringMap `json:"custom_metadata" help:"Metadata that logins leave alone." max:"64"`
}

type aliasIn struct {
	ID string `json:"id" help:"Id of the alias to update; without it, name and mount_accessor decide." max:"128"`
	aliasFields
}

type aliasIDIn struct {
	ID string `json:"id" help:"Id of the alias."`
	aliasFields
}

func (s *Store) writeAliasByID(ctx context.Context, req *engines.Request, in *aliasIDIn) (*engines.Response, error) {
	return s.writeAlias(ctx, req, &aliasIn{in.ID, in.aliasFields})
}

func (s *Store) writeAlias(ctx context.Context, req *engines.Request, in *aliasIn) (*engines.Response, error) {
	if in.CanonicalID == "" {
		in.CanonicalID = in.EntityID
	}
	if err := checkMetadata("custom_metadata", in.CustomMetadata); err != nil {
		return nil, err
	}
	w := aliasWrite{s: s, req: req, in: in, ns: namespace(req.Mount), custom: req.Given("custom_metadata")}
	var id, owner string
	err := s.update(ctx, func(t *storage.Txn) (err error) {
		w.t = t
		id, owner, err = w.run(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"id": id, "canonical_id": owner}}, nil
}

// aliasWrite is one attempt to write an alias.
type aliasWrite struct {
	s      *Store
	req    *engines.Request
	t      *storage.Txn
	in     *aliasIn
	ns     string
	custom bool // custom_metadata was given
}

func (w *aliasWrite) run(ctx context.Context) (id, owner string, err error) {
	from, old, err := w.current(ctx)
	if err != nil {
		return "", "", err
	}
	a := alias{ID: newID(w.ns), CreatedAt: now()}
	if old != nil {
		a = *old
	}
	if w.in.Name != "" {
		a.Name = w.in.Name
	}
	if w.in.MountAccessor != "" {
		a.Accessor = w.in.MountAccessor
	}
	if w.custom {
		a.CustomMetadata = w.in.CustomMetadata
	}
	a.UpdatedAt = now()
	if err := checkAliasName(a.Name); err != nil {
		return "", "", err
	}
	if a.Local, err = w.s.checkMount(ctx, w.ns, a.Accessor); err != nil {
		return "", "", err
	}
	to, err := w.target(ctx, from)
	if err != nil {
		return "", "", err
	}
	if err := w.allowed(from, to, old, a); err != nil {
		return "", "", err
	}
	return a.ID, to.ID, w.place(ctx, from, to, old, a)
}

// allowed refuses to change who an existing entity is for callers who may not update that entity: the holder of the name
// of an alias has all that its entity may do.
func (w *aliasWrite) allowed(from, to *entity, old *alias, a alias) error {
	if from == nil && w.in.CanonicalID == "" {
		return nil // a new entity, which may do nothing yet
	}
	if from == to && old.Name == a.Name && old.Accessor == a.Accessor {
		return nil
	}
	for _, e := range []*entity{from, to} {
		if e != nil && !mayUpdate(w.req, e.ID) {
			return engines.Denied(errors.New("the alias is, or would be, of an entity that the caller may not update"))
		}
	}
	return nil
}

// mayUpdate reports whether the caller may update an entity, by its id or in the way of all.
func mayUpdate(req *engines.Request, id string) bool {
	c := req.Caller
	return c.Root || c.Access != nil &&
		(c.Access.Allowed(engines.Update, req.Mount.Path+"entity/id/"+id) || c.Access.Allowed(engines.Update, req.Mount.Path+"entity"))
}

// current returns the alias that is meant and its entity, or nothing if it is a new one.
func (w *aliasWrite) current(ctx context.Context) (*entity, *alias, error) {
	k := aliasKey(w.ns, w.in.MountAccessor, w.in.Name)
	if w.in.ID != "" {
		if !validID(w.in.ID) || namespaceOf(w.in.ID) != w.ns {
			return nil, nil, engines.NotFound("no alias has this id")
		}
		k = aliasIDKey(w.in.ID)
	}
	e, a, err := ownerOf(ctx, w.t, k, w.in.ID)
	switch {
	case missing(err) && w.in.ID != "":
		return nil, nil, engines.NotFound("no alias has this id")
	case missing(err):
		return nil, nil, nil
	}
	return e, a, err
}

// ownerOf follows an index key to an entity and its alias. The id is in the key or in what the key holds.
func ownerOf(ctx context.Context, r getter, k storage.Key, id string) (*entity, *alias, error) {
	p, err := get[pointer](ctx, r, k)
	if err != nil {
		return nil, nil, err
	}
	if id == "" {
		id = p.ID
	}
	e, err := getEntity(ctx, r, p.Owner)
	if err != nil {
		return nil, nil, err
	}
	i := slices.IndexFunc(e.Aliases, func(a alias) bool { return a.ID == id })
	if i < 0 {
		return nil, nil, storage.ErrNotFound
	}
	return e, &e.Aliases[i], nil
}

// target returns the entity that the alias is to belong to: the one that is named, else the one it is at, else
// a new one.
func (w *aliasWrite) target(ctx context.Context, from *entity) (*entity, error) {
	switch id := w.in.CanonicalID; {
	case from != nil && (id == "" || id == from.ID):
		return from, nil
	case id == "":
		return newEntity(ctx, w.t, w.ns, "")
	default:
		e, err := entityWithin(ctx, w.t, w.ns, id)
		if missing(err) {
			return nil, engines.Invalid(`field "canonical_id": no entity of this namespace has this id`)
		}
		return e, err
	}
}

// place puts the alias where it belongs and takes it from where it was. What an alias means when its name,
// mount or entity is another one is not in the groups that the last login found.
func (w *aliasWrite) place(ctx context.Context, from, to *entity, old *alias, a alias) error {
	if i := to.aliasAt(a.Accessor); i >= 0 && to.Aliases[i].ID != a.ID {
		return engines.Invalid("the entity already has an alias for this auth method: update or delete that one")
	}
	p, err := get[pointer](ctx, w.t, aliasKey(w.ns, a.Accessor, a.Name))
	switch {
	case err == nil && p.ID != a.ID:
		return engines.Invalid(`field "name": another alias of this auth method has this name`)
	case err != nil && !missing(err):
		return err
	}
	if old != nil {
		was := *old
		from.deleteAlias(w.t, &was)
		if from != to || was.Name != a.Name || was.Accessor != a.Accessor {
			from.leave(w.t, func(m membership) bool { return m.Accessor == was.Accessor })
		}
		from.Aliases = slices.DeleteFunc(from.Aliases, func(b alias) bool { return b.ID == a.ID })
		if from != to {
			from.put(w.t)
		}
	}
	to.Aliases = append(to.Aliases, a)
	to.putAlias(w.t, &a)
	to.put(w.t)
	return nil
}

func (s *Store) aliasByID(ctx context.Context, r getter, req *engines.Request, id string) (*entity, *alias, error) {
	if !validID(id) || namespaceOf(id) != namespace(req.Mount) {
		return nil, nil, storage.ErrNotFound
	}
	return ownerOf(ctx, r, aliasIDKey(id), id)
}

func (s *Store) readAlias(ctx context.Context, req *engines.Request, in *idIn) (*engines.Response, error) {
	e, a, err := s.aliasByID(ctx, s.store, req, in.ID)
	if err != nil {
		return nil, found(err)
	}
	return &engines.Response{Data: s.describeAlias(ctx, namespaceOf(e.ID), e.ID, a)}, nil
}

func (s *Store) describeAlias(ctx context.Context, ns, owner string, a *alias) map[string]any {
	return s.mountInfo(ctx, ns, a.Accessor, map[string]any{
		"id": a.ID, "canonical_id": owner, "name": a.Name, "metadata": a.Metadata,
		"custom_metadata": a.CustomMetadata, "local": a.Local, "namespace_id": ns,
		"merged_from_canonical_ids": a.MergedFrom, "creation_time": a.CreatedAt, "last_update_time": a.UpdatedAt,
	})
}

func (s *Store) listAliases(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return list(ctx, s, req, "alias-id", in, func(l *listing, id string, _ *pointer) error {
		e, a, err := s.aliasByID(ctx, s.store, req, id)
		if missing(err) {
			return nil // deleted since
		}
		if err != nil {
			return err
		}
		l.add(id, s.mountInfo(ctx, namespaceOf(e.ID), a.Accessor, map[string]any{
			"name": a.Name, "canonical_id": e.ID, "custom_metadata": a.CustomMetadata, "local": a.Local,
		}))
		return nil
	})
}

func (s *Store) deleteAlias(ctx context.Context, req *engines.Request, in *idIn) (*engines.Response, error) {
	return nil, s.update(ctx, func(t *storage.Txn) error {
		e, a, err := s.aliasByID(ctx, t, req, in.ID)
		if missing(err) {
			return nil
		}
		if err != nil {
			return err
		}
		was := *a
		e.deleteAlias(t, &was)
		e.Aliases = slices.DeleteFunc(e.Aliases, func(b alias) bool { return b.ID == was.ID })
		e.leave(t, func(m membership) bool { return m.Accessor == was.Accessor })
		e.put(t)
		return nil
	})
}
