package secretsync

import (
	"fmt"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/repohost"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

const busyName = "vault/kv_00000001/a"

// inBusySim is inSim with destinations that take 20 writes of a name in 24 hours.
func inBusySim(t *testing.T, test func(s *sim)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 1)
		s.sites.WritesPerDay = 20
		s.restart()
		synctest.Wait()
		test(s)
		s.stop()
		for _, harm := range s.sites.Harm() {
			t.Errorf("harm: %s", harm)
		}
	})
}

// writesOf counts the writes of a name.
func (s *sim) writesOf(name string) (n int) {
	for _, c := range s.sites.Calls() {
		if c.Op == "write" && c.Name == name {
			n++
		}
	}
	return n
}

// TestABusySecretIsRateLimited: a secret that changes all day never exceeds what the destination takes of a name, and is never long out
// of date; the newest value arrives.
func TestABusySecretIsRateLimited(t *testing.T) {
	inBusySim(t, func(s *sim) {
		kv, site := s.mounts[0], s.sites.Site(syncsim.Marked, "m")
		kv.Put("a", "k", "0")
		a := s.tie(0, "a", nil)
		s.status(a, "a", state.Synced)
		kv.Put("a", "k", "1")
		s.pass(time.Second)
		if l := s.link(a, "a"); l.Status != state.Synced {
			t.Errorf("the second write waits: %+v", l.Outcome)
		}
		limited := 0
		for i := range 30 * 5 { // one every twelve minutes, for thirty hours
			kv.Put("a", "k", fmt.Sprint(i))
			s.pass(12 * time.Minute)
			l := s.link(a, "a")
			if l.Status == state.Pending {
				limited++
				if l.Code != "rate_limited" || !l.NextRetry.After(time.Now()) || l.Attempts != 0 {
					t.Fatalf("%+v with the next attempt at %v, attempts %d", l.Outcome, l.NextRetry, l.Attempts)
				}
			}
			if now := time.Since(l.Items[0].WrittenAt); now > 2*time.Hour {
				t.Fatalf("the value is %v old", now)
			}
		}
		if n := s.writesOf(busyName); n < 20 || n > 26 || limited < 120 {
			t.Errorf("%d writes in thirty hours, and was rate limited %d times", n, limited)
		}
		s.pass(2 * time.Hour)
		if got, _ := site.Get(busyName); got != `{"k":"149"}` {
			t.Errorf("%q is there", got)
		}
		s.status(a, "a", state.Synced)
		if n := s.svc.Counts.Failed.Load(); n != 0 {
			t.Errorf("%d failures are counted", n)
		}
	})
}

// TestARateLimitedSecret: the status says until when; a restart changes nothing, neither does deleting and bringing back; a request goes
// at once for as long as the limit allows; what is there already is not rate limited.
func TestARateLimitedSecret(t *testing.T) {
	inBusySim(t, func(s *sim) {
		kv, site := s.mounts[0], s.sites.Site(syncsim.Marked, "m")
		kv.Put("a", "k", "0")
		kv.Put("other", "k", "0")
		a := s.tie(0, "a", nil)
		for i := range 10 {
			kv.Put("a", "k", fmt.Sprint(i))
			s.pass(time.Second)
		}
		reads := s.calls("read")
		n := s.writesOf(busyName)
		for i := range 50 {
			kv.Put("a", "k", fmt.Sprint("x", i))
			s.pass(time.Second / 5)
		}
		if s.calls("read") != reads || s.writesOf(busyName) != n {
			t.Errorf("while rate limited it is read %d times and written %d times", s.calls("read")-reads, s.writesOf(busyName)-n)
		}
		resp, err := s.svc.RespondAssociations(s.ctx(), s.destOf(a), a)
		s.must(err)
		for _, e := range resp.Data.(map[string]any)["associated_secrets"].(map[string]any) {
			e := e.(map[string]any)
			until := regexp.MustCompile(`^rate limited until \d\d:\d\d:\d\d UTC: `)
			if cause, _ := e["cause"].(string); e["sync_status"] != "PENDING" || e["code"] != "rate_limited" || !until.MatchString(cause) || e["next_retry"] == nil {
				t.Errorf("clients are shown %v", e)
			}
		}
		other := s.tie(0, "other", nil)
		s.status(other, "other", state.Synced)
		s.restart()
		kv.Put("a", "k", "newest")
		s.pass(time.Second)
		s.status(a, "a", state.Pending)
		kv.Delete("a")
		s.pass(time.Minute)
		s.status(a, "a", state.Unsynced)
		kv.Put("a", "k", "back")
		s.pass(time.Second)
		kv.Put("a", "k", "back at last")
		s.pass(time.Second)
		s.status(a, "a", state.Pending)
		s.svc.SyncAndWait(s.ctx(), a.LinkID("a"))
		s.status(a, "a", state.Synced)
		if got, _ := site.Get(busyName); got != `{"k":"back at last"}` {
			t.Errorf("%q is there after a request", got)
		}
		kv.Put("a", "k", "away")
		kv.Put("a", "k", "back at last")
		s.pass(time.Second)
		s.status(a, "a", state.Synced)
		for i := range 30 {
			kv.Put("a", "k", fmt.Sprint("y", i))
			s.svc.SyncAndWait(s.ctx(), a.LinkID("a"))
		}
		if n := s.writesOf(busyName); n > 20 {
			t.Errorf("requests made %d writes", n)
		}
		s.status(a, "a", state.Pending)
		s.pass(25 * time.Hour)
		s.status(a, "a", state.Synced)
		if got, _ := site.Get(busyName); got != `{"k":"y29"}` {
			t.Errorf("%q is there a day later", got)
		}
	})
}

