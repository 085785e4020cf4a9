package secretsync

import (
	"fmt"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/reconcile"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/storage"
)

func TestADeletionThatWasInterruptedIsLookedAtAgain(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		a := s.tie(0, "a", nil)
		crash := s.crash
		s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			if c.Op == "delete" {
				return syncsim.Fault{After: crash}
			}
			return syncsim.Fault{}
		})
		s.mounts[0].Delete("a")
		s.pass(time.Second)
		s.there(syncsim.Marked)
		s.mounts[0].Undelete("a")
		s.restart()
		s.pass(time.Second)
		s.status(a, "a", state.Synced)
		s.there(syncsim.Marked, "vault/kv_00000001/a")
	})
}

func TestARemovalThatIsTakenBackLeavesNothingBehind(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		a := s.tie(0, "", func(a *state.Association) { a.Selector = true })
		again := *a
		s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			if c.Op != "delete" {
				return syncsim.Fault{}
			}
			return syncsim.Fault{After: func() {
				again.UpdatedAt = time.Now().UTC()
				s.put(s.ctx(), s.dests[0], &again, nil)
			}}
		})
		s.untie(a)
		s.pass(10 * time.Second)
		s.status(a, "a", state.Synced)
		s.there(syncsim.Marked, "vault/kv_00000001/a")
	})
}

func TestDriftKeepsWhatIsBeingDone(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		a := s.tie(0, "a", nil)
		seen := s.link(a, "a")
		seen.Items[0].Drift = reconcile.DriftChanged
		now := s.link(a, "a")
		now.Adopt, now.Items[0].Intent = []string{"x"}, &state.Intent{At: time.Now()}
		s.update(func(tx *storage.Txn) error {
			return engines.PutRecord(tx, state.LinkKey(a.NS, a.Destination, a.ID, "a"), now)
		})
		s.must(s.svc.RecordDrift(s.ctx(), a, seen))
		if l := s.link(a, "a"); len(l.Adopt) == 0 || l.Items[0].Intent == nil {
			t.Errorf("a scan for drift has forgotten what was asked for, or begun: %+v", l)
		}
	})
}

func TestWhatWasWrittenSinceTheListHasNotDrifted(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		a := s.tie(0, "a", nil)
		s.mounts[0].Put("b", "k", "1")
		s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			if c.Op != "list" {
				return syncsim.Fault{}
			}
			return syncsim.Fault{After: func() {
				s.mounts[0].Put("a", "k", "2")
				s.tie(0, "b", nil)
			}}
		})
		found, n, err := s.svc.ScanDrift(s.ctx(), s.dests[0], func(string) bool { return true })
		if err != nil || len(found) != 0 || n != 2 {
			t.Errorf("scanDrift = %+v, %d, %v, want nothing of 2", found, n, err)
		}
		if l := s.link(a, "a"); l.Items[0].Drift != "" {
			t.Errorf("drift of what was just written: %+v", l.Items)
		}
	})
}

func TestNoDestinationIsLeftAloneForEver(t *testing.T) {
	inSim(t, func(s *sim) {
		s.sites.SetFault(func(syncsim.Call) syncsim.Fault {
			return syncsim.Fault{Kind: syncsim.Throttle, RetryAfter: 365 * 24 * time.Hour}
		})
		s.mounts[0].Put("a", "k", "1")
		a := s.tie(0, "a", nil)
		s.sites.SetFault(nil)
		s.pass(2 * time.Hour)
		s.status(a, "a", state.Synced)
	})
}

func TestAClockThatWasAheadStopsNothing(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		s.mounts[0].Put("b", "k", "1")
		a, b := s.tie(0, "a", nil), s.tie(2, "b", nil)
		s.stop()
		year := time.Now().Add(365 * 24 * time.Hour)
		failed := s.link(a, "a")
		failed.Outcome, failed.Attempts, failed.NextRetry, failed.LastAttempt = state.Outcome{Status: state.ExternalError}, 3, year, year
		begun := s.link(b, "b")
		begun.Items[0].Intent, begun.Items[0].WrittenAt = &state.Intent{At: year}, year
		s.update(func(tx *storage.Txn) error {
			if err := engines.PutRecord(tx, state.LinkKey(a.NS, a.Destination, a.ID, "a"), failed); err != nil {
				return err
			}
			return engines.PutRecord(tx, state.LinkKey(b.NS, b.Destination, b.ID, "b"), begun)
		})
		s.sites.Site(syncsim.Plain, "p").Delete("VAULT_KV_00000001_B")
		s.start()
		s.pass(2 * time.Hour)
		s.status(a, "a", state.Synced)
		s.untie(b)
		s.pass(10 * time.Minute)
		if l := s.link(b, "b"); l.Status != "" {
			t.Errorf("what was begun by a clock that was ahead is never over: %+v with %+v", l.Outcome, l.Items)
		}
	})
}

func TestALedgerThatGetsTooLargeIsKept(t *testing.T) {
	inSim(t, func(s *sim) {
		var pairs []string
		for i := range 60 {
			pairs = append(pairs, fmt.Sprint("k", i), "v")
		}
		s.mounts[0].Put("a", pairs...)
		commits := 0
		s.w.OnCommit(func(b storage.Batch) error {
			for _, p := range b.Puts {
				if p.Key.Path() != "" && len(p.Value) > 0 {
					if _, kind, _ := state.SplitKey(p.Key); kind == "l" {
						commits++
					}
				}
			}
			if commits == 3 { // the second part
				commits++
				return storage.ErrTooLarge
			}
			return nil
		})
		a := s.tie(2, "a", func(a *state.Association) { a.Granularity = destination.SecretKey })
		s.pass(15 * time.Second)
		made := len(s.names(syncsim.Plain))
		if made == 0 {
			t.Fatal("nothing was written before it got too large")
		}
		owned := 0
		for _, it := range s.link(a, "a").Items {
			if it.Owned || it.Intent != nil {
				owned++
			}
		}
		if owned < made {
			t.Errorf("the ledger knows %d of %d names", owned, made)
		}
		s.w.OnCommit(nil)
		s.untie(a)
		s.pass(10 * time.Minute)
		s.there(syncsim.Plain)
	})
}

