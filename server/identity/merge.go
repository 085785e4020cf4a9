package identity

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

type mergeIn struct {
	From  engines.StringList `json:"from_entity_ids" help:"Ids of the entities to merge; they end." required:"true" max:"100"`
	To    string             `json:"to_entity_id" help:"Id of the entity that remains." required:"true" max:"128"`
	Keep  engines.StringList `json:"conflicting_alias_ids_to_keep" help:"Where several of the entities have an alias for one auth method, the id of the one to keep." max:"1000"`
	Force bool               `json:"force" help:"Accepted for old clients; it has no effect."`
}

// mergeEntities moves aliases and group memberships to one entity, and makes the ids of the others mean it.
// Their policies and metadata end with them. The caller must be allowed to update each of the entities.
func (s *Store) mergeEntities(ctx context.Context, req *engines.Request, in *mergeIn) (*engines.Response, error) {
	if slices.Contains(in.From, in.To) {
		return nil, engines.Invalid(`field "from_entity_ids": must not contain to_entity_id`)
	}
	from := slices.Compact(slices.Sorted(slices.Values(in.From)))
	for _, id := range append([]string{in.To}, from...) {
		if !validID(id) {
			return nil, engines.Invalid(`fields "from_entity_ids", "to_entity_id": must be ids of entities`)
		}
		if c := req.Caller; !c.Root && (c.Access == nil || !c.Access.Allowed(engines.Update, req.Mount.Path+"entity/id/"+id)) {
			return nil, engines.Denied(errors.New("merging needs the right to update each of the entities"))
		}
	}
	return nil, s.update(ctx, func(t *storage.Txn) error {
		m := merge{t: t, keep: in.Keep}
		var err error
		if m.to, err = entityWithin(ctx, t, namespace(req.Mount), in.To); err != nil {
			return notMergeable(err, "to_entity_id")
		}
		for _, id := range from {
			e, err := entityWithin(ctx, t, namespace(req.Mount), id)
			if err != nil {
				return notMergeable(err, "from_entity_ids")
			}
			m.from = append(m.from, e)
		}
		return m.run(ctx)
	})
}

func notMergeable(err error, field string) error {
	if missing(err) {
		return engines.Invalid("field %q: no entity of this namespace has this id; entities of different namespaces cannot be merged", field)
	}
	return err
}

// merge is one attempt to merge entities.
type merge struct {
	t    *storage.Txn
	to   *entity
	from []*entity
	keep []string
}

func (m *merge) run(ctx context.Context) error {
	if err := m.resolve(); err != nil {
		return err
	}
	for _, e := range m.from {
		m.take(e)
	}
	at := now()
	m.to.UpdatedAt = at
	for _, id := range m.to.MergedIDs {
		put(m.t, mergedKey(id), &pointer{Owner: m.to.ID})
	}
	m.to.put(m.t)
	return nil
}

// resolve drops, where several entities have an alias for one mount, all but the one to keep.
func (m *merge) resolve() error {
	all := append([]*entity{m.to}, m.from...)
	ids := map[string][]string{} // of aliases, by mount accessor
	for _, e := range all {
		for _, a := range e.Aliases {
			ids[a.Accessor] = append(ids[a.Accessor], a.ID)
		}
	}
	var open []string
	for accessor, candidates := range ids {
		if len(candidates) == 1 {
			continue
		}
		chosen := slices.DeleteFunc(slices.Clone(candidates), func(id string) bool { return !slices.Contains(m.keep, id) })
		if len(chosen) != 1 {
			open = append(open, strings.Join(candidates, " or "))
			continue
		}
		for _, e := range all {
			m.drop(e, accessor, chosen[0])
		}
	}
	if len(open) > 0 {
		slices.Sort(open)
		return engines.Invalid("the entities have several aliases for one auth method: name the one to keep of each in conflicting_alias_ids_to_keep: %s", strings.Join(open, "; "))
	}
	return nil
}

// drop removes the entity's alias for a mount, and what came of it, unless it is the one to keep.
func (m *merge) drop(e *entity, accessor, keep string) {
	i := e.aliasAt(accessor)
	if i < 0 || e.Aliases[i].ID == keep {
		return
	}
	e.deleteAlias(m.t, &e.Aliases[i])
	e.Aliases = slices.Delete(e.Aliases, i, i+1)
	e.leave(m.t, func(m membership) bool { return m.Accessor == accessor })
}

// take moves what an entity has to the one that remains, and ends it.
func (m *merge) take(e *entity) {
	for _, a := range e.Aliases {
		a.MergedFrom = append(a.MergedFrom, e.ID)
		a.UpdatedAt = now()
		m.to.Aliases = append(m.to.Aliases, a)
	}
	for _, has := range e.Groups {
		if !slices.Contains(m.to.Groups, has) {
			m.to.Groups = append(m.to.Groups, has)
		}
	}
	m.to.MergedIDs = append(append(m.to.MergedIDs, e.ID), e.MergedIDs...)
	e.MergedIDs = nil
	_ = e.deleteIf(m.t, nil)
	for i := range m.to.Aliases {
		m.to.putAlias(m.t, &m.to.Aliases[i])
	}
	for _, has := range m.to.Groups {
		put(m.t, has.key(m.to.ID), &pointer{Owner: has.Group})
	}
}
