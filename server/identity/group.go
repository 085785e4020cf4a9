package identity

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

type groupFields struct {
	Type     string             `json:"type" help:"Whether members are named here (internal, the default) or come with logins (external)." enum:"internal,external"`
	Metadata engines.StringMap  `json:"metadata" help:"Metadata of the group, for policy templates." max:"64"`
	Policies engines.StringList `json:"policies" form:"name" help:"Policies of all members." max:"256"`
	Entities engines.StringList `json:"member_entity_ids" help:"Ids of the entities in the group; replaces the ones that were." max:"10000"`
	Groups   engines.StringList `json:"member_group_ids" help:"Ids of the groups in the group; replaces the ones that were." max:"1000"`
}

type groupIn struct {
	ID   string `json:"id" help:"Id of the group to update; without it, the name decides." max:"128"`
	Name string `json:"name" form:"lower" help:"Name of the group; a random one if there is none." max:"512"`
	groupFields
}

type groupIDIn struct {
	ID   string `json:"id" help:"Id of the group."`
	Name string `json:"name" form:"lower" help:"New name of the group." max:"512"`
	groupFields
}

type groupNameIn struct {
	Name string `json:"name" form:"lower" help:"Name of the group; case does not count."`
	groupFields
}

// groupWithin returns the group of a namespace with an id, or storage.ErrNotFound.
func groupWithin(ctx context.Context, r getter, ns, id string) (*group, error) {
	if namespaceOf(id) != ns {
		return nil, storage.ErrNotFound
	}
	return getGroup(ctx, r, id)
}

// groupNamed returns the group of a namespace with a name, or storage.ErrNotFound.
func groupNamed(ctx context.Context, r getter, ns, name string) (*group, error) {
	if checkName("name", name) != nil {
		return nil, storage.ErrNotFound
	}
	p, err := get[pointer](ctx, r, groupNameKey(ns, name))
	if err != nil {
		return nil, err
	}
	return getGroup(ctx, r, p.Owner)
}

func (s *Store) writeGroupByID(ctx context.Context, req *engines.Request, in *groupIDIn) (*engines.Response, error) {
	return s.writeGroup(ctx, req, &groupIn{in.ID, in.Name, in.groupFields})
}

func (s *Store) writeGroupByName(ctx context.Context, req *engines.Request, in *groupNameIn) (*engines.Response, error) {
	return s.writeGroup(ctx, req, &groupIn{"", in.Name, in.groupFields})
}

// writeGroup answers only if it made one: an update has nothing to say.
func (s *Store) writeGroup(ctx context.Context, req *engines.Request, in *groupIn) (*engines.Response, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	ns := namespace(req.Mount)
	var created *group
	err := s.update(ctx, func(t *storage.Txn) error {
		created = nil
		g, err := in.find(ctx, t, ns)
		if missing(err) && in.ID != "" {
			return engines.NotFound("no group has this id")
		}
		if missing(err) {
			g, err = newGroup(ctx, t, ns, in)
			created = g
		}
		if err != nil {
			return err
		}
		return s.changeGroup(ctx, t, req, in, g)
	})
	if err != nil || created == nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"id": created.ID, "name": created.Name}}, nil
}

