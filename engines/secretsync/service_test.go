package secretsync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/reconcile"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/engines/secretsync/template"
	"github.com/coffer-project/coffer/storage"
)

// inSim runs a test in a cluster with destinations d0 and d1 (marked, one destination), and d2 and d3 (plain, one destination, d3 in a
// namespace).
func inSim(t *testing.T, test func(s *sim)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 1)
		synctest.Wait()
		test(s)
		s.stop()
	})
}

// tie associates a secret of the first mount with a destination.
func (s *sim) tie(dest int, secret string, change func(a *state.Association)) *state.Association {
	s.t.Helper()
	d := s.dests[dest]
	m := s.mounts[0].Describe()
	a := &state.Association{
		Destination: d.ID, Type: d.Type, Name: d.Name, NS: d.NS, MountUUID: m.UUID, Accessor: m.Accessor, MountPath: m.Path, Secret: secret,
		Granularity: destination.SecretPath, Deletion: state.DeleteOnRemoval, Drift: state.DriftReport, CreatedAt: time.Now(), UpdatedAt: time.Now().UTC(),
	}
	if change != nil {
		change(a)
	}
	a.ID = state.AssociationID(d.ID, a.MountUUID, a.Secret, a.Selector)
	s.put(s.ctx(), d, a, nil)
	s.pass(time.Second)
	return a
}

// put stores an association that leaves nothing to its destination's defaults.
func (s *sim) put(ctx context.Context, d *state.Destination, a *state.Association, given func(string) bool) {
	s.t.Helper()
	_, err := s.svc.PutAssociation(ctx, d, a, given)
	s.must(err)
}

func (s *sim) untie(a *state.Association) {
	s.t.Helper()
	s.must(s.svc.ChangeAssociations(s.ctx(), []storage.Key{a.Key()}, func(a *state.Association) bool { a.Removing = true; return true }))
	s.pass(time.Second)
}

func (s *sim) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// link returns a link, or one without a status.
func (s *sim) link(a *state.Association, secret string) *state.Link {
	s.t.Helper()
	var l state.Link
	_, err := engines.GetRecord(s.ctx(), s.w.Store, state.LinkKey(a.NS, a.Destination, a.ID, secret), &l)
	s.must(err)
	return &l
}

// status fails unless a link has a status.
func (s *sim) status(a *state.Association, secret, want string) {
	s.t.Helper()
	if got := s.link(a, secret); got.Status != want {
		s.t.Errorf("%s at %s: %+v with %+v, want %s", secret, a.Name, got.Outcome, got.Items, want)
	}
}

