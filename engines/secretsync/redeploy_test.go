package secretsync_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
)

// hooks are the redeployments of destinations of the type test-hooked. Safe for concurrent use.
type hooks struct {
	mu   sync.Mutex
	runs []time.Time
	fail error
	held func(context.Context) // is called while one runs
}

func (h *hooks) run(ctx context.Context) error {
	h.mu.Lock()
	h.runs = append(h.runs, time.Now())
	fail, held := h.fail, h.held
	h.mu.Unlock()
	if held != nil {
		held(ctx)
	}
	return fail
}

// set says how redeployments go from now on.
func (h *hooks) set(fail error, held func(context.Context)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail, h.held = fail, held
}

// since returns how many there were, and forgets them.
func (h *hooks) since() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.runs)
	h.runs = nil
	return n
}

// hookedConfig is a place for tests with programs that are redeployed.
type hookedConfig struct {
	Site  string `json:"site" max:"64" help:"Which place."`
	Label string `json:"label" max:"64" help:"Name of the destination."`
	Hook  bool   `json:"hook" help:"Redeploy."`
}

func (*hookedConfig) Check() []string         { return nil }
func (c *hookedConfig) Location() string      { return c.Site }
func (c *hookedConfig) Shown() map[string]any { return map[string]any{"hook": c.Hook} }
func (c *hookedConfig) Redeploys() string {
	if c.Hook {
		return "test hook"
	}
	return ""
}

type hookedDest struct {
	destination.Destination
	hooks *hooks
}

func (d *hookedDest) Redeploy(ctx context.Context) error { return d.hooks.run(ctx) }

const hookedPath = "sync/destinations/test-hooked/d"

// runHooked runs a test with a destination that is redeployed, and to which secrets a and folder/b are synced as a and folder_b.
func runHooked(t *testing.T, test func(r *rig, h *hooks, restart func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := new(hooks)
		sites := syncsim.NewSites()
		kind := sites.Types()[0]
		inner := kind
		kind.Name, kind.New = "test-hooked", func() destination.Config { return new(hookedConfig) }
		kind.Open = func(c destination.Config, env destination.Env) (destination.Destination, error) {
			at := inner.New().(*syncsim.Config)
			at.Site, at.Label = c.Location(), "d"
			d, err := inner.Open(at, env)
			return &hookedDest{d, h}, err
		}
		r := rigOf(t, sites, secretsync.Options{Types: []destination.Type{kind}})
		stop := r.start()
		synctest.Wait()
		r.kv.Put("a", "k", "v")
		r.kv.Put("folder/b", "k", "w")
		r.Must(engines.Update, hookedPath, map[string]any{"site": "one", "hook": true})
		test(r, h, func() { stop(); stop = r.start(); synctest.Wait() })
		stop()
	})
}

func (r *rig) hooked() map[string]any {
	r.t.Helper()
	synctest.Wait()
	return r.Data(r.Must(engines.Read, hookedPath, nil))
}

// A burst of changes is followed by one redeployment, half a minute after the first, and changes that come later by another one.
func TestRedeploysAfterChanges(t *testing.T) {
	runHooked(t, func(r *rig, h *hooks, _ func()) {
		time.Sleep(time.Hour)
		if n := h.since(); n != 0 || r.hooked()["redeploy_pending"] != false {
			t.Errorf("%d redeployments before any change: %v", n, r.hooked())
		}
		began := time.Now()
		r.post(hookedPath+"/associations/set", map[string]any{"mount": "kv", "secret_prefix": "*"})
		for i := range 10 {
			r.kv.Put("a", "k", fmt.Sprint(i))
			time.Sleep(time.Second)
		}
		if n := h.since(); n != 0 || r.hooked()["redeploy_pending"] != true {
			t.Errorf("%d redeployments in the first seconds: %v", n, r.hooked())
		}
		time.Sleep(time.Hour)
		if n := h.since(); n != 1 {
			t.Errorf("%d redeployments after a burst, want 1", n)
		}
		read := r.hooked()
		at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(read["redeployed_at"]))
		if after := at.Sub(began); err != nil || read["redeploy_pending"] != false || after < workqueue.RedeployInterval || after > workqueue.RedeployInterval+time.Second {
			t.Errorf("it was redeployed %v after the first change: %v", after, read)
		}
		// Deletions count; reading, and what is right already, do not.
		r.kv.Delete("a")
		time.Sleep(time.Minute)
		if n := h.since(); n != 1 {
			t.Errorf("%d redeployments after a deletion, want 1", n)
		}
		r.post(hookedPath+"/associations/retry", map[string]any{"mount": "kv", "secret_name": "folder/b"})
		r.post(hookedPath+"/drift", nil)
		r.kv.Put("folder/b", "k", "w") // another version, the same value
		time.Sleep(time.Hour)
		if n := h.since(); n != 0 {
			t.Errorf("%d redeployments without a change", n)
		}
		// Each is audited before, on behalf of who associated the secret.
		var told []string
		for _, e := range r.w.Audited() {
			if strings.HasSuffix(e.Path, "/redeploy") {
				told = append(told, fmt.Sprint(e.Path, e.Data, e.Who.DisplayName))
			}
		}
		same(t, "audited", told, []string{"sys/" + hookedPath + "/redeploymap[redeploy:test hook]caller", "sys/" + hookedPath + "/redeploymap[redeploy:test hook]caller"})
		if n := r.svc.Numbers(); n["sync_redeploys_total"] != 2 || n["sync_redeploy_failures_total"] != 0 {
			t.Errorf("%v redeployments, %v failures", n["sync_redeploys_total"], n["sync_redeploy_failures_total"])
		}
	})
}

