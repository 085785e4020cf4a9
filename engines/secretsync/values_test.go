package secretsync_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// TestValues: an association says how the values of a secret are written at the destination. To change that writes them again, and all
// that compares values compares those.
func TestValues(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "d", map[string]any{"secret_name_template": "{{ .SecretPath }}"})
		site := r.sites.Site(syncsim.Marked, "one")
		r.kv.Put("app", "user", "shop", "password", `p"1`)
		set := func(body map[string]any) map[string]any {
			body["mount"], body["secret_name"] = "kv", "app"
			got := r.post(d+"/associations/set", body)["associated_secrets"].(map[string]any)
			for _, e := range got {
				if e := e.(map[string]any); e["sync_status"] != "SYNCED" {
					t.Errorf("%v: %v", body, e)
				}
			}
			return got["kv_00000001/app"].(map[string]any)
		}
		there := func(what, want string) {
			t.Helper()
			if got, _ := site.Get("app"); got != want {
				t.Errorf("%s: %s is there, want %s", what, got, want)
			}
			writes := r.writes()
			if plan := r.post(d+"/plan", nil)["totals"]; fmt.Sprint(plan) != "map[none:1]" {
				t.Errorf("%s: planned %v", what, plan)
			}
			r.post(d+"/associations/retry", map[string]any{"mount": "kv", "secret_name": "app"})
			if n := r.writes() - writes; n != 0 {
				t.Errorf("%s: written %d times more", what, n)
			}
		}
		set(map[string]any{})
		there("as it is", `{"password":"p\"1","user":"shop"}`)
		e := set(map[string]any{"rename": map[string]any{"user": "DB_USER"}})
		there("renamed", `{"DB_USER":"shop","password":"p\"1"}`)
		same(t, "read", e["rename"], map[string]string{"user": "DB_USER"})
		e = set(map[string]any{"format": "dotenv"})
		there("dotenv, and the names are kept", "DB_USER=\"shop\"\npassword='p\"1'\n")
		same(t, "read", e["format"], "dotenv")
		e = set(map[string]any{"format": "", "rename": map[string]any{}, "value_template": "{{ .Secrets.user }}:{{ .Secrets.password | urlencode }}"})
		there("a template", "shop:p%221")
		same(t, "read", e["value_template"], "{{ .Secrets.user }}:{{ .Secrets.password | urlencode }}")

		r.kv.Put("app", "user", "shop", "password", "p2")
		time.Sleep(time.Second)
		there("a new version", "shop:p2")
		writes := r.writes()
		r.kv.Put("app", "user", "shop", "password", "p2", "more", "of no account")
		time.Sleep(time.Second)
		if got := r.writes() - writes; got != 0 {
			t.Errorf("%d writes for a version that makes the same value", got)
		}
		if found := r.post(d+"/drift", nil)["drifted"]; fmt.Sprint(found) != "[]" {
			t.Errorf("drift: %v", found)
		}
		r.kv.Put("app", "user", "shop", "pass", "hidden")
		time.Sleep(time.Second)
		entry := r.entries(d)["kv_00000001/app"].(map[string]any)
		if cause := fmt.Sprint(entry["cause"]); entry["sync_status"] != "CLIENT_SIDE_ERROR" || entry["code"] != "template" || !strings.Contains(cause, `no entry for key "password"`) || strings.Contains(cause, "hidden") {
			t.Errorf("a key that the template needs is gone: %v", entry)
		}
		if got, _ := site.Get("app"); got != "shop:p2" {
			t.Errorf("the version before does not stay: %s", got)
		}
		planned := fmt.Sprint(r.post(d+"/plan", nil)["actions"])
		if !strings.Contains(planned, "value_template: ") || strings.Contains(planned, "hidden") {
			t.Errorf("planned: %s", planned)
		}
		for field, body := range map[string]map[string]any{
			"value_template": {"value_template": "{{ .Secrets }}"}, "rename": {"rename": "a=b,c=b"}, "format": {"format": "xml"},
		} {
			body["mount"], body["secret_name"] = "kv", "app"
			for _, path := range []string{"/associations/set", "/plan"} {
				if _, err := r.Do(engines.Update, d+path, body); err == nil || !strings.Contains(err.Error(), field) {
					t.Errorf("%s %v: %v", path, body, err)
				}
			}
		}
	})
}