func (s *sim) names(kind string) []string {
	var names []string
	for name := range s.sites.Site(kind, siteOf(kind)).Objects() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// there fails unless a destination has exactly these names.
func (s *sim) there(kind string, want ...string) {
	s.t.Helper()
	if got := s.names(kind); !slices.Equal(got, want) {
		s.t.Errorf("%s has %q, want %q", kind, got, want)
	}
}

func (s *sim) calls(op string) int {
	n := 0
	for _, c := range s.sites.Calls() {
		if c.Op == op {
			n++
		}
	}
	return n
}

// syncCalls is the number of calls but for those of drift checks.
func (s *sim) syncCalls() int { return len(s.sites.Calls()) - s.calls("list") }

func TestASecretFollowsWithinASecond(t *testing.T) {
	inSim(t, func(s *sim) {
		kv := s.mounts[0]
		kv.Put("a", "k", "1")
		a := s.tie(0, "a", nil)
		const name = "vault/kv_00000001/a"
		s.there(syncsim.Marked, name)
		for what, do := range map[string]struct {
			do   func()
			want string
		}{
			"a new version":      {func() { kv.Put("a", "k", "2") }, `{"k":"2"}`},
			"a deletion at last": {func() { kv.Put("a", "k", "3"); kv.Delete("a") }, ""},
		} {
			do.do()
			s.pass(time.Second)
			if got, _ := s.sites.Site(syncsim.Marked, "m").Get(name); got != do.want {
				t.Errorf("%s: %q is there", what, got)
			}
			kv.Put("a", "k", "0")
			s.pass(time.Second)
			s.status(a, "a", state.Synced)
		}
		for _, do := range []func(){func() { kv.Delete("a") }, func() { kv.Destroy("a") }, func() { kv.Drop("a") }, func() { kv.DeleteAt("a", time.Now().Add(time.Minute)); s.pass(time.Minute) }} {
			kv.Put("a", "k", "1")
			s.pass(time.Second)
			s.there(syncsim.Marked, name)
			do()
			s.pass(time.Second)
			s.there(syncsim.Marked)
			s.status(a, "a", state.Unsynced)
		}
		kv.Put("a", "k", "1")
		kv.Delete("a")
		s.pass(time.Second)
		kv.Undelete("a")
		s.pass(time.Second)
		s.there(syncsim.Marked, name)
		s.untie(a)
		s.there(syncsim.Marked)
		if len(s.associations()) != 0 || len(s.links(a)) != 0 {
			t.Error("something is left of the association")
		}
	})
}

func TestBurstsCoalesceToTheNewest(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "0")
		a := s.tie(2, "a", nil)
		before := s.calls("write")
		for i := range 100 {
			s.mounts[0].Put("a", "k", fmt.Sprint(i))
			time.Sleep(time.Millisecond)
		}
		s.pass(time.Second)
		if n := s.calls("write") - before; n > 3 {
			t.Errorf("a burst of 100 versions was written %d times", n)
		}
		if got, _ := s.sites.Site(syncsim.Plain, "p").Get("VAULT_KV_00000001_A"); got != `{"k":"99"}` {
			t.Errorf("%q is there", got)
		}
		// Writing the same once more, and looking again, writes nothing where nothing can be read.
		before = s.calls("write")
		s.mounts[0].Put("a", "k", "99")
		s.pass(time.Second)
		s.svc.Queue.Push(a.LinkID("a"), time.Time{}, true, nil)
		s.pass(time.Second)
		if n := s.calls("write") - before; n != 0 {
			t.Errorf("the same value was written %d times", n)
		}
		if l := s.link(a, "a"); l.Version != 102 || l.Status != state.Synced {
			t.Errorf("version %d is %s", l.Version, l.Status)
		}
	})
}

func TestARestartNoticesWhatHappenedMeanwhile(t *testing.T) {
	inSim(t, func(s *sim) {
		kv := s.mounts[0]
		for _, name := range []string{"deleted", "undeleted", "changed", "dropped"} {
			kv.Put(name, "k", "1")
		}
		kv.Delete("undeleted")
		all := s.tie(0, "", func(a *state.Association) { a.Selector, a.Template = true, "{{ .SecretPath }}" })
		s.there(syncsim.Marked, "changed", "deleted", "dropped")
		s.stop()
		kv.Delete("deleted")
		kv.Undelete("undeleted")
		kv.Put("changed", "k", "2")
		kv.Drop("dropped")
		kv.Put("new", "k", "1")
		s.start()
		s.pass(time.Second)
		s.there(syncsim.Marked, "changed", "new", "undeleted")
		if got, _ := s.sites.Site(syncsim.Marked, "m").Get("changed"); got != `{"k":"2"}` {
			t.Errorf("%q is there", got)
		}
		if l := s.link(all, "dropped"); l.Status != "" {
			t.Errorf("the link of a secret that is gone altogether is %s", l.Status)
		}
		s.status(all, "deleted", state.Unsynced)
	})
}

