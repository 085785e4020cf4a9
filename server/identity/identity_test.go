package identity_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/storage"
)

// auths are the auth methods of each namespace in these tests.
var auths = []string{"auth_userpass_1", "auth_ldap_1", "auth_local_1"}

// late is a store whose memory comes later than what uses it.
type late struct{ *storage.Memory }

type house struct {
	*enginetest.Mount
	store *identity.Store
}

// newHouse mounts the engine in the root namespace; "a" is a namespace below it, and "a1" one below that.
func newHouse(t testing.TB) *house {
	t.Helper()
	memory := &late{}
	s := identity.NewStore(identity.Options{Store: memory, Mounts: mounts{}, Namespaces: spaces{}})
	h := &house{store: s}
	h.Mount = enginetest.New(t, s.Engine, enginetest.Options{Type: "identity", Path: "identity/", Caller: engines.Caller{Accessor: "a", Root: true}})
	memory.Memory = h.Memory
	t.Cleanup(h.Memory.OnChange(s.Changed))
	return h
}

// mounts are those of auths.
type mounts struct{}

func (mounts) Describe(_ context.Context, _, accessor string) (path, kind string, local, ok bool) {
	_, kind, _ = strings.Cut(strings.TrimSuffix(accessor, "_1"), "_")
	return "auth/" + kind + "/", kind, kind == "local", slices.Contains(auths, accessor)
}

// spaces are the namespaces of a house.
type spaces struct{}

func (spaces) Above(_ context.Context, ns string) []string {
	return map[string][]string{"a": {"root"}, "a1": {"a", "root"}, "b": {"root"}}[ns]
}

// in sends the next requests in a namespace.
func (h *house) in(ns string) { h.Mount.Mount.NamespaceID = ns }

func authMount(ns, accessor string) engines.Mount {
	return engines.Mount{Accessor: accessor, NamespaceID: ns, Path: "auth/x/", Local: accessor == "auth_local_1"}
}

// write writes and returns the id that the answer holds.
func (h *house) write(path string, body any) string {
	id, _ := h.Data(h.Must(engines.Update, path, body))["id"].(string)
	return id
}

func (h *house) read(path string) map[string]any { return h.Data(h.Must(engines.Read, path, nil)) }

func mustLogin(t testing.TB, h *house, ns, accessor, name string, groups ...string) string {
	t.Helper()
	id, err := h.store.Login(t.Context(), authMount(ns, accessor), engines.Alias{Name: name}, groups)
	if err != nil {
		t.Fatalf("Login: %v", err)
	}
	return id
}

// mustEffective returns what an entity is in its own namespace.
func mustEffective(t testing.TB, h *house, id string) *identity.Effective {
	t.Helper()
	_, ns, _ := strings.Cut(id, ".")
	return effectiveIn(t, h, id, cmp.Or(ns, "root"))
}

func effectiveIn(t testing.TB, h *house, id, ns string) *identity.Effective {
	t.Helper()
	eff, err := h.store.Effective(t.Context(), id, ns)
	if err != nil {
		t.Fatalf("Effective: %v", err)
	}
	return eff
}

// groupsOf returns the sorted ids of all groups that an entity is in.
func groupsOf(t testing.TB, h *house, id string) []string {
	t.Helper()
	return slices.Sorted(maps.Keys(mustEffective(t, h, id).Groups))
}

func texts(list any) []string {
	var out []string
	items, _ := list.([]any)
	for _, v := range items {
		out = append(out, fmt.Sprint(v))
	}
	slices.Sort(out)
	return out
}

// has checks some of the fields of an answer by how they print.
func has(t testing.TB, data map[string]any, want map[string]any) {
	t.Helper()
	for k, v := range want {
		if fmt.Sprint(data[k]) != fmt.Sprint(v) {
			t.Errorf("%s = %v, want %v", k, data[k], v)
		}
	}
}