func (in *groupIn) check() (err error) {
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

func (in *groupIn) find(ctx context.Context, t *storage.Txn, ns string) (*group, error) {
	switch {
	case in.ID != "":
		return groupWithin(ctx, t, ns, in.ID)
	case in.Name != "":
		return groupNamed(ctx, t, ns, in.Name)
	}
	return nil, storage.ErrNotFound
}

func newGroup(ctx context.Context, t *storage.Txn, ns string, in *groupIn) (*group, error) {
	g := &group{ID: newID(ns), Name: in.Name, Type: in.Type, CreatedAt: now()}
	if g.Name == "" {
		g.Name = randomName("group")
	}
	if g.Type == "" {
		g.Type = internal
	}
	return g, takeName(ctx, t, groupNameKey(ns, g.Name), g.ID, g.Name)
}

// changeGroup applies what the request gave.
func (s *Store) changeGroup(ctx context.Context, t *storage.Txn, req *engines.Request, in *groupIn, g *group) error {
	switch {
	case in.Type != "" && in.Type != g.Type:
		return engines.Invalid(`field "type": group type cannot be changed: make another group`)
	case g.Type == external && len(in.Entities) > 0:
		return engines.Invalid(`field "member_entity_ids": the members of an external group come with logins: give the group an alias`)
	case g.Type == external && len(in.Groups) > 0:
		return engines.Invalid(`field "member_group_ids": an external group has no groups in it: put both into an internal group`)
	}
	if in.ID != "" && in.Name != "" {
		if err := g.rename(ctx, t, in.Name); err != nil {
			return err
		}
	}
	if req.Given("metadata") {
		g.Metadata = in.Metadata
	}
	if req.Given("policies") {
		g.Policies = in.Policies
	}
	if req.Given("member_entity_ids") && g.Type == internal {
		if err := s.setEntities(ctx, t, g, in.Entities); err != nil {
			return err
		}
	}
	if req.Given("member_group_ids") && g.Type == internal {
		if err := s.setGroups(ctx, t, g, in.Groups); err != nil {
			return err
		}
	}
	g.UpdatedAt = now()
	g.put(t)
	return nil
}

func (g *group) rename(ctx context.Context, t *storage.Txn, name string) error {
	if name == g.Name {
		return nil
	}
	ns := namespaceOf(g.ID)
	t.Delete(groupNameKey(ns, g.Name))
	g.Name = name
	return takeName(ctx, t, groupNameKey(ns, name), g.ID, name)
}

func (s *Store) readGroupByID(ctx context.Context, req *engines.Request, in *idIn) (*engines.Response, error) {
	g, err := groupWithin(ctx, s.store, namespace(req.Mount), in.ID)
	return s.answerGroup(ctx, g, found(err))
}

func (s *Store) readGroupByName(ctx context.Context, req *engines.Request, in *nameIn) (*engines.Response, error) {
	g, err := groupNamed(ctx, s.store, namespace(req.Mount), in.Name)
	return s.answerGroup(ctx, g, found(err))
}

// answerGroup answers the group, unless there was an error.
func (s *Store) answerGroup(ctx context.Context, g *group, err error) (*engines.Response, error) {
	if err != nil {
		return nil, err
	}
	members, err := s.members(ctx, s.store, g)
	if err != nil {
		return nil, err
	}
	if members, err = s.present(ctx, g, members, entityKey); err != nil {
		return nil, err
	}
	groups, err := s.present(ctx, g, g.MemberGroups, groupKey)
	if err != nil {
		return nil, err
	}
	ns := namespaceOf(g.ID)
	as := map[string]any{}
	if g.Alias != nil {
		as = s.describeGroupAlias(ctx, g)
	}
	return &engines.Response{Data: map[string]any{
		"id": g.ID, "name": g.Name, "type": g.Type, "metadata": g.Metadata, "policies": notNil(g.Policies),
		"member_entity_ids": notNil(members), "member_group_ids": notNil(groups), "parent_group_ids": notNil(g.Parents),
		"alias": as, "creation_time": g.CreatedAt, "last_update_time": g.UpdatedAt, "modify_index": g.ModifyIndex,
		"namespace_id": ns,
	}}, nil
}

// present leaves out the ids of members of namespaces above that are gone there, which groups are not told of.
func (s *Store) present(ctx context.Context, g *group, ids []string, key func(string) storage.Key) ([]string, error) {
	var out []string
	for _, id := range ids {
		if namespaceOf(id) != namespaceOf(g.ID) {
			switch _, err := s.store.Get(ctx, key(id)); {
			case missing(err):
				continue
			case err != nil:
				return nil, err
			}
		}
		out = append(out, id)
	}
	return out, nil
}

// members returns the ids of the entities that are directly in the group.
func (s *Store) members(ctx context.Context, r storage.Reader, g *group) ([]string, error) {
	source, ok := g.source()
	if !ok {
		return nil, nil
	}
	return r.List(ctx, membersKey(g.ID, source), "", 0)
}

func (s *Store) listGroups(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return list(ctx, s, req, "group", in, func(l *listing, id string, g *group) error {
		members, err := s.members(ctx, s.store, g)
		if err != nil {
			return err
		}
		l.add(id, map[string]any{
			"name": g.Name, "type": g.Type, "num_member_entities": len(members),
			"num_member_groups": len(g.MemberGroups), "num_parent_groups": len(g.Parents),
		})
		return nil
	})
}

func (s *Store) listGroupNames(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return s.listNames(ctx, req, "group-name", in)
}

func (s *Store) deleteGroupByID(ctx context.Context, req *engines.Request, in *idIn) (*engines.Response, error) {
	return nil, s.deleteGroup(ctx, func(t *storage.Txn) (*group, error) {
		return groupWithin(ctx, t, namespace(req.Mount), in.ID)
	})
}

func (s *Store) deleteGroupByName(ctx context.Context, req *engines.Request, in *nameIn) (*engines.Response, error) {
	return nil, s.deleteGroup(ctx, func(t *storage.Txn) (*group, error) {
		return groupNamed(ctx, t, namespace(req.Mount), in.Name)
	})
}

// deleteGroup removes the group that find returns; none is fine. From then on no membership in it counts, and
// what the members' side still says of it is removed afterwards or at the next change there.
func (s *Store) deleteGroup(ctx context.Context, find func(*storage.Txn) (*group, error)) error {
	var g *group
	err := s.update(ctx, func(t *storage.Txn) (err error) {
		if g, err = find(t); err != nil {
			return err
		}
		if err := g.cutLinks(ctx, t); err != nil {
			return err
		}
		if g.Alias != nil {
			g.deleteAlias(t)
		}
		t.Delete(groupNameKey(namespaceOf(g.ID), g.Name))
		t.Delete(groupKey(g.ID))
		return nil
	})
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return storage.DeletePrefix(ctx, s.store, allMembersKey(g.ID))
}