func TestANameThatIsFreedGoesToWhoWaits(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		s.mounts[0].Put("b", "k", "2")
		same := func(a *state.Association) { a.Template = "same" }
		first := s.tie(0, "a", same)
		second := s.tie(1, "b", same) // another destination at the same destination
		s.status(first, "a", state.Synced)
		s.status(second, "b", state.Conflict)
		if it := s.link(second, "b").Items[0]; it.Code != state.CodeNameTaken || !strings.Contains(it.Cause, `"a"`) || !strings.Contains(it.Cause, "test-marked/d0") {
			t.Errorf("%+v", it.Outcome)
		}
		if got := s.svc.Counts.Conflicts.Load(); got != 1 {
			t.Errorf("%d conflicts were counted", got)
		}
		s.pass(10 * time.Minute)
		s.untie(first)
		s.status(second, "b", state.Synced)
		s.there(syncsim.Marked, "same")

		// The same when it is released while the waiting links are not in memory.
		third := s.tie(0, "a", same)
		s.status(third, "a", state.Conflict)
		s.stop()
		s.must(storage.DeletePrefix(s.ctx(), s.w.Store, second.Key())) // as if it had been forgotten
		s.start()
		s.pass(time.Second)
		if it := s.link(third, "a").Items[0]; it.Code == state.CodeNameTaken {
			t.Errorf("a claim without an owner exists: %+v", it.Outcome)
		}
	})
}

func TestForgettingThatIsInterruptedHeals(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		lost := s.tie(0, "a", nil)
		s.stop()
		_, err := s.w.Store.Commit(s.ctx(), storage.Batch{Deletes: []storage.Key{s.dests[0].Key()}})
		s.must(err)
		s.start()
		s.pass(time.Second)
		if len(s.associations()) != 0 || len(s.links(lost)) != 0 {
			t.Error("associations of a destination that is not there are left")
		}
		s.sites.Site(syncsim.Marked, "m").Delete("vault/kv_00000001/a")
		again := s.tie(1, "a", nil)
		s.status(again, "a", state.Synced)
		s.pass(11 * time.Minute) // past a rescan
		s.status(again, "a", state.Synced)
	})
}

func TestRetemplateKeepsTheOldUntilTheNewIsSeen(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1", "l", "2")
		byKey := func(template string) func(a *state.Association) {
			return func(a *state.Association) { a.Granularity, a.Template = destination.SecretKey, template }
		}
		a := s.tie(0, "a", byKey("old_{{ .SecretKey }}"))
		s.sites.Site(syncsim.Marked, "m").Put("new_k", "theirs")
		s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			if c.Op == "read" && c.Name == "new_l" { // the destination does not show what it was given
				return syncsim.Fault{Age: time.Minute}
			}
			return syncsim.Fault{}
		})
		a = s.tie(0, "a", byKey("new_{{ .SecretKey }}"))
		s.there(syncsim.Marked, "new_k", "new_l", "old_k", "old_l")
		s.pass(2 * time.Minute)
		s.there(syncsim.Marked, "new_k", "new_l", "old_k") // what replaces old_k is another client's
		s.status(a, "a", state.Conflict)
		// A key that goes does not wait for another one.
		s.mounts[0].Put("a", "k", "1")
		s.pass(time.Second)
		s.there(syncsim.Marked, "new_k", "old_k")
		s.sites.Site(syncsim.Marked, "m").Delete("new_k")
		s.pass(2 * time.Hour)
		s.there(syncsim.Marked, "new_k")
		s.status(a, "a", state.Synced)
		// From keys to the whole secret.
		a = s.tie(0, "a", func(a *state.Association) { a.Template = "whole" })
		s.there(syncsim.Marked, "whole")
		s.status(a, "a", state.Synced)
	})
}

func TestTagsFollow(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		s.tie(0, "a", nil)
		for _, tags := range []map[string]string{{"team": "x", "stage": "1"}, {"team": "y"}, nil} {
			d := s.dests[0]
			d.CustomTags = tags
			s.update(func(tx *storage.Txn) error { return engines.PutRecord(tx, d.Key(), d) })
			s.pass(time.Second)
			if got := s.sites.Site(syncsim.Marked, "m").Objects()["vault/kv_00000001/a"].Tags; fmt.Sprint(got) != fmt.Sprint(tagsOf(tags)) {
				t.Errorf("tags %v, want %v", got, tags)
			}
		}
	})
}

