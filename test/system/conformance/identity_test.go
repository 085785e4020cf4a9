package conformance_test

import (
	"strings"
	"testing"

	"github.com/openbao/openbao/api/v2"
)

// user makes a userpass user at auth/<path>.
func user(t *testing.T, c client, path, name string, more map[string]any) {
	t.Helper()
	body := map[string]any{"password": "pw-" + name}
	for k, v := range more {
		body[k] = v
	}
	done(t)(c.write("auth/"+path+"/users/"+name, body))
}

// login logs a user in.
func login(t *testing.T, c client, path, name string) *api.SecretAuth {
	t.Helper()
	return auth(t)(c.as("").write("auth/"+path+"/login/"+name, map[string]any{"password": "pw-" + name}))
}

func (x *tour) identity(t *testing.T) {
	c, up := x.root, x.my("people")
	accessor := x.method(t, c, up, "userpass")
	ann, bob := x.my("ann"), x.my("bob")
	var annID string
	t.Run("create an entity", func(t *testing.T) {
		d := data(t)(c.write("identity/entity", map[string]any{"name": ann, "policies": []string{x.my("p")}, "metadata": map[string]string{"team": "ops"}}))
		annID, _ = d["id"].(string)
		if annID == "" {
			t.Fatalf("no id: %v", d)
		}
		fields(t, d, map[string]any{"name": ann})
	})
	t.Run("read it by id and by name", func(t *testing.T) {
		for _, path := range []string{"identity/entity/id/" + annID, "identity/entity/name/" + ann} {
			fields(t, data(t)(c.read(path)), map[string]any{
				"id": annID, "name": ann, "metadata": map[string]any{"team": "ops"}, "policies": []string{x.my("p")},
				"disabled": false, "aliases": []string{}, "group_ids": []string{}, "namespace_id": "root",
			})
		}
	})
	t.Run("writing a name that is there updates", func(t *testing.T) {
		done(t)(c.write("identity/entity", map[string]any{"name": ann, "metadata": map[string]string{"team": "dev"}}))
		fields(t, data(t)(c.read("identity/entity/id/"+annID)), map[string]any{"metadata": map[string]any{"team": "dev"}, "policies": []string{x.my("p")}})
	})
	t.Run("rename", func(t *testing.T) {
		done(t)(c.write("identity/entity/id/"+annID, map[string]any{"name": x.my("anna")}))
		absent(t)(c.read("identity/entity/name/" + ann))
		done(t)(c.write("identity/entity/id/"+annID, map[string]any{"name": ann}))
	})
	t.Run("lists", func(t *testing.T) {
		contains(t, "ids", texts(data(t)(c.list("identity/entity/id"))["keys"]), annID)
		contains(t, "names", texts(data(t)(c.list("identity/entity/name"))["keys"]), ann)
	})
	t.Run("root cannot be given", func(t *testing.T) {
		_, err := c.write("identity/entity", map[string]any{"name": x.my("evil"), "policies": []string{"root"}})
		says(t, err, 400, "root")
	})
	var aliasID string
	t.Run("create an alias", func(t *testing.T) {
		d := data(t)(c.write("identity/entity-alias", map[string]any{
			"name": "ann", "canonical_id": annID, "mount_accessor": accessor, "custom_metadata": map[string]string{"badge": "b1"},
		}))
		aliasID, _ = d["id"].(string)
		fields(t, d, map[string]any{"canonical_id": annID})
	})
	t.Run("read the alias", func(t *testing.T) {
		fields(t, data(t)(c.read("identity/entity-alias/id/"+aliasID)), map[string]any{
			"id": aliasID, "name": "ann", "canonical_id": annID, "mount_accessor": accessor, "mount_type": "userpass",
			"mount_path": "auth/" + up + "/", "custom_metadata": map[string]any{"badge": "b1"},
		})
	})
	t.Run("list aliases", func(t *testing.T) {
		contains(t, "ids", texts(data(t)(c.list("identity/entity-alias/id"))["keys"]), aliasID)
	})
	t.Run("one alias for each method", func(t *testing.T) {
		_, err := c.write("identity/entity-alias", map[string]any{"name": "ann2", "canonical_id": annID, "mount_accessor": accessor})
		says(t, err, 400, "alias")
	})
	t.Run("an alias needs a mount", func(t *testing.T) {
		_, err := c.write("identity/entity-alias", map[string]any{"name": "ann", "canonical_id": annID, "mount_accessor": "auth_userpass_none"})
		refused(t, err, 400)
	})
	t.Run("lookup", func(t *testing.T) {
		for _, by := range []map[string]any{
			{"id": annID}, {"name": ann}, {"alias_id": aliasID}, {"alias_name": "ann", "alias_mount_accessor": accessor},
		} {
			same(t, "id", data(t)(c.write("identity/lookup/entity", by))["id"], any(annID))
		}
	})
	t.Run("lookup without a match", func(t *testing.T) {
		absent(t)(c.write("identity/lookup/entity", map[string]any{"name": x.my("nobody")}))
		a := x.raw(t, x.node(), "POST", "/v1/identity/lookup/entity", x.RootToken, map[string]any{"name": x.my("nobody")})
		same(t, "status", a.Status, 204)
	})
	t.Run("a login finds its entity", func(t *testing.T) {
		user(t, c, up, "ann", nil)
		a := login(t, c, up, "ann")
		same(t, "entity", a.EntityID, annID)
		same(t, "identity policies", a.IdentityPolicies, []string{x.my("p")})
		contains(t, "policies", a.Policies, "default", x.my("p"))
		same(t, "token policies", a.TokenPolicies, []string{"default"})
	})
	t.Run("a login makes its entity", func(t *testing.T) {
		user(t, c, up, "bob", nil)
		id := login(t, c, up, "bob").EntityID
		same(t, "again", login(t, c, up, "bob").EntityID, id)
		d := data(t)(c.read("identity/entity/id/" + id))
		aliases := d["aliases"].([]any)
		same(t, "aliases", len(aliases), 1)
		fields(t, aliases[0].(map[string]any), map[string]any{"name": "bob", "mount_accessor": accessor})
		done(t)(c.write("identity/entity/id/"+id, map[string]any{"name": bob}))
	})
	t.Run("policies of the entity count at once", func(t *testing.T) {
		x.kv(t, c, x.my("ident"))
		done(t)(c.write(x.my("ident")+"/a", map[string]any{"x": "1"}))
		noErr(t, c.putPolicy(x.my("p"), `path "`+x.my("ident")+`/*" { capabilities = ["read"] }`))
		me := c.as(login(t, c, up, "ann").ClientToken)
		same(t, "data", data(t)(me.read(x.my("ident")+"/a")), map[string]any{"x": "1"})
		done(t)(c.write("identity/entity/id/"+annID, map[string]any{"policies": []string{}}))
		_, err := me.read(x.my("ident") + "/a")
		refused(t, err, 403)
	})
	t.Run("templates", func(t *testing.T) {
		x.kv(t, c, x.my("homes"))
		noErr(t, c.putPolicy(x.my("home"), `
path "`+x.my("homes")+`/by-name/{{identity.entity.name}}/*" { capabilities = ["create", "update", "read"] }
path "`+x.my("homes")+`/by-id/{{identity.entity.id}}" { capabilities = ["create", "update", "read"] }
path "`+x.my("homes")+`/by-team/{{identity.entity.metadata.team}}" { capabilities = ["create", "update", "read"] }
path "`+x.my("homes")+`/by-login/{{identity.entity.aliases.`+accessor+`.name}}" { capabilities = ["create", "update", "read"] }
path "`+x.my("homes")+`/by-badge/{{identity.entity.aliases.`+accessor+`.custom_metadata.badge}}" { capabilities = ["create", "update", "read"] }`))
		user(t, c, up, "ann", map[string]any{"token_policies": x.my("home")})
		user(t, c, up, "bob", map[string]any{"token_policies": x.my("home")})
		a, b := c.as(login(t, c, up, "ann").ClientToken), c.as(login(t, c, up, "bob").ClientToken)
		for _, own := range []string{"by-name/" + ann + "/x", "by-id/" + annID, "by-team/dev", "by-login/ann", "by-badge/b1"} {
			done(t)(a.write(x.my("homes")+"/"+own, map[string]any{"x": "1"}))
			_, err := b.read(x.my("homes") + "/" + own)
			refused(t, err, 403)
		}
		done(t)(b.write(x.my("homes")+"/by-name/"+bob+"/x", map[string]any{"x": "1"}))
		_, err := a.read(x.my("homes") + "/by-name/" + bob + "/x")
		refused(t, err, 403)
	})
	t.Run("a disabled entity", func(t *testing.T) {
		token := login(t, c, up, "bob").ClientToken
		done(t)(c.write("identity/entity/name/"+bob, map[string]any{"disabled": true}))
		_, err := c.as("").write("auth/"+up+"/login/bob", map[string]any{"password": "pw-bob"})
		refused(t, err, 400, 403)
		same(t, "alive", x.alive(t, c.as(token)), false)
		done(t)(c.write("identity/entity/name/"+bob, map[string]any{"disabled": false}))
		same(t, "alive", x.alive(t, c.as(token)), true)
	})
	t.Run("merge", func(t *testing.T) {
		second := x.my("people2")
		other := x.method(t, c, second, "userpass")
		user(t, c, second, "bobby", nil)
		token := login(t, c, second, "bobby")
		to := data(t)(c.read("identity/entity/name/" + bob))["id"].(string)
		done(t)(c.write("identity/entity/merge", map[string]any{"from_entity_ids": []string{token.EntityID}, "to_entity_id": to}))
		d := data(t)(c.read("identity/entity/id/" + to))
		same(t, "aliases", len(d["aliases"].([]any)), 2)
		fields(t, d, map[string]any{"merged_entity_ids": []string{token.EntityID}})
		same(t, "entity of its login", login(t, c, second, "bobby").EntityID, to)
		same(t, "the old token", x.alive(t, c.as(token.ClientToken)), true)
		same(t, "by alias", data(t)(c.write("identity/lookup/entity", map[string]any{"alias_name": "bobby", "alias_mount_accessor": other}))["id"], any(to))
	})
	t.Run("merging with a conflict", func(t *testing.T) {
		to := data(t)(c.read("identity/entity/name/" + bob))["id"].(string)
		_, err := c.write("identity/entity/merge", map[string]any{"from_entity_ids": []string{annID}, "to_entity_id": to})
		says(t, err, 400, "conflicting_alias_ids_to_keep")
	})
	t.Run("delete", func(t *testing.T) {
		done(t)(c.remove("identity/entity-alias/id/" + aliasID))
		absent(t)(c.read("identity/entity-alias/id/" + aliasID))
		token := login(t, c, up, "bob").ClientToken
		done(t)(c.remove("identity/entity/name/" + bob))
		same(t, "alive", x.alive(t, c.as(token)), false)
		done(t)(c.write("identity/entity/batch-delete", map[string]any{"entity_ids": []string{annID}}))
		absent(t)(c.read("identity/entity/id/" + annID))
	})
}

