package secretsync

import (
	"slices"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/storage"
)

// overChanges returns the names of the audit log's field over_changes.
func (s *sim) overChanges() (all []string) {
	for _, e := range s.w.Audited() {
		names, _ := e.Data["over_changes"].([]string)
		all = append(all, names...)
	}
	return all
}

// lastDone returns what the last attempt of a secret has done.
func (s *sim) lastDone(a *state.Association, secret string) string {
	h := s.link(a, secret).History
	return h[len(h)-1].Done
}

// TestAChangeOfAnotherClientIsOverwrittenWithARecord, or not at all, as the drift policy says.
func TestAChangeOfAnotherClientIsOverwrittenWithARecord(t *testing.T) {
	const name = "vault/kv_00000001/a"
	for _, policy := range []string{state.DriftReport, state.DriftRepair, state.DriftIgnore, state.DriftConflict} {
		t.Run(policy, func(t *testing.T) {
			inSim(t, func(s *sim) {
				kv, site := s.mounts[0], s.sites.Site(syncsim.Marked, "m")
				kv.Put("a", "k", "1")
				a := s.tie(0, "a", func(a *state.Association) { a.Drift = policy })
				kv.Put("a", "k", "2")
				s.pass(time.Minute)
				if n := s.svc.Numbers()["sync_overwritten_changes_total"]; n != 0 || len(s.overChanges()) != 0 {
					t.Errorf("our own write counts as overwritten: %v, %v", n, s.overChanges())
				}
				site.Put(name, "hotfix")
				s.pass(time.Minute)
				kv.Put("a", "k", "3")
				s.pass(time.Second)
				if policy == state.DriftConflict {
					s.status(a, "a", state.Conflict)
					if got, _ := site.Get(name); got != "hotfix" {
						t.Errorf("%q is there, want the other client's", got)
					}
					if cause := s.link(a, "a").Cause; cause != "was changed by another client since it was last written: adopt it to overwrite the change, or set another drift_policy" {
						t.Errorf("the cause is %q", cause)
					}
					a.Drift, a.UpdatedAt = state.DriftReport, time.Now().UTC()
					s.put(s.ctx(), s.dests[0], a, nil)
					s.pass(time.Minute)
				}
				s.status(a, "a", state.Synced)
				if got, _ := site.Get(name); got != `{"k":"3"}` {
					t.Errorf("%q is there", got)
				}
				if done := s.lastDone(a, "a"); done != "updated 1, over a change by another client" {
					t.Errorf("the history says %q", done)
				}
				if n := s.svc.Numbers()["sync_overwritten_changes_total"]; n != 1 || !slices.Equal(s.overChanges(), []string{name}) {
					t.Errorf("%v are counted, the audit log has %q", n, s.overChanges())
				}
			})
		})
	}
}

// TestAConflictWithAChangeIsAdopted, and what is removed leaves it where it is.
func TestAConflictWithAChangeIsAdopted(t *testing.T) {
	const name = "vault/kv_00000001/a"
	inSim(t, func(s *sim) {
		kv, site := s.mounts[0], s.sites.Site(syncsim.Marked, "m")
		kv.Put("a", "k", "1")
		a := s.tie(0, "a", func(a *state.Association) { a.Drift = state.DriftConflict })
		site.Put(name, "hotfix")
		kv.Put("a", "k", "2")
		s.pass(time.Second)
		s.status(a, "a", state.Conflict)
		l := s.link(a, "a")
		l.Adopt = []string{name}
		s.update(func(tx *storage.Txn) error {
			return engines.PutRecord(tx, state.LinkKey(a.NS, a.Destination, a.ID, "a"), l)
		})
		s.svc.SyncAndWait(s.ctx(), a.LinkID("a"))
		s.status(a, "a", state.Synced)
		if got, _ := site.Get(name); got != `{"k":"2"}` {
			t.Errorf("%q is there", got)
		}
		site.Put(name, "hotfix again")
		kv.Delete("a")
		s.pass(time.Second)
		s.status(a, "a", state.Unsynced)
		kv.Undelete("a")
		s.pass(time.Second)
		s.status(a, "a", state.Conflict)
		s.untie(a)
		if got, _ := site.Get(name); got != "hotfix again" || len(s.associations()) != 0 {
			t.Errorf("%q is left, with %d associations", got, len(s.associations()))
		}
	})
}

// TestOurOwnWriteIsNoChangeOfAnotherClient: neither one whose response was lost, nor one that a read does not show yet. Overwriting is
// recorded once, however often it is tried.
func TestOurOwnWriteIsNoChangeOfAnotherClient(t *testing.T) {
	const name = "vault/kv_00000001/a"
	inSim(t, func(s *sim) {
		kv, site := s.mounts[0], s.sites.Site(syncsim.Marked, "m")
		fail := func(op string, kind syncsim.Kind, age time.Duration) {
			s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
				if c.Op != op {
					return syncsim.Fault{}
				}
				return syncsim.Fault{Kind: kind, Age: age}
			})
		}
		kv.Put("a", "k", "1")
		a := s.tie(0, "a", func(a *state.Association) { a.Drift = state.DriftConflict })
		fail("write", syncsim.DropAfter, 0)
		kv.Put("a", "k", "2")
		s.pass(time.Second)
		fail("write", syncsim.DropBefore, 0)
		kv.Put("a", "k", "3")
		s.pass(time.Second)
		s.sites.SetFault(nil)
		kv.Put("a", "k", "4")
		s.pass(time.Minute)
		s.status(a, "a", state.Synced)
		fail("read", syncsim.Stale, 15*time.Second)
		kv.Put("a", "k", "5")
		s.pass(time.Second)
		kv.Put("a", "k", "6")
		s.pass(time.Second)
		s.sites.SetFault(nil)
		if l := s.link(a, "a"); l.Status == state.Conflict {
			t.Errorf("a stale read is %+v", l.Outcome)
		}
		s.pass(time.Minute)
		s.status(a, "a", state.Synced)
		if names := s.overChanges(); len(names) > 0 {
			t.Errorf("%q are recorded, and no other client has changed anything", names)
		}

		a.Drift, a.UpdatedAt = state.DriftReport, time.Now().UTC()
		s.put(s.ctx(), s.dests[0], a, nil)
		for _, kind := range []syncsim.Kind{syncsim.Throttle, syncsim.DropAfter, syncsim.DropBefore} {
			n := s.svc.Numbers()["sync_overwritten_changes_total"]
			site.Put(name, "hotfix")
			fail("write", kind, 0)
			kv.Put("a", "k", s.value())
			s.pass(10 * time.Second)
			s.sites.SetFault(nil)
			s.pass(10 * time.Minute)
			s.status(a, "a", state.Synced)
			if got := s.svc.Numbers()["sync_overwritten_changes_total"]; got != n+1 {
				t.Errorf("after fault %d, %v changes are counted, want 1", kind, got-n)
			}
			if done := s.lastDone(a, "a"); done != "updated 1, over a change by another client" {
				t.Errorf("after fault %d, the history says %q", kind, done)
			}
		}
	})
}