// TestAppliedFieldsFollow: a field that counts for existing secrets, such as a key, has every name written once more, and only once.
func TestAppliedFieldsFollow(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		a := s.tie(0, "a", nil)
		writes := func() (n int) {
			for _, c := range s.sites.Calls() {
				if c.Op == "write" {
					n++
				}
			}
			return n
		}
		for i, key := range []string{`"one"`, `"two"`, `""`} {
			d := s.dests[0]
			d.Config = maps.Clone(d.Config)
			d.Config["key_id"] = json.RawMessage(key)
			s.update(func(tx *storage.Txn) error { return engines.PutRecord(tx, d.Key(), d) })
			s.pass(3 * time.Hour)
			s.status(a, "a", state.Synced)
			if got := writes(); got != i+2 {
				t.Errorf("with key_id %s: %d writes, want %d", key, got, i+2)
			}
		}
	})
}

func TestARepairedConfigurationIsTriedAtOnce(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		s.sites.SetFault(func(syncsim.Call) syncsim.Fault { return syncsim.Fault{Kind: syncsim.Reject} })
		a := s.tie(0, "a", nil)
		s.pass(3 * time.Hour)
		s.status(a, "a", state.ClientError)
		if l := s.link(a, "a"); l.NextRetry.Sub(time.Now()) > time.Hour || l.Attempts < 5 || len(l.History) != 1 {
			t.Errorf("the next attempt is in %v, after %d, with %d events", time.Until(l.NextRetry), l.Attempts, len(l.History))
		}
		s.sites.SetFault(nil)
		d := s.dests[0]
		d.UpdatedAt = time.Now()
		s.update(func(tx *storage.Txn) error { return engines.PutRecord(tx, d.Key(), d) })
		s.pass(time.Second)
		s.status(a, "a", state.Synced)
		if l := s.link(a, "a"); l.Attempts != 0 || !l.NextRetry.IsZero() || l.LastSuccess.IsZero() {
			t.Errorf("%+v", l)
		}
	})
}

func TestNothingIsDoneThatIsNotInTheTrail(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		s.w.FailAudit(errors.New("no audit device"))
		a := s.tie(2, "a", nil)
		s.pass(time.Minute)
		if n := s.calls("write"); n != 0 {
			t.Errorf("%d writes without an audit log", n)
		}
		if l := s.link(a, "a"); l.IsUnfinished() {
			t.Error("a write that was never made is in doubt")
		}
		s.sites.Site(syncsim.Plain, "p").Put("VAULT_KV_00000001_A", "theirs")
		s.w.FailAudit(nil)
		s.pass(time.Minute)
		s.status(a, "a", state.Conflict)
		s.sites.Site(syncsim.Plain, "p").Delete("VAULT_KV_00000001_A")
		s.pass(2 * time.Hour)
		s.status(a, "a", state.Synced)
		audited := s.w.Audited()
		if len(audited) != 1 || fmt.Sprint(audited[0].Data["external"]) != "[create VAULT_KV_00000001_A]" || audited[0].Path != "sys/sync/destinations/test-plain/d2/associations/sync" {
			t.Errorf("the audit log is %+v", audited)
		}
	})
}

func TestOnlyTheOwnerSyncs(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		s.tie(0, "a", nil)
		s.w.SetOwner(false)
		s.mounts[0].Put("a", "k", "2") // is queued when the role changes
		s.svc.RoleChanged()
		s.pass(time.Hour)
		if got, _ := s.sites.Site(syncsim.Marked, "m").Get("vault/kv_00000001/a"); got != `{"k":"1"}` {
			t.Errorf("a secondary has written %q", got)
		}
		s.w.SetOwner(true)
		s.svc.RoleChanged()
		s.pass(time.Second)
		if got, _ := s.sites.Site(syncsim.Marked, "m").Get("vault/kv_00000001/a"); got != `{"k":"2"}` {
			t.Errorf("after its promotion %q is there", got)
		}
	})
}

