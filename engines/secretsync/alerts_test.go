package secretsync_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// alert is a row of the table of alerts in docs/sync.md.
type alert struct {
	metric  string
	isTime  bool // its age counts
	grows   bool // any growth fires
	above   float64
	pending time.Duration // how long it has to be so
}

var alertRow = regexp.MustCompile("(?m)^\\| `(time\\(\\) - )?(coffer_sync_[a-z_]+)` \\| (?:(grows)|above ([0-9]+)(?: for ([0-9]+) minutes)?) \\|")

func documentedAlerts(t *testing.T) (all []alert) {
	t.Helper()
	text, err := os.ReadFile("../../docs/sync.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range alertRow.FindAllStringSubmatch(string(text), -1) {
		above, _ := strconv.ParseFloat(m[4], 64)
		minutes, _ := strconv.Atoi(m[5])
		all = append(all, alert{strings.TrimPrefix(m[2], "coffer_"), m[1] != "", m[3] != "", above, time.Duration(minutes) * time.Minute})
	}
	if len(all) != 10 {
		t.Fatalf("docs/sync.md has %d alerts that can be read: %+v", len(all), all)
	}
	return all
}

// firing samples the metrics twice a minute, as Prometheus would, and returns the alerts that have fired within a time, and those that
// fire at the end of it.
func (r *rig) firing(alerts []alert, within time.Duration) (fired, last []string) {
	since := map[string]time.Time{} // by series
	all := map[string]bool{}
	before := r.svc.Numbers()
	for end := time.Now().Add(within); time.Now().Before(end); {
		time.Sleep(30 * time.Second)
		synctest.Wait()
		now := map[string]bool{}
		values := r.svc.Numbers()
		for _, a := range alerts {
			for series, v := range values {
				if name, _, _ := strings.Cut(series, "{"); name != a.metric {
					continue
				}
				switch {
				case a.isTime:
					v = float64(time.Now().Unix()) - v
				case a.grows:
					v -= before[series]
				}
				if v <= a.above {
					delete(since, series)
					continue
				}
				if since[series].IsZero() {
					since[series] = time.Now()
				}
				if time.Since(since[series]) >= a.pending {
					now[a.metric], all[a.metric] = true, true
				}
			}
		}
		before, last = values, slices.Sorted(maps.Keys(now))
	}
	return slices.Sorted(maps.Keys(all)), last
}

// of makes a fault that meets the calls of one destination, or only those of an operation.
func of(dest, op string, f syncsim.Fault) func(syncsim.Call) syncsim.Fault {
	return func(c syncsim.Call) syncsim.Fault {
		if c.Dest == dest && (op == "" || op == c.Op) {
			return f
		}
		return syncsim.Fault{}
	}
}

