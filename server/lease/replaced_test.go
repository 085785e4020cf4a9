package lease_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// TestStateReplaced restores a state of some time ago, under a node that stays the active one: what was leased then has
// expired since, and is revoked and counted.
func TestStateReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		stop := r.run(r.m)
		defer stop()
		for _, ttl := range []time.Duration{5 * time.Minute, time.Hour} {
			r.issue("u1", "creds/a", ttl)
		}
		before, err := r.mem.Scan(t.Context(), "l/lease/", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.m.RevokePrefix(t.Context(), "root", "", true); err != nil {
			t.Fatal(err)
		}
		pass(20 * time.Minute)
		r.wantKeys(0)
		var b storage.Batch
		for _, e := range before {
			if e.Key != "l/lease/clock" {
				b.Puts = append(b.Puts, storage.Put{Key: e.Key, Value: e.Value})
			}
		}
		if _, err := r.mem.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		r.m.Changed(storage.Change{Reset: true})
		pass(time.Minute)
		r.wantKeys(3)
		r.wantNumber(r.m, "leases", 1)
		pass(time.Hour)
		r.wantKeys(0)
		r.wantNumber(r.m, "leases", 0)
	})
}

// TestStateReplacedOnStandby looks that a manager which does not run has no trouble with a restore.
func TestStateReplacedOnStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.issue("u1", "creds/a", time.Minute)
		m := r.manager()
		m.Changed(storage.Change{Reset: true})
		stop := r.run(m)
		defer stop()
		pass(2 * time.Minute)
		r.wantKeys(0)
		r.wantNumber(m, "leases", 0)
	})
}
