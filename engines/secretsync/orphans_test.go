package secretsync_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// reject has every call of destinations answered as with revoked credentials.
func (r *rig) reject() {
	r.sites.SetFault(func(syncsim.Call) syncsim.Fault { return syncsim.Fault{Kind: syncsim.Reject} })
}

// leftBehind returns the names of left_behind.
func leftBehind(t *testing.T, data map[string]any) (names []string, total any) {
	t.Helper()
	left, _ := data["left_behind"].(map[string]any)
	all, _ := left["names"].([]any)
	for _, n := range all {
		names = append(names, fmt.Sprint(n.(map[string]any)["external_name"]))
	}
	slices.Sort(names)
	return names, left["total"]
}

// TestForceDeleteListsWhatItLeaves: the names that stay at a destination have no owner any more, so they are listed once.
func TestForceDeleteListsWhatItLeaves(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "store", nil)
		for _, name := range []string{"a", "folder/b"} {
			r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": name})
		}
		r.reject()
		if text := r.Fails(engines.KindInvalid, engines.Delete, d, nil); !strings.Contains(text, "force_delete=true") {
			t.Errorf("the refusal says %q", text)
		}
		r.w.FailAudit(fmt.Errorf("no space left"))
		if _, err := r.Do(engines.Delete, d, map[string]any{"force_delete": true}); err == nil {
			t.Error("names were let go without an audit record")
		}
		r.w.FailAudit(nil)
		resp := r.Must(engines.Delete, d, map[string]any{"force_delete": true})
		names, total := leftBehind(t, r.Data(resp))
		same(t, "names left", names, []string{"vault/kv_00000001/a", "vault/kv_00000001/folder/b"})
		same(t, "total", total, 2)
		if len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], "(2)") {
			t.Errorf("warnings %q", resp.Warnings)
		}
		audited := r.w.Audited()
		last := audited[len(audited)-1]
		if last.Operation != engines.Delete || last.Path != "sys/"+d || last.Data["left_behind"] != 2 || last.Who.DisplayName != "caller" {
			t.Errorf("audited %+v", last)
		}

		empty := r.dest(syncsim.Marked, "empty", nil)
		if resp := r.Must(engines.Delete, empty, map[string]any{"force_delete": true}); resp != nil {
			t.Errorf("a destination without names was answered with %+v", resp)
		}
	})
}

// TestRemovalAttempts: with a bound on failed removals, removing an association and then deleting its destination works although the
// credentials are dead, as infrastructure tools do it; and what stays there is listed.
func TestRemovalAttempts(t *testing.T) {
	run(t, func(r *rig) {
		body := map[string]any{"mount": "kv", "secret_name": "a"}
		d := r.dest(syncsim.Marked, "store", nil)
		for _, bad := range []int{-1, 101} {
			r.Fails(engines.KindInvalid, engines.Update, d, map[string]any{"removal_attempts": bad})
		}
		r.post(d+"/associations/set", body)
		r.reject()
		if got := statuses(r.post(d+"/associations/remove", body)["associated_secrets"])["a"]; got != "UNSYNCING" {
			t.Errorf("the secret is %s without removal_attempts", got)
		}
		time.Sleep(time.Hour)
		if text := r.Fails(engines.KindInvalid, engines.Delete, d, nil); !strings.Contains(text, "removal_attempts") {
			t.Errorf("the refusal says %q", text)
		}

		// Set afterwards, it counts for what is under way.
		if got := r.Data(r.Must(engines.Patch, d, map[string]any{"removal_attempts": 1}))["options"].(map[string]any)["removal_attempts"]; fmt.Sprint(got) != "1" {
			t.Errorf("removal_attempts is %v", got)
		}
		synctest.Wait()
		time.Sleep(time.Second)
		same(t, "associations", r.entries(d), map[string]any{})
		names, _ := leftBehind(t, r.Data(r.Must(engines.Read, d, nil)))
		same(t, "names left", names, []string{"vault/kv_00000001/a"})
		names, _ = leftBehind(t, r.Data(r.Must(engines.Delete, d, nil)))
		same(t, "names left, at the deletion", names, []string{"vault/kv_00000001/a"})

		// The first removal fails, and that is all: remove leaves no link behind.
		d = r.dest(syncsim.Plain, "repo", map[string]any{"removal_attempts": 1})
		r.sites.SetFault(nil)
		r.post(d+"/associations/set", body)
		r.reject()
		resp := r.Must(engines.Update, d+"/associations/remove", body)
		if got := statuses(r.Data(resp)["associated_secrets"])["a"]; got != "UNSYNCED" || len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], `"VAULT_KV_00000001_A_K"`) {
			t.Errorf("the secret is %s, warnings %q", got, resp.Warnings)
		}
		audited := r.w.Audited()
		if last := audited[len(audited)-1]; last.Path != "sys/"+d+"/associations/remove" || last.Data["left_behind"] != 1 {
			t.Errorf("audited %+v", last)
		}
		r.Must(engines.Delete, d, nil)
		r.Fails(engines.KindNotFound, engines.Read, d, nil)
		if _, ok := r.sites.Site(syncsim.Plain, "one").Get("VAULT_KV_00000001_A_K"); !ok {
			t.Error("what was let go is gone")
		}
	})
}