func (x *tour) groups(t *testing.T) {
	c, up := x.root, x.my("members")
	accessor := x.method(t, c, up, "userpass")
	user(t, c, up, "carl", nil)
	carl := login(t, c, up, "carl")
	x.kv(t, c, x.my("grp"))
	done(t)(c.write(x.my("grp")+"/a", map[string]any{"x": "1"}))
	noErr(t, c.putPolicy(x.my("grp"), `path "`+x.my("grp")+`/*" { capabilities = ["read"] }`))
	me := c.as(carl.ClientToken)
	var inner, outer string
	t.Run("create", func(t *testing.T) {
		d := data(t)(c.write("identity/group", map[string]any{"name": x.my("inner"), "member_entity_ids": []string{carl.EntityID}, "metadata": map[string]string{"k": "v"}}))
		inner, _ = d["id"].(string)
		fields(t, data(t)(c.read("identity/group/id/"+inner)), map[string]any{
			"id": inner, "name": x.my("inner"), "type": "internal", "member_entity_ids": []string{carl.EntityID}, "metadata": map[string]any{"k": "v"},
		})
	})
	t.Run("policies of members", func(t *testing.T) {
		_, err := me.read(x.my("grp") + "/a")
		refused(t, err, 403)
		done(t)(c.write("identity/group/id/"+inner, map[string]any{"policies": []string{x.my("grp")}}))
		same(t, "data", data(t)(me.read(x.my("grp")+"/a")), map[string]any{"x": "1"})
		contains(t, "identity policies", texts(data(t)(me.lookupSelf())["identity_policies"]), x.my("grp"))
	})
	t.Run("nested", func(t *testing.T) {
		done(t)(c.write("identity/group/id/"+inner, map[string]any{"policies": []string{}}))
		d := data(t)(c.write("identity/group", map[string]any{"name": x.my("outer"), "member_group_ids": []string{inner}, "policies": []string{x.my("grp")}}))
		outer, _ = d["id"].(string)
		same(t, "data", data(t)(me.read(x.my("grp")+"/a")), map[string]any{"x": "1"})
		fields(t, data(t)(c.read("identity/group/id/"+inner)), map[string]any{"parent_group_ids": []string{outer}})
		fields(t, data(t)(c.read("identity/entity/id/"+carl.EntityID)), map[string]any{
			"direct_group_ids": []string{inner}, "inherited_group_ids": []string{outer},
		})
	})
	t.Run("no cycles", func(t *testing.T) {
		_, err := c.write("identity/group/id/"+inner, map[string]any{"member_group_ids": []string{outer}})
		refused(t, err, 400)
	})
	t.Run("lists", func(t *testing.T) {
		contains(t, "ids", texts(data(t)(c.list("identity/group/id"))["keys"]), inner, outer)
		contains(t, "names", texts(data(t)(c.list("identity/group/name"))["keys"]), x.my("inner"), x.my("outer"))
	})
	t.Run("lookup", func(t *testing.T) {
		for _, by := range []map[string]any{{"id": inner}, {"name": x.my("inner")}} {
			same(t, "id", data(t)(c.write("identity/lookup/group", by))["id"], any(inner))
		}
		absent(t)(c.write("identity/lookup/group", map[string]any{"name": x.my("nobody")}))
	})
	t.Run("templates", func(t *testing.T) {
		noErr(t, c.putPolicy(x.my("grptpl"), `path "`+x.my("grp")+`/t/{{identity.groups.names.`+x.my("inner")+`.id}}" { capabilities = ["create", "update"] }`))
		user(t, c, up, "carl", map[string]any{"token_policies": x.my("grptpl")})
		token := c.as(login(t, c, up, "carl").ClientToken)
		done(t)(token.write(x.my("grp")+"/t/"+inner, map[string]any{"x": "1"}))
		_, err := token.write(x.my("grp")+"/t/"+outer, map[string]any{"x": "1"})
		refused(t, err, 403)
	})
	var ext string
	t.Run("external", func(t *testing.T) {
		d := data(t)(c.write("identity/group", map[string]any{"name": x.my("ext"), "type": "external", "policies": []string{"default"}}))
		ext, _ = d["id"].(string)
		_, err := c.write("identity/group/id/"+ext, map[string]any{"member_entity_ids": []string{carl.EntityID}})
		says(t, err, 400, "external")
	})
	t.Run("group alias", func(t *testing.T) {
		d := data(t)(c.write("identity/group-alias", map[string]any{"name": "directory-group", "mount_accessor": accessor, "canonical_id": ext}))
		id := d["id"].(string)
		fields(t, data(t)(c.read("identity/group-alias/id/"+id)), map[string]any{"name": "directory-group", "mount_accessor": accessor, "canonical_id": ext})
		contains(t, "ids", texts(data(t)(c.list("identity/group-alias/id"))["keys"]), id)
		same(t, "by alias", data(t)(c.write("identity/lookup/group", map[string]any{"alias_name": "directory-group", "alias_mount_accessor": accessor}))["id"], any(ext))
		_, err := c.write("identity/group-alias", map[string]any{"name": "other", "mount_accessor": accessor, "canonical_id": inner})
		refused(t, err, 400)
		done(t)(c.remove("identity/group-alias/id/" + id))
		absent(t)(c.read("identity/group-alias/id/" + id))
	})
	t.Run("members of a namespace above", func(t *testing.T) {
		ns := x.my("guests")
		x.namespace(t, c, ns)
		in := c.in(ns)
		noErr(t, in.mount("kv", api.MountInput{Type: "kv"}))
		done(t)(in.write("kv/a", map[string]any{"x": "1"}))
		noErr(t, in.putPolicy("guest", `path "kv/*" { capabilities = ["read"] }`))
		done(t)(in.write("identity/group", map[string]any{"name": "guests", "policies": []string{"guest"}, "member_entity_ids": []string{carl.EntityID}}))
		same(t, "data", data(t)(me.in(ns).read("kv/a")), map[string]any{"x": "1"})
		_, err := me.in(ns).write("kv/a", map[string]any{"x": "2"})
		refused(t, err, 403)
	})
	t.Run("leave", func(t *testing.T) {
		done(t)(c.write("identity/group/id/"+inner, map[string]any{"member_entity_ids": []string{}}))
		_, err := me.read(x.my("grp") + "/a")
		refused(t, err, 403)
	})
	t.Run("delete", func(t *testing.T) {
		for _, id := range []string{outer, inner} {
			done(t)(c.remove("identity/group/id/" + id))
			absent(t)(c.read("identity/group/id/" + id))
		}
		done(t)(c.remove("identity/group/name/" + x.my("ext")))
		absent(t)(c.read("identity/group/id/" + ext))
	})
	t.Run("what is given to an entity", func(t *testing.T) {
		if strings.Contains(strings.Join(login(t, c, up, "carl").Policies, " "), x.my("grp")+" ") {
			t.Errorf("policies of groups that are gone")
		}
	})
}