// TestDocumentedAlertsFire: the alerts that docs/sync.md has fire in each outage, and in no other time.
func TestDocumentedAlertsFire(t *testing.T) {
	const attention, circuit, unsynced = "sync_attention", "sync_circuit_open", "sync_unsynced_seconds"
	const failing, age, drifted = "sync_drift_check_failing", "sync_drift_check_completed_time_seconds", "sync_drifted"
	const overwritten = "sync_overwritten_changes_total"
	alerts := documentedAlerts(t)
	quiet := 5 * time.Hour // in the first; until there the others are the same
	for _, test := range []struct {
		name   string
		fault  func(syncsim.Call) syncsim.Fault
		change bool // a secret
		within time.Duration
		want   []string
	}{
		{"503 for ten minutes", of("d", "", syncsim.Fault{Kind: syncsim.Trouble}), true, 10 * time.Minute, []string{circuit}},
		{"503 for eleven minutes", of("d", "", syncsim.Fault{Kind: syncsim.Trouble}), true, 11 * time.Minute, []string{circuit, unsynced}},
		{"401", of("d", "", syncsim.Fault{Kind: syncsim.Reject}), true, time.Minute, []string{attention}},
		{"429 with Retry-After", of("d", "", syncsim.Fault{Kind: syncsim.Throttle, RetryAfter: 40 * time.Second}), true, 10 * time.Minute, []string{circuit}},
		{"a provider that hangs", of("d", "", syncsim.Fault{Delay: 24 * time.Hour}), true, 11 * time.Minute, []string{circuit, unsynced}},
		{"drift checks fail", of("d", "list", syncsim.Fault{Kind: syncsim.Reject}), false, 2 * time.Hour, []string{failing}},
		{"drift checks fail for long", of("d", "list", syncsim.Fault{Kind: syncsim.Reject}), false, 5 * time.Hour, []string{age, failing}},
		{"drift checks hang", of("d", "list", syncsim.Fault{Delay: 24 * time.Hour}), false, 5 * time.Hour, []string{age, failing}},
		{"another client changes a name", nil, false, 2 * time.Hour, []string{drifted}},
		{"a new version overwrites the change of another client", nil, true, time.Minute, []string{overwritten}},
	} {
		t.Run(test.name, func(t *testing.T) {
			run(t, func(r *rig) {
				d := r.dest(syncsim.Marked, "d", nil)
				for _, secret := range []string{"a", "folder/b"} {
					r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": secret})
				}
				r.dest(syncsim.Plain, "other", nil)
				r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
				fired, _ := r.firing(alerts, quiet)
				same(t, "fire while nothing is wrong", fired, []string(nil))
				quiet = time.Hour

				r.sites.SetFault(test.fault)
				if test.fault == nil {
					site := r.sites.Site(syncsim.Marked, "one")
					for name := range site.Objects() {
						if !test.change || strings.HasSuffix(name, "a") { // the other stays drifted
							site.Put(name, "theirs")
						}
					}
				}
				if test.change {
					r.kv.Put("a", "k", "2")
				}
				fired, _ = r.firing(alerts, test.within)
				for _, want := range test.want {
					if !slices.Contains(fired, want) {
						t.Errorf("%s does not fire, but %q", want, fired)
					}
				}
				for _, got := range fired {
					if !slices.Contains(test.want, got) && got != circuit {
						t.Errorf("%s fires, too", got)
					}
				}

				r.sites.SetFault(nil)
				if test.fault == nil {
					r.post(d+"/associations/retry", nil)
				}
				_, last := r.firing(alerts, time.Hour)
				same(t, "fire when it is over", last, []string(nil))
			})
		})
	}
}

// entriesOf are the entries of a destination, by secret.
func (r *rig) entriesOf(d string) map[string]map[string]any {
	out := map[string]map[string]any{}
	for key, e := range r.entries(d) {
		_, name, _ := strings.Cut(key, "/")
		out[name], _ = e.(map[string]any)
	}
	return out
}

// TestAnOutageSaysWhy: while a destination is not called, all of its secrets say what has failed and until when, those too that were
// never tried; the log has one line when that begins, and one when it is over.
func TestAnOutageSaysWhy(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault syncsim.Fault
		code  string
	}{
		{"Retry-After", syncsim.Fault{Kind: syncsim.Throttle, RetryAfter: 40 * time.Second}, "throttled"},
		{"503", syncsim.Fault{Kind: syncsim.Trouble}, "unavailable"},
		{"hanging", syncsim.Fault{Delay: time.Hour}, "unreachable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			run(t, func(r *rig) {
				d := r.dest(syncsim.Marked, "d", nil)
				r.sites.SetFault(of("d", "", test.fault))
				for i := range 8 {
					r.kv.Put(fmt.Sprint("s", i), "k", "v")
				}
				r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_prefix": "s"})
				health := func() map[string]any {
					h, _ := r.Data(r.Must(engines.Read, d, nil))["health"].(map[string]any)
					return h
				}
				for health()["circuit"] != "open" {
					time.Sleep(time.Second)
				}
				r.kv.Put("s-late", "k", "v")
				time.Sleep(time.Second) // the circuit is open for longer
				backing := regexp.MustCompile(`^[^;]+; backing off until \d\d:\d\d:\d\d UTC$`)
				all := r.entriesOf(d)
				if len(all) != 9 {
					t.Fatalf("%d entries", len(all))
				}
				for name, e := range all {
					if cause, _ := e["cause"].(string); !backing.MatchString(cause) || strings.Contains(cause, "several times") || e["code"] != test.code {
						t.Errorf("%s: %v, code %v", name, e["cause"], e["code"])
					}
				}
				h := health()
				if h["circuit_code"] != test.code || h["circuit_open_until"] == nil || h["circuit_cause"] == nil || h["oldest_unsynced_change"] == nil {
					t.Errorf("health: %v", h)
				}
				list, _ := r.Data(r.Must(engines.List, "sync/destinations", nil))["health"].(map[string]any)
				if of, _ := list[syncsim.Marked+"/d"].(map[string]any); of["circuit"] != "open" || of["circuit_cause"] != nil {
					t.Errorf("health in the list: %v", list)
				}
				time.Sleep(20 * time.Minute)
				r.sites.SetFault(nil)
				time.Sleep(10 * time.Minute)
				for name, e := range r.entriesOf(d) {
					if e["sync_status"] != "SYNCED" || e["cause"] != nil {
						t.Errorf("%s is %v afterwards", name, e)
					}
				}
				if h := health(); h["circuit"] != "closed" || h["circuit_cause"] != nil || h["oldest_unsynced_change"] != nil {
					t.Errorf("health afterwards: %v", h)
				}
				log := r.logs.String()
				opened := regexp.MustCompile(`level=WARN msg="calls to a destination have stopped.*destination=test-marked/d code=`+test.code).FindAllString(log, -1)
				closed := regexp.MustCompile(`level=INFO msg="a destination responds again`).FindAllString(log, -1)
				if len(opened) != 1 || len(closed) != 1 {
					t.Errorf("it has opened %d times and closed %d times:\n%s", len(opened), len(closed), log)
				}
			})
		})
	}
}