func TestEntities(t *testing.T) {
	h := newHouse(t)
	id := h.write("entity", `{"name":"Bob","policies":["B","a","a"],"metadata":{"team":"x"}}`)
	got := h.read("entity/id/" + id)
	has(t, got, map[string]any{
		"id": id, "name": "Bob", "policies": "[a b]", "metadata": "map[team:x]", "disabled": false, "aliases": "[]",
		"group_ids": "[]", "direct_group_ids": "[]", "inherited_group_ids": "[]", "merged_entity_ids": "[]", "namespace_id": "root",
	})
	if got["creation_time"] == nil || got["last_update_time"] == nil {
		t.Errorf("no times in %v", got)
	}
	// Names are compared without case, and a name that exists is updated: 204.
	for _, path := range []string{"entity", "entity/name/bOB", "entity/id/" + id} {
		if resp := h.Must(engines.Update, path, `{"name":"Bob","disabled":true}`); resp != nil {
			t.Errorf("update of %s answers %+v", path, resp)
		}
		has(t, h.read("entity/name/BOB"), map[string]any{"id": id, "name": "Bob", "disabled": true, "policies": "[a b]"})
	}
	h.Must(engines.Update, "entity/id/"+id, `{"name":"bob/deep","policies":[]}`)
	has(t, h.read("entity/name/bob/deep"), map[string]any{"id": id, "name": "bob/deep", "policies": "[]"})
	h.Fails(engines.KindNotFound, engines.Read, "entity/name/bob", nil)

	other := h.write("entity", nil)
	h.Fails(engines.KindInvalid, engines.Update, "entity/id/"+other, `{"name":"BOB/deep"}`)
	h.Must(engines.Update, "entity/id/"+id, `{"name":"BOB"}`)
	h.Must(engines.Update, "entity/id/"+id, `{"name":"bob"}`) // the same but for case
	if got := h.Data(h.Must(engines.List, "entity/name", nil))["keys"]; !slices.Contains(texts(got), "bob") || len(texts(got)) != 2 {
		t.Errorf("names = %v", got)
	}
	if got := texts(h.Data(h.Must(engines.List, "entity/id", nil))["keys"]); !slices.Equal(got, slices.Sorted(slices.Values([]string{id, other}))) {
		t.Errorf("ids = %v", got)
	}
	first := h.Data(h.Must(engines.List, "entity/id?limit=1", nil))["keys"]
	second := h.Data(h.Must(engines.List, "entity/id?limit=1&after="+texts(first)[0], nil))["keys"]
	if got := append(texts(first), texts(second)...); len(got) != 2 || got[0] >= got[1] {
		t.Errorf("pages = %v", got)
	}

	h.Must(engines.Delete, "entity/name/bob", nil)
	h.Must(engines.Delete, "entity/id/"+id, nil)
	h.Must(engines.Update, "entity/batch-delete", map[string]any{"entity_ids": []string{other, id, "nobody"}})
	if left := h.Snapshot(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	h.Fails(engines.KindNotFound, engines.List, "entity/id", nil)
}

func TestEntitiesRefused(t *testing.T) {
	h := newHouse(t)
	id := h.write("entity", `{"name":"bob"}`)
	for _, tt := range []struct{ body, want string }{
		{`{"policies":["a"," Root "]}`, "policies"},
		{`{"name":"/a"}`, "name"}, {`{"name":"a/"}`, "name"}, {`{"name":"a//b"}`, "name"}, {`{"name":"a/../b"}`, "name"},
		{`{"name":"a\u0000"}`, "name"}, {`{"name":"a\n"}`, "name"}, {`{"name":" a"}`, "name"},
		{`{"metadata":{"` + strings.Repeat("k", 129) + `":"v"}}`, "metadata"},
		{`{"metadata":{"k":"` + strings.Repeat("v", 513) + `"}}`, "metadata"},
		{`{"metadata":{"":"v"}}`, "metadata"}, {`{"metadata":{"a":"\u0007"}}`, "metadata"},
	} {
		for _, path := range []string{"entity", "entity/id/" + id, "group"} {
			if text := h.Fails(engines.KindInvalid, engines.Update, path, tt.body); !strings.Contains(text, `"`+tt.want+`"`) {
				t.Errorf("%s %s: %s", path, tt.body, text)
			}
		}
	}
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint(i)] = "v"
	}
	h.Fails(engines.KindInvalid, engines.Update, "entity", map[string]any{"metadata": many})
	delete(many, "0")
	h.Must(engines.Update, "entity", map[string]any{"metadata": many})
	h.Fails(engines.KindNotFound, engines.Update, "entity/id/"+strings.Repeat("0", 8), `{"disabled":true}`)
	h.Fails(engines.KindNotFound, engines.Update, "entity", `{"id":"a/b","disabled":true}`)
}

