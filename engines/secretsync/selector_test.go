package secretsync_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// TestASecretThatIsAssociatedTwice: by itself and by a prefix, it is one secret at one destination, and an entry that needs action is
// shown, whichever way it came there.
func TestASecretThatIsAssociatedTwice(t *testing.T) {
	run(t, func(r *rig) {
		r.kv.Put("two", "K", "v", "L", "w")
		d := r.dest(syncsim.Marked, "d", map[string]any{"granularity": "secret-key", "secret_name_template": "{{ .SecretKey }}"})
		site := r.sites.Site(syncsim.Marked, "one")
		check := func(what string, want map[string]string) {
			t.Helper()
			time.Sleep(time.Minute)
			same(t, what, statuses(r.entries(d)), want)
			at := map[string]string{}
			for key, status := range statuses(r.Data(r.Must(engines.Read, "sync/associations/kv/two", nil))["associated_destinations"]) {
				at["two"+key[len("d"):]] = status
			}
			same(t, what+", asked for the secret", at, want)
			list := r.Data(r.Must(engines.List, "sync/associations", nil))
			same(t, what+", totals", fmt.Sprint(list["total_associations"], " ", list["total_secrets"]), "1 1")
		}
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_prefix": "two"})
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "two", "include": []string{"K"}})
		check("one key by itself", map[string]string{"two/K": "SYNCED", "two/L": "SYNCED"})

		site.Put("M", "theirs")
		r.kv.Put("two", "K", "v", "M", "w")
		check("a key that is another client's", map[string]string{"two/K": "SYNCED", "two/M": "CONFLICT"})
		same(t, "attention", r.svc.Numbers()["sync_attention"], 1.0)

		site.Delete("M")
		r.post(d+"/associations/remove", map[string]any{"mount": "kv", "name": "two"})
		time.Sleep(2 * time.Hour)
		check("by the prefix alone", map[string]string{"two/K": "SYNCED", "two/M": "SYNCED"})
		same(t, "attention", r.svc.Numbers()["sync_attention"], 0.0)
	})
}
