package identity_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// rights allows updates of some paths.
type rights []string

func (r rights) AllowedAlways(op engines.Operation, path string) bool { return r.Allowed(op, path) }

func (r rights) Allowed(op engines.Operation, path string) bool {
	return op == engines.Update && slices.Contains(r, path)
}
func (rights) Sudo(string) bool     { return false }
func (rights) AnyUnder(string) bool { return false }

func TestMerge(t *testing.T) {
	h := newHouse(t)
	externalGroup(t, h, "ops", auths[1], "ops")
	first := mustLogin(t, h, "root", auths[0], "one")
	second := mustLogin(t, h, "root", auths[1], "two", "ops")
	third := mustLogin(t, h, "root", auths[2], "three")
	h.Must(engines.Update, "entity/id/"+second, `{"policies":["strong"],"metadata":{"k":"v"}}`)
	group := h.write("group", map[string]any{"name": "in", "member_entity_ids": []string{second, third}})

	h.Must(engines.Update, "entity/merge", map[string]any{"to_entity_id": second, "from_entity_ids": []string{third}})
	h.Must(engines.Update, "entity/merge", map[string]any{"to_entity_id": first, "from_entity_ids": second})
	got := h.read("entity/id/" + first)
	if merged := texts(got["merged_entity_ids"]); !slices.Equal(merged, slices.Sorted(slices.Values([]string{second, third}))) {
		t.Errorf("merged_entity_ids = %v", merged)
	}
	has(t, got, map[string]any{"policies": "[]", "metadata": nil})
	for _, login := range [][2]string{{auths[0], "one"}, {auths[1], "two"}, {auths[2], "three"}} {
		groups := []string{}
		if login[0] == auths[1] {
			groups = []string{"ops"}
		}
		if id := mustLogin(t, h, "root", login[0], login[1], groups...); id != first {
			t.Errorf("login of %s = %s, want %s", login[1], id, first)
		}
	}
	for _, id := range []string{first, second, third} {
		eff := mustEffective(t, h, id)
		if eff.Entity.ID != first || len(eff.Aliases) != 3 || len(eff.Groups) != 2 {
			t.Errorf("Effective(%s) = %+v", id, eff)
		}
	}
	has(t, h.read("group/id/"+group), map[string]any{"member_entity_ids": "[" + first + "]"})
	h.Fails(engines.KindNotFound, engines.Read, "entity/id/"+second, nil)
	for _, a := range got["aliases"].([]any) {
		a := a.(map[string]any)
		if a["name"] == "two" && !slices.Equal(texts(a["merged_from_canonical_ids"]), []string{second}) {
			t.Errorf("alias %v does not say where it comes from", a)
		}
	}
	h.Must(engines.Delete, "entity/id/"+first, nil)
	for _, id := range []string{first, second, third} {
		if _, err := h.store.Effective(t.Context(), id, "root"); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("Effective(%s) after the deletion: %v", id, err)
		}
	}
	for k := range h.Snapshot() {
		if !strings.Contains(string(k), "/group") {
			t.Errorf("left behind: %s", k)
		}
	}
}

func TestMergeConflicts(t *testing.T) {
	h := newHouse(t)
	externalGroup(t, h, "ops", auths[0], "ops")
	one, two := mustLogin(t, h, "root", auths[0], "one"), mustLogin(t, h, "root", auths[0], "two", "ops")
	alias := func(id string) string { return mustEffective(t, h, id).Aliases[auths[0]].ID }
	keep := alias(one)
	body := map[string]any{"to_entity_id": one, "from_entity_ids": []string{two}}
	text := h.Fails(engines.KindInvalid, engines.Update, "entity/merge", body)
	if !strings.Contains(text, keep) || !strings.Contains(text, alias(two)) || !strings.Contains(text, "conflicting_alias_ids_to_keep") {
		t.Errorf("the conflict reads %q", text)
	}
	body["conflicting_alias_ids_to_keep"] = []string{keep, alias(two)}
	h.Fails(engines.KindInvalid, engines.Update, "entity/merge", body)
	body["conflicting_alias_ids_to_keep"] = []string{keep}
	h.Must(engines.Update, "entity/merge", body)
	eff := mustEffective(t, h, one)
	if eff.Aliases[auths[0]].ID != keep || len(eff.Groups) != 0 {
		t.Errorf("after the merge: %+v", eff)
	}
	if id := mustLogin(t, h, "root", auths[0], "two"); id == one {
		t.Error("the alias that was not kept still logs in")
	}
}

