package secretsync_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// estate is a destination that has names of another client for n secrets below "team/", every third with another value, and an
// association of the prefix, for which all of them are in conflict.
func (r *rig) estate(n int) string {
	r.t.Helper()
	d := r.dest(syncsim.Marked, "store", map[string]any{"secret_name_template": "{{ .SecretPath }}"})
	for i := range n {
		name := fmt.Sprintf("team/s%04d", i)
		r.kv.Put(name, "k", "v")
		value := `{ "k" : "v" }`
		if i%3 == 0 {
			value = `{"k":"other"}`
		}
		r.sites.Site(syncsim.Marked, "one").Put(name, value)
	}
	r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_prefix": "team/"})
	time.Sleep(time.Duration(n) * time.Second)
	for name, got := range statuses(r.entries(d)) {
		if got != "CONFLICT" {
			r.t.Fatalf("%s is %s before it is adopted", name, got)
		}
	}
	return d
}

// report are the totals of a response, and its entries by external name.
func (r *rig) report(data map[string]any) (totals map[string]any, entries map[string]map[string]any) {
	r.t.Helper()
	totals, _ = data["totals"].(map[string]any)
	entries = map[string]map[string]any{}
	all, _ := data["actions"].([]any)
	for _, e := range all {
		entry := e.(map[string]any)
		entries[fmt.Sprint(entry["external_name"])] = entry
	}
	return totals, entries
}

// TestAdoptManyWhereEqual: equal values become ours without a change that readers notice, the others stay another client's.
func TestAdoptManyWhereEqual(t *testing.T) {
	run(t, func(r *rig) {
		const n = 30
		d := r.estate(n)
		if e := r.entries(d)["kv_00000001/team/s0000"].(map[string]any); !strings.Contains(fmt.Sprint(e["cause"]), "adopt it with coffer sync adopt test-marked/store kv/team/s0000, or choose another secret_name_template") {
			t.Errorf("the cause is %q", e["cause"])
		}
		writes := len(r.sites.Calls())
		totals, entries := r.report(r.post(d+"/associations/adopt", map[string]any{"mount": "kv", "secret_prefix": "team/", "equal": true, "plan": true}))
		same(t, "planned", totals, map[string]int{"adopt": 20, "skip": 10})
		if e := entries["team/s0000"]; e["action"] != "skip" || !strings.Contains(fmt.Sprint(e["reason"]), "another value") {
			t.Errorf("%v", e)
		}
		if e := entries["team/s0001"]; e["action"] != "adopt" || e["secret_name"] != "team/s0001" || e["reason"] != "has the same value already" {
			t.Errorf("%v", e)
		}
		for _, c := range r.sites.Calls()[writes:] {
			if c.Op != "read" {
				t.Errorf("the plan has called %+v", c)
			}
		}
		totals, _ = r.report(r.post(d+"/associations/adopt", map[string]any{"equal": true}))
		same(t, "queued", totals, map[string]int{"adopt": n})
		time.Sleep(time.Minute)
		got := map[string]int{}
		for _, s := range statuses(r.entries(d)) {
			got[s]++
		}
		same(t, "statuses", got, map[string]int{"SYNCED": 20, "CONFLICT": 10})
		for name, want := range map[string]string{"team/s0000": `{"k":"other"}`, "team/s0001": `{"k":"v"}`} {
			if value, _ := r.sites.Site(syncsim.Marked, "one").Get(name); value != want {
				t.Errorf("%s has %s, want %s", name, value, want)
			}
		}
		for key, e := range r.entries(d) {
			if e.(map[string]any)["adopting"] != nil {
				t.Fatalf("%s is still being adopted", key)
			}
		}
		// Later the other client writes the same value, and nothing has asked for it again.
		r.sites.Site(syncsim.Marked, "one").Put("team/s0000", `{"k":"v"}`)
		time.Sleep(3 * time.Hour)
		if got := statuses(r.entries(d))["team/s0000"]; got != "CONFLICT" {
			t.Errorf("what was not adopted then is %s", got)
		}
		// All of it.
		totals, _ = r.report(r.post(d+"/associations/adopt", map[string]any{"mount": "kv", "all": true}))
		same(t, "queued", totals, map[string]int{"adopt": 10})
		time.Sleep(time.Minute)
		for name, got := range statuses(r.entries(d)) {
			if got != "SYNCED" {
				t.Errorf("%s is %s", name, got)
			}
		}
	})
}

