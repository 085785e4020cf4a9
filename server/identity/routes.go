package identity

import (
	"context"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// The shapes of responses: see engines.Route.Returns.
const (
	aliasShape = `canonical_id, creation_time, custom_metadata: {*: string}?, id, last_update_time, local: boolean, merged_from_canonical_ids: [string]?,
		metadata: {*: string}?, mount_accessor, mount_path, mount_type, name, namespace_id`
	groupAliasShape = `canonical_id, creation_time, id, last_update_time, merged_from_canonical_ids: [string]?, metadata: {*: string}?, mount_accessor, mount_path, mount_type, name, namespace_id`
	entityShape     = "aliases: [{" + aliasShape + `}], creation_time, direct_group_ids: [string], disabled: boolean, group_ids: [string], id,
		inherited_group_ids: [string], last_update_time, merged_entity_ids: [string]?, metadata: {*: string}?, name, namespace_id, policies: [string]`
	groupShape = "alias: {" + groupAliasShape + "}, creation_time, id, last_update_time, member_entity_ids: [string], member_group_ids: [string], metadata: {*: string}?, modify_index: integer, name, namespace_id, parent_group_ids: [string], policies: [string], type"
)

// routes declares the paths.
func (s *Store) routes(r *engines.Router) {
	const (
		writeEntity     = "Create an entity, or update the one with the id or name."
		readEntity      = "Read an entity, with its aliases and groups."
		deleteEntity    = "Delete an entity and its aliases."
		writeAlias      = "Create an alias of an entity, or update or move the one that is there."
		writeGroup      = "Create a group, or update the one with the id or name."
		readGroup       = "Read a group, with its members."
		deleteGroup     = "Delete a group, and so all memberships in it."
		writeGroupAlias = "Create the alias of an external group, or update the one that is there."
	)
	engines.On(r, engines.Update, "entity", writeEntity, 0, s.writeEntity).Returns("empty; aliases: [string], id, name")
	engines.On(r, engines.List, "entity/id", "List the ids of all entities.", 0, s.listEntities).
		Returns("key_info: {*: {aliases: [{id, mount_accessor, mount_path, mount_type, name}], name}}, keys: [string]")
	engines.On(r, engines.Read, "entity/id/{id}", readEntity, 0, s.readEntityByID).Returns(entityShape)
	engines.On(r, engines.Update, "entity/id/{id}", writeEntity, 0, s.writeEntityByID)
	engines.On(r, engines.Delete, "entity/id/{id}", deleteEntity, 0, s.deleteEntityByID)
	engines.On(r, engines.List, "entity/name", "List the names of all entities.", 0, s.listEntityNames).Returns("keys: [string]")
	engines.On(r, engines.Read, "entity/name/{name...}", readEntity, 0, s.readEntityByName).Returns(entityShape)
	engines.On(r, engines.Update, "entity/name/{name...}", writeEntity, 0, s.writeEntityByName).Returns("empty; aliases: [string], id, name")
	engines.On(r, engines.Delete, "entity/name/{name...}", deleteEntity, 0, s.deleteEntityByName)
	engines.On(r, engines.Update, "entity/batch-delete", "Delete several entities and their aliases.", engines.FreesSpace, s.deleteEntities)
	engines.On(r, engines.Update, "entity/merge", "Merge entities into one, which gets their aliases and groups.", 0, s.mergeEntities)

	engines.On(r, engines.Update, "entity-alias", writeAlias, 0, s.writeAlias).Returns("canonical_id, id")
	engines.On(r, engines.List, "entity-alias/id", "List the ids of all aliases of entities.", 0, s.listAliases).
		Returns("key_info: {*: {canonical_id, custom_metadata: {*: string}?, local: boolean, mount_accessor, mount_path, mount_type, name}}, keys: [string]")
	engines.On(r, engines.Read, "entity-alias/id/{id}", "Read an alias of an entity.", 0, s.readAlias).Returns(aliasShape)
	engines.On(r, engines.Update, "entity-alias/id/{id}", writeAlias, 0, s.writeAliasByID).Returns("canonical_id, id")
	engines.On(r, engines.Delete, "entity-alias/id/{id}", "Delete an alias of an entity.", 0, s.deleteAlias)

	engines.On(r, engines.Update, "group", writeGroup, 0, s.writeGroup).Returns("empty; id, name")
	engines.On(r, engines.List, "group/id", "List the ids of all groups.", 0, s.listGroups).
		Returns("key_info: {*: {name, num_member_entities: integer, num_member_groups: integer, num_parent_groups: integer, type}}, keys: [string]")
	engines.On(r, engines.Read, "group/id/{id}", readGroup, 0, s.readGroupByID).Returns(groupShape)
	engines.On(r, engines.Update, "group/id/{id}", writeGroup, 0, s.writeGroupByID)
	engines.On(r, engines.Delete, "group/id/{id}", deleteGroup, 0, s.deleteGroupByID)
	engines.On(r, engines.List, "group/name", "List the names of all groups.", 0, s.listGroupNames).Returns("keys: [string]")
	engines.On(r, engines.Read, "group/name/{name...}", readGroup, 0, s.readGroupByName).Returns(groupShape)
	engines.On(r, engines.Update, "group/name/{name...}", writeGroup, 0, s.writeGroupByName).Returns("empty; id, name")
	engines.On(r, engines.Delete, "group/name/{name...}", deleteGroup, 0, s.deleteGroupByName)

	engines.On(r, engines.Update, "group-alias", writeGroupAlias, 0, s.writeGroupAlias).Returns("canonical_id, id")
	engines.On(r, engines.List, "group-alias/id", "List the ids of all aliases of groups.", 0, s.listGroupAliases).
		Returns("key_info: {*: {canonical_id, mount_accessor, mount_path, mount_type, name}}, keys: [string]")
	engines.On(r, engines.Read, "group-alias/id/{id}", "Read the alias of a group.", 0, s.readGroupAlias).Returns(groupAliasShape)
	engines.On(r, engines.Update, "group-alias/id/{id}", writeGroupAlias, 0, s.writeGroupAliasByID).Returns("canonical_id, id")
	engines.On(r, engines.Delete, "group-alias/id/{id}", "Delete the alias of a group, and so all memberships that it made.", 0, s.deleteGroupAlias)

	engines.On(r, engines.Update, "lookup/entity", "Find an entity by id, name or alias; 204 if there is none.", 0, s.lookupEntity).Returns("empty; " + entityShape)
	engines.On(r, engines.Update, "lookup/group", "Find a group by id, name or alias; 204 if there is none.", 0, s.lookupGroup).Returns("empty; " + groupShape)
}

type idIn struct {
	ID string `json:"id" help:"The id."`
}

type nameIn struct {
	Name string `json:"name" help:"The name; case does not count."`
}

type listIn struct {
	After string `json:"after" help:"Only what comes after this one."`
	Limit int    `json:"limit" help:"At most this many; 0 is all."`
}

// listing is the answer to a list that is being made.
type listing struct {
	keys []string
	info map[string]any
}

func (l *listing) add(key string, info any) {
	l.keys = append(l.keys, key)
	if info != nil {
		if l.info == nil {
			l.info = map[string]any{}
		}
		l.info[key] = info
	}
}

func (l *listing) response() (*engines.Response, error) {
	if len(l.keys) == 0 {
		return nil, engines.NotFound("")
	}
	data := map[string]any{"keys": l.keys}
	if l.info != nil {
		data["key_info"] = l.info
	}
	return &engines.Response{Data: data}, nil
}

// scan calls fn for the entries below prefix in key order, read in pages. after is relative.
func (s *Store) scan(ctx context.Context, prefix storage.Key, after string, limit int, fn func(storage.Entry) error) error {
	last := storage.Key("")
	if after != "" {
		last = prefix + storage.Key(after)
	}
	for n := 0; ; {
		size := page
		if limit > 0 {
			size = min(size, limit-n)
		}
		entries, err := s.store.Scan(ctx, prefix, last, size)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := fn(e); err != nil {
				return err
			}
		}
		if n += len(entries); len(entries) < size || n == limit {
			return nil
		}
		last = entries[len(entries)-1].Key
	}
}