func TestAnOwnerWithoutAccessChangesNothing(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		a := s.tie(0, "a", nil)
		s.w.SetMayRead(func(_ engines.Principal, ns, path string) bool { return ns != "root" || path != "kv/data/a" })
		s.mounts[0].Put("a", "k", "2")
		s.pass(time.Second)
		if l := s.link(a, "a"); l.Status != state.ClientError || l.Code != "owner_lost_access" || l.Items[0].Status != state.ClientError {
			t.Errorf("%+v", l)
		}
		if got, _ := s.sites.Site(syncsim.Marked, "m").Get("vault/kv_00000001/a"); got != `{"k":"1"}` {
			t.Errorf("%q is there", got)
		}
		s.w.SetMayRead(nil)
		s.pass(2 * time.Hour)
		s.status(a, "a", state.Synced)
	})
}

func TestRetainedNamesAreLeftWithoutACall(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		a := s.tie(0, "a", nil)
		s.sites.SetFault(func(syncsim.Call) syncsim.Fault { return syncsim.Fault{Kind: syncsim.Trouble} })
		s.must(s.svc.ChangeAssociations(s.ctx(), []storage.Key{a.Key()}, func(a *state.Association) bool { a.Removing, a.Retain = true, true; return true }))
		s.pass(time.Second)
		if len(s.associations()) != 0 {
			t.Errorf("the association is still there: %+v", s.link(a, "a"))
		}
		s.there(syncsim.Marked, "vault/kv_00000001/a")
	})
}

func TestAPausedDestinationIsPurgedAllTheSame(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		s.tie(0, "", func(a *state.Association) { a.Selector = true })
		d := s.dests[0]
		d.Paused, d.PurgeAt = true, time.Now()
		s.update(func(tx *storage.Txn) error { return engines.PutRecord(tx, d.Key(), d) })
		s.must(s.svc.Purge(s.ctx(), d))
		s.pass(10 * time.Second)
		s.there(syncsim.Marked)
		var gone state.Destination
		if _, err := state.GetDestination(s.ctx(), s.w.Store, d.Key(), &gone); err != nil || gone.ID != "" {
			t.Errorf("the destination is still there (%v)", err)
		}
	})
}

func TestMountsThatMoveOrGo(t *testing.T) {
	inSim(t, func(s *sim) {
		kv := s.mounts[0]
		kv.Put("a", "k", "1")
		s.tie(0, "a", func(a *state.Association) { a.Template = "{{ .MountPath }}/{{ .SecretPath }}" })
		s.there(syncsim.Marked, "kv/a")
		s.must(s.w.Move(s.ctx(), kv, "moved/"))
		s.pass(time.Second)
		s.there(syncsim.Marked, "moved/a")
		s.tie(1, "nothing/", func(a *state.Association) { a.Selector = true }) // has found nothing
		s.must(s.svc.MountGone(s.ctx(), kv.Describe().UUID))
		s.must(s.w.Unmount(s.ctx(), kv))
		s.pass(time.Second)
		s.there(syncsim.Marked)
		if all := s.associations(); len(all) != 0 {
			t.Errorf("%d associations of a mount that is gone are left", len(all))
		}
	})
}

func TestLimitsAreCheckedBeforeACall(t *testing.T) {
	inSim(t, func(s *sim) {
		var pairs []string
		for i := range template.MaxItems + 1 {
			pairs = append(pairs, fmt.Sprintf("k%d", i), "v")
		}
		s.mounts[0].Put("many", pairs...)
		a := s.tie(0, "many", func(a *state.Association) { a.Granularity = destination.SecretKey })
		if l := s.link(a, "many"); l.Status != state.ClientError || !strings.Contains(l.Cause, "501 keys") {
			t.Errorf("%+v", l.Outcome)
		}
		if n := len(s.sites.Calls()); n != 0 {
			t.Errorf("%d calls", n)
		}
		// A destination for 100 names has room for those, of whatever owner.
		s.mounts[0].Put("some", pairs[:140]...)
		s.mounts[0].Put("more", pairs[:80]...)
		byKey := func(a *state.Association) { a.Granularity = destination.SecretKey }
		some := s.tie(2, "some", byKey)
		s.pass(time.Minute)
		s.status(some, "some", state.Synced)
		more := s.tie(2, "more", byKey)
		s.pass(time.Minute)
		l := s.link(more, "more")
		if l.Status != state.ClientError || !strings.Contains(l.Cause, "room for 100 names") || len(s.names(syncsim.Plain)) != 100 {
			t.Errorf("%+v with %d names there", l.Outcome, len(s.names(syncsim.Plain)))
		}
		s.untie(some)
		s.pass(2 * time.Hour)
		s.status(more, "more", state.Synced)
	})
}