// TestACauseStaysBesideTheRunningState: what is tried again says what it failed with, until it is done.
func TestACauseStaysBesideTheRunningState(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Plain, "d", map[string]any{"granularity": "secret-path"})
		r.sites.SetFault(of("d", "", syncsim.Fault{Kind: syncsim.Reject}))
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		r.sites.SetFault(of("d", "", syncsim.Fault{Delay: 30 * time.Second}))
		r.kv.Put("a", "k", "2")
		time.Sleep(10 * time.Second)
		if e := r.entriesOf(d)["a"]; e["sync_status"] != "SYNCING" || e["code"] != "access_denied" || e["cause"] == nil {
			t.Errorf("it is being synced: %v", e)
		}
		time.Sleep(5 * time.Minute)
		if e := r.entriesOf(d)["a"]; e["sync_status"] != "SYNCED" || e["code"] != nil {
			t.Errorf("it is synced: %v", e)
		}
	})
}

// TestRetryTriesOnce: a retry by a human makes one call to a destination that backs off after failures, and none to one that has asked
// to wait. The response says which.
func TestRetryTriesOnce(t *testing.T) {
	for _, test := range []struct {
		name    string
		fault   syncsim.Fault
		calls   int
		warning string
	}{
		{"after failures", syncsim.Fault{Kind: syncsim.Trouble}, 1, "it is tried once now"},
		{"after Retry-After", syncsim.Fault{Kind: syncsim.Throttle, RetryAfter: 10 * time.Minute}, 0, "has asked to wait"},
	} {
		t.Run(test.name, func(t *testing.T) {
			run(t, func(r *rig) {
				d := r.dest(syncsim.Marked, "d", nil)
				time.Sleep(6 * time.Minute) // past the first drift check
				r.sites.SetFault(of("d", "", test.fault))
				for i := range 8 {
					r.kv.Put(fmt.Sprint("s", i), "k", "v")
				}
				r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_prefix": "s"})
				time.Sleep(4 * time.Second)
				for _, body := range []any{nil, map[string]any{"mount": "kv", "secret_name": "s1"}} {
					for r.svc.Numbers()[`sync_circuit_open{destination="test-marked/d",namespace="root"}`] != 1 {
						time.Sleep(time.Second)
					}
					before := len(r.sites.Calls())
					resp := r.Must(engines.Update, d+"/associations/retry", body)
					time.Sleep(10 * time.Millisecond)
					synctest.Wait()
					if n := len(r.sites.Calls()) - before; n != test.calls {
						t.Errorf("%v: %d calls, want %d", body, n, test.calls)
					}
					if !strings.Contains(fmt.Sprint(resp.Warnings), test.warning) {
						t.Errorf("%v: the warnings are %q", body, resp.Warnings)
					}
				}
				r.sites.SetFault(nil)
				time.Sleep(11 * time.Minute)
				if resp := r.Must(engines.Update, d+"/associations/retry", nil); len(resp.Warnings) != 0 || fmt.Sprint(r.Data(resp)["queued"]) != "0" {
					t.Errorf("when all is right: %v, %q", resp.Data, resp.Warnings)
				}
			})
		})
	}
}

