package identity

import (
	"context"
	"slices"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// maxMemberships is how many groups of one namespace an entity or group is directly in, at most.
const maxMemberships = 1024

// Limits of groups in groups.
const (
	maxDepth  = 32     // groups of a namespace in a chain from one that is in no other to one without groups in it
	maxWalked = 10_000 // groups that one change may have to look at
)

// setEntities makes the entities the direct members of an internal group. The group was read in the transaction
// and is written by it, so that the members that are listed here do not change meanwhile.
func (s *Store) setEntities(ctx context.Context, t *storage.Txn, g *group, ids []string) error {
	current, err := t.List(ctx, membersKey(g.ID, ""), "", 0)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, id := range ids {
		wanted[id] = true
	}
	m := membership{Group: g.ID}
	for _, id := range current {
		if wanted[id] {
			delete(wanted, id) // nothing to do
			continue
		}
		t.Delete(m.key(id))
		if namespaceOf(id) != namespaceOf(g.ID) {
			t.Delete(guestKey(id, g.ID))
		}
		e, err := getEntity(ctx, t, id)
		if err != nil && !missing(err) {
			return err
		}
		if err == nil && slices.Contains(e.Groups, m) {
			e.leave(t, func(has membership) bool { return has == m })
			e.put(t)
		}
	}
	for i, id := range ids {
		if !wanted[id] {
			continue
		}
		delete(wanted, id)
		if err := s.addEntity(ctx, t, m, id, i); err != nil {
			return err
		}
	}
	return nil
}

// addEntity makes the entity, the one at place i of the request, a member.
func (s *Store) addEntity(ctx context.Context, t *storage.Txn, m membership, id string, i int) error {
	e, err := getEntity(ctx, t, id)
	if missing(err) || err == nil && !s.mayJoin(ctx, id, m.Group) {
		return engines.Invalid(`field "member_entity_ids": element %d is not the id of an entity of this namespace or of one above it`, i+1)
	}
	if err != nil {
		return err
	}
	put(t, m.key(id), &pointer{Owner: m.Group})
	if namespaceOf(id) != namespaceOf(m.Group) {
		return s.addGuest(ctx, t, id, m.Group)
	}
	if err := s.prune(ctx, t, e); err != nil {
		return err
	}
	if len(e.Groups) >= maxMemberships {
		return inTooMany(id)
	}
	e.Groups = append(e.Groups, m)
	e.put(t)
	return nil
}

// addGuest makes an entity or group of a namespace above a member of the group. Nothing above is written.
func (s *Store) addGuest(ctx context.Context, t *storage.Txn, id, group string) error {
	prefix := guestsKey(namespaceOf(group), id)
	groups, err := t.List(ctx, prefix, "", 0)
	if err != nil {
		return err
	}
	if len(groups) >= maxMemberships {
		left := len(groups)
		for _, other := range groups {
			switch _, err := s.cachedGroup(ctx, other); {
			case missing(err):
				t.Delete(prefix + storage.Key(other))
				left--
			case err != nil:
				return err
			}
		}
		if left >= maxMemberships {
			return inTooMany(id)
		}
	}
	putGuest(t, id, group)
	return nil
}

func inTooMany(id string) error {
	return engines.Invalid("%s is in %d groups of this namespace, which is the limit: take it out of others first", id, maxMemberships)
}

// mayJoin reports whether an entity or group may be in a group: only those of the same namespace or above.
func (s *Store) mayJoin(ctx context.Context, id, group string) bool {
	above, ns := namespaceOf(id), namespaceOf(group)
	return above == ns || slices.Contains(s.opts.Namespaces.Above(ctx, ns), above)
}

// prune drops memberships that do not count any more. None of them ever will again.
func (s *Store) prune(ctx context.Context, t *storage.Txn, e *entity) error {
	var failed error
	e.leave(t, func(m membership) bool {
		g, err := s.cachedGroup(ctx, m.Group)
		if err != nil && !missing(err) {
			failed = err
		}
		return missing(err) || err == nil && !g.counts(m)
	})
	return failed
}

// setGroups makes the groups the direct member groups of an internal group.
func (s *Store) setGroups(ctx context.Context, t *storage.Txn, g *group, ids []string) error {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	for _, id := range g.MemberGroups {
		if slices.Contains(ids, id) {
			continue
		}
		if err := g.loseChild(ctx, t, id); err != nil {
			return err
		}
	}
	var added []*group
	for _, id := range ids {
		if slices.Contains(g.MemberGroups, id) {
			continue
		}
		child, err := s.newChild(ctx, t, g, id)
		if err != nil {
			return err
		}
		added = append(added, child)
	}
	g.MemberGroups = ids
	if len(added) == 0 {
		return nil
	}
	return checkShape(ctx, t, g, added)
}

func (s *Store) newChild(ctx context.Context, t *storage.Txn, g *group, id string) (*group, error) {
	if id == g.ID {
		return nil, engines.Invalid(`field "member_group_ids": a group cannot be in itself`)
	}
	child, err := getGroup(ctx, t, id)
	if missing(err) || err == nil && !s.mayJoin(ctx, id, g.ID) {
		return nil, engines.Invalid(`field "member_group_ids": one of them is not the id of a group of this namespace or of one above it`)
	}
	if err != nil {
		return nil, err
	}
	if namespaceOf(id) != namespaceOf(g.ID) {
		return child, s.addGuest(ctx, t, id, g.ID)
	}
	if len(child.Parents) >= maxMemberships {
		return nil, inTooMany(id)
	}
	child.Parents = append(child.Parents, g.ID)
	child.put(t)
	return child, nil
}

// loseChild takes a group out of g.
func (g *group) loseChild(ctx context.Context, t *storage.Txn, id string) error {
	if namespaceOf(id) != namespaceOf(g.ID) {
		t.Delete(guestKey(id, g.ID))
	}
	child, err := getGroup(ctx, t, id)
	if missing(err) || err == nil && !slices.Contains(child.Parents, g.ID) {
		return nil
	}
	if err != nil {
		return err
	}
	child.Parents = without(child.Parents, g.ID)
	child.put(t)
	return nil
}

func without(list []string, text string) []string {
	return slices.DeleteFunc(list, func(s string) bool { return s == text })
}

// checkShape refuses circles and chains that are too long after groups were put into g. Everything it looks at
// becomes a precondition, so that two changes at once cannot make a circle together.
func checkShape(ctx context.Context, t *storage.Txn, g *group, added []*group) error {
	down := walk{t: t, next: func(g *group) []string { return g.MemberGroups }, forbidden: g.ID, levels: map[string]int{}}
	below := 0
	for _, child := range added {
		n, err := down.height(ctx, child, 1)
		if err != nil {
			return err
		}
		below = max(below, n)
	}
	// There is no circle: the way up ends.
	up := walk{t: t, next: func(g *group) []string { return g.Parents }, levels: map[string]int{}}
	above, err := up.height(ctx, g, 1)
	if err != nil {
		return err
	}
	if above+below > maxDepth {
		return engines.Invalid(`field "member_group_ids": groups are nested deeper than %d`, maxDepth)
	}
	return nil
}

// walk measures the longest chain of groups in one direction.
type walk struct {
	t         *storage.Txn
	next      func(*group) []string
	forbidden string         // a group that must not be met
	levels    map[string]int // of groups that are measured
}

func (w *walk) height(ctx context.Context, g *group, depth int) (int, error) {
	switch level, ok := w.levels[g.ID]; {
	case ok:
		return level, nil
	case depth > maxDepth:
		return 0, engines.Invalid(`field "member_group_ids": groups are nested deeper than %d`, maxDepth)
	case len(w.levels) >= maxWalked:
		return 0, engines.Invalid(`field "member_group_ids": more than %d groups hang together`, maxWalked)
	}
	level := 1
	for _, id := range w.next(g) {
		if id == w.forbidden {
			return 0, engines.Invalid(`field "member_group_ids": one of the groups has this group in it, which would be a circle`)
		}
		n, err := getGroup(ctx, w.t, id)
		if missing(err) {
			continue
		}
		if err != nil {
			return 0, err
		}
		below, err := w.height(ctx, n, depth+1)
		if err != nil {
			return 0, err
		}
		level = max(level, below+1)
	}
	w.levels[g.ID] = level
	return level, nil
}

// cutLinks takes a group that ends out of the groups around it. Groups of lower namespaces that have it in them keep its id,
// which is never used again.
func (g *group) cutLinks(ctx context.Context, t *storage.Txn) error {
	for _, id := range g.Parents {
		parent, err := getGroup(ctx, t, id)
		if missing(err) {
			continue
		}
		if err != nil {
			return err
		}
		parent.MemberGroups = without(parent.MemberGroups, g.ID)
		parent.put(t)
	}
	for _, id := range g.MemberGroups {
		if err := g.loseChild(ctx, t, id); err != nil {
			return err
		}
	}
	return nil
}
