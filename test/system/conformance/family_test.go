package conformance_test

import (
	"encoding/base64"
	"net/url"
	"testing"
)

// family is what clients, Terraform's provider and libraries among them, rely on beyond the shapes of the answers: words that they
// look for, fields that they read back and compare, and actions that they expect to be there.
func (x *tour) family(t *testing.T) {
	c := x.root
	t.Run("words", func(t *testing.T) {
		for _, tt := range []struct {
			path   string
			data   map[string]any
			status int
			words  string
		}{
			{x.my("nowhere") + "/a", map[string]any{"x": 1}, 404, "no handler for route"},
			{"sys/init", map[string]any{"secret_shares": 1, "secret_threshold": 1}, 400, "Vault is already initialized"},
			{"sys/audit/" + x.my("none"), map[string]any{"type": "none"}, 400, "unknown audit backend"},
			{"identity/entity-alias", map[string]any{"name": "a", "mount_accessor": "none"}, 400, "invalid mount accessor"},
			{"auth/token/lookup-accessor", map[string]any{"accessor": "none"}, 400, "invalid accessor"},
		} {
			_, err := c.write(tt.path, tt.data)
			says(t, err, tt.status, tt.words)
		}
		group := data(t)(c.write("identity/group", map[string]any{"name": x.my("fixed"), "type": "external"}))
		_, err := c.write("identity/group/id/"+group["id"].(string), map[string]any{"type": "internal"})
		says(t, err, 400, "group type cannot be changed")
		_, err = c.read("sys/rekey/backup")
		says(t, err, 400, "no backed-up keys found")
	})
	t.Run("a KV mount of version 1 becomes one of version 2", func(t *testing.T) {
		for name, mount := range map[string]map[string]any{"none": {"type": "kv"}, "one": {"type": "kv", "options": map[string]any{"version": "1"}}, "generic": {"type": "generic"}} {
			at := x.my("older-" + name)
			done(t)(c.write("sys/mounts/"+at, mount))
			done(t)(c.write(at+"/folder/a", map[string]any{"user": "ada"}))
			done(t)(c.write(at+"/short", map[string]any{"ttl": "100ms"}))
			short, err := c.read(at + "/short")
			noErr(t, err)
			same(t, "lease", short.LeaseDuration, 0)
			done(t)(c.write("sys/mounts/"+at+"/tune", map[string]any{"options": map[string]any{"version": "2"}}))
			same(t, "first", data(t)(c.read(at + "/data/folder/a"))["data"], any(map[string]any{"user": "ada"}))
			same(t, "names", texts(data(t)(c.list(at + "/metadata"))["keys"]), []string{"folder/", "short"})
			same(t, "second", number(t, data(t)(c.write(at+"/data/folder/a", map[string]any{"data": map[string]any{"user": "eve"}}))["version"]), int64(2))
			same(t, "version 1", data(t)(c.query(at+"/data/folder/a", url.Values{"version": {"1"}}))["data"], any(map[string]any{"user": "ada"}))
			_, err = c.write("sys/mounts/"+at+"/tune", map[string]any{"options": map[string]any{"version": "1"}})
			says(t, err, 400, "cannot go back")
		}
	})
	t.Run("fields that are read back", func(t *testing.T) {
		noErr(t, c.enableAuth(x.my("roles"), "approle"))
		at := "auth/" + x.my("roles") + "/role/r"
		done(t)(c.write(at, map[string]any{"token_bound_cidrs": []string{"10.1.2.3", "10.0.0.0/8"}, "alias_metadata": map[string]any{"team": "blue"}, "local_secret_ids": true}))
		fields(t, data(t)(c.read(at)), map[string]any{"token_bound_cidrs": []string{"10.1.2.3", "10.0.0.0/8"}, "alias_metadata": map[string]any{"team": "blue"}})
		_, err := c.write(at, map[string]any{"local_secret_ids": false})
		says(t, err, 400, "local_secret_ids can only be modified during role creation")
		quota := "sys/quotas/rate-limit/" + x.my("clients")
		done(t)(c.write(quota, map[string]any{"rate": 1e6, "path": "auth/" + x.my("roles") + "/", "group_by": "ip"}))
		fields(t, data(t)(c.read(quota)), map[string]any{"group_by": "ip"})
		_, err = c.write(quota, map[string]any{"rate": 1e6, "group_by": "entity_then_ip", "secondary_rate": 2})
		says(t, err, 400, "group_by")
		policy := "sys/policies/password/" + x.my("source")
		rules := "length = 20\nrule \"charset\" {\n  charset = \"abcdefgh\"\n}"
		done(t)(c.write(policy, map[string]any{"policy": rules, "entropy_source": "platform"}))
		fields(t, data(t)(c.read(policy)), map[string]any{"entropy_source": "platform"})
		_, err = c.write(policy, map[string]any{"policy": rules, "entropy_source": "seal"})
		says(t, err, 400, "unsupported entropy source")
		for field, value := range map[string]any{"seal_wrap": true, "external_entropy_access": true, "config": map[string]any{"delegated_auth_accessors": []string{"a"}}} {
			_, err := c.write("sys/mounts/"+x.my("protected"), map[string]any{"type": "kv", field: value})
			says(t, err, 400, "not supported")
		}
		auto := "sys/storage/raft/autopilot/configuration"
		done(t)(c.write(auto, map[string]any{"disable_upgrade_migration": true, "dead_server_last_contact_threshold": "30s"}))
		fields(t, data(t)(c.read(auto)), map[string]any{"disable_upgrade_migration": true, "dead_server_last_contact_threshold": "30s"})
		done(t)(c.write(auto, map[string]any{"disable_upgrade_migration": false, "dead_server_last_contact_threshold": "24h"}))
	})
	t.Run("the accessor of a wrapped secret id", func(t *testing.T) {
		wrapped, err := c.wrapped("5m").write("auth/"+x.my("roles")+"/role/r/secret-id", nil)
		noErr(t, err)
		accessor := wrapped.WrapInfo.WrappedAccessor
		done(t)(c.write("auth/"+x.my("roles")+"/role/r/secret-id-accessor/destroy", map[string]any{"secret_id_accessor": accessor}))
		empty, err := c.wrapped("5m").write("sys/wrapping/wrap", nil)
		noErr(t, err)
		same(t, "an empty payload has a token", empty.WrapInfo.Token != "", true)
	})
	t.Run("an alias brings its group", func(t *testing.T) {
		accessor := x.method(t, c, x.my("people"), "userpass")
		alias := data(t)(c.write("identity/group-alias", map[string]any{"name": x.my("staff"), "mount_accessor": accessor}))
		fields(t, data(t)(c.read("identity/group/id/"+alias["canonical_id"].(string))), map[string]any{"type": "external"})
	})
	t.Run("tools", func(t *testing.T) {
		random := data(t)(c.write("sys/tools/random/20", nil))["random_bytes"].(string)
		b, err := base64.StdEncoding.DecodeString(random)
		noErr(t, err)
		same(t, "bytes", len(b), 20)
		sum := data(t)(c.write("sys/tools/hash/sha2-256", map[string]any{"input": base64.StdEncoding.EncodeToString([]byte("abc"))}))["sum"]
		same(t, "sum", sum, any("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"))
	})
	t.Run("the vote of a node", func(t *testing.T) {
		demoted := x.Standbys()[0]
		path := "sys/storage/raft/"
		_, err := c.write(path+"demote", map[string]any{"server_id": "none"})
		says(t, err, 400, "server_id")
		done(t)(c.write(path+"demote", map[string]any{"server_id": demoted.ID}))
		votes := func() bool {
			for _, s := range data(t)(c.read(path + "configuration"))["config"].(map[string]any)["servers"].([]any) {
				if s := s.(map[string]any); s["node_id"] == demoted.ID {
					return s["voter"].(bool)
				}
			}
			t.Fatal("the node is no member")
			return false
		}
		same(t, "votes", votes(), false)
		done(t)(c.write(path+"promote", map[string]any{"server_id": demoted.ID}))
		same(t, "votes", votes(), true)
		x.WaitVoters(3)
	})
}