// TestRemovalAttemptsAreCounted: failures of writes before the removal do not count, and neither does what succeeds in the end.
func TestRemovalAttemptsAreCounted(t *testing.T) {
	run(t, func(r *rig) {
		body := map[string]any{"mount": "kv", "secret_name": "a"}
		d := r.dest(syncsim.Marked, "store", map[string]any{"removal_attempts": 3})
		r.post(d+"/associations/set", body)
		r.reject()
		r.kv.Put("a", "k", "2")
		time.Sleep(24 * time.Hour)
		r.post(d+"/associations/remove", body)
		if len(r.entries(d)) != 1 {
			t.Error("the secret was let go after the first failed removal")
		}
		r.sites.SetFault(nil)
		time.Sleep(time.Hour)
		same(t, "associations", r.entries(d), map[string]any{})
		if resp := r.Must(engines.Delete, d, nil); resp != nil {
			t.Errorf("answered %+v", resp)
		}
		if _, ok := r.sites.Site(syncsim.Marked, "one").Get("vault/kv_00000001/a"); ok {
			t.Error("the name is still there")
		}
	})
}

// TestRemovalAttemptsOfBusyDestination: a destination that has asked to wait has not failed, and nothing is let go for it.
func TestRemovalAttemptsOfBusyDestination(t *testing.T) {
	run(t, func(r *rig) {
		body := map[string]any{"mount": "kv", "secret_name": "a"}
		d := r.dest(syncsim.Marked, "store", map[string]any{"removal_attempts": 1})
		r.post(d+"/associations/set", body)
		r.sites.SetFault(func(syncsim.Call) syncsim.Fault {
			return syncsim.Fault{Kind: syncsim.Throttle, RetryAfter: time.Minute}
		})
		r.post(d+"/associations/remove", body)
		time.Sleep(time.Hour)
		same(t, "names left", r.Data(r.Must(engines.Read, d, nil))["left_behind"], nil)
		r.sites.SetFault(nil)
		time.Sleep(time.Hour)
		same(t, "associations", r.entries(d), map[string]any{})
		if _, ok := r.sites.Site(syncsim.Marked, "one").Get("vault/kv_00000001/a"); ok {
			t.Error("the name is still there")
		}
	})
}

// TestForceDeleteRecordsEveryName: what the response has no room for is in the audit log, once.
func TestForceDeleteRecordsEveryName(t *testing.T) {
	run(t, func(r *rig) {
		const n = 1200
		d := r.dest(syncsim.Marked, "store", map[string]any{"granularity": "secret-key"})
		for i := range n / 100 {
			var pairs []string
			for k := range 100 {
				pairs = append(pairs, fmt.Sprintf("k%02d", k), "v")
			}
			r.kv.Put(fmt.Sprintf("many/%02d", i), pairs...)
		}
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_prefix": "many/"})
		time.Sleep(time.Hour)
		before := len(r.w.Audited())
		names, total := leftBehind(t, r.Data(r.Must(engines.Delete, d, map[string]any{"force_delete": true})))
		if len(names) != 1000 || fmt.Sprint(total) != fmt.Sprint(n) {
			t.Errorf("%d names of %v are listed", len(names), total)
		}
		recorded := map[string]int{}
		for _, e := range r.w.Audited()[before:] {
			same(t, "total of a record", e.Data["left_behind"], n)
			for _, name := range e.Data["external"].([]string) {
				recorded[name]++
			}
		}
		if len(recorded) != n {
			t.Errorf("%d names are recorded, want %d", len(recorded), n)
		}
	})
}