// TestARateLimitCountsWritesAndNothingElse: what a destination has rejected uses nothing up.
func TestARateLimitCountsWritesAndNothingElse(t *testing.T) {
	inBusySim(t, func(s *sim) {
		kv := s.mounts[0]
		kv.Put("a", "k", "0")
		a := s.tie(0, "a", nil)
		for _, kind := range []syncsim.Kind{syncsim.Throttle, syncsim.Reject} {
			s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
				if c.Op != "write" {
					return syncsim.Fault{}
				}
				return syncsim.Fault{Kind: kind}
			})
			for i := range 10 {
				kv.Put("a", "k", fmt.Sprint(kind, i))
				s.pass(10 * time.Minute)
			}
		}
		if w := s.link(a, "a").Items[0].Writes; w.Count(time.Now()) != 1 {
			t.Errorf("counts %+v, want the first write", w)
		}
		s.sites.SetFault(func(c syncsim.Call) syncsim.Fault { // the same again and again
			if c.Op == "write" {
				return syncsim.Fault{Kind: syncsim.DropBefore}
			}
			return syncsim.Fault{}
		})
		kv.Put("a", "k", "lost")
		s.pass(4 * time.Hour)
		if w := s.link(a, "a").Items[0].Writes; w.Count(time.Now()) != 2 {
			t.Errorf("counts %+v, want the first write and one that may have been made", w)
		}
		s.sites.SetFault(nil)
		s.pass(10 * time.Minute)
		s.status(a, "a", state.Synced)
	})
}

// TestABusySecretLeavesTheRateToOthers has the rate and the limit of repohost.
func TestABusySecretLeavesTheRateToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 1)
		s.sites.Rate, s.sites.WritesPerDay = repohost.Type.Rules.Rate, repohost.Type.Rules.WritesPerDay
		s.restart()
		kv := s.mounts[0]
		kv.Put("a", "k", "0")
		kv.Put("other", "k", "0")
		s.tie(2, "a", nil)
		for i := range 80 {
			kv.Put("a", "k", fmt.Sprint(i))
			s.pass(350 * time.Millisecond)
		}
		other := s.tie(2, "other", nil)
		s.status(other, "other", state.Synced)
		if n := s.calls("write"); n > 15 {
			t.Errorf("the busy secret was written %d times", n)
		}
		s.stop()
	})
}

// TestASecretOfManyKeysLeavesTheRateToOthers has the rate and the limit of repohost: a secret whose 30 keys change all the time has a limit
// for each name, and still takes no more than its share of the destination's rate.
func TestASecretOfManyKeysLeavesTheRateToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 1)
		s.sites.Rate, s.sites.WritesPerDay = repohost.Type.Rules.Rate, repohost.Type.Rules.WritesPerDay
		s.restart()
		kv := s.mounts[0]
		change := func(n int) {
			var keys []string
			for i := range 30 {
				keys = append(keys, fmt.Sprint("k", i), fmt.Sprint(n))
			}
			kv.Put("a", keys...)
		}
		change(0)
		perKey := func(a *state.Association) { a.Granularity = destination.SecretKey }
		began := time.Now()
		a := s.tie(2, "a", perKey)
		for s.link(a, "a").Status != state.Synced {
			s.pass(time.Second)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("the first sync, with the whole rate to itself, took %v", d)
		}
		for i := range 20 {
			change(i + 1)
			s.pass(10 * time.Second)
			name := fmt.Sprint("other", i)
			kv.Put(name, "k", "0")
			if i%5 != 0 {
				continue
			}
			other := s.tie(2, name, perKey)
			s.status(other, name, state.Synced)
		}
		s.pass(time.Hour)
		s.status(a, "a", state.Synced)
		s.stop()
	})
}
