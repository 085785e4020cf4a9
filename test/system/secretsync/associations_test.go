package secretsync_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// TestAssociation is about associations, and what comes of them.
func TestAssociation(t *testing.T) {
	t.Parallel()
	all := newSite(t, "assoc")
	accessor := all.mount("kv")
	all.must("POST", "sys/mounts/kv1", object{"type": "kv", "options": object{"version": "1"}})
	for _, name := range []string{"a", "b", "folder/c", "set"} {
		all.secret("kv", name, "k", "v")
	}
	d := all.dest("cloud1-sm", "store")
	t.Run("there are none at first", func(t *testing.T) {
		s := all.in(t)
		equal(t, "read", s.must("GET", d+"/associations", nil), object{"associated_secrets": object{}, "store_name": "store", "store_type": "cloud1-sm"})
		s.rejected(404, "LIST", "sys/sync/associations", nil)
		s.rejected(404, "GET", destinations+"cloud1-sm/none/associations", nil)
		s.rejected(404, "GET", "sys/sync/associations/kv/a", nil)
		s.rejected(404, "GET", "sys/sync/associations/destinations?mount=kv&secret_name=a", nil)
	})
	t.Run("set answers the entry at once", func(t *testing.T) {
		s := all.in(t)
		data := s.must("POST", d+"/associations/set", object{"mount": "kv", "secret_name": "set"})
		equal(t, "store", []any{data["store_name"], data["store_type"]}, []string{"store", "cloud1-sm"})
		e := entriesOf(t, data)[accessor+"/set"]
		if e.Accessor != accessor || e.Mount != "kv/" || e.Secret != "set" || e.Status != "SYNCED" || e.UpdatedAt == "" || e.Name != "vault/"+accessor+"/set" {
			t.Errorf("the entry is %+v", e)
		}
		if _, ok := s.entries(d)[accessor+"/set"]; !ok {
			t.Error("it is not read back")
		}
	})
	t.Run("set again makes no duplicate and refreshes", func(t *testing.T) {
		s := all.in(t)
		name := "vault/" + accessor + "/set"
		s.one.Drop(name)
		for range 2 {
			only(t, s.associate(d, "kv", "set"))
		}
		s.has("cloud1-sm", name, `{"k":"v"}`)
		only(t, s.entries(d))
	})
	t.Run("mount with and without slash and by accessor", func(t *testing.T) {
		s := all.in(t)
		for _, mount := range []string{"kv", "kv/", accessor} {
			if e := only(t, s.associate(d, mount, "set")); e.Mount != "kv/" {
				t.Errorf("%s: %+v", mount, e)
			}
		}
		only(t, s.entries(d))
	})
	t.Run("set takes name as a synonym", func(t *testing.T) {
		s := all.in(t)
		s.must("POST", d+"/associations/set", object{"mount": "kv", "name": "set"})
		only(t, s.entries(d))
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv", "name": "set", "secret_name": "a"}, `"name"`, `"secret_name"`)
	})
	t.Run("what is required", func(t *testing.T) {
		s := all.in(t)
		for _, op := range []string{"set", "remove", "adopt", "pause", "resume", "history"} {
			s.rejected(400, "POST", d+"/associations/"+op, object{"secret_name": "a"}, `"mount"`, "required")
			s.rejected(400, "POST", d+"/associations/"+op, object{"mount": "kv"}, `"secret_name"`, "required")
			s.rejected(404, "POST", destinations+"cloud1-sm/none/associations/"+op, object{"mount": "kv", "secret_name": "a"})
			s.rejected(400, "POST", destinations+"none/x/associations/"+op, object{"mount": "kv", "secret_name": "a"}, "types")
		}
	})
	t.Run("names of secrets", func(t *testing.T) {
		s := all.in(t)
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "/a"}, "slash")
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "folder/"}, "full path")
		for _, name := range []string{"../a", "a//b", "a/./b", "a\x00b", strings.Repeat("x", 600)} {
			s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": name}, "secret_name")
		}
	})
	t.Run("only secrets of KV version 2 that are there", func(t *testing.T) {
		s := all.in(t)
		s.rejected(404, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "missing"}, "no secret")
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv1", "secret_name": "a"}, "KV version 2")
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "cubbyhole", "secret_name": "a"}, "KV version 2")
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "sys", "secret_name": "a"}, "mount")
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "none", "secret_name": "a"}, "no such mount")
		only(t, s.entries(d))
	})
	t.Run("totals and what a secret is synced to", func(t *testing.T) {
		s := all.in(t)
		other := s.dest("webhost-project", "shop")
		s.associate(other, "kv", "folder/c")
		s.associate(d, "kv", "folder/c")
		data := s.must("LIST", "sys/sync/associations", nil)
		equal(t, "keys", data["keys"], []string{"kv/folder/c", "kv/set"})
		equal(t, "info", part(data, "key_info")["kv/folder/c"], []object{{"mount": "kv", "secret_path": "folder/c"}})
		equal(t, "totals", []any{data["total_associations"], data["total_secrets"]}, []int{3, 2})
		for _, path := range []string{"destinations?mount=kv&secret_name=folder/c", "destinations?mount=kv/&secret_name=folder/c", "kv/folder/c", accessor + "/folder/c"} {
			to := part(s.must("GET", "sys/sync/associations/"+path, nil), "associated_destinations")
			equal(t, path, keysOf(to), []string{"cloud1-sm/store", "webhost-project/shop/k"})
			e := part(to, "cloud1-sm/store")
			equal(t, path, []any{e["type"], e["name"], e["sync_status"], e["updated_at"] != ""}, []any{"cloud1-sm", "store", "SYNCED", true})
			equal(t, path, part(to, "webhost-project/shop/k")["sub_key"], "k")
		}
		s.must("POST", other+"/associations/remove", object{"mount": "kv", "secret_name": "folder/c"})
		s.must("POST", d+"/associations/remove", object{"mount": "kv", "secret_name": "folder/c"})
		s.must("DELETE", other, nil)
	})
	t.Run("mounts with several segments", func(t *testing.T) {
		s := all.in(t)
		s.mount("team/kv")
		s.secret("team/kv", "x/y", "k", "v")
		e := only(t, s.associate(d, "team/kv", "x/y"))
		equal(t, "to", keysOf(part(s.must("GET", "sys/sync/associations/team/kv/x/y", nil), "associated_destinations")), []string{"cloud1-sm/store"})
		s.must("DELETE", "sys/mounts/team/kv", nil)
		s.has("cloud1-sm", e.Name, "")
		harness.Await(t, "the association to go", 30e9, func() error {
			if all := s.entries(d); len(all) != 1 {
				return fmt.Errorf("there are %v", keysOf(all))
			}
			return nil
		})
		s.must("POST", d+"/associations/remove", object{"mount": "team/kv", "name": "x/y"})
	})
	t.Run("remove takes both names and succeeds when nothing is there", func(t *testing.T) {
		s := all.in(t)
		for _, field := range []string{"name", "secret_name"} {
			e := only(t, s.associate(s.dest("cloud1-sm", "gone"), "kv", "b"))
			s.one.Drop(e.Name)
			for range 2 {
				gone := only(t, entriesOf(t, s.must("POST", destinations+"cloud1-sm/gone/associations/remove", object{"mount": "kv", field: "b"})))
				if gone.Status != "UNSYNCED" || gone.Accessor != accessor {
					t.Errorf("%+v", gone)
				}
			}
			equal(t, "left", s.entries(destinations+"cloud1-sm/gone"), object{})
			s.must("DELETE", destinations+"cloud1-sm/gone", nil)
		}
		s.must("POST", d+"/associations/remove", object{"mount": "never", "name": "was"})
	})
	t.Run("remove can leave what was synced", func(t *testing.T) {
		s := all.in(t)
		e := only(t, s.associate(s.dest("cloud1-sm", "left"), "kv", "b"))
		s.must("POST", destinations+"cloud1-sm/left/associations/remove", object{"mount": "kv", "name": "b", "retain": true})
		s.has("cloud1-sm", e.Name, `{"k":"v"}`)
		e = only(t, s.associate(destinations+"cloud1-sm/left", "kv", "b", object{"deletion_policy": "retain"}))
		if e.Status != "SYNCED" && e.Status != "CONFLICT" {
			t.Errorf("%+v", e)
		}
		s.one.Drop(e.Name)
		s.must("DELETE", destinations+"cloud1-sm/left?force_delete=true", nil)
	})
	t.Run("secret-key has an entry for each key", func(t *testing.T) {
		s := all.in(t)
		s.secret("kv", "keys", "user", "alice", "port", 5432, "tls", true, "hosts", []string{"a", "b"}, "none", nil)
		web := s.dest("webhost-project", "keys")
		entries := s.associate(web, "kv", "keys")
		prefix := accessor + "/keys/"
		equal(t, "keys", keysOf(entries), []string{prefix + "hosts", prefix + "none", prefix + "port", prefix + "tls", prefix + "user"})
		for key, want := range map[string]string{"user": "alice", "port": "5432", "tls": "true", "hosts": `["a","b"]`, "none": "null"} {
			e := entries[prefix+key]
			if e.Key != key || e.Status != "SYNCED" || e.Secret != "keys" {
				t.Errorf("%s: %+v", key, e)
			}
			s.has("webhost-project", e.Name, want)
		}
		equal(t, "totals", s.must("LIST", "sys/sync/associations", nil)["total_associations"], 2)
		s.secret("kv", "keys", "user", "bob", "more", "m")
		s.has("webhost-project", entries[prefix+"user"].Name, "bob")
		s.has("webhost-project", entries[prefix+"port"].Name, "")
		now := s.await(web, "SYNCED")
		equal(t, "keys", keysOf(now), []string{prefix + "more", prefix + "user"})
		s.must("POST", web+"/associations/remove", object{"mount": "kv", "name": "keys"})
		for _, e := range now {
			s.has("webhost-project", e.Name, "")
		}
		s.must("DELETE", web, nil)
	})
	t.Run("keys can be chosen and refreshing keeps the choice", func(t *testing.T) {
		s := all.in(t)
		s.secret("kv", "chosen", "a1", "x", "a2", "y", "b1", "z")
		repo := s.dest("repohost", "chosen")
		for _, more := range []object{{"include": "a*", "exclude": []string{"a2"}}, {}, {"drift_policy": "repair"}} {
			e := only(t, s.associate(repo, "kv", "chosen", more))
			equal(t, "key", e.Key, "a1")
		}
		equal(t, "all of them", len(s.associate(repo, "kv", "chosen", object{"include": nil, "exclude": []string{}})), 3)
		s.must("POST", repo+"/associations/remove", object{"mount": "kv", "name": "chosen"})
		s.must("DELETE", repo, nil)
	})
	t.Run("formats", func(t *testing.T) {
		s := all.in(t)
		s.secret("kv", "formats", "only", "one")
		for _, test := range []struct {
			change object
			want   string
		}{
			{object{"format": "raw"}, "one"}, {object{"format": "json"}, `{"only":"one"}`}, {object{"granularity": "secret-key"}, `"one"`},
			{object{"format": "raw"}, "one"}, {object{"granularity": nil, "format": nil}, `{"only":"one"}`},
			{object{"rename": object{"only": "ONE"}}, `{"ONE":"one"}`}, {object{"format": "dotenv"}, "ONE=\"one\"\n"},
			{object{"rename": nil, "format": nil, "value_template": "{{ .Secrets.only | uppercase }}/{{ .SecretPath }}"}, "ONE/formats"},
			{object{"value_template": nil}, `{"only":"one"}`},
		} {
			e := only(t, s.associate(d, "kv", "formats", test.change))
			if !strings.Contains(e.Status, "SYNC") {
				t.Errorf("%v: %+v", test.change, e)
			}
			harness.Await(t, fmt.Sprint(test.change), 30e9, func() error {
				for _, e := range s.entries(d) {
					if got, ok := s.get("cloud1-sm", e.Name); ok && got == test.want && e.Secret == "formats" {
						return nil
					}
				}
				return fmt.Errorf("there is no %q", test.want)
			})
		}
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "formats", "format": "xml"}, "format")
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "formats", "value_template": "{{ .Only }}"}, "value_template")
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "formats", "rename": object{"only": ""}}, "rename")
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "formats", "granularity": "all"}, "granularity")
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "formats", "deletion_policy": "x"}, "deletion_policy")
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "formats", "drift_policy": "x"}, "drift_policy")
		s.must("POST", d+"/associations/remove", object{"mount": "kv", "name": "formats"})
	})
	t.Run("another template counts when it is set again", func(t *testing.T) {
		s := all.in(t)
		store := s.dest("cloud1-sm", "renamed")
		old := only(t, s.associate(store, "kv", "b"))
		s.must("PATCH", store, object{"secret_name_template": "{{ .DestinationName }}/{{ .MountBaseName }}/{{ .SecretBaseName | uppercase }}"})
		s.has("cloud1-sm", old.Name, `{"k":"v"}`)
		s.associate(store, "kv", "b")
		s.has("cloud1-sm", "renamed/kv/B", `{"k":"v"}`)
		s.has("cloud1-sm", old.Name, "")
		e := only(t, s.await(store, "SYNCED"))
		equal(t, "name", e.Name, "renamed/kv/B")
		s.must("POST", store+"/associations/set", object{"mount": "kv", "secret_name": "b", "secret_name_template": "mine/{{ .SecretPath }}"})
		s.has("cloud1-sm", "mine/b", `{"k":"v"}`)
		s.associate(store, "kv", "b")
		s.has("cloud1-sm", "mine/b", `{"k":"v"}`)
		s.must("DELETE", store+"?purge=true", nil)
		s.vanishes(store)
		s.has("cloud1-sm", "mine/b", "")
	})
	t.Run("a name of another client is left alone until it is adopted", func(t *testing.T) {
		s := all.in(t)
		for _, kind := range kinds {
			s.secret("kv", "foreign", "k", "ours")
			store := s.dest(kind, "foreign", object{"secret_name_template": "FOREIGN{{ .SecretPath }}", "granularity": "secret-path"})
			name := only(t, s.associate(store, "kv", "foreign")).Name
			s.must("POST", store+"/associations/remove", object{"mount": "kv", "name": "foreign"})
			if kind == "cloud1-sm" {
				s.one.Drop(name)
			}
			if kind == "cloud2-kv" {
				s.two.Purge(name)
			}
			s.put(kind, name, "theirs")
			e := only(t, s.associate(store, "kv", "foreign"))
			if e.Status != "CONFLICT" || e.Cause == "" || e.Code == "" || e.Name != name {
				t.Errorf("%s: %+v", kind, e)
			}
			s.has(kind, name, "theirs")
			s.rejected(400, "POST", store+"/associations/adopt", object{"mount": "kv", "secret_name": "foreign", "external_names": "another"}, "conflict")
			e = only(t, entriesOf(t, s.must("POST", store+"/associations/adopt", object{"mount": "kv", "secret_name": "foreign"})))
			if e.Status != "SYNCED" {
				t.Errorf("adopted, %s is %+v", kind, e)
			}
			s.has(kind, name, `{"k":"ours"}`)
			s.must("DELETE", store+"?purge=true", nil)
			s.vanishes(store)
			s.has(kind, name, "")
		}
	})
	t.Run("two secrets cannot have one name", func(t *testing.T) {
		s := all.in(t)
		repo := s.dest("repohost", "same", object{"granularity": "secret-path", "secret_name_template": "SAME_{{ .SecretBaseName }}"})
		s.secret("kv", "x/same", "k", "first")
		s.secret("kv", "y/Same", "k", "second")
		first := only(t, s.associate(repo, "kv", "x/same"))
		second := only(t, s.associate(repo, "kv", "y/Same"))
		if second.Status != "CONFLICT" || !strings.Contains(second.Cause, "x/same") {
			t.Errorf("%+v", second)
		}
		s.has("repohost", first.Name, `{"k":"first"}`)
		s.rejected(400, "POST", repo+"/associations/adopt", object{"mount": "kv", "secret_name": "y/Same"}, "nothing to adopt")
		s.must("POST", repo+"/associations/remove", object{"mount": "kv", "name": "x/same"})
		s.has("repohost", first.Name, `{"k":"second"}`)
		s.must("DELETE", repo+"?purge=true", nil)
		s.vanishes(repo)
	})
	t.Run("selectors are followed", func(t *testing.T) {
		s := all.in(t)
		s.mount("apps")
		s.secret("apps", "web/one", "k", "1")
		s.secret("apps", "web/two", "k", "2")
		s.secret("apps", "other", "k", "3")
		store := s.dest("cloud1-sm", "apps", object{"secret_name_template": "apps/{{ .SecretPath }}"})
		s.must("POST", store+"/associations/set", object{"mount": "apps", "secret_prefix": "web/"})
		s.has("cloud1-sm", "apps/web/one", `{"k":"1"}`)
		s.has("cloud1-sm", "apps/web/two", `{"k":"2"}`)
		s.secret("apps", "web/three", "k", "new")
		s.has("cloud1-sm", "apps/web/three", `{"k":"new"}`)
		s.put("cloud1-sm", "apps/web/four", "theirs")
		s.secret("apps", "web/four", "k", "4")
		harness.Await(t, "the conflict", 30e9, func() error {
			if e := s.entries(store)[s.accessor("apps")+"/web/four"]; e.Status != "CONFLICT" || e.Prefix != "web/" {
				return fmt.Errorf("%+v", e)
			}
			return nil
		})
		s.must("POST", store+"/associations/adopt", object{"mount": "apps", "secret_name": "web/four"})
		s.has("cloud1-sm", "apps/web/four", `{"k":"4"}`)
		harness.Await(t, "both attempts in the history", 30e9, func() error {
			if events := s.must("POST", store+"/associations/history", object{"mount": "apps", "secret_name": "web/four"})["events"].([]any); len(events) < 2 {
				return fmt.Errorf("the history is %v", events)
			}
			return nil
		})
		s.one.Drop("apps/web/one")
		s.must("POST", store+"/associations/retry", object{"mount": "apps", "secret_name": "web/one"})
		s.has("cloud1-sm", "apps/web/one", `{"k":"1"}`)
		equal(t, "to", keysOf(part(s.must("GET", "sys/sync/associations/apps/web/one", nil), "associated_destinations")), []string{"cloud1-sm/apps"})
		s.rejected(400, "POST", store+"/associations/remove", object{"mount": "apps", "name": "web/one"}, "secret_prefix", "web/")
		s.rejected(400, "POST", store+"/associations/set", object{"mount": "apps", "secret_prefix": "web/", "secret_name": "a"}, "exclude")
		s.must("DELETE", "apps/metadata/web/two", nil)
		s.has("cloud1-sm", "apps/web/two", "")
		s.must("POST", store+"/associations/remove", object{"mount": "apps", "secret_prefix": "web/"})
		s.has("cloud1-sm", "apps/web/three", "")
		harness.Await(t, "the association to go", 30e9, func() error {
			if a := s.do("DELETE", store, nil); a.Status != 204 {
				return fmt.Errorf("status %d: %s", a.Status, a.Body)
			}
			return nil
		})
		s.has("cloud1-sm", "apps/web/one", "")
		if _, ok := s.get("cloud1-sm", "apps/other"); ok {
			t.Error("what is not below the prefix was synced")
		}
	})
	t.Run("a whole mount", func(t *testing.T) {
		s := all.in(t)
		store := s.dest("cloud1-sm", "whole", object{"secret_name_template": "whole/{{ .SecretPath }}"})
		s.must("POST", store+"/associations/set", object{"mount": "apps", "secret_prefix": "*"})
		s.has("cloud1-sm", "whole/other", `{"k":"3"}`)
		s.has("cloud1-sm", "whole/web/one", `{"k":"1"}`)
		s.must("DELETE", "sys/mounts/apps", nil)
		s.has("cloud1-sm", "whole/other", "")
		s.has("cloud1-sm", "whole/web/one", "")
		harness.Await(t, "the association to go", 30e9, func() error {
			if a := s.do("DELETE", store, nil); a.Status != 204 {
				return fmt.Errorf("status %d: %s", a.Status, a.Body)
			}
			return nil
		})
	})
	t.Run("a mount that moves keeps its names", func(t *testing.T) {
		s := all.in(t)
		s.mount("before")
		s.secret("before", "m", "k", "v")
		store := s.dest("cloud1-sm", "moved")
		e := only(t, s.associate(store, "before", "m"))
		id, _ := s.must("POST", "sys/remount", object{"from": "before", "to": "after"})["migration_id"].(string)
		harness.Await(t, "the move", 30e9, func() error {
			if status := part(s.must("GET", "sys/remount/status/"+id, nil), "migration_info")["status"]; status != "success" {
				return fmt.Errorf("it is %v", status)
			}
			return nil
		})
		s.secret("after", "m", "k", "w")
		s.has("cloud1-sm", e.Name, `{"k":"w"}`)
		now := only(t, s.await(store, "SYNCED"))
		equal(t, "the entry", []any{now.Mount, now.Accessor, now.Name}, []string{"after/", e.Accessor, e.Name})
		s.must("DELETE", store+"?purge=true", nil)
		s.vanishes(store)
	})
	t.Run("limits of a place are told before it is called", func(t *testing.T) {
		s := all.in(t)
		s.secret("kv", "large", "k", strings.Repeat("x", 70_000))
		s.one.Actions()
		e := only(t, s.associate(s.dest("cloud1-sm", "limits"), "kv", "large"))
		if e.Status != "CLIENT_SIDE_ERROR" || !strings.Contains(e.Cause, "65536") {
			t.Errorf("too large: %+v", e)
		}
		repo := s.dest("repohost", "limits", object{"granularity": "secret-path"})
		if e := only(t, s.associate(repo, "kv", "large")); e.Status != "CLIENT_SIDE_ERROR" {
			t.Errorf("too large: %+v", e)
		}
		s.secret("kv", "github/x", "k", "v")
		s.associate(repo, "kv", "github/x", object{"secret_name_template": "{{ .SecretPath }}"})
		if e := s.entries(repo)[accessor+"/github/x"]; e.Status != "CLIENT_SIDE_ERROR" || e.Cause == "" {
			t.Errorf("a reserved name: %+v", e)
		}
		for _, action := range s.one.Actions() {
			if action == "CreateSecret" {
				t.Error("the place was asked for what it does not take")
			}
		}
		s.must("DELETE", repo+"?force_delete=true", nil)
		s.must("DELETE", destinations+"cloud1-sm/limits?force_delete=true", nil)
	})
	t.Run("tags", func(t *testing.T) {
		s := all.in(t)
		store := s.dest("cloud1-sm", "tagged", object{"custom_tags": object{"team": "web", "tier": "1"}})
		e := only(t, s.associate(store, "kv", "b"))
		tags := func() map[string]string { secret, _ := s.one.Secret(e.Name); return secret.Tags }
		if now := tags(); now["team"] != "web" || now["tier"] != "1" {
			t.Errorf("the tags are %v", now)
		}
		s.must("PATCH", store, object{"tags_to_remove": "tier"})
		s.associate(store, "kv", "b")
		harness.Await(t, "the tag to go", 30e9, func() error {
			if _, ok := tags()["tier"]; ok {
				return fmt.Errorf("the tags are %v", tags())
			}
			return nil
		})
		s.must("DELETE", store+"?purge=true", nil)
		s.vanishes(store)
	})
}