// TestAChangedNameThatStaysIsRecorded: the association ends and another client has changed the name, which stays for that: a warning,
// left_behind and the audit log say so, and the plan before.
func TestAChangedNameThatStaysIsRecorded(t *testing.T) {
	for _, tt := range []struct{ kind, policy, name string }{
		{syncsim.Marked, "conflict", "vault/kv_00000001/a"},
		{syncsim.Plain, "conflict", "VAULT_KV_00000001_A_K"},
		{syncsim.Plain, "report", "VAULT_KV_00000001_A_K"},
	} {
		run(t, func(r *rig) {
			body := map[string]any{"mount": "kv", "secret_name": "a", "drift_policy": tt.policy}
			d := r.dest(tt.kind, "store", nil)
			r.post(d+"/associations/set", body)
			site := r.sites.Site(tt.kind, "one")
			site.Put(tt.name, "hotfix")
			time.Sleep(time.Minute)
			delete(body, "drift_policy")
			r.w.FailAudit(fmt.Errorf("no space left"))
			if resp := r.Must(engines.Update, d+"/associations/remove", body); len(r.entries(d)) != 1 {
				t.Errorf("%+v: it goes without an audit record: %+v", tt, resp)
			}
			r.w.FailAudit(nil)
			resp := r.Must(engines.Update, d+"/associations/remove", body)
			if got := statuses(r.Data(resp)["associated_secrets"])["a"]; got != "UNSYNCED" || len(resp.Warnings) != 1 ||
				!strings.Contains(resp.Warnings[0], "changed by another client") || !strings.Contains(resp.Warnings[0], `"`+tt.name+`"`) {
				t.Errorf("%+v: the secret is %s, warnings %q", tt, got, resp.Warnings)
			}
			if got, _ := site.Get(tt.name); got != "hotfix" {
				t.Errorf("%+v: %q is there", tt, got)
			}
			audited := r.w.Audited()
			if last := audited[len(audited)-1]; last.Path != "sys/"+d+"/associations/remove" || last.Data["left_behind"] != 1 || last.Who.DisplayName != "caller" {
				t.Errorf("%+v: audited %+v", tt, last)
			}
			names, _ := leftBehind(t, r.Data(r.Must(engines.Read, d, nil)))
			same(t, "names left", names, []string{tt.name})
		})
	}
	// One of two keys: the history has it for as long as the other is not removed.
	run(t, func(r *rig) {
		r.kv.Put("a", "k", "1", "other", "1")
		body := map[string]any{"mount": "kv", "secret_name": "a"}
		d := r.dest(syncsim.Plain, "store", nil)
		r.post(d+"/associations/set", body)
		r.sites.Site(syncsim.Plain, "one").Put("VAULT_KV_00000001_A_K", "hotfix")
		r.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			if c.Op == "delete" {
				return syncsim.Fault{Kind: syncsim.Reject}
			}
			return syncsim.Fault{}
		})
		resp := r.Must(engines.Update, d+"/associations/remove", body)
		if text := strings.Join(resp.Warnings, " "); !strings.Contains(text, `"VAULT_KV_00000001_A_K"`) {
			t.Errorf("warnings %q", resp.Warnings)
		}
		history, _ := r.post(d+"/associations/history", body)["events"].([]any)
		if len(history) == 0 || !strings.Contains(fmt.Sprint(history), "left as changed by another client 1") {
			t.Errorf("the history says %v", history)
		}
		names, _ := leftBehind(t, r.Data(r.Must(engines.Read, d, nil)))
		same(t, "names left", names, []string{"VAULT_KV_00000001_A_K"})
	})
}
