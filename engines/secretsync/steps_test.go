package secretsync

import (
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/storage"
)

// versions returns the versions that clients are told of, by the entries' names without the accessor, and holds them to a status.
func (s *sim) versions(a *state.Association, status string) map[string]any {
	s.t.Helper()
	resp, err := s.svc.RespondAssociations(s.ctx(), s.destOf(a), a)
	s.must(err)
	out := map[string]any{}
	for name, e := range resp.Data.(map[string]any)["associated_secrets"].(map[string]any) {
		e := e.(map[string]any)
		_, name, _ = strings.Cut(name, "/")
		out[name] = e["version"]
		if got := e["sync_status"]; status != "" && got != status {
			s.t.Errorf("%s is %v, want %s", name, got, status)
		}
	}
	return out
}

// TestAFailedSecretHasTheVersionThatIsThere: what was tried without success is not at the destination.
func TestAFailedSecretHasTheVersionThatIsThere(t *testing.T) {
	inSim(t, func(s *sim) {
		kv, large := s.mounts[0], strings.Repeat("x", 1001)
		kv.Put("a", "k", "1")
		kv.Put("b", "k", "1", "l", "1")
		kv.Put("new", "k", large)
		whole := s.tie(0, "a", nil)
		keys := s.tie(0, "b", func(a *state.Association) { a.Granularity = destination.SecretKey })
		never := s.tie(0, "new", nil)
		if got := s.versions(whole, state.Synced)["a"]; got != 1 {
			t.Errorf("version %v after the first sync, want 1", got)
		}
		if got := s.versions(never, state.ClientError)["new"]; got != 0 {
			t.Errorf("version %v of what was never written, want 0", got)
		}
		kv.Put("a", "k", large)
		kv.Put("b", "k", "2", "l", large)
		s.pass(time.Second)
		if got := s.versions(whole, state.ClientError)["a"]; got != 1 {
			t.Errorf("version %v after the second was rejected, want 1", got)
		}
		if got := s.versions(keys, ""); got["b/k"] != 2 || got["b/l"] != 1 {
			t.Errorf("versions %v, want 2 of the key that was written and 1 of the one that was rejected", got)
		}
		kv.Put("a", "k", "1") // a new version that changes nothing
		s.w.SetMayRead(func(engines.Principal, string, string) bool { return false })
		s.pass(time.Second)
		if got := s.versions(whole, state.ClientError)["a"]; got != 1 {
			t.Errorf("version %v, although it could not be read back, want 1", got)
		}
		s.w.SetMayRead(nil)
		s.pass(2 * time.Hour)
		if got := s.versions(whole, state.Synced)["a"]; got != 3 {
			t.Errorf("version %v, want 3", got)
		}
		kv.Put("a", "k", "1")
		s.pass(time.Second)
		s.sites.SetFault(func(syncsim.Call) syncsim.Fault { return syncsim.Fault{Kind: syncsim.Trouble} })
		kv.Put("a", "k", "2")
		s.pass(time.Second)
		if got := s.versions(whole, state.ExternalError)["a"]; got != 4 {
			t.Errorf("version %v during an outage, want the 4 that is there", got)
		}
		s.sites.SetFault(nil)
	})
}

// TestABugEndsNothingElse: a panic in a destination, or a vendor's library, is a status of the secret that met it.
func TestABugEndsNothingElse(t *testing.T) {
	inSim(t, func(s *sim) {
		kv := s.mounts[0]
		s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			if strings.HasSuffix(strings.ToLower(c.Name), "bad") || c.Op == "list" {
				return syncsim.Fault{Kind: syncsim.Panic}
			}
			return syncsim.Fault{}
		})
		kv.Put("bad", "k", s.value())
		kv.Put("good", "k", s.value())
		marked, plain, good := s.tie(0, "bad", nil), s.tie(2, "bad", nil), s.tie(0, "good", nil)
		s.status(good, "good", state.Synced)
		for _, a := range []*state.Association{marked, plain} {
			s.status(a, "bad", state.InternalError)
			if l := s.link(a, "bad"); l.Attempts == 0 || l.NextRetry.IsZero() || l.Cause == "" {
				t.Errorf("%+v is not told, or not tried again", l)
			}
		}
		s.pass(2 * state.DefaultDriftInterval)
		log := s.logs.String()
		if !strings.Contains(log, "checking for drift") || !strings.Contains(log, "syncing a secret") || !strings.Contains(log, "destinations.go") {
			t.Error("the log must tell where, with the stack")
		}
		if strings.Contains(log, "a bug: ") {
			t.Error("what was panicked with is logged")
		}
		before := len(s.sites.Calls())
		s.pass(time.Hour)
		if n := len(s.sites.Calls()) - before; n > 60 {
			t.Errorf("%d calls in an hour at a bug", n)
		}
		s.sites.SetFault(nil)
		s.pass(10 * time.Minute)
		s.status(marked, "bad", state.Synced)
		s.status(plain, "bad", state.Synced)
		s.checkLeaks()
	})
}