// TestRetryOfDrift: a retry of a destination also syncs again what is synced and has drifted.
func TestRetryOfDrift(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "d", nil)
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		site := r.sites.Site(syncsim.Marked, "one")
		time.Sleep(time.Hour / 2)
		for name := range site.Objects() {
			site.Delete(name)
		}
		r.post(d+"/drift", nil)
		same(t, "queued", r.post(d+"/associations/retry", nil)["queued"], 1)
		time.Sleep(time.Second)
		same(t, "names there", len(site.Objects()), 1)
	})
}

// driftChecks are the times of lists of a destination, since a time.
func (r *rig) driftChecks(dest string, since time.Time) (at []time.Duration) {
	for _, c := range r.sites.Calls() {
		if c.Op == "list" && c.Dest == dest && !c.At.Before(since) {
			at = append(at, c.At.Sub(since))
		}
	}
	return at
}

// TestDriftChecks: the first one is made within minutes, the others at the interval that is configured, also after a failover, and a
// destination that hangs delays no other.
func TestDriftChecks(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "d", nil)
		slow := r.dest(syncsim.Marked, "slow", nil)
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		r.sites.SetFault(of("slow", "list", syncsim.Fault{Delay: 24 * time.Hour}))
		began := time.Now()
		time.Sleep(150 * time.Minute)
		checks := r.driftChecks("d", began)
		if len(checks) != 3 || checks[0] > 5*time.Minute || (checks[1]-checks[0]).Round(time.Minute) != time.Hour {
			t.Errorf("checked after %v", checks)
		}
		health := func(d string) map[string]any {
			h, _ := r.Data(r.Must(engines.Read, d, nil))["health"].(map[string]any)
			return h
		}
		if h := health(d); h["drift_checked_at"] == nil || h["drift_check_cause"] != nil {
			t.Errorf("%v", h)
		}
		if h := health(slow); h["drift_checked_at"] != nil || h["drift_check_cause"] == nil || h["drift_check_code"] != "unreachable" || h["drift_check_failed_at"] == nil {
			t.Errorf("of the slow one: %v", h)
		}

		r.post("sync/config", map[string]any{"drift_interval": "20m"})
		same(t, "the interval", r.Data(r.Must(engines.Read, "sync/config", nil))["drift_interval"], 1200)
		r.Fails(engines.KindInvalid, engines.Update, "sync/config", map[string]any{"drift_interval": "10s"})
		began = time.Now()
		time.Sleep(time.Hour)
		if n := len(r.driftChecks("d", began)); n < 3 || n > 4 {
			t.Errorf("checked %d times in an hour", n)
		}

		// Nodes that are active for less than the interval.
		r.post("sync/config", map[string]any{"drift_interval": "1h"})
		r.sites.SetFault(nil)
		time.Sleep(time.Hour)
		began = time.Now()
		for range 9 {
			r.stop()
			r.start()
			time.Sleep(20 * time.Minute)
		}
		if checks := r.driftChecks("d", began); len(checks) < 2 || len(checks) > 3 {
			t.Errorf("with a failover every 20 minutes checked after %v", checks)
		}
		if h := health(d); h["drift_checked_at"] == nil {
			t.Errorf("after failovers: %v", h)
		}
	})
}

// TestAFindingCountsOnce: however often drift is looked for, and by whomever.
func TestAFindingCountsOnce(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "d", nil)
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		time.Sleep(time.Hour / 2)
		site := r.sites.Site(syncsim.Marked, "one")
		for name := range site.Objects() {
			site.Delete(name)
		}
		r.post(d+"/drift", nil)
		const gauge = `sync_drifted{destination="test-marked/d",namespace="root"}`
		same(t, "counted", r.svc.Numbers()["sync_drift_found_total"], 1)
		same(t, "drifted", r.svc.Numbers()[gauge], 1)
		time.Sleep(3 * time.Hour)
		r.post(d+"/drift", nil)
		same(t, "counted after more checks", r.svc.Numbers()["sync_drift_found_total"], 1)
		r.stop()
		r.start()
		time.Sleep(time.Second)
		same(t, "drifted, after a failover", r.svc.Numbers()[gauge], 1)
		r.post(d+"/associations/retry", nil)
		time.Sleep(time.Second)
		same(t, "drifted, when it is mended", r.svc.Numbers()[gauge], 0)
	})
}