// TestALostWriteIsRecognisedAfterAnother: the response to the first attempt gets lost, the second one does not see what the first
// one has made, where there are no ownership tags.
func TestALostWriteIsRecognisedAfterAnother(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		writes := 0
		s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			if c.Op == "write" {
				writes++
			}
			switch {
			case c.Op == "write" && writes == 1:
				return syncsim.Fault{Kind: syncsim.DropAfter}
			case c.Op == "read" && writes == 1:
				return syncsim.Fault{Age: time.Minute}
			}
			return syncsim.Fault{}
		})
		a := s.tie(2, "a", nil)
		s.pass(time.Minute)
		s.status(a, "a", state.Synced)
		if writes != 3 {
			t.Errorf("%d writes", writes)
		}
	})
}

func TestNamesOfAnySizeAreRefusedOrKept(t *testing.T) {
	inSim(t, func(s *sim) {
		long := strings.Repeat("k", 100_000)
		s.mounts[0].Put("a", long, "1", "short", "2", strings.Repeat("\x01", 600), "3")
		a := s.tie(2, "a", func(a *state.Association) { a.Granularity = destination.SecretKey })
		got := 0
		for _, it := range s.link(a, "a").Items {
			if len(it.Name)+len(it.Key)+len(it.Cause) > 2000 {
				t.Errorf("an item of %d bytes is kept", len(it.Name)+len(it.Key)+len(it.Cause))
			}
			if it.Status == state.Synced {
				got++
			}
		}
		if got != 1 || s.link(a, "a").Status != state.ClientError {
			t.Errorf("%d names are synced, %+v", got, s.link(a, "a").Outcome)
		}
		var pairs []string
		for i := range 300 {
			pairs = append(pairs, fmt.Sprint(i, strings.Repeat("\x01", 500)), "v")
		}
		s.mounts[0].Put("b", pairs...)
		b := s.tie(2, "b", func(a *state.Association) { a.Granularity = destination.SecretKey })
		if l := s.link(b, "b"); l.Code != "too_many_names" || l.Status != state.ClientError {
			t.Errorf("%+v", l.Outcome)
		}
	})
}

func TestTroubleOfOneNameIsNotThatOfOthers(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "bad", "1", "good", "2", "large", strings.Repeat("x", 2000))
		s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			if strings.HasSuffix(c.Name, "BAD") {
				return syncsim.Fault{Kind: syncsim.Reject}
			}
			return syncsim.Fault{}
		})
		a := s.tie(2, "a", func(a *state.Association) { a.Granularity = destination.SecretKey })
		got := map[string]string{}
		for _, it := range s.link(a, "a").Items {
			got[it.Key] = it.Status + " " + it.Code
		}
		if fmt.Sprint(got) != "map[bad:CLIENT_SIDE_ERROR access_denied good:SYNCED  large:CLIENT_SIDE_ERROR limit]" {
			t.Errorf("%v", got)
		}
	})
}

