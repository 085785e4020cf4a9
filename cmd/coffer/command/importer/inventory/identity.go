package inventory

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
)

// found is an entity or a group.
type found struct {
	ns     string
	fields map[string]any
}

// each calls do for all entities or groups of all namespaces, which are read once.
func (v *Inventory) each(ctx context.Context, kind string, do func(ns string, fields map[string]any)) error {
	if v.identities[kind] == nil {
		all := []found{}
		for _, ns := range v.Namespaces {
			ids, err := v.list(ctx, ns, "identity/"+kind+"/id", kind)
			if err != nil {
				return err
			}
			fields, err := v.readAll(ctx, ns, below("identity/"+kind+"/id", ids))
			if err != nil {
				return err
			}
			for _, f := range fields {
				if f != nil {
					all = append(all, found{ns, f})
				}
			}
		}
		v.identities[kind] = all
	}
	for _, f := range v.identities[kind] {
		do(f.ns, f.fields)
	}
	return nil
}

func text(fields map[string]any, name string) string {
	s, _ := fields[name].(string)
	return s
}

// remember keeps under which name the source has an id.
func (v *Inventory) remember(kind, ns string, fields map[string]any) {
	if v.names[kind] == nil {
		v.names[kind] = map[string]string{}
	}
	v.names[kind][text(fields, "id")] = ns + "\x00" + text(fields, "name")
}

// idOf returns the id at the destination of what has an id at the source, "" if it is not there.
func (v *Inventory) idOf(ctx context.Context, kind, id string) (string, error) {
	ns, name, ok := strings.Cut(v.names[kind][id], "\x00")
	if !ok {
		return "", nil
	}
	return v.idOfName(ctx, kind, ns, name)
}

func (v *Inventory) idOfName(ctx context.Context, kind, ns, name string) (string, error) {
	key := kind + "\x00" + ns + "\x00" + name
	v.mu.Lock()
	known := v.ids[key]
	v.mu.Unlock()
	if known != "" {
		return known, nil
	}
	fields, err := v.Destination.Fields(ctx, ns, "identity/"+kind+"/name/"+name)
	if err != nil || fields == nil {
		return "", err
	}
	v.mu.Lock()
	v.ids[key] = text(fields, "id")
	v.mu.Unlock()
	return text(fields, "id"), nil
}

// named are the objects of entities or groups, of the fields that are theirs alone.
func (v *Inventory) named(ctx context.Context, kind string, fields ...string) ([]*move.Object, error) {
	var out []*move.Object
	err := v.each(ctx, kind, func(ns string, found map[string]any) {
		v.remember(kind, ns, found)
		at := "identity/" + kind + "/name/" + text(found, "name")
		want := map[string]any{}
		for _, name := range fields {
			want[name] = found[name]
		}
		out = append(out, &move.Object{Kind: kind, Namespace: ns, Name: text(found, "name"), Want: want, Current: v.reader(ns, at), Write: v.Destination.Post(at)})
	})
	return out, err
}

func (v *Inventory) entities(ctx context.Context) ([]*move.Object, error) {
	return v.named(ctx, "entity", "policies", "metadata", "disabled")
}

func (v *Inventory) groups(ctx context.Context) ([]*move.Object, error) {
	return v.named(ctx, "group", "type", "policies", "metadata")
}

// aliases are the names that auth methods know entities by.
func (v *Inventory) aliases(ctx context.Context) ([]*move.Object, error) {
	var out []*move.Object
	err := v.each(ctx, "entity", func(ns string, entity map[string]any) {
		list, _ := entity["aliases"].([]any)
		for _, one := range list {
			if alias, ok := one.(map[string]any); ok {
				if o := v.alias("entity", ns, text(entity, "name"), alias); o != nil {
					out = append(out, o)
				}
			}
		}
	})
	return out, err
}

func (v *Inventory) groupAliases(ctx context.Context) ([]*move.Object, error) {
	var out []*move.Object
	err := v.each(ctx, "group", func(ns string, group map[string]any) {
		alias, _ := group["alias"].(map[string]any)
		if len(alias) == 0 {
			return
		}
		if o := v.alias("group", ns, text(group, "name"), alias); o != nil {
			out = append(out, o)
		}
	})
	return out, err
}

