package secretsync

import (
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/storage"
)

// TestWhatAnotherHoldsIsNotDeleted: a name that was left, with a write whose response was lost, and is another association's by now,
// stays when the first association ends. Where there are no ownership tags, only its claim tells.
func TestWhatAnotherHoldsIsNotDeleted(t *testing.T) {
	inSim(t, func(s *sim) {
		kv, site := s.mounts[0], s.sites.Site(syncsim.Plain, "p")
		kv.Put("a", "k", "1")
		kv.Put("b", "k", "2")
		named := func(deletion string) func(*state.Association) {
			return func(a *state.Association) { a.Template, a.Deletion = "same", deletion }
		}
		s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			if c.Op == "write" {
				return syncsim.Fault{Kind: syncsim.DropAfter}
			}
			return syncsim.Fault{}
		})
		a := s.tie(2, "a", named(state.RetainOnRemoval))
		kv.Delete("a")
		s.pass(time.Second)
		s.sites.SetFault(nil)
		if it := s.link(a, "a").Items[0]; !it.Retained || it.Intent == nil {
			t.Fatalf("%+v is not left with an open write", it)
		}
		b := s.tie(2, "b", named(state.DeleteOnRemoval))
		s.update(func(tx *storage.Txn) error {
			l := s.link(b, "b")
			l.Adopt = []string{"SAME"}
			return engines.PutRecord(tx, state.LinkKey(b.NS, b.Destination, b.ID, "b"), l)
		})
		s.svc.Queue.Push(b.LinkID("b"), time.Time{}, true, nil)
		s.pass(time.Second)
		s.status(b, "b", state.Synced)
		kv.Undelete("a")
		s.pass(time.Second)
		s.status(a, "a", state.Conflict)
		a = s.tie(2, "a", named(state.DeleteOnRemoval))
		s.untie(a)
		s.pass(10 * time.Second)
		if len(s.links(a)) > 0 {
			t.Errorf("the association does not end: %+v", s.link(a, "a"))
		}
		if got, _ := site.Get("SAME"); got != `{"k":"2"}` {
			t.Errorf("what another association holds is %q by now", got)
		}
		s.checkClaims()
	})
}

// TestWhatIsLeftOfManySecretsTakesNoRoom: secrets below a prefix come and go. Where ownership tags tell whose a name is, no sync state of those that
// are gone is kept, and one that comes back goes on with its name.
func TestWhatIsLeftOfManySecretsTakesNoRoom(t *testing.T) {
	for dest, want := range map[int]int{0: 0, 2: 2} {
		inSim(t, func(s *sim) {
			all := s.tie(dest, "", func(a *state.Association) { a.Selector, a.Deletion = true, state.RetainOnRemoval })
			for _, name := range []string{"a", "b"} {
				s.mounts[0].Put(name, "k", "1")
			}
			s.pass(time.Second)
			names := s.names(all.Type)
			for _, name := range []string{"a", "b"} {
				s.mounts[0].Drop(name)
			}
			s.pass(time.Hour)
			if n := len(s.links(all)); n != want {
				t.Errorf("%s: %d ledgers are kept, want %d", all.Type, n, want)
			}
			s.there(all.Type, names...)
			s.mounts[0].Put("a", "k", "2")
			s.pass(time.Minute)
			s.status(all, "a", state.Synced)
			s.there(all.Type, names...)
			s.checkClaims()
		})
	}
}

// TestWaitingForANameCountsOnce: looking again for a name that is still another association's is no other failure, and makes no call.
func TestWaitingForANameCountsOnce(t *testing.T) {
	inSim(t, func(s *sim) {
		same := func(a *state.Association) { a.Template = "same" }
		s.mounts[0].Put("a", "k", "1")
		s.mounts[0].Put("b", "k", "2")
		a, b := s.tie(0, "a", same), s.tie(0, "b", same)
		calls := len(s.sites.Calls())
		for range 5 {
			s.svc.Queue.Push(b.LinkID("b"), time.Now(), false, nil)
			s.pass(time.Second)
		}
		if l, n := s.link(b, "b"), len(s.sites.Calls())-calls; l.Status != state.Conflict || l.Attempts != 1 || n > 0 {
			t.Errorf("%+v after %d attempts, with %d calls more", l.Outcome, l.Attempts, n)
		}
		s.untie(a)
		s.pass(10 * time.Second)
		s.status(b, "b", state.Synced)
	})
}