// TestAdoptManyTakesOnlyWhatTheCallerReads, nor names of other associations, and a scope is no larger than asked for.
func TestAdoptManyTakesOnlyWhatTheCallerReads(t *testing.T) {
	run(t, func(r *rig) {
		d := r.estate(30)
		other := r.dest(syncsim.Marked, "other", map[string]any{"secret_name_template": "a"})
		r.post(other+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "folder/b", "secret_name_template": "a"})
		may := r.Mount.Request(engines.Update, d+"/associations/adopt", map[string]any{"plan": true})
		may.Caller.Access = caller{func(path string) bool { return path != "kv/data/team/s0003" }}
		resp, err := r.Handle(r.t.Context(), may)
		if err != nil {
			t.Fatal(err)
		}
		totals, entries := r.report(r.Data(resp))
		same(t, "planned", totals, map[string]int{"adopt": 29, "skip": 1})
		if entries["team/s0003"] != nil || len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], "cannot read (1)") {
			t.Errorf("%v, warnings %q", entries["team/s0003"], resp.Warnings)
		}
		if e := entries["a"]; e["action"] != "skip" || !strings.Contains(fmt.Sprint(e["reason"]), "belongs to") {
			t.Errorf("%v", e)
		}
		totals, _ = r.report(r.post(d+"/associations/adopt", map[string]any{"mount": "kv", "secret_prefix": "team/s000"}))
		same(t, "queued", totals, map[string]int{"adopt": 10})
		time.Sleep(time.Minute)
		got := map[string]int{}
		for _, s := range statuses(r.entries(d)) {
			got[s]++
		}
		same(t, "statuses", got, map[string]int{"SYNCED": 10, "CONFLICT": 21})

		// One by one, as ever.
		one := map[string]any{"mount": "kv", "secret_name": "team/s0012", "equal": true}
		same(t, "another value", statuses(r.post(d+"/associations/adopt", one)["associated_secrets"]), map[string]string{"team/s0012": "CONFLICT"})
		delete(one, "equal")
		same(t, "adopted", statuses(r.post(d+"/associations/adopt", one)["associated_secrets"]), map[string]string{"team/s0012": "SYNCED"})
		r.Fails(engines.KindInvalid, engines.Update, d+"/associations/adopt", one)

		plain := r.dest(syncsim.Plain, "repo", nil)
		if text := r.Fails(engines.KindInvalid, engines.Update, plain+"/associations/adopt", map[string]any{"equal": true}); !strings.Contains(text, "cannot be read back") {
			t.Errorf("the refusal says %q", text)
		}
	})
}

// TestAdoptManyIsPlannedInPages: a destination that is slow does not keep a request for longer than it may take.
func TestAdoptManyIsPlannedInPages(t *testing.T) {
	run(t, func(r *rig) {
		const n = 100
		d := r.estate(n)
		taken := r.dest(syncsim.Marked, "other", map[string]any{"secret_name_template": "a"})
		r.post(taken+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "folder/b", "secret_name_template": "a"}) // is skipped once
		r.sites.SetFault(func(syncsim.Call) syncsim.Fault { return syncsim.Fault{Delay: time.Second} })
		seen, pages, next := map[string]bool{}, 0, ""
		for {
			began := time.Now()
			data := r.post(d+"/associations/adopt", map[string]any{"plan": true, "after": next})
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("a page took %v", took)
			}
			_, entries := r.report(data)
			for name := range entries {
				if seen[name] {
					t.Errorf("%s is in two pages", name)
				}
				seen[name] = true
			}
			pages++
			if next = fmt.Sprint(data["next"]); next == "" {
				break
			}
		}
		if len(seen) != n+1 || pages < 3 {
			t.Errorf("%d names in %d pages", len(seen), pages)
		}
	})
}

// TestAdoptManyIsResumed: what was requested and not done yet is done by the next active node.
func TestAdoptManyIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		stop := r.start()
		d := r.estate(60)
		r.sites.SetFault(func(syncsim.Call) syncsim.Fault { return syncsim.Fault{Delay: time.Second} })
		r.Fails(engines.KindInvalid, engines.Update, d+"/associations/adopt", map[string]any{"mount": "kv", "secret_name": ""})
		r.Fails(engines.KindInvalid, engines.Update, d+"/associations/adopt", nil)
		r.post(d+"/associations/adopt", map[string]any{"all": true})
		adopting := 0
		for _, e := range r.entries(d) {
			if e.(map[string]any)["adopting"] == true {
				adopting++
			}
		}
		if adopting < 50 {
			t.Errorf("%d are being adopted", adopting)
		}
		stop()
		r.sites.SetFault(nil)
		defer r.start()()
		time.Sleep(time.Minute)
		for name, got := range statuses(r.entries(d)) {
			if got != "SYNCED" {
				t.Errorf("%s is %s", name, got)
			}
		}
	})
}