func TestAPausedAssociationEndsWithItsMount(t *testing.T) {
	inSim(t, func(s *sim) {
		kv := s.mounts[0]
		kv.Put("a", "k", "1")
		a := s.tie(0, "a", nil)
		s.must(s.svc.ChangeAssociations(s.ctx(), []storage.Key{a.Key()}, func(a *state.Association) bool { a.Paused = true; return true }))
		s.must(s.svc.MountGone(s.ctx(), kv.Describe().UUID))
		s.must(s.w.Unmount(s.ctx(), kv))
		s.pass(time.Second)
		s.there(syncsim.Marked)
		if all := s.associations(); len(all) != 0 {
			t.Errorf("%d associations of a mount that is gone are left", len(all))
		}
	})
}

func TestAKeyThatIsAddedTakesNoName(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "token", "1")
		s.tie(2, "a", func(a *state.Association) { a.Granularity, a.Template = destination.SecretKey, "{{ .SecretKey }}" })
		s.mounts[0].Put("a", "token", "1", "Token", "2")
		s.pass(time.Second)
		if got, _ := s.sites.Site(syncsim.Plain, "p").Get("TOKEN"); got != "1" {
			t.Errorf("the name of one key has the value of another, which was added: %q", got)
		}
	})
}

func TestASecretWithoutVersionsIsNotPendingForEver(t *testing.T) {
	inSim(t, func(s *sim) {
		key := storage.NewKey(storage.Shared, s.mounts[0].Describe().UUID, "secret/only-metadata")
		_, err := s.w.Store.Commit(s.ctx(), storage.Batch{Puts: []storage.Put{{Key: key, Value: []byte("{}")}}})
		s.must(err)
		s.mounts[0].Put("a", "k", "1")
		a := s.tie(0, "", func(a *state.Association) { a.Selector = true })
		resp, err := s.svc.RespondAssociations(s.ctx(), s.dests[0], a)
		s.must(err)
		if all := resp.Data.(map[string]any)["associated_secrets"].(map[string]any); len(all) != 1 {
			t.Errorf("%d secrets are associated, want 1: %v", len(all), all)
		}
	})
}

func TestWhatASecretHasOfItsOwnIsNoConflict(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		own := s.tie(0, "a", nil)
		all := s.tie(0, "", func(a *state.Association) { a.Selector = true })
		s.pass(3 * time.Hour)
		s.status(own, "a", state.Synced)
		if n := s.svc.Numbers(); n["sync_attention"] != 0 || n["sync_failures_total"] != 0 || n["sync_conflicts_total"] != 0 {
			t.Errorf("%v need action, %v failures, %v conflicts, want none", n["sync_attention"], n["sync_failures_total"], n["sync_conflicts_total"])
		}
		s.stop()
		s.start()
		s.pass(time.Second)
		s.untie(own) // the prefix adopts
		s.pass(10 * time.Second)
		s.status(all, "a", state.Synced)
		if l := s.link(all, "a"); len(l.Items) != 1 || !l.Items[0].Owned {
			t.Errorf("%+v", l.Items)
		}
		s.there(syncsim.Marked, "vault/kv_00000001/a")
	})
}

func TestWhatWasNotBegunIsNotNoted(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		s.mounts[0].Put("b", "k", "1")
		b := s.tie(3, "b", nil)
		once := true
		s.w.OnCommit(func(batch storage.Batch) error {
			for _, p := range batch.Puts {
				if _, kind, _ := state.SplitKey(p.Key); kind == "c" && once { // another writer is quicker
					once = false
					c := state.Claim{NS: b.NS, Destination: b.Destination, Association: b.ID, Secret: "b", Type: b.Type, Name: b.Name}
					s.update(func(tx *storage.Txn) error { return engines.PutRecord(tx, p.Key, &c) })
				}
			}
			return nil
		})
		a := s.tie(2, "a", nil)
		s.status(a, "a", state.Conflict)
		if it := s.link(a, "a").Items[0]; it.Intent != nil || it.Owned {
			t.Errorf("a write that never was is noted: %+v", it)
		}
	})
}

// TestAnOlderLedgerIsHeldAgainstWhatIsThere: after a snapshot was restored, what is there is younger than all that is known.
func TestAnOlderLedgerIsHeldAgainstWhatIsThere(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		marked, plain := s.tie(0, "a", nil), s.tie(2, "a", nil)
		before, err := s.w.Store.Scan(s.ctx(), "", "", 0)
		s.must(err)
		s.mounts[0].Put("a", "k", "2")
		s.pass(time.Second)
		var older storage.Batch
		for _, e := range before {
			older.Puts = append(older.Puts, storage.Put{Key: e.Key, Value: e.Value})
		}
		_, err = s.w.Store.Commit(s.ctx(), older)
		s.must(err)
		s.svc.Changed(storage.Change{Reset: true})
		s.pass(10 * time.Second)
		s.status(marked, "a", state.Synced)
		if got, _ := s.sites.Site(syncsim.Marked, "m").Get("vault/kv_00000001/a"); got != `{"k":"1"}` {
			t.Errorf("what is there is %s, and the secret is as it was", got)
		}
		s.status(plain, "a", state.Conflict)
	})
}
