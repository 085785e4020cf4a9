package identity

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

type entityFields struct {
	Metadata engines.StringMap  `json:"metadata" help:"Metadata of the entity, for policy templates." max:"64"`
	Policies engines.StringList `json:"policies" form:"name" help:"Policies of everybody who logs in as the entity." max:"256"`
	Disabled bool               `json:"disabled" help:"Whether logins and tokens of the entity are refused."`
}

type entityIn struct {
	ID   string `json:"id" help:"Id of the entity to update; without it, the name decides." max:"128"`
	Name string `json:"name" form:"lower" help:"Name of the entity; a random one if there is none." max:"512"`
	entityFields
}

type entityIDIn struct {
	ID   string `json:"id" help:"Id of the entity."`
	Name string `json:"name" form:"lower" help:"New name of the entity." max:"512"`
	entityFields
}

type entityNameIn struct {
	Name string `json:"name" form:"lower" help:"Name of the entity; case does not count."`
	entityFields
}

// newEntity returns an entity whose name, a random one if it is empty, it has taken.
func newEntity(ctx context.Context, t *storage.Txn, ns, name string) (*entity, error) {
	at := now()
	e := &entity{ID: newID(ns), Name: name, CreatedAt: at, UpdatedAt: at}
	if name == "" {
		e.Name = randomName("entity")
	}
	return e, takeName(ctx, t, entityNameKey(ns, e.Name), e.ID, e.Name)
}

func randomName(kind string) string {
	b := make([]byte, 8)
	rand.Read(b)
	return kind + "_" + hex.EncodeToString(b)
}

// takeName gives a name to its owner, or says that it has another one.
func takeName(ctx context.Context, t *storage.Txn, k storage.Key, owner, name string) error {
	p, err := get[pointer](ctx, t, k)
	switch {
	case missing(err):
	case err != nil:
		return err
	case p.Owner != owner:
		return engines.Invalid(`field "name": is already in use`)
	}
	put(t, k, &pointer{Owner: owner, Name: name})
	return nil
}

// entityWithin returns the entity of a namespace with an id, or storage.ErrNotFound.
func entityWithin(ctx context.Context, r getter, ns, id string) (*entity, error) {
	if namespaceOf(id) != ns {
		return nil, storage.ErrNotFound
	}
	return getEntity(ctx, r, id)
}

// entityNamed returns the entity of a namespace with a name, or storage.ErrNotFound.
func entityNamed(ctx context.Context, r getter, ns, name string) (*entity, error) {
	if checkName("name", name) != nil {
		return nil, storage.ErrNotFound
	}
	p, err := get[pointer](ctx, r, entityNameKey(ns, name))
	if err != nil {
		return nil, err
	}
	return getEntity(ctx, r, p.Owner)
}

func (s *Store) writeEntityByID(ctx context.Context, req *engines.Request, in *entityIDIn) (*engines.Response, error) {
	return s.writeEntity(ctx, req, &entityIn{in.ID, in.Name, in.entityFields})
}

func (s *Store) writeEntityByName(ctx context.Context, req *engines.Request, in *entityNameIn) (*engines.Response, error) {
	return s.writeEntity(ctx, req, &entityIn{"", in.Name, in.entityFields})
}

// writeEntity answers only if it made one: an update has nothing to say.
func (s *Store) writeEntity(ctx context.Context, req *engines.Request, in *entityIn) (*engines.Response, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	ns := namespace(req.Mount)
	var created *entity
	err := s.update(ctx, func(t *storage.Txn) error {
		created = nil
		e, err := in.find(ctx, t, ns)
		if missing(err) && in.ID != "" {
			return engines.NotFound("no entity has this id")
		}
		if missing(err) {
			e, err = newEntity(ctx, t, ns, in.Name)
			created = e
		}
		if err != nil {
			return err
		}
		if in.ID != "" && in.Name != "" {
			if err := e.rename(ctx, t, in.Name); err != nil {
				return err
			}
		}
		in.apply(req, e)
		e.put(t)
		return nil
	})
	if err != nil || created == nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"id": created.ID, "name": created.Name, "aliases": []string{}}}, nil
}

func (in *entityIn) check() (err error) {
	if in.Name != "" {
		if err := checkName("name", in.Name); err != nil {
			return err
		}
	}
	if err := checkMetadata("metadata", in.Metadata); err != nil {
		return err
	}
	in.Policies, err = cleanPolicies(in.Policies)
	return err
}

func (in *entityIn) find(ctx context.Context, t *storage.Txn, ns string) (*entity, error) {
	switch {
	case in.ID != "":
		return entityWithin(ctx, t, ns, in.ID)
	case in.Name != "":
		return entityNamed(ctx, t, ns, in.Name)
	}
	return nil, storage.ErrNotFound
}

func (in *entityIn) apply(req *engines.Request, e *entity) {
	if req.Given("metadata") {
		e.Metadata = in.Metadata
	}
	if req.Given("policies") {
		e.Policies = in.Policies
	}
	if req.Given("disabled") {
		e.Disabled = in.Disabled
	}
	e.UpdatedAt = now()
}