func TestMergeRefused(t *testing.T) {
	h := newHouse(t)
	one, two := h.write("entity", `{"name":"one"}`), h.write("entity", `{"name":"two"}`)
	h.in("a")
	below := h.write("entity", `{"name":"below"}`)
	h.in("root")
	for _, pair := range [][2]string{{one, one}, {one, below}, {below, one}, {one, "nobody"}, {"a/b", one}} {
		h.Fails(engines.KindInvalid, engines.Update, "entity/merge", map[string]any{"to_entity_id": pair[0], "from_entity_ids": []string{pair[1]}})
	}
	body := map[string]any{"to_entity_id": one, "from_entity_ids": []string{two}}
	for _, access := range []engines.Access{nil, rights{"identity/entity/id/" + one}, rights{"identity/entity/id/" + two}} {
		h.Caller = engines.Caller{Accessor: "x", Access: access}
		h.Fails(engines.KindDenied, engines.Update, "entity/merge", body)
	}
	h.Caller.Access = rights{"identity/entity/id/" + one, "identity/entity/id/" + two}
	h.Must(engines.Update, "entity/merge", body)
}

func TestFillIn(t *testing.T) {
	h := newHouse(t)
	id := h.write("entity", `{"name":"bob","metadata":{"team":"x","a.b":"y","empty":""}}`)
	h.write("entity-alias", map[string]any{"name": "b@x", "mount_accessor": auths[0], "canonical_id": id, "custom_metadata": map[string]string{"c": "d"}})
	who := engines.Alias{Name: "b@x", Metadata: map[string]string{"mail": "m"}}
	if _, err := h.store.Login(t.Context(), authMount("root", auths[0]), who, nil); err != nil {
		t.Fatal(err)
	}
	group := h.write("group", map[string]any{"name": "ops.eu", "metadata": map[string]string{"k": "v"}, "member_entity_ids": []string{id}})
	short := h.write("group", map[string]any{"name": "ops", "metadata": map[string]string{"k": "short"}, "member_entity_ids": []string{id}})
	eff := mustEffective(t, h, id)
	for name, want := range map[string]string{
		"identity.entity.id": id, "identity.entity.name": "bob", "identity.entity.metadata.team": "x", "identity.entity.metadata.a.b": "y",
		"identity.entity.metadata.empty": "", "identity.entity.metadata.none": "", "identity.entity.metadata": "", "identity.entity": "",
		"identity.entity.aliases." + auths[0] + ".id":                eff.Aliases[auths[0]].ID,
		"identity.entity.aliases." + auths[0] + ".name":              "b@x",
		"identity.entity.aliases." + auths[0] + ".metadata.mail":     "m",
		"identity.entity.aliases." + auths[0] + ".custom_metadata.c": "d",
		"identity.entity.aliases." + auths[1] + ".name":              "",
		"identity.groups.ids." + group + ".name":                     "ops.eu",
		"identity.groups.names.ops.eu.id":                            group,
		"identity.groups.names.ops.id":                               short,
		"identity.groups.names.ops.eu.metadata.k":                    "v",
		"identity.groups.names.nobody.id":                            "", "identity.groups.ids.nobody.name": "", "identity": "", "": "", "other.entity.id": "",
	} {
		if got, ok := eff.FillIn("root", name); got != want || ok != (want != "") {
			t.Errorf("FillIn(%q) = %q, %v, want %q", name, got, ok, want)
		}
	}
}

func TestTag(t *testing.T) {
	h := newHouse(t)
	id := mustLogin(t, h, "root", auths[0], "bob")
	group := h.write("group", map[string]any{"name": "ops", "member_entity_ids": []string{id}})
	parent := h.write("group", map[string]any{"name": "all", "member_group_ids": []string{group}})
	seen := map[string]string{mustEffective(t, h, id).Tag: "at first"}
	for i, change := range []struct{ path, body string }{
		{"entity/id/" + id, `{"policies":["a"]}`}, {"entity/id/" + id, `{"disabled":true}`}, {"entity/id/" + id, `{"name":"new"}`},
		{"entity/id/" + id, `{"metadata":{"k":"v"}}`}, {"group/id/" + parent, `{"policies":["b"]}`}, {"group/id/" + group, `{"metadata":{"k":"v"}}`},
		{"group/id/" + group, `{"name":"other"}`}, {"group/id/" + parent, `{"member_group_ids":[]}`}, {"group/id/" + group, `{"member_entity_ids":[]}`},
	} {
		h.Must(engines.Update, change.path, change.body)
		tag := mustEffective(t, h, id).Tag
		if seen[tag] != "" {
			t.Errorf("after change %d the tag is the one %s", i, seen[tag])
		}
		seen[tag] = fmt.Sprint("after change ", i)
		h.store.Clear()
		if again := mustEffective(t, h, id).Tag; again != tag {
			t.Errorf("after change %d the same gives another tag", i)
		}
	}
}
