package secretsync

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/storage"
)

// TestClaimsOutliveAnotherEndpoint: where the operator has a vendor reached says nothing of whose a name is.
func TestClaimsOutliveAnotherEndpoint(t *testing.T) {
	inSim(t, func(s *sim) {
		same := func(a *state.Association) { a.Template = "same" }
		s.mounts[0].Put("a", "k", "1")
		s.mounts[0].Put("b", "k", "2")
		a := s.tie(0, "a", same)
		s.stop()
		s.operator.Endpoints = map[string]connection.Endpoint{syncsim.Marked: {URL: "https://elsewhere.example"}}
		s.start()
		s.pass(time.Second)
		b := s.tie(1, "b", same)
		if l := s.link(b, "b"); len(l.Items) != 1 || l.Items[0].Code != state.CodeNameTaken {
			t.Errorf("the name of another association is not known to be taken: %+v", l.Items)
		}
		s.untie(a)
		s.pass(10 * time.Second)
		s.status(b, "b", state.Synced)
		s.checkClaims()
	})
}

// TestAFullPlaceTakesNoSecondName: a new name is there before the old one goes. Without room for both, the status says so.
func TestAFullPlaceTakesNoSecondName(t *testing.T) {
	inSim(t, func(s *sim) {
		kv := s.mounts[0]
		for i := range 99 {
			kv.Put(fmt.Sprintf("all/%d", i), "k", "1")
		}
		kv.Put("a", "k", "1")
		s.tie(2, "all/", func(a *state.Association) { a.Selector = true })
		a := s.tie(2, "a", nil)
		s.pass(time.Minute)
		s.status(a, "a", state.Synced)
		if got := len(s.names(syncsim.Plain)); got != 100 {
			t.Fatalf("%d names are there, want 100", got)
		}
		a = s.tie(2, "a", func(a *state.Association) { a.Template = "new" })
		s.status(a, "a", state.ClientError)
		if cause := s.link(a, "a").Cause; !strings.Contains(cause, "100 names") || !strings.Contains(cause, `"VAULT_KV_00000001_A" goes only when`) {
			t.Errorf("the cause is %q", cause)
		}
		calls := len(s.sites.Calls())
		s.pass(30 * time.Minute)
		if n := len(s.sites.Calls()) - calls; n > 10 {
			t.Errorf("%d calls in half an hour at a place that is full", n)
		}
		if _, ok := s.sites.Site(syncsim.Plain, "p").Get("VAULT_KV_00000001_A"); !ok {
			t.Error("the old name went before the new one was there")
		}
		kv.Delete("all/0")
		s.pass(time.Hour)
		s.status(a, "a", state.Synced)
		if got := s.names(syncsim.Plain); len(got) != 99 || !slices.Contains(got, "NEW") || slices.Contains(got, "VAULT_KV_00000001_A") {
			t.Errorf("%d names are there: %q", len(got), got)
		}
	})
}

// TestAKeyTakesTheRoomOfOneThatGoes: they are two things, and the one is not needed for the other to go.
func TestAKeyTakesTheRoomOfOneThatGoes(t *testing.T) {
	inSim(t, func(s *sim) {
		pairs := func(from, to int) (pairs []string) {
			for i := from; i < to; i++ {
				pairs = append(pairs, fmt.Sprint("k", i), "v")
			}
			return pairs
		}
		s.mounts[0].Put("a", pairs(0, 100)...)
		a := s.tie(2, "a", func(a *state.Association) { a.Granularity, a.Template = destination.SecretKey, "{{ .SecretKey }}" })
		s.pass(time.Minute)
		s.mounts[0].Put("a", pairs(1, 101)...)
		s.pass(2 * time.Minute)
		s.status(a, "a", state.Synced)
		if got := s.names(syncsim.Plain); len(got) != 100 || slices.Contains(got, "K0") || !slices.Contains(got, "K100") {
			t.Errorf("%d names are there: %q", len(got), got)
		}
	})
}

// TestOldDestinationsAreKeptFromTheEnvironment: what the operator says counts for what is there, too.
func TestOldDestinationsAreKeptFromTheEnvironment(t *testing.T) {
	inSim(t, func(s *sim) {
		d := s.dests[0]
		delete(d.Config, "token")
		s.update(func(tx *storage.Txn) error { return engines.PutRecord(tx, d.Key(), d) })
		s.mounts[0].Put("a", "k", "1")
		a := s.tie(0, "a", nil)
		s.status(a, "a", state.Synced)
		s.stop()
		s.operator.EnvironmentCredentials = connection.EnvironmentNone
		s.start()
		calls := len(s.sites.Calls())
		s.mounts[0].Put("a", "k", "2")
		s.pass(time.Second)
		s.status(a, "a", state.ClientError)
		if l := s.link(a, "a"); l.Code != destination.Denied || !strings.Contains(l.Cause, "environment_credentials") {
			t.Errorf("%+v", l.Outcome)
		}
		if _, _, err := s.svc.ScanDrift(s.ctx(), d, func(string) bool { return true }); err == nil {
			t.Error("it was scanned for drift")
		}
		if n := len(s.sites.Calls()); n != calls {
			t.Errorf("%d calls were made", n-calls)
		}
	})
}

// TestASwapOfNamesNeedsAThird: each of two secrets waits for the other's name, and nothing is lost; with a third name it works.
func TestASwapOfNamesNeedsAThird(t *testing.T) {
	inSim(t, func(s *sim) {
		named := func(name string) func(*state.Association) { return func(a *state.Association) { a.Template = name } }
		s.mounts[0].Put("a", "k", "a")
		s.mounts[0].Put("b", "k", "b")
		s.tie(2, "a", named("x"))
		s.tie(2, "b", named("y"))
		a, b := s.tie(2, "a", named("y")), s.tie(2, "b", named("x"))
		s.status(a, "a", state.Conflict)
		s.status(b, "b", state.Conflict)
		s.pass(time.Hour)
		s.there(syncsim.Plain, "X", "Y")
		s.tie(2, "a", named("z"))
		s.pass(30 * time.Second)
		s.status(b, "b", state.Synced)
		s.tie(2, "a", named("y"))
		s.pass(30 * time.Second)
		s.status(a, "a", state.Synced)
		for name, want := range map[string]string{"X": `{"k":"b"}`, "Y": `{"k":"a"}`} {
			if got, _ := s.sites.Site(syncsim.Plain, "p").Get(name); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
		s.there(syncsim.Plain, "X", "Y")
	})
}