func TestNamespacesAreApart(t *testing.T) {
	h := newHouse(t)
	root := h.write("entity", `{"name":"bob"}`)
	h.in("a")
	child := h.write("entity", `{"name":"bob"}`)
	if child == "" || child == root {
		t.Fatalf("ids %q and %q", root, child)
	}
	has(t, h.read("entity/name/bob"), map[string]any{"id": child, "namespace_id": "a"})
	h.Fails(engines.KindNotFound, engines.Read, "entity/id/"+root, nil)
	h.Fails(engines.KindNotFound, engines.Update, "entity/id/"+root, `{"disabled":true}`)
	h.Must(engines.Delete, "entity/id/"+root, nil)
	h.in("root")
	h.read("entity/id/" + root)
	h.Fails(engines.KindNotFound, engines.Read, "entity/id/"+child, nil)
	if err := h.store.DropNamespace(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	h.read("entity/id/" + root)
	h.in("a")
	h.Fails(engines.KindNotFound, engines.Read, "entity/id/"+child, nil)
}

func TestAliases(t *testing.T) {
	h := newHouse(t)
	bob, eve := h.write("entity", `{"name":"bob"}`), h.write("entity", `{"name":"eve"}`)
	data := h.Data(h.Must(engines.Update, "entity-alias", map[string]any{
		"name": "bob@x", "mount_accessor": auths[0], "canonical_id": bob, "custom_metadata": map[string]string{"k": "v"}}))
	alias, _ := data["id"].(string)
	has(t, data, map[string]any{"canonical_id": bob})
	want := map[string]any{
		"id": alias, "name": "bob@x", "canonical_id": bob, "mount_accessor": auths[0], "mount_path": "auth/userpass/",
		"mount_type": "userpass", "custom_metadata": "map[k:v]", "local": false,
	}
	has(t, h.read("entity-alias/id/"+alias), want)
	aliases := h.read("entity/id/" + bob)["aliases"].([]any)
	has(t, aliases[0].(map[string]any), want)
	has(t, h.Data(h.Must(engines.Update, "lookup/entity", map[string]any{"alias_name": "bob@x", "alias_mount_accessor": auths[0]})), map[string]any{"id": bob})
	has(t, h.Data(h.Must(engines.Update, "lookup/entity", map[string]any{"alias_id": alias})), map[string]any{"id": bob})

	// One alias for each method and entity, one entity for each name of a method.
	h.Fails(engines.KindInvalid, engines.Update, "entity-alias", map[string]any{"name": "other", "mount_accessor": auths[0], "canonical_id": bob})
	second := h.write("entity-alias", map[string]any{"name": "other", "mount_accessor": auths[0], "canonical_id": eve})
	h.Fails(engines.KindInvalid, engines.Update, "entity-alias/id/"+second, map[string]any{"name": "bob@x"})
	h.Fails(engines.KindInvalid, engines.Update, "entity-alias/id/"+second, map[string]any{"canonical_id": bob})
	h.Must(engines.Delete, "entity-alias/id/"+second, nil)

	// Moved to another entity by name, renamed by id; logins follow.
	has(t, h.Data(h.Must(engines.Update, "entity-alias", map[string]any{"name": "bob@x", "mount_accessor": auths[0], "canonical_id": eve})),
		map[string]any{"id": alias, "canonical_id": eve})
	if got := mustLogin(t, h, "root", auths[0], "bob@x"); got != eve {
		t.Errorf("login of the moved alias = %s, want %s", got, eve)
	}
	h.Must(engines.Update, "entity-alias/id/"+alias, `{"name":"eve@x"}`)
	has(t, h.read("entity-alias/id/"+alias), map[string]any{"name": "eve@x", "canonical_id": eve, "custom_metadata": "map[k:v]"})
	if got := mustLogin(t, h, "root", auths[0], "bob@x"); got == eve {
		t.Error("the old name still leads to the entity")
	}
	info := h.Data(h.Must(engines.List, "entity-alias/id", nil))["key_info"].(map[string]any)
	has(t, info[alias].(map[string]any), map[string]any{"name": "eve@x", "canonical_id": eve, "mount_type": "userpass"})

	// Without an entity a new one is made.
	data = h.Data(h.Must(engines.Update, "entity-alias", map[string]any{"name": "new", "mount_accessor": auths[1]}))
	h.read("entity/id/" + data["canonical_id"].(string))
	h.Fails(engines.KindInvalid, engines.Update, "entity-alias", map[string]any{"name": "x", "mount_accessor": "nowhere"})
	h.Fails(engines.KindInvalid, engines.Update, "entity-alias", map[string]any{"name": "x", "mount_accessor": auths[1], "canonical_id": "x/y"})
	h.Fails(engines.KindInvalid, engines.Update, "entity-alias", map[string]any{"mount_accessor": auths[1]})
	h.Fails(engines.KindNotFound, engines.Update, "entity-alias/id/nobody", map[string]any{"name": "x"})
	h.Fails(engines.KindNotFound, engines.Read, "entity-alias/id/nobody", nil)
	h.Must(engines.Delete, "entity-alias/id/nobody", nil)
}

func TestLookup(t *testing.T) {
	h := newHouse(t)
	h.Must(engines.Update, "entity", `{"name":"bob"}`)
	h.Must(engines.Update, "group", `{"name":"ops"}`)
	for _, path := range []string{"lookup/entity", "lookup/group"} {
		for _, none := range []string{`{"name":"nobody"}`, `{"id":"nobody"}`, `{"id":"../x"}`, `{"alias_id":"nobody"}`, `{"alias_name":"a","alias_mount_accessor":"b"}`} {
			if resp := h.Must(engines.Update, path, none); resp != nil {
				t.Errorf("%s %s = %+v, want 204", path, none, resp)
			}
		}
		for _, bad := range []string{`{}`, `{"name":"a","id":"b"}`, `{"alias_name":"a"}`, `{"alias_mount_accessor":"a"}`} {
			h.Fails(engines.KindInvalid, engines.Update, path, bad)
		}
	}
	has(t, h.Data(h.Must(engines.Update, "lookup/entity", `{"name":"BOB"}`)), map[string]any{"name": "bob"})
	has(t, h.Data(h.Must(engines.Update, "lookup/group", `{"name":"OPS"}`)), map[string]any{"name": "ops"})
}

func TestHostile(t *testing.T) {
	h := newHouse(t)
	entity := h.write("entity", `{"name":"x","policies":["a"]}`)
	h.Must(engines.Update, "entity-alias", map[string]any{"name": "x", "mount_accessor": auths[0], "canonical_id": entity})
	h.Must(engines.Update, "group", map[string]any{"name": "x", "member_entity_ids": []string{entity}})
	enginetest.Documented(t, h.Mount)
	enginetest.Hostile(t, h.Mount)
}