// TestABugThatHidesItsStatusIsMetAgain: where not even the status can be stored, it is tried again.
func TestABugThatHidesItsStatusIsMetAgain(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		bugs := 4
		s.w.OnCommit(func(b storage.Batch) error {
			if _, kind, _ := state.SplitKey(b.Puts[0].Key); kind == "l" && len(s.sites.Calls()) > 0 && bugs > 0 {
				bugs--
				panic("a bug")
			}
			return nil
		})
		a := s.tie(0, "a", nil)
		s.pass(5 * time.Minute)
		s.status(a, "a", state.Synced)
		if bugs > 0 {
			t.Error("no bug was met")
		}
	})
}

// TestWhatWasRetainedGoesOn: what was left behind is known for as long as the association lives, also where there are no ownership tags.
func TestWhatWasRetainedGoesOn(t *testing.T) {
	for _, dest := range []int{0, 2} {
		inSim(t, func(s *sim) {
			kv, kind := s.mounts[0], s.dests[dest].Type
			name := map[string]string{syncsim.Marked: "vault/kv_00000001/a", syncsim.Plain: "VAULT_KV_00000001_A"}[kind]
			value := func() string { v, _ := s.sites.Site(kind, siteOf(kind)).Get(name); return v }
			kv.Put("a", "k", "1")
			a := s.tie(dest, "a", func(a *state.Association) { a.Deletion = state.RetainOnRemoval })
			kv.Delete("a")
			s.pass(time.Second)
			s.status(a, "a", state.Unsynced)
			s.there(kind, name)
			if got := s.versions(a, state.Unsynced)["a"]; got != 1 {
				t.Errorf("version %v, want 1, whose deletion has arrived", got)
			}
			calls := s.syncCalls()
			s.pass(30 * time.Minute)
			if got := s.syncCalls(); got != calls {
				t.Errorf("%d calls for what is left as it is", got-calls)
			}
			kv.Undelete("a")
			s.pass(10 * time.Second)
			s.status(a, "a", state.Synced)
			kv.Drop("a")
			s.pass(time.Second)
			s.status(a, "a", state.Unsynced)
			kv.Put("a", "k", "2")
			s.pass(10 * time.Second)
			s.status(a, "a", state.Synced)
			if got := value(); got != `{"k":"2"}` {
				t.Errorf("%s: %s is there", kind, got)
			}
			s.checkClaims()

			// What another client has changed since is theirs, where there is nothing else to go by.
			kv.Delete("a")
			s.pass(time.Second)
			s.sites.Site(kind, siteOf(kind)).Put(name, "theirs")
			kv.Put("a", "k", "3")
			s.pass(10 * time.Second)
			if want := map[string]string{syncsim.Marked: `{"k":"3"}`, syncsim.Plain: "theirs"}[kind]; value() != want {
				t.Errorf("%s: %s is there, want %s", kind, value(), want)
			}

			// It is given up with the association, and what was left stays whatever is said later.
			kv.Delete("a")
			s.pass(time.Second)
			s.must(s.svc.ChangeAssociations(s.ctx(), []storage.Key{a.Key()}, func(a *state.Association) bool { a.Deletion = state.DeleteOnRemoval; return true }))
			s.pass(time.Second)
			s.untie(a)
			s.there(kind, name)
			if l := s.link(a, "a"); len(l.Items) > 0 {
				t.Errorf("%+v is left in the ledger", l.Items)
			}
			s.checkClaims()
		})
	}
}