// TestValuesOfKeys: a key that is renamed gets another name, which is written before the old one goes.
func TestValuesOfKeys(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "d", map[string]any{"secret_name_template": "{{ .SecretKey }}", "granularity": "secret-key"})
		site := r.sites.Site(syncsim.Marked, "one")
		r.kv.Put("app", "user", "shop", "password", "p")
		body := map[string]any{"mount": "kv", "secret_name": "app"}
		r.post(d+"/associations/set", body)
		body["rename"], body["value_template"] = map[string]any{"user": "DB_USER"}, "<{{ .SecretValue }}>"
		entries := r.post(d+"/associations/set", body)["associated_secrets"]
		same(t, "statuses are of the secret's keys", statuses(entries), map[string]string{"app/password": "SYNCED", "app/user": "SYNCED"})
		if objects := site.Objects(); len(objects) != 2 || objects["DB_USER"].Value != "<shop>" || objects["password"].Value != "<p>" {
			t.Errorf("%+v", objects)
		}
	})
}

// TestValuesThatAreThere: names that have the value that would be made are adopted, and are the same for an import; others are not.
func TestValuesThatAreThere(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "d", map[string]any{"secret_name_template": "{{ .SecretPath }}"})
		site := r.sites.Site(syncsim.Marked, "one")
		for name, value := range map[string]string{"app/one": "A=\"1\"\n", "app/two": `{"k":"1"}`} {
			site.Put(name, value)
			r.kv.Put(name, "k", "1")
		}
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_prefix": "app/", "format": "dotenv", "rename": map[string]any{"k": "A"}})
		r.post(d+"/plan", nil)
		same(t, "of other clients", statuses(r.entries(d)), map[string]string{"app/one": "CONFLICT", "app/two": "CONFLICT"})
		_, imported := r.report(r.post(d+"/import", map[string]any{"mount": "kv", "names": "app/*"}))
		same(t, "the value that would be made", imported["app/one"]["action"], "same")
		same(t, "the value of the secret", imported["app/two"]["action"], "same")
		writes := r.writes()
		r.post(d+"/associations/adopt", map[string]any{"mount": "kv", "secret_prefix": "app/", "equal": true})
		time.Sleep(time.Second)
		same(t, "adopted where equal", statuses(r.entries(d)), map[string]string{"app/one": "SYNCED", "app/two": "CONFLICT"})
		for name, want := range map[string]string{"app/one": "A=\"1\"\n", "app/two": `{"k":"1"}`} {
			if got, _ := site.Get(name); got != want {
				t.Errorf("%s has %s", name, got)
			}
		}
		if names := slices.Sorted(maps.Keys(site.Objects())); len(names) != 2 || r.writes()-writes > 1 {
			t.Errorf("%q after %d writes", names, r.writes()-writes)
		}
	})
}

// TestValuesWithAnOlderNode: while a node of the cluster may be of an earlier version, which would write values without their shape if it
// became the active one, a shape cannot be set. One that is stored is kept.
func TestValuesWithAnOlderNode(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "d", nil)
		r.w.SetOlderMember(true)
		for field, value := range map[string]any{"rename": map[string]any{"k": "K"}, "value_template": "{{ .Secrets.k }}", "format": "dotenv"} {
			body := map[string]any{"mount": "kv", "secret_name": "a", field: value}
			for _, path := range []string{"/associations/set", "/plan"} {
				if text := r.Fails(engines.KindInvalid, engines.Update, d+path, body); !strings.Contains(text, `"`+field+`"`) || !strings.Contains(text, "finish the upgrade") {
					t.Errorf("the error is %q", text)
				}
			}
			if len(r.entries(d)) != 0 {
				t.Error("it is associated")
			}
		}
		r.w.SetOlderMember(false)
		body := map[string]any{"mount": "kv", "secret_name": "a", "rename": map[string]any{"k": "K"}}
		r.post(d+"/associations/set", body)
		r.w.SetOlderMember(true)
		delete(body, "rename")
		r.post(d+"/associations/set", body)
		if e, _ := r.entries(d)["kv_00000001/a"].(map[string]any); e["sync_status"] != "SYNCED" || fmt.Sprint(e["rename"]) != "map[k:K]" {
			t.Errorf("the association is %v", e)
		}
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "folder/b", "format": "json"})
	})
}
