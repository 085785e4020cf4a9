package secretsync_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// newest returns the data of a secret, "" if there is none.
func (r *rig) newest(name string) string {
	r.t.Helper()
	s, err := r.kv.LatestSecret(r.t.Context(), r.kv.Describe(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(s.Data)
}

// TestImport: what a destination has becomes secrets, without a change at the destination or to secrets that are there, and can be
// adopted afterwards.
func TestImport(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "store", map[string]any{"secret_name_template": "{{ .SecretPath }}"})
		site := r.sites.Site(syncsim.Marked, "one")
		for name, value := range map[string]string{
			"app/db": `{"user": "shop"}`, "app/token": "hush", "app/there": `{"k":"theirs"}`, "app/same": `{ "k":"v" }`, "app/denied": "x", "app/conditional": "x", "app//bad": "x", "web/one": "1",
		} {
			site.Put(name, value)
		}
		r.kv.Put("app/there", "k", "mine")
		r.kv.Put("app/same", "k", "v")
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"}) // its name is no candidate
		body := map[string]any{"mount": "kv", "names": "a,app/*"}
		do := func(plan bool) (totals map[string]any, entries map[string]map[string]any) {
			req := r.Mount.Request(engines.Update, d+"/import", map[string]any{"mount": "kv", "names": "a,app/*", "plan": plan})
			req.Caller.Access = caller{func(path string) bool { return path != "kv/data/app/denied" }}
			resp, err := r.Handle(r.t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			return r.report(r.Data(resp))
		}
		before := len(r.sites.Calls())
		totals, entries := do(true)
		same(t, "planned", totals, map[string]int{"create": 2, "skip": 6})
		for _, c := range r.sites.Calls()[before:] {
			if c.Op != "list" {
				t.Errorf("the plan has called %+v", c)
			}
		}
		if r.newest("app/db") != "" {
			t.Error("the plan has created a secret")
		}
		for name, want := range map[string]string{"a": "synced from here", "app/there": "exists already", "app/denied": "you cannot create kv/data/app/denied", "app/conditional": "conditions for creating kv/data/app/conditional", "app//bad": "not the name of a secret"} {
			if e := entries[name]; e["action"] != "skip" || !strings.Contains(fmt.Sprint(e["reason"]), want) {
				t.Errorf("%s: %v, want %q", name, e, want)
			}
		}

		r.w.FailAudit(errors.New("no space left"))
		if _, err := r.Do(engines.Update, d+"/import", body); err == nil || r.newest("app/db") != "" {
			t.Errorf("imported without an audit record: %v", err)
		}
		r.w.FailAudit(nil)
		writes := r.writes()
		totals, entries = do(false)
		same(t, "imported", totals, map[string]int{"create": 2, "same": 1, "skip": 5})
		if e := entries["app/there"]; e["action"] != "skip" || !strings.Contains(fmt.Sprint(e["reason"]), "another value") {
			t.Errorf("%v", e)
		}
		for name, want := range map[string]string{"app/db": `{"user":"shop"}`, "app/token": `{"value":"hush"}`, "app/there": `{"k":"mine"}`, "app/same": `{"k":"v"}`, "app/denied": "", "app/conditional": "", "web/one": ""} {
			if got := r.newest(name); got != want {
				t.Errorf("%s has %s, want %s", name, got, want)
			}
		}
		if got := r.writes(); got != writes {
			t.Errorf("%d writes at the destination", got-writes)
		}
		audited := r.w.Audited()
		last := audited[len(audited)-1]
		if last.Operation != engines.Create || last.Path != "kv/data/app/token" || last.Data["imported_from"] != "test-marked/store" || last.Who.DisplayName != "caller" || strings.Contains(fmt.Sprint(last), "hush") {
			t.Errorf("audited %+v", last)
		}
		totals, _ = do(false)
		same(t, "imported again", totals, map[string]int{"same": 3, "skip": 5})

		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_prefix": "app/d"})
		time.Sleep(time.Second)
		r.post(d+"/associations/adopt", map[string]any{"equal": true})
		time.Sleep(time.Second)
		if got := statuses(r.entries(d))["app/db"]; got != "SYNCED" {
			t.Errorf("what was imported and adopted is %s", got)
		}

		r.Must(engines.Update, d+"/import", map[string]any{"mount": "kv", "names": "web/*", "path_prefix": "old/place/"})
		if got := r.newest("old/place/web/one"); got != `{"value":"1"}` {
			t.Errorf("below a prefix there is %s", got)
		}
		plain := r.dest(syncsim.Plain, "repo", nil)
		r.Fails(engines.KindInvalid, engines.Update, plain+"/import", map[string]any{"mount": "kv"})
	})
}

// writes counts the writes at destinations.
func (r *rig) writes() (n int) {
	for _, c := range r.sites.Calls() {
		if c.Op == "write" || c.Op == "delete" {
			n++
		}
	}
	return n
}

// TestImportGoesOn: a page takes no longer than a request may, and an outage is reported when nothing more was done.
func TestImportGoesOn(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "store", nil)
		const n = 100
		for i := range n {
			r.sites.Site(syncsim.Marked, "one").Put(fmt.Sprintf("s%03d", i), "x")
		}
		var reads atomic.Int32 // those of drift checks count, too
		var down atomic.Bool
		r.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			if c.Op == "read" && reads.Add(1) == 50 {
				down.Store(true)
			}
			if down.Load() {
				return syncsim.Fault{Kind: syncsim.Trouble}
			}
			return syncsim.Fault{Delay: time.Second}
		})
		next, pages, created := "", 0, 0
		for {
			began := time.Now()
			resp, err := r.Do(engines.Update, d+"/import", map[string]any{"mount": "kv", "after": next})
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("a page took %v", took)
			}
			pages++
			if err != nil {
				if e, ok := errors.AsType[*engines.Error](err); !ok || e.Kind != engines.KindUpstream || !down.Swap(false) {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				continue
			}
			_, entries := r.report(r.Data(resp))
			created += len(entries)
			if next = fmt.Sprint(r.Data(resp)["next"]); next == "" {
				break
			}
		}
		if created != n || pages < 5 {
			t.Errorf("%d created in %d pages", created, pages)
		}
	})
}
