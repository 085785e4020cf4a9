package mfa

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/storage"
)

// enforcement says that logins need a code of one of the methods: those through certain mounts, and those of
// certain entities and members of certain groups.
type enforcement struct {
	ID        string   `json:"id"`
	Name      string   `json:"name"`
	Methods   []string `json:"methods"`
	Accessors []string `json:"accessors,omitempty"`
	Types     []string `json:"types,omitempty"`
	Groups    []string `json:"groups,omitempty"`
	Entities  []string `json:"entities,omitempty"`
}

// concerns reports whether a login needs a code.
func (s *Store) concerns(ctx context.Context, f *enforcement, m engines.Mount, e identity.Entity) (bool, error) {
	named := func(id string) bool { return slices.Contains(f.Entities, id) }
	if slices.Contains(f.Accessors, m.Accessor) || slices.Contains(f.Types, m.Type) || named(e.ID) || slices.ContainsFunc(e.MergedIDs, named) {
		return true, nil
	}
	if e.ID == "" {
		return false, nil
	}
	for _, group := range f.Groups {
		if in, err := s.opts.Identity.InGroup(ctx, e.ID, group); in || err != nil {
			return in, err
		}
	}
	return false, nil
}

type enforcementIn struct {
	Name      string             `json:"name" help:"Name of the enforcement."`
	Methods   engines.StringList `json:"mfa_method_ids" help:"Ids of the methods; a code of one of them is needed." max:"64"`
	Accessors engines.StringList `json:"auth_method_accessors" help:"Accessors of auth methods whose logins are concerned." max:"256"`
	Types     engines.StringList `json:"auth_method_types" help:"Types of auth methods whose logins are concerned." max:"64"`
	Groups    engines.StringList `json:"identity_group_ids" help:"Ids of groups whose members' logins are concerned." max:"256"`
	Entities  engines.StringList `json:"identity_entity_ids" help:"Ids of entities whose logins are concerned." max:"256"`
}

type nameIn struct {
	Name string `json:"name" help:"Name of the enforcement."`
}

func (s *Store) writeEnforcement(ctx context.Context, req *engines.Request, in *enforcementIn) (*engines.Response, error) {
	if err := checkName("name", in.Name); err != nil {
		return nil, err
	}
	ns := namespace(req.Mount)
	if err := s.checkTargets(ctx, ns, in); err != nil {
		return nil, err
	}
	return nil, s.update(ctx, func(t *storage.Txn) error {
		k := enforcementKey(ns, in.Name)
		f, err := get[enforcement](ctx, t, k)
		if missing(err) {
			f, err = &enforcement{ID: uuid.NewString(), Name: in.Name}, nil
		}
		if err != nil {
			return err
		}
		before := f.Methods
		if err := in.apply(req, f); err != nil {
			return err
		}
		if err := setUse(ctx, t, req, k, before, f.Methods); err != nil {
			return err
		}
		put(t, k, f)
		return nil
	})
}

// checkTargets refuses ids that mean nothing: an enforcement with a typing error would protect no login.
func (s *Store) checkTargets(ctx context.Context, ns string, in *enforcementIn) error {
	for _, id := range in.Entities {
		if _, err := s.enabled(ctx, id); missing(err) {
			return engines.Invalid(`field "identity_entity_ids": one of them is not the id of an entity`)
		} else if err != nil {
			return err
		}
	}
	for _, id := range in.Groups {
		if ok, err := s.opts.Identity.HasGroup(ctx, id); err != nil {
			return err
		} else if !ok {
			return engines.Invalid(`field "identity_group_ids": one of them is not the id of a group`)
		}
	}
	for _, accessor := range in.Accessors {
		if ok, err := s.opts.Mounts.HasAccessor(ctx, ns, accessor); err != nil {
			return err
		} else if !ok {
			return engines.Invalid(`field "auth_method_accessors": one of them is not the accessor of an auth method of this namespace`)
		}
	}
	return nil
}

