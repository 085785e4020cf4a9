package identity_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/storage"
)

func TestLogin(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	who := engines.Alias{Name: "cn=bob,ou=x", Metadata: map[string]string{"mail": "b@x"}}
	m := authMount("root", auths[2])
	id, err := h.store.Login(ctx, m, who, nil)
	if err != nil || id == "" {
		t.Fatalf("Login = %q, %v", id, err)
	}
	eff := mustEffective(t, h, id)
	if a := eff.Aliases[auths[2]]; a.Name != who.Name || a.Metadata["mail"] != "b@x" || a.ID == "" {
		t.Errorf("alias = %+v", a)
	}
	alias := h.read("entity/id/" + id)["aliases"].([]any)[0].(map[string]any)
	has(t, alias, map[string]any{"local": true, "metadata": "map[mail:b@x]"})
	h.Must(engines.Update, "entity-alias/id/"+alias["id"].(string), `{"custom_metadata":{"k":"v"}}`)

	before := h.Snapshot()
	if again, err := h.store.Login(ctx, m, who, []string{"no such group"}); again != id || err != nil {
		t.Errorf("second Login = %q, %v", again, err)
	}
	if !maps.Equal(before, h.Snapshot()) {
		t.Error("a repeated login wrote")
	}
	who.Metadata = map[string]string{"phone": "1"}
	if again, err := h.store.Login(ctx, m, who, nil); again != id || err != nil {
		t.Errorf("third Login = %q, %v", again, err)
	}
	a := mustEffective(t, h, id).Aliases[auths[2]]
	if !maps.Equal(a.Metadata, who.Metadata) || a.CustomMetadata["k"] != "v" {
		t.Errorf("metadata is not replaced, or the custom one is: %+v", a)
	}
	if other := mustLogin(t, h, "a", auths[2], who.Name); other == id {
		t.Error("two namespaces share an entity")
	}
	if other := mustLogin(t, h, "root", auths[2], strings.ToUpper(who.Name)); other == id {
		t.Error("names of aliases are compared without case")
	}
}

func TestLoginRefused(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	m := authMount("root", auths[0])
	if id, err := h.store.Login(ctx, m, engines.Alias{}, nil); id != "" || err != nil {
		t.Errorf("without a name: %q, %v", id, err)
	}
	for _, who := range []engines.Alias{
		{Name: strings.Repeat("x", 1025)}, {Name: "a\x00"}, {Name: "a\xff"},
		{Name: "a", Metadata: map[string]string{"k": strings.Repeat("v", 64<<10)}},
	} {
		var e *engines.Error
		if _, err := h.store.Login(ctx, m, who, nil); !errors.As(err, &e) || e.Kind != engines.KindInvalid {
			t.Errorf("Login of a bad alias: %v", err)
		}
	}
	if left := h.Snapshot(); len(left) != 0 {
		t.Errorf("refused logins stored %v", left)
	}
	id := mustLogin(t, h, "root", auths[0], "bob")
	h.Must(engines.Update, "entity/id/"+id, `{"disabled":true}`)
	var e *engines.Error
	if _, err := h.store.Login(ctx, m, engines.Alias{Name: "bob"}, nil); !errors.As(err, &e) || e.Kind != engines.KindDenied {
		t.Errorf("Login of a disabled entity: %v", err)
	}
	if !mustEffective(t, h, id).Entity.Disabled {
		t.Error("Effective does not say that the entity is disabled")
	}
}

// readOnly is the store of a standby.
type readOnly struct{ storage.Store }

func (readOnly) Commit(context.Context, storage.Batch) (storage.Index, error) {
	return 0, storage.ErrReadOnly
}

func TestLoginOnStandby(t *testing.T) {
	h := newHouse(t)
	id := mustLogin(t, h, "root", auths[0], "bob")
	standby := identity.NewStore(identity.Options{Store: readOnly{h.Memory}, Mounts: mounts{}, Namespaces: spaces{}})
	if got, err := standby.Login(t.Context(), authMount("root", auths[0]), engines.Alias{Name: "bob"}, nil); got != id || err != nil {
		t.Errorf("Login of a known user = %q, %v", got, err)
	}
	if _, err := standby.Login(t.Context(), authMount("root", auths[0]), engines.Alias{Name: "new"}, nil); !errors.Is(err, storage.ErrReadOnly) {
		t.Errorf("Login of a new user = %v, want ErrReadOnly", err)
	}
}