// TestWhatIsBegunCounts: a secret below a prefix is one of those that are synced from the moment that something is written for it.
func TestWhatIsBegunCounts(t *testing.T) {
	inSim(t, func(s *sim) {
		s.update(func(tx *storage.Txn) error {
			return engines.PutRecord(tx, state.ConfigKey, &state.Config{QueueCapacity: 1})
		})
		s.mounts[0].Put("a", "k", "1")
		s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			if c.Op == "write" {
				return syncsim.Fault{Delay: 30 * time.Second}
			}
			return syncsim.Fault{}
		})
		all := s.tie(0, "", func(a *state.Association) { a.Selector = true })
		s.mounts[0].Put("b", "k", "1")
		s.pass(time.Second)
		if l := s.link(all, "a"); l.Status != state.Pending || l.UpdatedAt.IsZero() {
			t.Errorf("what is begun is %q since %v", l.Status, l.UpdatedAt)
		}
		s.svc.RoleChanged() // everything is looked through
		s.pass(time.Second)
		if n := s.svc.Numbers()["sync_running"]; n != 1 {
			t.Errorf("%v are synced, and there is room for 1", n)
		}
		s.pass(time.Minute)
		if n := len(s.links(all)); n != 1 {
			t.Errorf("%d are synced, and there is room for 1", n)
		}
	})
}

// TestADestinationOfALaterVersion: what is of a type that this version does not know is left alone, and stops nothing else.
func TestADestinationOfALaterVersion(t *testing.T) {
	inSim(t, func(s *sim) {
		same := func(a *state.Association) { a.Template = "same" }
		s.mounts[0].Put("a", "k", "1")
		s.mounts[0].Put("b", "k", "1")
		s.tie(0, "a", same)
		later := s.tie(1, "b", same)
		s.status(later, "b", state.Conflict)
		s.stop()
		s.update(func(tx *storage.Txn) error {
			d, a := *s.dests[1], *later
			tx.Delete(d.Key())
			d.Type, a.Type = "test-later", "test-later"
			if err := engines.PutRecord(tx, d.Key(), &d); err != nil {
				return err
			}
			return engines.PutRecord(tx, a.Key(), &a)
		})
		s.start()
		s.pass(time.Second)
		s.mounts[0].Put("c", "k", "1")
		c := s.tie(0, "c", nil)
		s.mounts[0].Put("b", "k", "2")
		s.pass(time.Hour)
		s.mounts[0].Put("c", "k", "2")
		s.pass(time.Second)
		s.status(c, "c", state.Synced)
		log := s.logs.String()
		if n := strings.Count(log, "level=WARN"); n == 0 || n > 10 {
			t.Errorf("the log has %d warnings of an hour: %s", n, log[:min(len(log), 2000)])
		}
	})
}

// TestAnOlderLedgerIsHeldAgainstWhatIsThereWhenResumed: what is paused when a snapshot is restored is looked at when it goes on.
func TestAnOlderLedgerIsHeldAgainstWhatIsThereWhenResumed(t *testing.T) {
	for _, what := range []string{"destination", "association", "everything"} {
		t.Run(what, func(t *testing.T) {
			inSim(t, func(s *sim) {
				s.mounts[0].Put("a", "k", "1")
				a := s.tie(0, "a", nil)
				before, err := s.w.Store.Scan(s.ctx(), "", "", 0)
				s.must(err)
				s.mounts[0].Put("a", "k", "2")
				s.pass(time.Second)
				var older storage.Batch
				for _, e := range before {
					older.Puts = append(older.Puts, storage.Put{Key: e.Key, Value: e.Value})
				}
				pause := func(on bool) {
					s.update(func(tx *storage.Txn) error {
						switch what {
						case "destination":
							d := *s.dests[0]
							d.Paused = on
							return engines.PutRecord(tx, d.Key(), &d)
						case "association":
							a := *a
							a.Paused, a.UpdatedAt = on, time.Now().UTC()
							return engines.PutRecord(tx, a.Key(), &a)
						}
						return engines.PutRecord(tx, state.ConfigKey, &state.Config{Disabled: on, QueueCapacity: state.DefaultQueueCapacity})
					})
				}
				_, err = s.w.Store.Commit(s.ctx(), older)
				s.must(err)
				pause(true)
				s.svc.Changed(storage.Change{Reset: true})
				s.pass(time.Hour / 2)
				pause(false)
				s.pass(10 * time.Second)
				s.status(a, "a", state.Synced)
				if got, _ := s.sites.Site(syncsim.Marked, "m").Get("vault/kv_00000001/a"); got != `{"k":"1"}` {
					t.Errorf("what is there is %s, and the secret is as it was", got)
				}
			})
		})
	}
}