func (in *enforcementIn) apply(req *engines.Request, f *enforcement) error {
	set(req, "mfa_method_ids", &f.Methods, []string(in.Methods))
	set(req, "auth_method_accessors", &f.Accessors, []string(in.Accessors))
	set(req, "auth_method_types", &f.Types, []string(in.Types))
	set(req, "identity_group_ids", &f.Groups, []string(in.Groups))
	set(req, "identity_entity_ids", &f.Entities, []string(in.Entities))
	switch {
	case len(f.Methods) == 0:
		return engines.Invalid(`field "mfa_method_ids": must name at least one method`)
	case len(f.Accessors)+len(f.Types)+len(f.Groups)+len(f.Entities) == 0:
		return engines.Invalid(`give at least one of "auth_method_accessors", "auth_method_types", "identity_group_ids", "identity_entity_ids"`)
	}
	f.Methods = slices.Compact(slices.Sorted(slices.Values(f.Methods)))
	return nil
}

// setUse notes in the methods which of them the enforcement needs now.
func setUse(ctx context.Context, t *storage.Txn, req *engines.Request, k storage.Key, before, after []string) error {
	for _, id := range slices.Concat(before, after) {
		used := slices.Contains(after, id)
		m, err := methodWithin(ctx, t, req, id)
		if missing(err) && !used {
			continue
		}
		if missing(err) {
			return engines.Invalid(`field "mfa_method_ids": one of them is not the id of a method of this namespace`)
		}
		if err != nil {
			return err
		}
		m.use(t, k, used)
	}
	return nil
}

func (s *Store) readEnforcement(ctx context.Context, req *engines.Request, in *nameIn) (*engines.Response, error) {
	if checkName("name", in.Name) != nil {
		return nil, engines.NotFound("")
	}
	ns := namespace(req.Mount)
	f, err := get[enforcement](ctx, s.store, enforcementKey(ns, in.Name))
	if err != nil {
		return nil, found(err)
	}
	return &engines.Response{Data: s.describeEnforcement(ns, f)}, nil
}

func (s *Store) describeEnforcement(ns string, f *enforcement) map[string]any {
	list := func(l []string) []string { return append([]string{}, l...) }
	return map[string]any{
		"id": f.ID, "name": f.Name, "mfa_method_ids": list(f.Methods), "auth_method_accessors": list(f.Accessors),
		"auth_method_types": list(f.Types), "identity_group_ids": list(f.Groups), "identity_entity_ids": list(f.Entities),
		"namespace_id": ns, "namespace_path": s.opts.Namespaces.Path(ns),
	}
}

func (s *Store) listEnforcements(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	ns := namespace(req.Mount)
	all, err := s.enforcements(ctx, ns)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, engines.NotFound("")
	}
	keys, info := []string{}, map[string]any{}
	for _, f := range all {
		keys = append(keys, f.Name)
		info[f.Name] = s.describeEnforcement(ns, f)
	}
	return &engines.Response{Data: map[string]any{"keys": keys, "key_info": info}}, nil
}

func (s *Store) enforcements(ctx context.Context, ns string) ([]*enforcement, error) {
	entries, err := s.store.Scan(ctx, key(storage.Shared, ns, "enforcement", ""), "", 0)
	if err != nil {
		return nil, err
	}
	var all []*enforcement
	for _, e := range entries {
		f, err := decode[enforcement](e)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

func (s *Store) deleteEnforcement(ctx context.Context, req *engines.Request, in *nameIn) (*engines.Response, error) {
	if checkName("name", in.Name) != nil {
		return nil, nil
	}
	err := s.update(ctx, func(t *storage.Txn) error {
		k := enforcementKey(namespace(req.Mount), in.Name)
		f, err := get[enforcement](ctx, t, k)
		if err != nil {
			return err
		}
		t.Delete(k)
		return setUse(ctx, t, req, k, f.Methods, nil)
	})
	if missing(err) {
		return nil, nil
	}
	return nil, err
}