// A change that comes while one runs is followed by another one, half a minute after the first at the earliest.
func TestRedeploysAgainAfterAChangeMeanwhile(t *testing.T) {
	runHooked(t, func(r *rig, h *hooks, _ func()) {
		r.post(hookedPath+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		h.set(nil, func(context.Context) {
			h.set(nil, nil)
			r.kv.Put("a", "k", "newer")
			time.Sleep(5 * time.Second)
		})
		time.Sleep(31 * time.Second)
		if n := h.since(); n != 1 {
			t.Fatalf("%d redeployments, want 1", n)
		}
		time.Sleep(25 * time.Second)
		if n := h.since(); n != 0 {
			t.Errorf("%d redeployments in less than half a minute", n)
		}
		time.Sleep(time.Hour)
		if n := h.since(); n != 1 || r.hooked()["redeploy_pending"] != false {
			t.Errorf("%d redeployments after a change while one ran, want 1", n)
		}
	})
}

// A failed one is tried again with backoff, and at once after the destination was changed. Reads say why.
func TestRedeployFailures(t *testing.T) {
	runHooked(t, func(r *rig, h *hooks, _ func()) {
		h.set(&destination.Error{Class: destination.External, Code: destination.Unavailable, Text: "the hook has trouble"}, nil)
		r.post(hookedPath+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		time.Sleep(time.Hour)
		if n := h.since(); n < 5 || n > 40 {
			t.Errorf("%d attempts in an hour", n)
		}
		read := r.hooked()
		if read["redeploy_error"] != "the hook has trouble" || read["redeploy_pending"] != true || read["redeploy_retry_at"] == nil || read["redeployed_at"] != nil {
			t.Errorf("%v", read)
		}
		same(t, "the secret", statuses(r.entries(hookedPath)), map[string]string{"a": "SYNCED"})
		h.set(&destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: "the hook is gone"}, nil)
		time.Sleep(12 * time.Hour)
		h.set(nil, nil)
		h.since()
		r.Must(engines.Patch, hookedPath, map[string]any{"label": "mended"})
		time.Sleep(time.Second)
		if read := r.hooked(); h.since() != 1 || read["redeploy_error"] != nil || read["redeploy_pending"] != false {
			t.Errorf("after the destination was changed: %v", read)
		}
		if n := r.svc.Numbers(); n["sync_redeploy_failures_total"] < 6 {
			t.Errorf("%v failures", n["sync_redeploy_failures_total"])
		}
	})
}

// TestFailedRedeploymentsFireAnAlert: the alert that docs/sync.md has for them fires while they fail, and in no other time.
func TestFailedRedeploymentsFireAnAlert(t *testing.T) {
	runHooked(t, func(r *rig, h *hooks, _ func()) {
		alerts := documentedAlerts(t)
		r.post(hookedPath+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		fired, _ := r.firing(alerts, time.Hour)
		same(t, "fire while redeployments succeed", fired, []string(nil))
		h.set(&destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: "the hook is gone"}, nil)
		r.kv.Put("a", "k", "2")
		fired, _ = r.firing(alerts, time.Minute)
		same(t, "fire while they fail", fired, []string{"sync_redeploy_failures_total"})
		h.set(nil, nil)
		_, last := r.firing(alerts, 2*time.Hour)
		same(t, "fire when it is over", last, []string(nil))
	})
}

// What cannot be audited is not done. What is paused is done when it goes on.
func TestRedeploysAreAudited(t *testing.T) {
	runHooked(t, func(r *rig, h *hooks, _ func()) {
		r.post(hookedPath+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		r.w.FailAudit(errors.New("the disk is full"))
		time.Sleep(time.Minute)
		if n := h.since(); n != 0 {
			t.Errorf("%d redeployments without an audit record", n)
		}
		r.post(hookedPath+"/pause", nil)
		r.w.FailAudit(nil)
		time.Sleep(time.Hour)
		if n := h.since(); n != 0 {
			t.Errorf("%d redeployments of a paused destination", n)
		}
		r.post(hookedPath+"/resume", nil)
		time.Sleep(time.Hour)
		if n := h.since(); n != 1 {
			t.Errorf("%d redeployments after it was resumed, want 1", n)
		}
	})
}

// A node that becomes active redeploys what the last one had not, or of which it did not store that it was done.
func TestRedeploysAfterARestart(t *testing.T) {
	runHooked(t, func(r *rig, h *hooks, restart func()) {
		r.post(hookedPath+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		time.Sleep(5 * time.Second)
		restart()
		h.set(nil, func(ctx context.Context) { <-ctx.Done() })
		time.Sleep(31 * time.Second)
		if n := h.since(); n != 1 {
			t.Fatalf("%d redeployments after a restart, want 1", n)
		}
		h.set(nil, nil)
		restart()
		time.Sleep(time.Hour)
		if n := h.since(); n != 1 || r.hooked()["redeploy_pending"] != false {
			t.Errorf("%d redeployments after a restart while one ran, want 1", n)
		}
		restart()
		time.Sleep(time.Hour)
		if n := h.since(); n != 0 {
			t.Errorf("%d redeployments after a restart, when all was done", n)
		}
	})
}