func TestAdoptingIsDoneOnce(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1", "l", "2")
		site := s.sites.Site(syncsim.Plain, "p")
		site.Put("K", "theirs")
		site.Put("L", "theirs")
		a := s.tie(2, "a", func(a *state.Association) {
			a.Granularity, a.Template = destination.SecretKey, "{{ .SecretKey }}"
		})
		s.status(a, "a", state.Conflict)
		key := state.LinkKey(a.NS, a.Destination, a.ID, "a")
		s.update(func(tx *storage.Txn) error {
			var l state.Link
			_, err := engines.GetRecord(s.ctx(), tx, key, &l)
			l.Adopt = []string{"K", "NOT THERE"}
			return errors.Join(err, engines.PutRecord(tx, key, &l))
		})
		site.Allow("K")
		s.svc.Queue.Push(a.LinkID("a"), time.Time{}, true, nil)
		s.pass(time.Second)
		if l := s.link(a, "a"); l.Adopt != nil && len(l.Adopt) > 0 || l.Status != state.Conflict {
			t.Errorf("%q are still to be adopted, %s", l.Adopt, l.Status)
		}
		if got, _ := site.Get("K"); got != "1" {
			t.Errorf("%q is there", got)
		}
		site.Put("K", "theirs again")
		s.pass(3 * time.Hour)
		s.svc.Queue.Push(a.LinkID("a"), time.Time{}, true, nil)
		s.pass(time.Second)
		if got, _ := site.Get("K"); got != "theirs again" {
			t.Errorf("what was adopted once was taken over again: %q", got)
		}
	})
}

func TestAnOldRetryAfterIsKeptTo(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
			if c.Op == "write" {
				return syncsim.Fault{Kind: syncsim.Throttle, RetryAfter: 10 * time.Minute}
			}
			return syncsim.Fault{}
		})
		a := s.tie(0, "a", nil)
		l := s.link(a, "a")
		if d := time.Until(l.NextRetry); l.Status != state.ExternalError || l.Code != destination.Throttled || d < 9*time.Minute {
			t.Errorf("%+v, again in %v", l.Outcome, d)
		}
		before := s.syncCalls()
		s.mounts[0].Put("a", "k", "2")
		s.pass(5 * time.Minute)
		if n := s.syncCalls() - before; n != 0 {
			t.Errorf("%d calls while the place wants to be left alone", n)
		}
		s.sites.SetFault(nil)
		s.pass(6 * time.Minute)
		s.status(a, "a", state.Synced)
	})
}

// TestManyAssociations says what hundreds of them cost, or with COFFER_CHAOS=long ten thousand.
func TestManyAssociations(t *testing.T) {
	n := 300
	if os.Getenv("COFFER_CHAOS") == "long" {
		n = 10_000
	}
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 1)
		s.sites.Rate = destination.Rate{Writes: 1000, WriteBurst: 1000, Reads: 1000, ReadBurst: 1000, Concurrency: 8}
		s.stop()
		s.start()
		var before, after runtime.MemStats
		for i := range n {
			s.mounts[0].Put(fmt.Sprint("s", i), "k", "1")
		}
		runtime.GC()
		runtime.ReadMemStats(&before)
		d, m := s.dests[0], s.mounts[0].Describe()
		for i := range n {
			a := &state.Association{
				Destination: d.ID, Type: d.Type, Name: d.Name, NS: d.NS, MountUUID: m.UUID, Accessor: m.Accessor, MountPath: m.Path, Secret: fmt.Sprint("s", i),
				Granularity: destination.SecretPath, Deletion: state.DeleteOnRemoval, Drift: state.DriftReport, CreatedAt: time.Now(), UpdatedAt: time.Now().UTC(),
			}
			a.ID = state.AssociationID(d.ID, a.MountUUID, a.Secret, false)
			s.put(s.ctx(), d, a, nil)
		}
		s.pass(time.Minute)
		if got := len(s.names(syncsim.Marked)); got != n {
			t.Errorf("%d of %d are there", got, n)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		calls := s.syncCalls()
		s.pass(reconcile.RescanInterval)
		if more := s.syncCalls() - calls; more != 0 {
			t.Errorf("an idle look at everything made %d calls", more)
		}
		t.Logf("%d associations: %d kB with the store of the test, %d calls", n, (after.HeapAlloc-before.HeapAlloc)>>10, calls)
		s.stop()
	})
}