// rename lets go of the old name before it takes the new one: they may be the same but for case.
func (e *entity) rename(ctx context.Context, t *storage.Txn, name string) error {
	if name == e.Name {
		return nil
	}
	ns := namespaceOf(e.ID)
	t.Delete(entityNameKey(ns, e.Name))
	e.Name = name
	return takeName(ctx, t, entityNameKey(ns, name), e.ID, name)
}

func (s *Store) readEntityByID(ctx context.Context, req *engines.Request, in *idIn) (*engines.Response, error) {
	e, err := entityWithin(ctx, s.store, namespace(req.Mount), in.ID)
	return s.answerEntity(ctx, e, found(err))
}

func (s *Store) readEntityByName(ctx context.Context, req *engines.Request, in *nameIn) (*engines.Response, error) {
	e, err := entityNamed(ctx, s.store, namespace(req.Mount), in.Name)
	return s.answerEntity(ctx, e, found(err))
}

// answerEntity answers the entity, unless there was an error.
func (s *Store) answerEntity(ctx context.Context, e *entity, err error) (*engines.Response, error) {
	if err != nil {
		return nil, err
	}
	groups, err := s.groupsOf(ctx, e, nil)
	if err != nil {
		return nil, err
	}
	direct, inherited, all := []string{}, []string{}, []string{}
	for _, g := range groups {
		all = append(all, g.ID)
		if g.direct {
			direct = append(direct, g.ID)
		} else {
			inherited = append(inherited, g.ID)
		}
	}
	ns := namespaceOf(e.ID)
	aliases := []map[string]any{}
	for i := range e.Aliases {
		aliases = append(aliases, s.describeAlias(ctx, ns, e.ID, &e.Aliases[i]))
	}
	return &engines.Response{Data: map[string]any{
		"id": e.ID, "name": e.Name, "metadata": e.Metadata, "policies": notNil(e.Policies), "disabled": e.Disabled,
		"aliases": aliases, "group_ids": all, "direct_group_ids": direct, "inherited_group_ids": inherited,
		"creation_time": e.CreatedAt, "last_update_time": e.UpdatedAt,
		"merged_entity_ids": notNil(e.MergedIDs), "namespace_id": ns,
	}}, nil
}

func (s *Store) listEntities(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return list(ctx, s, req, "entity", in, func(l *listing, id string, e *entity) error {
		aliases := []map[string]any{}
		for _, a := range e.Aliases {
			aliases = append(aliases, s.mountInfo(ctx, namespaceOf(id), a.Accessor, map[string]any{"id": a.ID, "name": a.Name}))
		}
		l.add(id, map[string]any{"name": e.Name, "aliases": aliases})
		return nil
	})
}

func (s *Store) listEntityNames(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return s.listNames(ctx, req, "entity-name", in)
}

func (s *Store) deleteEntityByID(ctx context.Context, req *engines.Request, in *idIn) (*engines.Response, error) {
	return nil, s.update(ctx, func(t *storage.Txn) error {
		e, err := entityWithin(ctx, t, namespace(req.Mount), in.ID)
		return e.deleteIf(t, err)
	})
}

func (s *Store) deleteEntityByName(ctx context.Context, req *engines.Request, in *nameIn) (*engines.Response, error) {
	return nil, s.update(ctx, func(t *storage.Txn) error {
		e, err := entityNamed(ctx, t, namespace(req.Mount), in.Name)
		return e.deleteIf(t, err)
	})
}

type batchDeleteIn struct {
	IDs engines.StringList `json:"entity_ids" help:"Ids of the entities; those that are not there are ignored." required:"true" max:"1000"`
}

func (s *Store) deleteEntities(ctx context.Context, req *engines.Request, in *batchDeleteIn) (*engines.Response, error) {
	return nil, s.update(ctx, func(t *storage.Txn) error {
		for _, id := range in.IDs {
			e, err := entityWithin(ctx, t, namespace(req.Mount), id)
			if err := e.deleteIf(t, err); err != nil {
				return err
			}
		}
		return nil
	})
}

// deleteIf removes the entity and all that leads to it, unless there was an error; one that is not there is fine.
func (e *entity) deleteIf(t *storage.Txn, err error) error {
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range e.Aliases {
		e.deleteAlias(t, &e.Aliases[i])
	}
	e.leave(t, func(membership) bool { return true })
	for _, id := range e.MergedIDs {
		t.Delete(mergedKey(id))
	}
	t.Delete(entityNameKey(namespaceOf(e.ID), e.Name))
	t.Delete(entityKey(e.ID))
	return nil
}

// leave ends the memberships that fit.
func (e *entity) leave(t *storage.Txn, fits func(membership) bool) {
	e.Groups = slices.DeleteFunc(e.Groups, func(m membership) bool {
		if !fits(m) {
			return false
		}
		t.Delete(m.key(e.ID))
		return true
	})
}
