package secretsync_test

import (
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/storage"
)

// TestADestinationIsNotDeletedUnderAnAssociation: one that is made in the very moment of the deletion counts.
func TestADestinationIsNotDeletedUnderAnAssociation(t *testing.T) {
	run(t, func(r *rig) {
		path := r.dest(syncsim.Marked, "d", nil)
		meanwhile := func() {
			r.Must(engines.Update, path+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		}
		r.w.OnCommit(func(b storage.Batch) error {
			if len(b.Deletes) > 0 && meanwhile != nil {
				do := meanwhile
				meanwhile = nil
				do()
			}
			return nil
		})
		if _, err := r.Do(engines.Delete, path, nil); err == nil {
			t.Error("a destination with an association was deleted")
		}
		same(t, "the association", statuses(r.entries(path)), map[string]string{"a": "SYNCED"})

		// Likewise, it does not become another destination.
		other := r.dest(syncsim.Marked, "e", nil)
		meanwhile = func() {
			r.Must(engines.Update, other+"/associations/set", map[string]any{"mount": "kv", "secret_name": "folder/b"})
		}
		r.w.OnCommit(func(b storage.Batch) error {
			if meanwhile != nil {
				do := meanwhile
				meanwhile = nil
				do()
			}
			return nil
		})
		if _, err := r.Do(engines.Update, other, map[string]any{"site": "two"}); err == nil {
			t.Error("a destination with an association became another place")
		}
	})
}

// TestAPurgeSaysWhyItWaits: the response of a purge says why it waits.
func TestAPurgeSaysWhyItWaits(t *testing.T) {
	run(t, func(r *rig) {
		path := r.dest(syncsim.Marked, "d", nil)
		r.post(path+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		r.post("sync/config", map[string]any{"disabled": true})
		r.Must(engines.Delete, path, map[string]any{"purge": true})
		time.Sleep(time.Minute)
		if got := r.Data(r.Must(engines.Read, path, nil)); got["purge_error"] == nil {
			t.Errorf("nothing says why: %v", got)
		}
		r.post("sync/config", map[string]any{"disabled": false})
		time.Sleep(time.Minute)
		if _, err := r.Do(engines.Read, path, nil); err == nil {
			t.Error("the purge did not end")
		}
	})
}

// TestCredentialsCanBeRepairedWhilePurging: without them a purge may never end.
func TestCredentialsCanBeRepairedWhilePurging(t *testing.T) {
	run(t, func(r *rig) {
		path := r.dest(syncsim.Marked, "d", nil)
		r.post(path+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		r.sites.SetFault(func(syncsim.Call) syncsim.Fault { return syncsim.Fault{Kind: syncsim.Reject} })
		r.Must(engines.Delete, path, map[string]any{"purge": true})
		time.Sleep(2 * time.Second)
		if got := r.Data(r.Must(engines.Read, path, nil)); got["purge_error"] == nil {
			t.Errorf("nothing says why: %v", got)
		}
		if text := r.Fails(engines.KindInvalid, engines.Update, path, map[string]any{"site": "one", "token": "new"}); !strings.Contains(text, "PATCH") {
			t.Errorf("%q does not say how to change it", text)
		}
		r.sites.SetFault(nil)
		r.Must(engines.Patch, path, map[string]any{"token": "new"})
		time.Sleep(10 * time.Second)
		if _, err := r.Do(engines.Read, path, nil); err == nil {
			t.Error("the purge did not end")
		}
	})
}
