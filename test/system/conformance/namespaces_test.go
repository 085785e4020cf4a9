package conformance_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

// namespace makes a namespace for the rest of a test.
func (x *tour) namespace(t *testing.T, in client, name string) {
	t.Helper()
	done(t)(in.write("sys/namespaces/"+name, nil))
	t.Cleanup(func() { x.drop(t, in, name) })
}

// drop deletes a namespace and waits until it is gone.
func (x *tour) drop(t *testing.T, in client, name string) {
	t.Helper()
	done(t)(in.remove("sys/namespaces/" + name))
	harness.Await(t, "the end of namespace "+name, patience, func() error {
		s, err := in.read("sys/namespaces/" + name)
		if status, _, ok := answerOf(err); ok && status == 404 || err == nil && s == nil {
			return nil
		}
		return fmt.Errorf("it is there: %v, %v", s, err)
	})
}

func (x *tour) namespaces(t *testing.T) {
	team := x.my("team")
	t.Run("create", func(t *testing.T) {
		d := data(t)(x.root.write("sys/namespaces/"+team, map[string]any{"custom_metadata": map[string]string{"owner": "ann"}}))
		fields(t, d, map[string]any{"path": team + "/", "custom_metadata": map[string]any{"owner": "ann"}, "locked": false, "tainted": false})
		if d["id"] == "" || d["uuid"] == "" {
			t.Errorf("no id or uuid: %v", d)
		}
	})
	t.Run("read", func(t *testing.T) {
		fields(t, data(t)(x.root.read("sys/namespaces/"+team)), map[string]any{"path": team + "/", "custom_metadata": map[string]any{"owner": "ann"}})
	})
	t.Run("list", func(t *testing.T) {
		d := data(t)(x.root.list("sys/namespaces"))
		contains(t, "keys", texts(d["keys"]), team+"/")
		fields(t, d["key_info"].(map[string]any)[team+"/"].(map[string]any), map[string]any{"path": team + "/"})
	})
	t.Run("patch", func(t *testing.T) {
		done(t)(x.root.patch("sys/namespaces/"+team, map[string]any{"custom_metadata": map[string]any{"owner": nil, "cost": "7"}}))
		fields(t, data(t)(x.root.read("sys/namespaces/"+team)), map[string]any{"custom_metadata": map[string]any{"cost": "7"}})
	})
	t.Run("unknown", func(t *testing.T) {
		absent(t)(x.root.read("sys/namespaces/" + x.my("nowhere")))
		absent(t)(x.root.in(x.my("nowhere")).read("sys/mounts"))
		_, err := x.root.in(x.my("nowhere")).write("kv/a", map[string]any{"x": "1"})
		says(t, err, 404, "namespace")
	})
	t.Run("bad names", func(t *testing.T) {
		for _, name := range []string{"root", "sys", "audit", "auth", "cubbyhole", "identity", "a b", "a+b", "a*"} {
			_, err := x.root.write("sys/namespaces/"+name, nil)
			refused(t, err, 400)
		}
	})
	t.Run("the parent must exist", func(t *testing.T) {
		_, err := x.root.write("sys/namespaces/"+x.my("nowhere")+"/child", nil)
		refused(t, err, 400, 404)
	})
	in := x.root.in(team)
	t.Run("its own mounts", func(t *testing.T) {
		all, err := in.mounts()
		noErr(t, err)
		for _, path := range []string{"sys/", "identity/", "cubbyhole/"} {
			if all[path] == nil {
				t.Errorf("%s is not mounted", path)
			}
		}
		noErr(t, in.mount("kv", api.MountInput{Type: "kv"}))
		all, err = x.root.mounts()
		noErr(t, err)
		if all["kv/"] != nil || all[team+"/kv/"] != nil {
			t.Errorf("root sees the mounts of %s", team)
		}
	})
	t.Run("by header and by path", func(t *testing.T) {
		done(t)(in.write("kv/a", map[string]any{"x": "1"}))
		same(t, "by path", data(t)(x.root.read(team+"/kv/a")), map[string]any{"x": "1"})
		same(t, "by header", data(t)(x.root.in(team+"/").read("kv/a")), map[string]any{"x": "1"})
		absent(t, 400)(x.root.read("kv/a"))
	})
	t.Run("the header of the answer", func(t *testing.T) {
		a := x.raw(t, x.node(), "GET", "/v1/kv/a", x.RootToken, nil, "X-Vault-Namespace", team)
		same(t, "status, namespace", []any{a.Status, strings.Trim(a.Header.Get("X-Vault-Namespace"), "/")}, []any{200, team})
	})
	t.Run("nested", func(t *testing.T) {
		done(t)(in.write("sys/namespaces/child", nil))
		child := x.root.in(team + "/child")
		noErr(t, child.mount("kv", api.MountInput{Type: "kv"}))
		done(t)(child.write("kv/a", map[string]any{"x": "2"}))
		same(t, "header and path", data(t)(in.read("child/kv/a")), map[string]any{"x": "2"})
		same(t, "path alone", data(t)(x.root.read(team+"/child/kv/a")), map[string]any{"x": "2"})
		same(t, "the parent's", data(t)(in.read("kv/a")), map[string]any{"x": "1"})
		same(t, "path", data(t)(in.read("sys/namespaces/child"))["path"], any(team+"/child/"))
	})
	t.Run("its own policies", func(t *testing.T) {
		noErr(t, in.putPolicy("reader", `path "kv/*" { capabilities = ["read"] }`))
		all, err := x.root.policies()
		noErr(t, err)
		for _, name := range all {
			if name == "reader" {
				t.Errorf("root sees the policy of %s", team)
			}
		}
		all, err = in.policies()
		noErr(t, err)
		contains(t, "policies", all, "default", "reader")
	})
	t.Run("its own tokens", func(t *testing.T) {
		token := auth(t)(in.create(api.TokenCreateRequest{Policies: []string{"reader"}})).ClientToken
		same(t, "inside", data(t)(in.as(token).read("kv/a")), map[string]any{"x": "1"})
		_, err := x.root.as(token).read("sys/mounts")
		refused(t, err, 403)
		fields(t, data(t)(in.as(token).lookupSelf()), map[string]any{"namespace_path": team + "/"})
		_, err = in.as(token).in(team + "/child").read("kv/a")
		refused(t, err, 403)
	})
	t.Run("a policy of the parent for the child", func(t *testing.T) {
		noErr(t, in.putPolicy("below", `path "child/kv/*" { capabilities = ["read"] }`))
		c := in.as(auth(t)(in.create(api.TokenCreateRequest{Policies: []string{"below"}})).ClientToken)
		same(t, "data", data(t)(c.in(team+"/child").read("kv/a")), map[string]any{"x": "2"})
		_, err := c.read("kv/a")
		refused(t, err, 403)
	})
	t.Run("its own identities", func(t *testing.T) {
		id := data(t)(in.write("identity/entity", map[string]any{"name": "inside"}))["id"].(string)
		absent(t)(x.root.read("identity/entity/id/" + id))
		absent(t)(x.root.read("identity/entity/name/inside"))
		same(t, "name", data(t)(in.read("identity/entity/id/" + id))["name"], any("inside"))
	})
	t.Run("what is root's alone", func(t *testing.T) {
		for _, path := range []string{"sys/audit", "sys/host-info", "sys/storage/raft/configuration", "sys/quotas/config", "sys/config/cors", "sys/version-history"} {
			absent(t, 400, 403, 405)(in.read(path))
		}
		_, err := in.write("sys/seal", nil)
		refused(t, err, 400, 403, 404)
		_, err = in.write("sys/rotate", nil)
		refused(t, err, 400, 403, 404)
	})
	t.Run("visible ones", func(t *testing.T) {
		contains(t, "keys", texts(data(t)(x.root.read("sys/internal/ui/namespaces"))["keys"]), team+"/", team+"/child/")
	})
	t.Run("openapi", func(t *testing.T) {
		a := x.raw(t, x.node(), "GET", "/v1/sys/internal/specs/openapi", x.RootToken, nil, "X-Vault-Namespace", team)
		same(t, "status", a.Status, 200)
		text := string(a.Body)
		same(t, "its mount, its child's", []bool{strings.Contains(text, `"/kv/{path}"`), strings.Contains(text, `"/child/`)}, []bool{true, false})
		a = x.raw(t, x.node(), "GET", "/v1/sys/internal/specs/openapi", x.RootToken, nil)
		same(t, "in root", strings.Contains(string(a.Body), `"/kv/{path}"`), false)
	})
	t.Run("lock", func(t *testing.T) {
		key := data(t)(x.root.write("sys/namespaces/api-lock/lock/"+team, nil))["unlock_key"].(string)
		for _, c := range []client{in, x.root.in(team + "/child")} {
			_, err := c.read("kv/a")
			refused(t, err, 503)
		}
		same(t, "locked", data(t)(x.root.read("sys/namespaces/" + team))["locked"], any(true))
		done(t)(x.root.write("sys/namespaces/api-lock/unlock/"+team, map[string]any{"unlock_key": key}))
		same(t, "data", data(t)(in.read("kv/a")), map[string]any{"x": "1"})
	})
	t.Run("unlock needs the key", func(t *testing.T) {
		noErr(t, in.putPolicy("unlocker", `path "sys/namespaces/api-lock/*" { capabilities = ["update", "sudo"] }`))
		c := in.as(auth(t)(in.create(api.TokenCreateRequest{Policies: []string{"unlocker"}})).ClientToken)
		key := data(t)(c.write("sys/namespaces/api-lock/lock/child", nil))["unlock_key"].(string)
		_, err := c.write("sys/namespaces/api-lock/unlock/child", map[string]any{"unlock_key": "wrong"})
		refused(t, err, 400, 403)
		done(t)(c.write("sys/namespaces/api-lock/unlock/child", map[string]any{"unlock_key": key}))
	})
	t.Run("a mount cannot hide one", func(t *testing.T) {
		err := in.mount("child", api.MountInput{Type: "kv"})
		refused(t, err, 400)
		_, err = in.write("sys/namespaces/kv", nil)
		refused(t, err, 400)
	})
	t.Run("delete with all it holds", func(t *testing.T) {
		token := auth(t)(in.create(api.TokenCreateRequest{Policies: []string{"reader"}})).ClientToken
		_, err := x.root.remove("sys/namespaces/" + team)
		refused(t, err, 400) // it has a child
		for _, path := range []string{team + "/child", team} {
			same(t, "status", data(t)(x.root.remove("sys/namespaces/" + path))["status"], any("in-progress"))
			harness.Await(t, "the end of the namespace", patience, func() error {
				s, err := x.root.read("sys/namespaces/" + path)
				if status, _, ok := answerOf(err); ok && status == 404 || err == nil && s == nil {
					return nil
				}
				if s != nil && s.Data["status"] != "deleting" {
					t.Errorf("it is neither deleting nor gone: %v", s.Data)
				}
				return fmt.Errorf("it is there: %v, %v", s, err)
			})
		}
		_, err = x.root.as(token).lookupSelf()
		refused(t, err, 403)
		absent(t)(in.read("kv/a"))
	})
	t.Run("a new one of the same name is empty", func(t *testing.T) {
		x.namespace(t, x.root, team)
		absent(t)(in.read("identity/entity/name/inside"))
		noErr(t, in.mount("kv", api.MountInput{Type: "kv"}))
		absent(t)(in.read("kv/a"))
	})
	t.Run("delete again", func(t *testing.T) {
		done(t)(x.root.remove("sys/namespaces/" + x.my("nowhere")))
	})
}
