package secretsync_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// TestMountsThatAreNotThere: who comes through a cluster that does not have a mount learns nothing of its associations, and changes
// nothing about them. It is all as if there were none.
func TestMountsThatAreNotThere(t *testing.T) {
	run(t, func(r *rig) {
		hidden := r.w.Mount("root", "hidden/")
		hidden.Put("x", "k", "v")
		all := r.dest(syncsim.Marked, "all", nil)
		for _, body := range []map[string]any{
			{"mount": "kv", "secret_name": "a"}, {"mount": "hidden", "secret_name": "x", "drift_policy": "repair"}, {"mount": "hidden", "secret_prefix": "*"},
		} {
			r.post(all+"/associations/set", body)
		}
		none := r.dest(syncsim.Marked, "none", map[string]any{"site": "two"})
		r.post(none+"/associations/set", map[string]any{"mount": "hidden", "secret_name": "x"})
		site := r.sites.Site(syncsim.Marked, "one")
		same(t, "at the place", len(site.Objects()), 2)

		gone, caller := hidden.Describe(), r.Caller
		r.Caller.Mounts = func(uuid string) bool { return uuid != gone.UUID }
		for _, path := range []string{all, none} {
			r.Fails(engines.KindDenied, engines.Delete, path, nil)
			r.Fails(engines.KindDenied, engines.Delete, path, map[string]any{"purge": true})
			r.Fails(engines.KindDenied, engines.Delete, path, map[string]any{"force_delete": true})
		}
		for _, mount := range []string{"hidden", "hidden/", gone.Accessor} {
			for _, what := range []string{"secret_name", "secret_prefix"} {
				body := map[string]any{"mount": mount, what: "x"}
				for _, path := range []string{"/plan", "/associations/set", "/associations/adopt", "/associations/retry", "/associations/pause", "/associations/resume", "/associations/history"} {
					r.Fails(engines.KindInvalid, engines.Update, all+path, body)
				}
				got := r.post(all+"/associations/remove", body)
				same(t, "removed", statuses(got["associated_secrets"]), map[string]string{"x": "UNSYNCED"})
			}
			r.Fails(engines.KindInvalid, engines.Read, "sync/associations/"+mount+"/x", nil)
		}
		same(t, "entries", statuses(r.entries(all)), map[string]string{"a": "SYNCED"})
		same(t, "no entries", statuses(r.entries(none)), map[string]string{})
		list := r.Data(r.Must(engines.List, "sync/associations", nil))
		same(t, "totals", fmt.Sprint(list["total_associations"], " ", list["total_secrets"]), "1 1")
		time.Sleep(time.Hour / 2)
		for name := range site.Objects() {
			site.Delete(name) // which is drift
		}
		told := fmt.Sprint(list, r.post(all+"/plan", nil), r.post(all+"/drift", nil), r.post(none+"/drift", nil), r.post(all+"/associations/retry", nil))
		if strings.Contains(told, "hidden") || strings.Contains(told, "x") && strings.Contains(told, gone.Accessor) {
			t.Errorf("it is told: %s", told)
		}
		synctest.Wait()
		same(t, "repaired by those who do not see it", slices.Collect(maps.Keys(site.Objects())), []string{"vault/" + r.kv.Describe().Accessor + "/a"})

		r.post(all+"/associations/set", map[string]any{"mount": "kv", "secret_name": "folder/b", "secret_name_template": "vault/" + gone.Accessor + "/x"})
		told = fmt.Sprint(r.entries(all)["kv_00000001/folder/b"], r.post(all+"/plan", nil))
		if !strings.Contains(told, "a secret of another mount") || strings.Contains(told, `secret "x"`) {
			t.Errorf("it is told: %s", told)
		}

		r.Caller = caller
		same(t, "left as it was", statuses(r.entries(none)), map[string]string{"x": "SYNCED"})
		r.sites.SetFault(func(c syncsim.Call) syncsim.Fault { return syncsim.Fault{Kind: syncsim.Reject} })
		r.Must(engines.Delete, none, map[string]any{"purge": true})
		time.Sleep(time.Second)
		for hides, want := range map[bool]bool{false: true, true: false} {
			r.Caller = caller
			if hides {
				r.Caller.Mounts = func(uuid string) bool { return uuid != gone.UUID }
			}
			if _, is := r.Data(r.Must(engines.Read, none, nil))["purge_error"]; is != want {
				t.Errorf("why it is not purged is told: %v, with a mount hidden: %v", is, hides)
			}
		}
	})
}
