package identity

import (
	"context"
	"slices"

	"github.com/coffer-project/coffer/storage"
)

const page = 256

// DropMount removes all aliases of an auth mount that is gone, of entities and of groups, and the memberships
// made through it. It may be repeated after an interruption.
func (s *Store) DropMount(ctx context.Context, ns, accessor string) error {
	if ns == "" {
		ns = rootNamespace
	}
	if err := s.dropAliases(ctx, aliasesKey(ns, "alias", accessor), func(t *storage.Txn, p *pointer) error {
		return dropEntityAlias(ctx, t, p, accessor)
	}); err != nil {
		return err
	}
	return s.dropAliases(ctx, aliasesKey(ns, "group-alias", accessor), func(t *storage.Txn, p *pointer) error {
		return dropGroupAlias(ctx, t, p)
	})
}

// dropAliases runs drop in a transaction of its own for each alias below prefix, which removes it.
func (s *Store) dropAliases(ctx context.Context, prefix storage.Key, drop func(*storage.Txn, *pointer) error) error {
	for after := ""; ; {
		names, err := s.store.List(ctx, prefix, after, page)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			if err := s.dropAlias(ctx, prefix+storage.Key(name), drop); err != nil {
				return err
			}
		}
		after = names[len(names)-1]
	}
}

// dropAlias also removes the member keys that a group's alias had made.
func (s *Store) dropAlias(ctx context.Context, k storage.Key, drop func(*storage.Txn, *pointer) error) error {
	var ended storage.Key
	err := s.update(ctx, func(t *storage.Txn) error {
		p, err := get[pointer](ctx, t, k)
		if err != nil {
			return err
		}
		if p.Source != "" {
			ended = membersKey(p.Owner, p.Source)
		}
		t.Delete(k)
		return drop(t, p)
	})
	if missing(err) {
		return nil
	}
	if err != nil || ended == "" {
		return err
	}
	return storage.DeletePrefix(ctx, s.store, ended)
}

func dropEntityAlias(ctx context.Context, t *storage.Txn, p *pointer, accessor string) error {
	t.Delete(aliasIDKey(p.ID))
	e, err := getEntity(ctx, t, p.Owner)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	e.Aliases = slices.DeleteFunc(e.Aliases, func(a alias) bool { return a.ID == p.ID })
	e.leave(t, func(m membership) bool { return m.Accessor == accessor })
	e.put(t)
	return nil
}

func dropGroupAlias(ctx context.Context, t *storage.Txn, p *pointer) error {
	t.Delete(groupAliasIDKey(p.ID))
	g, err := getGroup(ctx, t, p.Owner)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if g.Alias != nil && g.Alias.ID == p.ID {
		g.Alias = nil
		g.put(t)
	}
	return nil
}

// DropNamespace removes all identities of a namespace that is gone. Its groups' members in namespaces above lose
// their memberships at once. It may be repeated.
func (s *Store) DropNamespace(ctx context.Context, ns string) error {
	return storage.DeletePrefix(ctx, s.store, area+storage.Key(ns+"/"))
}