// TestPendingCountsWhatBacksOff: what has failed and waits for its next attempt is not in sync.
func TestPendingCountsWhatBacksOff(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "d", nil)
		r.sites.SetFault(of("d", "", syncsim.Fault{Kind: syncsim.Trouble}))
		for _, secret := range []string{"a", "folder/b"} {
			r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": secret})
		}
		time.Sleep(time.Hour)
		same(t, "pending", r.svc.Numbers()["sync_pending"], 2)
		same(t, "links", r.svc.Numbers()[`sync_links{destination="test-marked/d",namespace="root",status="EXTERNAL_SERVICE_ERROR"}`], 2)
		r.sites.SetFault(nil)
		time.Sleep(10 * time.Minute)
		same(t, "pending, when it is over", r.svc.Numbers()["sync_pending"], 0)
		same(t, "links, when it is over", r.svc.Numbers()[`sync_links{destination="test-marked/d",namespace="root",status="SYNCED"}`], 2)
	})
}

// TestSeriesAreBounded: metrics tell a hundred destinations apart, and sum up the others.
func TestSeriesAreBounded(t *testing.T) {
	run(t, func(r *rig) {
		for i := range 120 {
			d := r.dest(syncsim.Marked, fmt.Sprintf("d%03d", i), map[string]any{"site": fmt.Sprint("site", i)})
			r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		}
		destinations := map[string]bool{}
		synced := 0.0
		numbers := r.svc.Numbers()
		for series, v := range numbers {
			if _, labels, ok := strings.Cut(series, `destination="`); ok {
				name, _, _ := strings.Cut(labels, `"`)
				destinations[name] = true
			}
			if strings.HasPrefix(series, "sync_links") && strings.Contains(series, `status="SYNCED"`) {
				synced += v
			}
		}
		if len(destinations) != 101 || !destinations["other"] || synced != 120 {
			t.Errorf("%d destinations with %v secrets that are synced", len(destinations), synced)
		}
		same(t, "of the others", numbers[`sync_links{destination="other",namespace="",status="SYNCED"}`], 20)
	})
}

// TestHealthCountsWhatIsNotSyncedYet: a new association, a secret that is new below a prefix, and a change are PENDING from the beginning.
func TestHealthCountsWhatIsNotSyncedYet(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "d", nil)
		links := func(what string, want map[string]int) {
			t.Helper()
			h, _ := r.Data(r.Must(engines.Read, d, nil))["health"].(map[string]any)
			same(t, what, h["links"], want)
		}
		slow := func(on bool) {
			r.sites.SetFault(nil)
			if on {
				r.sites.SetFault(of("d", "", syncsim.Fault{Delay: 30 * time.Second}))
			}
		}
		slow(true)
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"}) // it responds after ten seconds
		links("a new association", map[string]int{"PENDING": 1})
		slow(false)
		time.Sleep(2 * time.Minute)
		links("synced", map[string]int{"SYNCED": 1})
		slow(true)
		r.kv.Put("a", "k", "2")
		time.Sleep(time.Second)
		links("a change", map[string]int{"PENDING": 1})
		slow(false)
		time.Sleep(2 * time.Minute)
		links("synced again", map[string]int{"SYNCED": 1})
		slow(true)
		r.kv.Put("s1", "k", "v")
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_prefix": "s"})
		time.Sleep(time.Second)
		links("a secret below a prefix", map[string]int{"PENDING": 1, "SYNCED": 1})
		slow(false)
		time.Sleep(2 * time.Minute)
		r.post(d+"/pause", nil)
		r.kv.Put("p", "k", "v")
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "p"})
		links("an association at a paused destination", map[string]int{"PENDING": 1, "SYNCED": 2})
	})
}
