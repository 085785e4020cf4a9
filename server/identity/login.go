package identity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Login returns the id of the entity behind an alias of a mount, which it makes if there is none, replaces the
// alias's metadata, and makes the memberships in external groups that have an alias of this mount fit
// groupAliases. A login that changes nothing writes nothing; one that would have to on a node that takes no
// writes returns storage.ErrReadOnly. An alias without a name has no entity: the id is "". Disabled entities are
// denied. Aliases' names are compared as they are, case included.
func (s *Store) Login(ctx context.Context, m engines.Mount, who engines.Alias, groupAliases []string) (entityID string, err error) {
	if who.Name == "" {
		return "", nil
	}
	if err := checkLogin(who); err != nil {
		return "", err
	}
	err = s.update(ctx, func(t *storage.Txn) error {
		e, changed, err := s.loginEntity(ctx, t, m, who)
		if err != nil {
			return err
		}
		entityID = e.ID
		joined, err := e.joinGroups(ctx, t, m, groupAliases)
		if err == nil && (changed || joined) {
			e.put(t)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return entityID, nil
}

// loginEntity returns the entity of an alias, with the alias as it should be, and whether that differs from what
// is stored.
func (s *Store) loginEntity(ctx context.Context, t *storage.Txn, m engines.Mount, who engines.Alias) (*entity, bool, error) {
	ns := namespace(m)
	p, err := get[pointer](ctx, t, aliasKey(ns, m.Accessor, who.Name))
	if missing(err) {
		e, err := newEntity(ctx, t, ns, "")
		if err != nil {
			return nil, false, err
		}
		at := e.CreatedAt
		a := alias{ID: newID(ns), Accessor: m.Accessor, Name: who.Name, Metadata: who.Metadata, Local: m.Local, CreatedAt: at, UpdatedAt: at}
		e.Aliases = []alias{a}
		e.putAlias(t, &a)
		return e, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	e, err := getEntity(ctx, t, p.Owner)
	if err != nil {
		return nil, false, fmt.Errorf("reading the entity of alias %s: %w", p.ID, notThere(err))
	}
	if e.Disabled {
		return nil, false, engines.Denied(fmt.Errorf("entity %s is disabled", e.ID))
	}
	i := e.aliasAt(m.Accessor)
	if i < 0 {
		return nil, false, fmt.Errorf("entity %s does not have its alias %s", e.ID, p.ID)
	}
	a := &e.Aliases[i]
	if maps.Equal(a.Metadata, who.Metadata) && a.Local == m.Local {
		return e, false, nil
	}
	a.Metadata, a.Local, a.UpdatedAt = who.Metadata, m.Local, now()
	return e, true, nil
}

// notThere makes the absence of something that must be there an error of its own: it is not an answer.
func notThere(err error) error {
	if missing(err) {
		return errors.New("it is not there")
	}
	return err
}

// joinGroups makes the entity a member of exactly those external groups with an alias of the mount that are
// named, and reports whether that changes its record.
func (e *entity) joinGroups(ctx context.Context, t *storage.Txn, m engines.Mount, names []string) (changed bool, err error) {
	ns := namespace(m)
	var wanted []membership
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		p, err := get[pointer](ctx, t, groupAliasKey(ns, m.Accessor, name))
		if missing(err) {
			continue
		}
		if err != nil {
			return false, err
		}
		wanted = append(wanted, membership{Group: p.Owner, Source: p.Source, Accessor: m.Accessor})
	}
	var kept []membership
	for _, has := range e.Groups {
		switch {
		case has.Accessor != m.Accessor || slices.Contains(wanted, has):
			kept = append(kept, has)
		default:
			t.Delete(has.key(e.ID))
			changed = true
		}
	}
	for _, w := range wanted {
		if !slices.Contains(kept, w) {
			put(t, w.key(e.ID), &pointer{Owner: w.Group})
			kept = append(kept, w)
			changed = true
		}
	}
	if len(kept) > maxMemberships && changed {
		return false, engines.Denied(fmt.Errorf("the login names %d groups: an entity is in at most %d of a namespace", len(kept), maxMemberships))
	}
	e.Groups = kept
	return changed, nil
}
