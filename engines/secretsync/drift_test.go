package secretsync_test

import (
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// TestDriftThatIsHeld: while nothing is to be done, what is found is not told to be repaired. It is when that is over.
func TestDriftThatIsHeld(t *testing.T) {
	secret := map[string]any{"mount": "kv", "secret_name": "a"}
	for _, test := range []struct {
		name       string
		hold, free func(r *rig, d string)
	}{
		{
			"destination",
			func(r *rig, d string) { r.post(d+"/pause", nil) },
			func(r *rig, d string) { r.post(d+"/resume", nil) },
		}, {
			"association",
			func(r *rig, d string) { r.post(d+"/associations/pause", secret) },
			func(r *rig, d string) { r.post(d+"/associations/resume", secret) },
		}, {
			"everything",
			func(r *rig, _ string) { r.post("sync/config", map[string]any{"disabled": true}) },
			func(r *rig, _ string) { r.Must(engines.Delete, "sync/config", nil) },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			run(t, func(r *rig) {
				d := r.dest(syncsim.Marked, "d", nil)
				r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a", "drift_policy": "repair"})
				r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "folder/b"})
				site := r.sites.Site(syncsim.Marked, "one")
				drifts := func(want string) {
					t.Helper()
					time.Sleep(time.Hour / 4)
					for name := range site.Objects() {
						site.Delete(name)
					}
					found, _ := r.post(d+"/drift", nil)["drifted"].([]any)
					done := map[string]any{}
					for _, f := range found {
						f := f.(map[string]any)
						done[f["secret_name"].(string)] = f["action"]
					}
					same(t, "done", done, map[string]any{"a": want, "folder/b": "reported"})
				}
				there := func(want int) {
					t.Helper()
					time.Sleep(time.Second)
					same(t, "names at the place", len(site.Objects()), want)
				}
				test.hold(r, d)
				drifts("repaired when resumed")
				there(0)
				test.free(r, d)
				there(1)
				drifts("repaired")
				there(1)
			})
		})
	}
}

// TestFailuresThatAreHeld: what has failed and is not tried again for now says so, and keeps its status.
func TestFailuresThatAreHeld(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "d", nil)
		r.sites.SetFault(func(syncsim.Call) syncsim.Fault { return syncsim.Fault{Kind: syncsim.Reject} })
		secret := map[string]any{"mount": "kv", "secret_name": "a"}
		r.post(d+"/associations/set", secret)
		entry := func() map[string]any {
			e, _ := r.entries(d)[r.kv.Describe().Accessor+"/a"].(map[string]any)
			return e
		}
		if e := entry(); e["next_retry"] == nil || strings.Contains(e["cause"].(string), "paused") {
			t.Errorf("%v is not tried again", e)
		}
		for path, body := range map[string]map[string]any{d: {}, d + "/associations": secret} {
			r.post(path+"/pause", body)
			if e := entry(); e["sync_status"] != "CLIENT_SIDE_ERROR" || e["next_retry"] != nil || !strings.Contains(e["cause"].(string), "paused") {
				t.Errorf("%s: %v does not say that it is paused", path, e)
			}
			r.post(path+"/resume", body)
		}
	})
}

// TestDriftOfFailingDestination: who asks reads what has failed at the destination.
func TestDriftOfFailingDestination(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "d", nil)
		r.sites.SetFault(func(syncsim.Call) syncsim.Fault {
			return syncsim.Fault{Kind: syncsim.Throttle, RetryAfter: time.Minute}
		})
		if text := r.Fails(engines.KindUpstream, engines.Update, d+"/drift", nil); !strings.Contains(text, "the place says throttled") {
			t.Errorf("the error is %q", text)
		}
	})
}