func TestLoginsAtOnce(t *testing.T) {
	h := newHouse(t)
	const logins = 16
	ids := make([]string, logins)
	var wg sync.WaitGroup
	for i := range logins {
		wg.Go(func() {
			id, err := h.store.Login(t.Context(), authMount("root", auths[0]), engines.Alias{Name: "new"}, nil)
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	slices.Sort(ids)
	if got := slices.Compact(ids); len(got) != 1 || got[0] == "" {
		t.Errorf("one person became %q", got)
	}
	if got := texts(h.Data(h.Must(engines.List, "entity/id", nil))["keys"]); len(got) != 1 {
		t.Errorf("entities = %v", got)
	}
}

// externalGroup makes one with an alias.
func externalGroup(t testing.TB, h *house, name, accessor, alias string) (id, aliasID string) {
	t.Helper()
	id = h.write("group", map[string]any{"name": name, "type": "external", "policies": []string{name}})
	return id, h.write("group-alias", map[string]any{"name": alias, "mount_accessor": accessor, "canonical_id": id})
}

func TestLoginGroups(t *testing.T) {
	h := newHouse(t)
	ops, opsAlias := externalGroup(t, h, "ops", auths[1], "cn=ops")
	dev, _ := externalGroup(t, h, "dev", auths[1], "cn=dev")
	other, _ := externalGroup(t, h, "other", auths[0], "cn=ops")
	id := mustLogin(t, h, "root", auths[1], "bob", "cn=ops", "cn=nothing", "cn=ops")
	check := func(what string, want ...string) {
		t.Helper()
		slices.Sort(want)
		if got := groupsOf(t, h, id); !slices.Equal(got, want) {
			t.Errorf("%s: groups %v, want %v", what, got, want)
		}
		if got := texts(h.read("entity/id/" + id)["direct_group_ids"]); !slices.Equal(got, want) {
			t.Errorf("%s: read of the entity says %v, want %v", what, got, want)
		}
		for _, g := range []string{ops, dev, other} {
			in := slices.Contains(texts(h.read("group/id/" + g)["member_entity_ids"]), id)
			if in != slices.Contains(want, g) {
				t.Errorf("%s: read of group says member: %v", what, in)
			}
		}
	}
	check("first login", ops)
	mustLogin(t, h, "root", auths[1], "bob", "cn=dev", "cn=ops")
	check("in both", ops, dev)
	before := h.Snapshot()
	mustLogin(t, h, "root", auths[1], "bob", "cn=ops", "cn=dev")
	if !maps.Equal(before, h.Snapshot()) {
		t.Error("a login with the same groups wrote")
	}
	mustLogin(t, h, "root", auths[1], "bob", "cn=dev")
	check("left one", dev)

	// A login by another method leaves these alone.
	alias := h.write("entity-alias", map[string]any{"name": "bob", "mount_accessor": auths[0], "canonical_id": id})
	mustLogin(t, h, "root", auths[0], "bob", "cn=ops")
	check("by another method", dev, other)
	// An alias that moves to another entity leaves no member behind in the groups it brought.
	away := h.write("entity", nil)
	h.Must(engines.Update, "entity-alias/id/"+alias, map[string]any{"canonical_id": away})
	check("the alias is another one's", dev)
	if groups := mustEffective(t, h, away).Groups; len(groups) != 0 {
		t.Errorf("the groups moved with the alias: %v", groups)
	}
	h.Must(engines.Update, "entity-alias/id/"+alias, map[string]any{"canonical_id": id})
	mustLogin(t, h, "root", auths[0], "bob", "cn=ops")
	check("by another method", dev, other)
	h.Must(engines.Delete, "entity-alias/id/"+alias, nil)
	check("the other alias is gone", dev)

	// What a group's alias brought ends with the alias as it was.
	mustLogin(t, h, "root", auths[1], "bob", "cn=ops")
	check("back", ops)
	h.Must(engines.Update, "group-alias/id/"+opsAlias, `{"name":"cn=admins"}`)
	check("the group means others now")
	mustLogin(t, h, "root", auths[1], "bob", "cn=admins")
	check("in those too", ops)
	h.Must(engines.Delete, "group-alias/id/"+opsAlias, nil)
	check("the group has no alias")
	h.write("group-alias", map[string]any{"name": "cn=admins", "mount_accessor": auths[1], "canonical_id": ops})
	check("a new alias needs a new login")
	mustLogin(t, h, "root", auths[1], "bob", "cn=admins")
	check("which brings it", ops)
	h.Must(engines.Delete, "group/id/"+ops, nil)
	if got := groupsOf(t, h, id); len(got) != 0 {
		t.Errorf("groups after the deletion: %v", got)
	}
	for k := range h.Snapshot() {
		if strings.Contains(string(k), "/member/") {
			t.Errorf("left behind: %s", k)
		}
	}
}

func TestDropMount(t *testing.T) {
	h := newHouse(t)
	group, _ := externalGroup(t, h, "ops", auths[1], "ops")
	id := mustLogin(t, h, "root", auths[1], "bob", "ops")
	h.write("entity-alias", map[string]any{"name": "bob", "mount_accessor": auths[0], "canonical_id": id})
	elsewhere := mustLogin(t, h, "a", auths[1], "bob")
	for range 2 {
		if err := h.store.DropMount(t.Context(), "root", auths[1]); err != nil {
			t.Fatal(err)
		}
	}
	eff := mustEffective(t, h, id)
	if len(eff.Aliases) != 1 || eff.Aliases[auths[0]].Name != "bob" || len(eff.Groups) != 0 || len(eff.Policies) != 0 {
		t.Errorf("after the mount is gone: %+v", eff)
	}
	has(t, h.read("group/id/"+group), map[string]any{"alias": "map[]", "member_entity_ids": "[]"})
	if got := mustLogin(t, h, "root", auths[1], "bob"); got == id {
		t.Error("the dropped alias still leads to the entity")
	}
	if got := mustLogin(t, h, "a", auths[1], "bob"); got != elsewhere {
		t.Error("the mount of another namespace lost its alias")
	}
}
