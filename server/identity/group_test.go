package identity_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

func TestGroups(t *testing.T) {
	h := newHouse(t)
	bob, eve := h.write("entity", `{"name":"bob"}`), h.write("entity", `{"name":"eve"}`)
	id := h.write("group", map[string]any{"name": "Ops", "policies": "B,a", "metadata": map[string]string{"k": "v"}, "member_entity_ids": []string{eve, bob, bob}})
	got := h.read("group/id/" + id)
	has(t, got, map[string]any{
		"id": id, "name": "Ops", "type": "internal", "policies": "[a b]", "metadata": "map[k:v]", "member_group_ids": "[]",
		"parent_group_ids": "[]", "alias": "map[]", "modify_index": 1, "namespace_id": "root",
	})
	if members := texts(got["member_entity_ids"]); !slices.Equal(members, slices.Sorted(slices.Values([]string{bob, eve}))) {
		t.Errorf("members = %v", members)
	}
	if resp := h.Must(engines.Update, "group", `{"name":"ops","metadata":{}}`); resp != nil {
		t.Errorf("update answers %+v, want 204", resp)
	}
	has(t, h.read("group/name/OPS"), map[string]any{"name": "Ops", "metadata": nil, "policies": "[a b]", "modify_index": 2})
	h.Must(engines.Update, "group/id/"+id, map[string]any{"member_entity_ids": []string{eve}, "name": "eves"})
	has(t, h.read("group/name/eves"), map[string]any{"member_entity_ids": "[" + eve + "]"})
	has(t, h.read("entity/id/"+eve), map[string]any{"direct_group_ids": "[" + id + "]", "group_ids": "[" + id + "]"})
	has(t, h.read("entity/id/"+bob), map[string]any{"direct_group_ids": "[]"})

	parent := h.write("group", map[string]any{"name": "all", "member_group_ids": []string{id}})
	has(t, h.read("group/id/"+id), map[string]any{"parent_group_ids": "[" + parent + "]"})
	has(t, h.read("entity/id/"+eve), map[string]any{"inherited_group_ids": "[" + parent + "]"})
	info := h.Data(h.Must(engines.List, "group/id", nil))["key_info"].(map[string]any)
	has(t, info[id].(map[string]any), map[string]any{"name": "eves", "num_member_entities": 1, "num_parent_groups": 1})
	has(t, h.Data(h.Must(engines.List, "group/name", nil)), map[string]any{"keys": "[all eves]"})

	h.Must(engines.Delete, "entity/id/"+eve, nil)
	has(t, h.read("group/id/"+id), map[string]any{"member_entity_ids": "[]"})
	h.Must(engines.Delete, "group/name/eves", nil)
	h.Must(engines.Delete, "group/name/eves", nil)
	has(t, h.read("group/id/"+parent), map[string]any{"member_group_ids": "[]"})
	h.Must(engines.Delete, "group/id/"+parent, nil)
	h.Must(engines.Delete, "entity/id/"+bob, nil)
	if left := h.Snapshot(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestGroupsRefused(t *testing.T) {
	h := newHouse(t)
	bob := h.write("entity", `{"name":"bob"}`)
	in := h.write("group", `{"name":"in"}`)
	ext, alias := externalGroup(t, h, "ext", auths[1], "ext")
	_, other := externalGroup(t, h, "other", auths[1], "other")
	for name, tt := range map[string]struct {
		path  string
		body  any
		field string
	}{
		"change of type":      {"group/id/" + in, map[string]any{"type": "external"}, "type"},
		"unknown type":        {"group", map[string]any{"type": "x"}, "type"},
		"members of external": {"group/id/" + ext, map[string]any{"member_entity_ids": []string{bob}}, "member_entity_ids"},
		"groups of external":  {"group/id/" + ext, map[string]any{"member_group_ids": []string{in}}, "member_group_ids"},
		"unknown entity":      {"group", map[string]any{"member_entity_ids": []string{bob, "x/y"}}, "element 2"},
		"unknown group":       {"group", map[string]any{"member_group_ids": []string{bob}}, "member_group_ids"},
		"itself":              {"group/id/" + in, map[string]any{"member_group_ids": []string{in}}, "member_group_ids"},
		"name in use":         {"group/id/" + in, map[string]any{"name": "EXT"}, "name"},
		"alias of internal":   {"group-alias", map[string]any{"name": "a", "mount_accessor": auths[1], "canonical_id": in}, "canonical_id"},
		"second alias":        {"group-alias", map[string]any{"name": "a", "mount_accessor": auths[1], "canonical_id": ext}, "canonical_id"},
		"alias name in use":   {"group-alias/id/" + alias, map[string]any{"name": "other"}, "name"},
		"alias moved there":   {"group-alias/id/" + other, map[string]any{"canonical_id": ext}, "canonical_id"},
		"alias of no mount":   {"group-alias", map[string]any{"name": "a", "mount_accessor": "x", "canonical_id": ext}, "mount_accessor"},
	} {
		if text := h.Fails(engines.KindInvalid, engines.Update, tt.path, tt.body); !strings.Contains(text, tt.field) {
			t.Errorf("%s: %s", name, text)
		}
	}
	h.Fails(engines.KindNotFound, engines.Update, "group/id/nobody", `{"policies":["a"]}`)
	h.Must(engines.Update, "group/id/"+ext, `{"member_entity_ids":[],"policies":["b"]}`)
}

func TestGroupAliases(t *testing.T) {
	h := newHouse(t)
	alone := h.Data(h.Must(engines.Update, "group-alias", map[string]any{"name": "cn=alone", "mount_accessor": auths[1]}))
	has(t, h.read("group/id/"+alone["canonical_id"].(string)), map[string]any{"type": "external"})
	h.Must(engines.Delete, "group/id/"+alone["canonical_id"].(string), nil)
	group, alias := externalGroup(t, h, "ops", auths[1], "cn=ops")
	want := map[string]any{"id": alias, "name": "cn=ops", "canonical_id": group, "mount_accessor": auths[1], "mount_path": "auth/ldap/", "mount_type": "ldap"}
	has(t, h.read("group-alias/id/"+alias), want)
	has(t, h.read("group/id/" + group)["alias"].(map[string]any), want)
	has(t, h.Data(h.Must(engines.Update, "lookup/group", map[string]any{"alias_id": alias})), map[string]any{"id": group})
	has(t, h.Data(h.Must(engines.Update, "lookup/group", map[string]any{"alias_name": "cn=ops", "alias_mount_accessor": auths[1]})), map[string]any{"id": group})
	has(t, h.Data(h.Must(engines.List, "group-alias/id", nil)), map[string]any{"keys": "[" + alias + "]"})

	next := h.write("group", `{"name":"next","type":"external"}`)
	id := mustLogin(t, h, "root", auths[1], "bob", "cn=ops")
	has(t, h.Data(h.Must(engines.Update, "group-alias/id/"+alias, map[string]any{"canonical_id": next})), map[string]any{"id": alias, "canonical_id": next})
	if groups := mustEffective(t, h, id).Groups; len(groups) != 0 {
		t.Errorf("groups after the alias moved: %v", groups)
	}
	mustLogin(t, h, "root", auths[1], "bob", "cn=ops")
	if groups := mustEffective(t, h, id).Groups; groups[next].Name != "next" || len(groups) != 1 {
		t.Errorf("groups after the next login: %v", groups)
	}
	h.Must(engines.Delete, "group-alias/id/"+alias, nil)
	h.Fails(engines.KindNotFound, engines.Read, "group-alias/id/"+alias, nil)
	h.Fails(engines.KindNotFound, engines.List, "group-alias/id", nil)
}

// What a deleted group leaves in its members' records must not pile up.
func TestMembershipsArePruned(t *testing.T) {
	h := newHouse(t)
	bob := h.write("entity", `{"name":"bob"}`)
	size := 0
	for i := range 5 {
		id := h.write("group", map[string]any{"member_entity_ids": []string{bob}})
		now := len(h.Snapshot()[storage.Key("s/identity/root/entity/"+bob)])
		if i > 0 && now > size {
			t.Fatalf("the entity's record grew from %d to %d bytes", size, now)
		}
		size = now
		h.Must(engines.Delete, "group/id/"+id, nil)
	}
}

// chain makes n groups, each in the next.
func chain(h *house, n int) []string {
	var ids []string
	for i := range n {
		body := map[string]any{"name": fmt.Sprint("g", i)}
		if i > 0 {
			body["member_group_ids"] = ids[i-1:]
		}
		ids = append(ids, h.write("group", body))
	}
	return ids
}

func TestGroupShapes(t *testing.T) {
	h := newHouse(t)
	ids := chain(h, 32)
	if text := h.Fails(engines.KindInvalid, engines.Update, "group", map[string]any{"member_group_ids": []string{ids[31]}}); !strings.Contains(text, "deeper") {
		t.Errorf("a chain of 33: %s", text)
	}
	if text := h.Fails(engines.KindInvalid, engines.Update, "group/id/"+ids[0], map[string]any{"member_group_ids": []string{ids[5]}}); !strings.Contains(text, "circle") {
		t.Errorf("a circle: %s", text)
	}
	bob := h.write("entity", `{"name":"bob"}`)
	h.Must(engines.Update, "group/id/"+ids[0], map[string]any{"member_entity_ids": []string{bob}})
	if got := mustEffective(t, h, bob).Groups; len(got) != 32 {
		t.Errorf("%d groups", len(got))
	}
	h.Must(engines.Update, "group/id/"+ids[16], map[string]any{"member_group_ids": []string{}})
	if got := mustEffective(t, h, bob).Groups; len(got) != 16 {
		t.Errorf("%d groups after the chain was cut", len(got))
	}
	h.Must(engines.Update, "group/id/"+ids[0], map[string]any{"member_group_ids": []string{ids[31]}})
}

// Two changes that are each fine must not make a circle together.
func TestGroupCircleAtOnce(t *testing.T) {
	for range 8 {
		h := newHouse(t)
		a, b := h.write("group", `{"name":"a"}`), h.write("group", `{"name":"b"}`)
		var wg sync.WaitGroup
		var failures [2]error
		for i, pair := range [][2]string{{a, b}, {b, a}} {
			wg.Go(func() {
				_, failures[i] = h.Do(engines.Update, "group/id/"+pair[0], map[string]any{"member_group_ids": []string{pair[1]}})
			})
		}
		wg.Wait()
		if (failures[0] == nil) == (failures[1] == nil) {
			t.Fatalf("both had the same fate: %v, %v", failures[0], failures[1])
		}
	}
}

func TestGroupsAcrossNamespaces(t *testing.T) {
	h := newHouse(t)
	bob := h.write("entity", `{"name":"bob","policies":["base"]}`)
	up := h.write("group", map[string]any{"name": "team", "policies": []string{"up"}, "metadata": map[string]string{"k": "up"}, "member_entity_ids": []string{bob}})
	h.in("a")
	down := h.write("group", map[string]any{"name": "team", "policies": []string{"down"}, "metadata": map[string]string{"k": "down"}, "member_group_ids": []string{up}})
	child := h.write("entity", `{"name":"child"}`)
	for _, ns := range []string{"root", "b", "", "none"} {
		if eff := effectiveIn(t, h, bob, ns); fmt.Sprint(eff.Policies) != "map[root:[base up]]" || len(eff.Groups) != 1 {
			t.Errorf("in %q: policies %v, groups %v", ns, eff.Policies, eff.Groups)
		}
	}
	eff := effectiveIn(t, h, bob, "a1")
	if fmt.Sprint(eff.Policies) != "map[a:[down] root:[base up]]" || !eff.Groups[up].Direct || eff.Groups[down].Direct {
		t.Errorf("policies %v, groups %v", eff.Policies, eff.Groups)
	}
	// A namespace's templates mean its own groups.
	for ns, want := range map[string]string{"root": "up", "a": "down", "b": ""} {
		if got, ok := eff.FillIn(ns, "identity.groups.names.team.metadata.k"); got != want || ok != (want != "") {
			t.Errorf("in %q: %q, %v, want %q", ns, got, ok, want)
		}
	}
	// No member from below or beside.
	for _, ns := range []string{"root", "b", "a1"} {
		h.in(ns)
		if ns == "a1" {
			h.Must(engines.Update, "group", map[string]any{"member_entity_ids": []string{child, bob}})
			continue
		}
		h.Fails(engines.KindInvalid, engines.Update, "group", map[string]any{"member_entity_ids": []string{child}})
		h.Fails(engines.KindInvalid, engines.Update, "group", map[string]any{"member_group_ids": []string{down}})
	}
	if err := h.store.DropNamespace(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if eff := effectiveIn(t, h, bob, "a1"); len(eff.Policies["a"]) != 0 {
		t.Errorf("policies in a namespace that is gone: %v", eff.Policies)
	}
}

// Groups of a namespace write nothing above it, whatever their members, and each entity and group is in a bounded number of them.
func TestGroupsWriteNothingAbove(t *testing.T) {
	h := newHouse(t)
	bob, eve := h.write("entity", `{"name":"bob"}`), h.write("entity", `{"name":"eve"}`)
	up := h.write("group", map[string]any{"name": "up", "member_entity_ids": []string{bob}})
	before := h.Snapshot()
	h.in("a")
	body := map[string]any{"policies": []string{"p"}, "member_entity_ids": []string{bob, eve}, "member_group_ids": []string{up}}
	first := h.write("group", body)
	for range 1023 {
		h.write("group", body)
	}
	h.Fails(engines.KindInvalid, engines.Update, "group", body)
	h.Must(engines.Delete, "group/id/"+h.write("group", map[string]any{"member_entity_ids": []string{}}), nil)
	if in := effectiveIn(t, h, bob, "a1"); len(in.Groups) != 1025 || !in.Groups[first].Direct {
		t.Errorf("bob is in %d groups", len(in.Groups))
	}
	h.Must(engines.Delete, "group/id/"+first, nil) // makes room
	next := h.write("group", body)
	after := h.Snapshot()
	for k, v := range before {
		if string(after[k]) != string(v) {
			t.Errorf("%s was written", k)
		}
	}
	h.in("root")
	has(t, h.read("entity/id/"+bob), map[string]any{"group_ids": "[" + up + "]"})
	h.Must(engines.Delete, "entity/id/"+eve, nil)
	h.Must(engines.Delete, "group/id/"+up, nil)
	h.in("a")
	has(t, h.read("group/id/"+next), map[string]any{"member_entity_ids": "[" + bob + "]", "member_group_ids": "[]"})
	h.Must(engines.Update, "group/id/"+next, map[string]any{"member_entity_ids": []string{}})
	if in := effectiveIn(t, h, bob, "a"); in.Groups[next].ID != "" || len(in.Groups) != 1023 {
		t.Errorf("bob is in %d groups, and in the one that he left: %v", len(in.Groups), in.Groups[next])
	}
	if is, err := h.store.InGroup(t.Context(), bob, next); is || err != nil {
		t.Errorf("InGroup = %v, %v", is, err)
	}
}

// Guests of version 1, which stand in the records of the namespace above, keep their places, lose them, and move.
func TestGuestsOfVersion1(t *testing.T) {
	h := newHouse(t)
	bob := h.write("entity", `{"name":"bob"}`)
	up := h.write("group", map[string]any{"name": "up", "member_entity_ids": []string{bob}})
	h.in("a")
	direct, around := h.write("group", `{"name":"direct"}`), h.write("group", `{"name":"around"}`)
	older := func(key, field, value string) {
		e, err := h.Memory.Get(t.Context(), storage.Key(key))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Replace(string(e.Value), `"value":{`, `"value":{"`+field+`":[`+value+`],`, 1)
		if _, err := h.Memory.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: e.Key, Value: []byte(text)}}}); err != nil {
			t.Fatal(err)
		}
	}
	groupsWere := `{"group":"` + up + `"},{"group":"` + direct + `"}`
	e, err := h.Memory.Get(t.Context(), storage.Key("s/identity/root/entity/"+bob))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(e.Value), `"groups":[{"group":"`+up+`"}]`, `"groups":[`+groupsWere+`]`, 1)
	member := "s/identity/a/member/" + direct + "/internal/" + bob
	if _, err := h.Memory.Commit(t.Context(), storage.Batch{Puts: []storage.Put{
		{Key: e.Key, Value: []byte(text)}, {Key: storage.Key(member), Value: []byte(`{"format":1,"value":{"owner":"` + direct + `"}}`)},
	}}); err != nil {
		t.Fatal(err)
	}
	older("s/identity/root/group/"+up, "parents", `"`+around+`"`)
	older("s/identity/a/group/"+around, "member_groups", `"`+up+`"`)
	all := func(when string, want ...string) {
		t.Helper()
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(effectiveIn(t, h, bob, "a").Groups)); !slices.Equal(got, want) {
			t.Errorf("%s: groups %v, want %v", when, got, want)
		}
	}
	all("as they were", up, direct, around)
	h.in("root")
	h.Must(engines.Update, "entity/id/"+bob, `{"policies":["p"]}`)
	h.Must(engines.Update, "group/id/"+up, `{"policies":["p"]}`)
	if e, _ := h.Memory.Get(t.Context(), storage.Key("s/identity/root/entity/"+bob)); strings.Contains(string(e.Value), direct) {
		t.Error("the entity's record still has the group of the namespace below")
	}
	all("moved", up, direct, around)
	h.in("a")
	h.Must(engines.Update, "group/id/"+around, `{"member_group_ids":[]}`)
	all("without the group", up, direct)
	h.Must(engines.Update, "group/id/"+direct, `{"member_entity_ids":[]}`)
	all("without the entity", up)
}