// TestARetainedKeyNeedsNoAction: a deleted key whose name was retained needs no action, and syncing continues.
func TestARetainedKeyNeedsNoAction(t *testing.T) {
	inSim(t, func(s *sim) {
		kv := s.mounts[0]
		kv.Put("a", "k", "1", "l", "1")
		a := s.tie(2, "a", func(a *state.Association) {
			a.Deletion, a.Granularity, a.Template = state.RetainOnRemoval, destination.SecretKey, "{{ .SecretKey }}"
		})
		kv.Put("a", "k", "2")
		s.pass(time.Second)
		if got := s.versions(a, state.Synced); len(got) != 1 || got["a/k"] != 2 {
			t.Errorf("%v is told, want k only", got)
		}
		calls := s.calls("write")
		kv.Put("a", "k", "2")
		s.pass(time.Second)
		if got := s.calls("write"); got != calls {
			t.Errorf("%d writes of what is there", got-calls)
		}
		kv.Put("a", "k", "2", "l", "2")
		s.pass(10 * time.Second)
		if got := s.versions(a, state.Synced); len(got) != 2 || got["a/l"] != 4 {
			t.Errorf("%v is told, want both keys", got)
		}
		if got, _ := s.sites.Site(syncsim.Plain, "p").Get("L"); got != "2" {
			t.Errorf("%q is there", got)
		}
	})
}

// TestARetainedNameCanBeTakenOver by another secret: its claim was given up.
func TestARetainedNameCanBeTakenOver(t *testing.T) {
	for _, dest := range []int{0, 2} {
		inSim(t, func(s *sim) {
			kv, kind := s.mounts[0], s.dests[dest].Type
			same := func(a *state.Association) { a.Template, a.Deletion = "same", state.RetainOnRemoval }
			kv.Put("a", "k", "1")
			kv.Put("b", "k", "2")
			a := s.tie(dest, "a", same)
			kv.Delete("a")
			s.pass(time.Second)
			b := s.tie(dest, "b", same)
			s.status(b, "b", state.Conflict)
			name := s.link(b, "b").Items[0].Name
			if code := s.link(b, "b").Items[0].Code; code != "conflict" {
				t.Errorf("code %q, want one that can be adopted", code)
			}
			s.sites.Site(kind, siteOf(kind)).Allow(name)
			s.update(func(tx *storage.Txn) error {
				l := s.link(b, "b")
				l.Adopt = []string{state.Fold(s.svc.Pool.Types[kind].Rules, name)}
				return engines.PutRecord(tx, state.LinkKey(b.NS, b.Destination, b.ID, "b"), l)
			})
			s.svc.SyncAndWait(s.ctx(), b.LinkID("b"))
			s.pass(10 * time.Second)
			s.status(b, "b", state.Synced)
			kv.Undelete("a")
			s.pass(10 * time.Second)
			s.status(a, "a", state.Conflict)
			if got, _ := s.sites.Site(kind, siteOf(kind)).Get(name); got != `{"k":"2"}` {
				t.Errorf("%s is there, of the one that had given it up", got)
			}
		})
	}
}

// TestWhatIsNotShownYetIsLookedAtInTime: the name is read again when the last write is visible, and not only at the next attempt.
func TestWhatIsNotShownYetIsLookedAtInTime(t *testing.T) {
	inSim(t, func(s *sim) {
		for dest, wait := range map[int]time.Duration{0: 20 * time.Second, 2: 0} {
			s.mounts[0].Put("a", "k", "1")
			a := s.tie(dest, "a", nil)
			it := s.link(a, "a").Items[0]
			s.sites.Site(a.Type, siteOf(a.Type)).Delete(it.Name)
			s.must(s.svc.ChangeAssociations(s.ctx(), []storage.Key{a.Key()}, func(a *state.Association) bool { a.Removing = true; return true }))
			s.pass(time.Second)
			if l := s.link(a, "a"); wait > 0 && !l.NextRetry.Equal(it.WrittenAt.Add(wait)) {
				t.Errorf("%s: %+v, looked at again %v after it was written, want %v", a.Name, l.Outcome, l.NextRetry.Sub(it.WrittenAt), wait)
			}
			s.pass(wait)
			if l := s.link(a, "a"); l.Status != "" {
				t.Errorf("%s: %+v is still there", a.Name, l.Outcome)
			}
		}
	})
}