// alias is the object of an alias of an entity or a group.
func (v *Inventory) alias(kind, ns, owner string, alias map[string]any) *move.Object {
	accessor, name := text(alias, "mount_accessor"), text(alias, "name")
	m := v.accessors[accessor]
	if m == nil {
		v.skip(kind+" alias", ns, owner+" as "+name, "its auth method is not there any more")
		return nil
	}
	if v.skipped[m] {
		v.skip(kind+" alias", ns, fmt.Sprintf("%s as %s at auth/%s/", owner, name, m.Path), "its auth method is not imported")
		return nil
	}
	theirs := ""
	o := &move.Object{Kind: kind + " alias", Namespace: ns, Name: fmt.Sprintf("%s as %s at auth/%s/", owner, name, m.Path), Want: map[string]any{kind: strings.ToLower(owner)}}
	if kind == "entity" {
		o.Want["custom_metadata"] = alias["custom_metadata"]
	}
	o.Prepare = func(ctx context.Context, _ *move.Object) (err error) {
		theirs, err = v.accessor(ctx, accessor)
		return err
	}
	o.Current = func(ctx context.Context) (map[string]any, error) {
		if theirs == "" {
			return nil, nil // yet
		}
		found, err := v.Destination.Ask(ctx, ns, "identity/lookup/"+kind, map[string]any{"alias_name": name, "alias_mount_accessor": theirs})
		if err != nil || found == nil {
			return nil, err
		}
		now := map[string]any{kind: strings.ToLower(text(found, "name"))}
		list, _ := found["aliases"].([]any)
		for _, one := range list {
			if a, ok := one.(map[string]any); ok && text(a, "mount_accessor") == theirs && text(a, "name") == name {
				now["custom_metadata"] = a["custom_metadata"]
			}
		}
		return now, nil
	}
	o.Write = func(ctx context.Context, o *move.Object) (*command.Response, error) {
		if theirs == "" {
			return nil, command.Usagef("the destination has no auth method at auth/%s/", m.Path)
		}
		id, err := v.idOfName(ctx, kind, ns, owner)
		if err != nil {
			return nil, err
		}
		if id == "" {
			return nil, command.Usagef("the destination has no %s %s", kind, owner)
		}
		body := map[string]any{"name": name, "mount_accessor": theirs, "canonical_id": id}
		if metadata, changes := o.Body()["custom_metadata"]; changes {
			body["custom_metadata"] = metadata
		}
		return v.Destination.Send(ctx, http.MethodPost, ns, "identity/"+kind+"-alias", body)
	}
	return o
}

// members are the members of internal groups. Those of external ones come with logins.
func (v *Inventory) members(ctx context.Context) ([]*move.Object, error) {
	var out []*move.Object
	err := v.each(ctx, "group", func(ns string, group map[string]any) {
		entities, _ := group["member_entity_ids"].([]any)
		groups, _ := group["member_group_ids"].([]any)
		if group["type"] == "external" || len(entities)+len(groups) == 0 {
			return
		}
		at := "identity/group/name/" + text(group, "name")
		o := &move.Object{Kind: "group members", Namespace: ns, Name: text(group, "name"), Want: map[string]any{}, Write: v.Destination.Post(at)}
		o.Prepare = func(ctx context.Context, o *move.Object) error {
			lost := 0
			for field, ids := range map[string][]any{"member_entity_ids": entities, "member_group_ids": groups} {
				kind := strings.TrimSuffix(strings.TrimPrefix(field, "member_"), "_ids")
				theirs := []any{}
				for _, id := range ids {
					to, err := v.idOf(ctx, kind, fmt.Sprint(id))
					if err != nil {
						return err
					}
					if to == "" {
						if !v.Planning || v.names[kind][fmt.Sprint(id)] == "" {
							lost++
						}
						continue
					}
					theirs = append(theirs, to)
				}
				o.Want[field] = theirs
			}
			if lost > 0 {
				o.Notes = []string{fmt.Sprintf("%d of its members are not at the destination", lost)}
			}
			return nil
		}
		o.Current = func(ctx context.Context) (map[string]any, error) {
			now, err := v.Destination.Fields(ctx, ns, at)
			if now == nil || err != nil {
				return nil, err
			}
			if none, _ := now["member_entity_ids"].([]any); len(none) == 0 {
				if none, _ := now["member_group_ids"].([]any); len(none) == 0 {
					return nil, nil // a new group
				}
			}
			return now, nil
		}
		out = append(out, o)
	})
	return out, err
}