// Random changes against a model that is slow and plain.
func TestEffectiveAgainstModel(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			h := newHouse(t)
			var entities, groups []string
			for i := range 6 {
				entities = append(entities, h.write("entity", map[string]any{"policies": []string{fmt.Sprint("e", i)}}))
			}
			for i := range 8 {
				groups = append(groups, h.write("group", map[string]any{"policies": []string{fmt.Sprint("g", i)}}))
			}
			members, inside := map[string][]string{}, map[string][]string{}
			for range 80 {
				g := groups[r.IntN(len(groups))]
				if r.IntN(2) == 0 {
					members[g] = some(r, entities)
					h.Must(engines.Update, "group/id/"+g, map[string]any{"member_entity_ids": members[g]})
				} else {
					next := maps.Clone(inside)
					next[g] = some(r, groups)
					_, err := h.Do(engines.Update, "group/id/"+g, map[string]any{"member_group_ids": next[g]})
					if circular(next, groups) != (err != nil) {
						t.Fatalf("groups of %s: circular %v, error %v", g, circular(next, groups), err)
					}
					if err == nil {
						inside = next
					}
				}
				e := entities[r.IntN(len(entities))]
				want := closure(members, inside, e)
				if got := groupsOf(t, h, e); !slices.Equal(got, want) {
					t.Fatalf("groups of %s = %v, want %v", e, got, want)
				}
				if got := len(mustEffective(t, h, e).Policies["root"]); got != len(want)+1 {
					t.Fatalf("%d policies, want %d", got, len(want)+1)
				}
			}
		})
	}
}

func some(r *rand.Rand, from []string) []string {
	out := []string{}
	for _, id := range from {
		if r.IntN(4) == 0 {
			out = append(out, id)
		}
	}
	return out
}

// closure goes over all groups until nothing is added any more.
func closure(members, inside map[string][]string, entity string) []string {
	in := map[string]bool{}
	for g, list := range members {
		if slices.Contains(list, entity) {
			in[g] = true
		}
	}
	for before := -1; before != len(in); {
		before = len(in)
		for g, list := range inside {
			if slices.ContainsFunc(list, func(child string) bool { return in[child] }) {
				in[g] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(in))
}

func circular(inside map[string][]string, groups []string) bool {
	var reaches func(from, to string, seen map[string]bool) bool
	reaches = func(from, to string, seen map[string]bool) bool {
		for _, next := range inside[from] {
			if next == to {
				return true
			}
			if !seen[next] {
				seen[next] = true
				if reaches(next, to, seen) {
					return true
				}
			}
		}
		return false
	}
	return slices.ContainsFunc(groups, func(g string) bool { return reaches(g, g, map[string]bool{}) })
}