// TestAFailureCountsOnce: that an association is new is told while it is synced already.
func TestAFailureCountsOnce(t *testing.T) {
	inSim(t, func(s *sim) {
		s.sites.Site(syncsim.Marked, "m").Put("same", "theirs")
		s.mounts[0].Put("a", "k", "1")
		s.sites.SetFault(func(syncsim.Call) syncsim.Fault { return syncsim.Fault{Delay: 300 * time.Millisecond} })
		a := s.tie(0, "a", func(a *state.Association) {
			a.Template = "same"
			key := state.LinkID{NS: a.NS, Destination: a.Destination, Association: state.AssociationID(a.Destination, a.MountUUID, a.Secret, a.Selector), Secret: "a"}
			go func() {
				time.Sleep(50 * time.Millisecond)
				s.svc.Queue.Push(key, time.Now(), false, nil)
			}()
		})
		s.pass(5 * time.Second)
		s.status(a, "a", state.Conflict)
		if l := s.link(a, "a"); l.Attempts != 1 || time.Until(l.NextRetry) > time.Minute {
			t.Errorf("%d attempts, the next in %v, want 1 within a minute", l.Attempts, time.Until(l.NextRetry))
		}
		key := a.LinkID("a")
		for range 7 {
			s.svc.SyncAndWait(s.ctx(), key)
			s.pass(time.Second)
		}
		if l := s.link(a, "a"); l.Attempts != 1 || time.Until(l.NextRetry) > time.Minute {
			t.Errorf("after it was tried by hand: %d attempts, the next in %v, want 1 within a minute", l.Attempts, time.Until(l.NextRetry))
		}
		s.pass(10 * time.Minute)
		if l := s.link(a, "a"); l.Attempts < 3 {
			t.Errorf("%d attempts in ten minutes", l.Attempts)
		}
		s.sites.Site(syncsim.Marked, "m").Delete("same")
		s.mounts[0].Put("a", "k", "2") // a change is tried at once
		s.pass(2 * time.Second)
		s.status(a, "a", state.Synced)
	})
}

// TestAnAdoptionThatIsRequestedMeanwhileIsKept: the attempt that is under way does not know of it, the next one does it.
func TestAnAdoptionThatIsRequestedMeanwhileIsKept(t *testing.T) {
	inSim(t, func(s *sim) {
		kv := s.mounts[0]
		kv.Put("a", "k", "1")
		name := "vault/" + kv.Describe().Accessor + "/a"
		site := s.sites.Site(syncsim.Marked, siteOf(syncsim.Marked))
		site.Put(name, "theirs")
		a := s.tie(0, "a", nil)
		s.status(a, "a", state.Conflict)
		site.Allow(name)
		requested := false
		s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			return syncsim.Fault{After: func() {
				if c.Op != "read" || requested {
					return
				}
				requested = true
				l := s.link(a, "a")
				l.Adopt = append(l.Adopt, name)
				s.update(func(tx *storage.Txn) error {
					return engines.PutRecord(tx, state.LinkKey(a.NS, a.Destination, a.ID, "a"), l)
				})
			}}
		})
		kv.Put("a", "k", "2")
		s.pass(time.Second)
		if l := s.link(a, "a"); !requested || len(l.Adopt) != 1 || l.Status != state.Conflict {
			t.Errorf("requested %v: %+v, adopting %q", requested, l.Outcome, l.Adopt)
		}
		s.svc.Queue.Push(a.LinkID("a"), time.Time{}, true, nil)
		s.pass(time.Second)
		s.status(a, "a", state.Synced)
		if l := s.link(a, "a"); len(l.Adopt) > 0 {
			t.Errorf("still adopting %q", l.Adopt)
		}
	})
}