// list answers the ids or names below kind, with what info says about each record.
func list[T any](ctx context.Context, s *Store, req *engines.Request, kind string, in *listIn, add func(l *listing, key string, v *T) error) (*engines.Response, error) {
	prefix := key(namespace(req.Mount), kind, "")
	var l listing
	err := s.scan(ctx, prefix, in.After, in.Limit, func(e storage.Entry) error {
		v, err := decode[T](e)
		if err != nil {
			return err
		}
		return add(&l, strings.TrimPrefix(string(e.Key), string(prefix)), v)
	})
	if err != nil {
		return nil, err
	}
	return l.response()
}

// listNames answers the names as they were written, in the order of their lower-case forms.
func (s *Store) listNames(ctx context.Context, req *engines.Request, kind string, in *listIn) (*engines.Response, error) {
	from := listIn{After: nameInKey(in.After), Limit: in.Limit}
	return list(ctx, s, req, kind, &from, func(l *listing, _ string, p *pointer) error {
		l.add(p.Name, nil)
		return nil
	})
}

// mountInfo adds what is known of an alias's mount.
func (s *Store) mountInfo(ctx context.Context, ns, accessor string, data map[string]any) map[string]any {
	path, kind, _, _ := s.opts.Mounts.Describe(ctx, ns, accessor)
	data["mount_accessor"], data["mount_path"], data["mount_type"] = accessor, path, kind
	return data
}

// checkMount returns whether the mount that a client named is local, or what is wrong with it.
func (s *Store) checkMount(ctx context.Context, ns, accessor string) (local bool, err error) {
	if accessor == "" {
		return false, engines.Invalid(`field "mount_accessor": is required`)
	}
	_, _, local, ok := s.opts.Mounts.Describe(ctx, ns, accessor)
	if !ok {
		return false, engines.Invalid(`invalid mount accessor: no auth method of this namespace has what "mount_accessor" says; see "accessor" in sys/auth`)
	}
	return local, nil
}

// notNil is what a list answers when it is empty: never null.
func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
