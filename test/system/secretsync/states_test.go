package secretsync_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
	"github.com/coffer-project/coffer/engines/secretsync/webhost/webhosttest"
	"github.com/coffer-project/coffer/test/harness"
)

// actions are the names of a plan by what is to be done with them.
func actions(data object) map[string][]string {
	out := map[string][]string{}
	list, _ := data["actions"].([]any)
	for _, a := range list {
		p, _ := a.(object)
		action, _ := p["action"].(string)
		out[action] = append(out[action], fmt.Sprint(p["mount"], p["secret_name"]))
	}
	return out
}

// TestState is about what is told of secrets, and how syncing is held, looked at and tried again.
func TestState(t *testing.T) {
	t.Parallel()
	all := newSite(t, "state")
	accessor := all.mount("kv")
	for _, name := range []string{"a", "b", "c"} {
		all.secret("kv", name, "k", "v")
	}
	t.Run("sync config", func(t *testing.T) {
		s := all.in(t)
		const path = "sys/sync/config"
		defaults := object{"disabled": false, "drift_interval": 3600, "queue_capacity": 1000000}
		equal(t, "defaults", s.must("GET", path, nil), defaults)
		equal(t, "changed", s.must("PATCH", path, object{"queue_capacity": 2}), object{"disabled": false, "drift_interval": 3600, "queue_capacity": 2})
		equal(t, "a text", s.must("PATCH", path, object{"disabled": "true"}), object{"disabled": true, "drift_interval": 3600, "queue_capacity": 2})
		equal(t, "an interval", s.must("PATCH", path, object{"drift_interval": "15m"}), object{"disabled": true, "drift_interval": 900, "queue_capacity": 2})
		equal(t, "its default", s.must("PATCH", path, object{"drift_interval": nil}), object{"disabled": true, "drift_interval": 3600, "queue_capacity": 2})
		s.rejected(400, "PATCH", path, object{"drift_interval": "1s"}, "drift_interval")
		s.rejected(400, "PATCH", path, object{"notification_url": "http://ops.example.com"}, "notification_url")
		equal(t, "a receiver", s.must("PATCH", path, object{"notification_url": "https://ops.example.com", "notification_signing_key": "0123456789abcdef"}), object{
			"disabled": true, "drift_interval": 3600, "queue_capacity": 2, "notification_url": "https://ops.example.com", "notification_signing_key": "*****",
		})
		s.rejected(400, "PATCH", path, object{"notification_url": "https://other.example.com"}, "notification_signing_key")
		equal(t, "none", s.must("PATCH", path, object{"notification_url": nil}), object{"disabled": true, "drift_interval": 3600, "queue_capacity": 2})
		equal(t, "null", s.must("PATCH", path, object{"disabled": nil}), object{"disabled": false, "drift_interval": 3600, "queue_capacity": 2})
		s.rejected(400, "PATCH", path, object{"queue_capacity": 0}, "queue_capacity")
		s.rejected(400, "PATCH", path, object{"disabled": "perhaps"}, "disabled")
		d := s.dest("cloud1-sm", "full")
		s.associate(d, "kv", "a")
		s.associate(d, "kv", "b")
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "c"}, "queue_capacity")
		s.associate(d, "kv", "b") // is there already
		equal(t, "back", s.must("DELETE", path, nil), defaults)
		equal(t, "read", s.must("GET", path, nil), defaults)
		s.associate(d, "kv", "c")
		s.must("DELETE", d+"?purge=true", nil)
		s.vanishes(d)
	})
	t.Run("what changes while sync is disabled is done afterwards", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("cloud1-sm", "disabled")
		first := only(t, s.associate(d, "kv", "a"))
		s.must("PATCH", "sys/sync/config", object{"disabled": true})
		s.secret("kv", "a", "k", "w")
		e := s.associate(d, "kv", "b")[accessor+"/b"]
		if e.Status != "PENDING" || e.Code != "disabled" {
			t.Errorf("associated: %+v", e)
		}
		if e := s.entries(d)[accessor+"/a"]; e.Status != "PENDING" {
			t.Errorf("changed: %+v", e)
		}
		s.has("cloud1-sm", first.Name, `{"k":"v"}`)
		s.must("DELETE", "sys/sync/config", nil)
		s.has("cloud1-sm", first.Name, `{"k":"w"}`)
		s.await(d, "SYNCED")
		s.must("DELETE", d+"?purge=true", nil)
		s.vanishes(d)
	})
	t.Run("a destination is paused and resumed", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("repohost", "paused", object{"granularity": "secret-path"})
		first := only(t, s.associate(d, "kv", "b"))
		equal(t, "paused", s.must("POST", d+"/pause", nil)["paused"], true)
		if e := only(t, s.entries(d)); e.Status != "SYNCED" {
			t.Errorf("unchanged: %+v", e)
		}
		s.secret("kv", "b", "k", "w")
		if e := only(t, s.await(d, "PENDING", "paused")); e.Code != "paused" {
			t.Errorf("%+v", e)
		}
		if e := only(t, s.associate(d, "kv", "b")); e.Status != "PENDING" {
			t.Errorf("set: %+v", e)
		}
		s.has("repohost", first.Name, `{"k":"v"}`)
		equal(t, "resumed", s.must("POST", d+"/resume", nil)["paused"], false)
		s.has("repohost", first.Name, `{"k":"w"}`)
		s.await(d, "SYNCED")
		s.must("DELETE", d+"?purge=true", nil)
		s.vanishes(d)
	})
	t.Run("an association is paused and resumed", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("cloud3-sm", "paused")
		a, b := only(t, s.associate(d, "kv", "a")), s.associate(d, "kv", "b")[accessor+"/b"]
		s.must("POST", d+"/associations/pause", object{"mount": "kv", "secret_name": "a"})
		s.secret("kv", "a", "k", "p1")
		s.secret("kv", "b", "k", "p1")
		s.has("cloud3-sm", b.Name, `{"k":"p1"}`)
		if value, _ := s.get("cloud3-sm", a.Name); strings.Contains(value, "p1") {
			t.Error("what is paused was synced")
		}
		if e := s.entries(d)[accessor+"/a"]; e.Status != "PENDING" || e.Code != "paused" {
			t.Errorf("%+v", e)
		}
		s.must("POST", d+"/associations/resume", object{"mount": "kv", "secret_name": "a"})
		s.has("cloud3-sm", a.Name, `{"k":"p1"}`)
		s.rejected(404, "POST", d+"/associations/pause", object{"mount": "kv", "secret_name": "c"})
		s.must("DELETE", d+"?purge=true", nil)
		s.vanishes(d)
	})
	t.Run("an outage is EXTERNAL_SERVICE_ERROR and is tried again", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("repohost", "outage", object{"granularity": "secret-path", "repisitory_name": "api"})
		s.repo.Faults.Set(desttest.Fault{Kind: desttest.Trouble})
		e := only(t, s.associate(d, "kv", "a"))
		if e.Status != "EXTERNAL_SERVICE_ERROR" || e.Cause == "" || e.Code == "" || e.Attempts < 1 || e.NextRetry == "" || e.LastSuccess != "" {
			t.Errorf("%+v", e)
		}
		s.repo.Faults.Set(desttest.Fault{})
		only(t, entriesOf(t, s.must("POST", d+"/associations/retry", object{"mount": "kv", "secret_name": "a"})))
		s.must("POST", d+"/associations/retry", nil)
		e = only(t, s.await(d, "SYNCED"))
		if e.Cause != "" || e.Attempts != 0 || e.NextRetry != "" || e.LastSuccess == "" {
			t.Errorf("%+v", e)
		}
		events, _ := s.must("POST", d+"/associations/history", object{"mount": "kv", "secret_name": "a"})["events"].([]any)
		if text := fmt.Sprint(events); len(events) < 2 || !strings.Contains(text, "EXTERNAL_SERVICE_ERROR") || !strings.Contains(text, "created 1") {
			t.Errorf("the history is %v", events)
		}
		s.must("DELETE", d+"?purge=true", nil)
		s.vanishes(d)
	})
	t.Run("bad credentials are CLIENT_SIDE_ERROR until they are changed", func(t *testing.T) {
		s := all.in(t)
		for kind, change := range map[string]object{
			"cloud1-sm": {"secret_access_key": strings.Repeat("w", 40)}, "cloud2-kv": {"client_secret": "not-the-right-one"},
			"repohost": {"access_token": repohosttest.ReadOnly}, "webhost-project": {"access_token": webhosttest.ReadOnly},
		} {
			d := s.dest(kind, "locked", change)
			for _, e := range s.associate(d, "kv", "a") {
				if e.Status != "CLIENT_SIDE_ERROR" || e.Cause == "" || strings.Contains(e.Cause, fmt.Sprint(change)) {
					t.Errorf("%s: %+v", kind, e)
				}
			}
			s.must("POST", d, s.fields(kind))
			s.await(d, "SYNCED")
			s.must("DELETE", d+"?purge=true", nil)
			s.vanishes(d)
		}
	})
	t.Run("plan", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("cloud1-sm", "plan", object{"secret_name_template": "plan/{{ .SecretPath }}"})
		s.put("cloud1-sm", "plan/c", "theirs")
		equal(t, "nothing", actions(s.must("POST", d+"/plan", nil)), object{})
		s.secret("kv", "plan", "k", "pLaN-vAlUe")
		answer := s.do("POST", d+"/plan", object{"mount": "kv", "secret_name": "plan"})
		if answer.Status != 200 || strings.Contains(string(answer.Body), "pLaN") {
			t.Errorf("status %d: %s", answer.Status, answer.Body)
		}
		equal(t, "create", actions(s.must("POST", d+"/plan", object{"mount": "kv", "secret_name": "a"})), object{"create": []string{"kv/a"}})
		equal(t, "conflict", actions(s.must("POST", d+"/plan", object{"mount": "kv", "secret_name": "c"})), object{"conflict": []string{"kv/c"}})
		if _, ok := s.get("cloud1-sm", "plan/a"); ok || len(s.entries(d)) > 0 {
			t.Error("planning has changed something")
		}
		s.must("POST", d+"/pause", nil)
		s.associate(d, "kv", "a")
		s.associate(d, "kv", "c")
		data := s.must("POST", d+"/plan", nil)
		equal(t, "paused", actions(data), object{"conflict": []string{"kv/c"}, "create": []string{"kv/a"}})
		equal(t, "totals", data["totals"], object{"conflict": 1, "create": 1})
		s.must("POST", d+"/resume", nil)
		s.has("cloud1-sm", "plan/a", `{"k":"p1"}`)
		s.must("POST", d+"/pause", nil)
		equal(t, "done", actions(s.must("POST", d+"/plan", nil)), object{"conflict": []string{"kv/c"}, "none": []string{"kv/a"}})
		s.secret("kv", "a", "k", "p2")
		equal(t, "update", actions(s.must("POST", d+"/plan", nil))["update"], []string{"kv/a"})
		s.must("DELETE", "kv/data/a", nil)
		equal(t, "delete", actions(s.must("POST", d+"/plan", nil))["delete"], []string{"kv/a"})
		s.rejected(404, "POST", d+"/plan", object{"mount": "kv", "secret_name": "missing"})
		s.rejected(404, "POST", destinations+"cloud1-sm/none/plan", nil)
		s.must("DELETE", d+"?purge=true", nil)
		s.vanishes(d)
		s.has("cloud1-sm", "plan/c", "theirs")
		s.must("POST", "kv/data/a", object{"data": object{"k": "v"}})
	})
	t.Run("drift is reported or repaired or ignored", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("cloud1-sm", "drift")
		policies := map[string]string{"a": "report", "b": "repair", "c": "ignore"}
		for secret, policy := range policies {
			s.associate(d, "kv", secret, object{"drift_policy": policy})
		}
		name := func(secret string) string { return "vault/" + accessor + "/" + secret }
		equal(t, "none", s.must("POST", d+"/drift", nil)["drifted"], []string{})
		for secret := range policies {
			s.put("cloud1-sm", name(secret), "changed by another client")
		}
		found := map[string]string{}
		for _, one := range s.must("POST", d+"/drift", nil)["drifted"].([]any) {
			f := one.(object)
			found[fmt.Sprint(f["mount"], f["secret_name"])] = fmt.Sprint(f["drift"], " ", f["action"])
		}
		equal(t, "found", found, object{"kv/a": "changed reported", "kv/b": "changed repaired"})
		want, _ := s.get("cloud1-sm", name("b"))
		harness.Await(t, "the repair", 30e9, func() error {
			if want, _ = s.get("cloud1-sm", name("b")); !strings.HasPrefix(want, "{") {
				return fmt.Errorf("it is %q", want)
			}
			return nil
		})
		for _, secret := range []string{"a", "c"} {
			s.has("cloud1-sm", name(secret), "changed by another client")
		}
		if e := s.entries(d)[accessor+"/a"]; e.Drift != "changed" {
			t.Errorf("%+v", e)
		}
		s.one.Drop(name("a"))
		if text := fmt.Sprint(s.must("POST", d+"/drift", nil)); !strings.Contains(text, "missing") {
			t.Errorf("%s", text)
		}
		s.associate(d, "kv", "a")
		s.has("cloud1-sm", name("a"), `{"k":"v"}`)
		s.must("DELETE", d+"?purge=true", nil)
		s.vanishes(d)
	})
	t.Run("a change is overwritten with a record or is a conflict", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("cloud1-sm", "changed")
		for _, policy := range []string{"report", "conflict"} {
			body := object{"mount": "kv", "secret_name": policy}
			s.must("POST", "kv/data/"+policy, object{"data": object{"k": "1"}})
			s.associate(d, "kv", policy, object{"drift_policy": policy})
			name := "vault/" + accessor + "/" + policy
			s.put("cloud1-sm", name, "hotfix")
			s.must("POST", "kv/data/"+policy, object{"data": object{"k": "2"}})
			harness.Await(t, "the second version", 30e9, func() error {
				if is, _ := s.get("cloud1-sm", name); is == "hotfix" && s.entries(d)[accessor+"/"+policy].Status != "CONFLICT" {
					return fmt.Errorf("it is %q", is)
				}
				return nil
			})
			if policy == "conflict" {
				s.has("cloud1-sm", name, "hotfix")
				s.must("POST", d+"/associations/adopt", body)
				s.has("cloud1-sm", name, `{"k":"2"}`)
				continue
			}
			harness.Await(t, "the record of it", 30e9, func() error {
				events, _ := s.must("POST", d+"/associations/history", body)["events"].([]any)
				if done := events[len(events)-1].(object)["done"]; done != "updated 1, over a change by another client" {
					return fmt.Errorf("the history says %v", done)
				}
				return nil
			})
		}
		if text := string(s.do("GET", "sys/metrics?format=prometheus", nil).Body); !strings.Contains(text, "coffer_sync_overwritten_changes_total ") || strings.Contains(text, "coffer_sync_overwritten_changes_total 0\n") {
			t.Error("the metrics do not count the overwritten change")
		}
		s.must("DELETE", d+"?purge=true", nil)
		s.vanishes(d)
	})
	t.Run("a busy secret is rate limited", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("cloud1-sm", "busy")
		s.must("POST", "kv/data/busy", object{"data": object{"k": "0"}})
		s.associate(d, "kv", "busy")
		n := 0
		harness.Await(t, "the rate limit", 60e9, func() error {
			n++
			s.must("POST", "kv/data/busy", object{"data": object{"k": fmt.Sprint(n)}})
			if e := s.entries(d)[accessor+"/busy"]; e.Code != "rate_limited" || e.Status != "PENDING" || !strings.HasPrefix(e.Cause, "rate limited until ") {
				return fmt.Errorf("%+v", e)
			}
			return nil
		})
		s.must("POST", d+"/associations/retry", object{"mount": "kv", "secret_name": "busy"})
		s.has("cloud1-sm", "vault/"+accessor+"/busy", fmt.Sprintf(`{"k":"%d"}`, n))
		s.must("DELETE", d+"?purge=true", nil)
		s.vanishes(d)
	})
	t.Run("metrics", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("cloud1-sm", "metrics")
		s.associate(d, "kv", "a")
		s.put("cloud1-sm", "taken/b", "theirs")
		s.associate(d, "kv", "b", object{"secret_name_template": "taken/{{ .SecretPath }}"})
		text := string(s.do("GET", "sys/metrics?format=prometheus", nil).Body)
		for _, line := range []string{"coffer_sync_destinations 1", "coffer_sync_associations 2", "coffer_sync_attention 1", "coffer_sync_writes_total", "coffer_sync_deletes_total", "coffer_sync_failures_total", "coffer_sync_conflicts_total", "coffer_sync_drift_found_total", "coffer_sync_overwritten_changes_total", "coffer_sync_pending", "coffer_sync_running", "coffer_sync_unreadable 0", `coffer_sync_links{destination="cloud1-sm/metrics",`, `coffer_sync_circuit_open{destination="cloud1-sm/metrics",`} {
			if !strings.Contains(text, "\n"+line) {
				t.Errorf("there is no %q", line)
			}
		}
		s.must("DELETE", d+"?purge=true", nil)
		s.vanishes(d)
		harness.Await(t, "the gauges to fall", 30e9, func() error {
			text := string(s.do("GET", "sys/metrics?format=prometheus", nil).Body)
			for _, line := range []string{"coffer_sync_destinations 0", "coffer_sync_associations 0", "coffer_sync_attention 0"} {
				if !strings.Contains(text, "\n"+line) {
					return fmt.Errorf("there is no %q", line)
				}
			}
			return nil
		})
	})
}
