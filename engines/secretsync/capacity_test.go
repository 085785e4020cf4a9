package secretsync

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/index"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/storage"
)

// TestLinksAreHeldToTheCapacity: writers of secrets below a prefix make no more links than it allows. Those that are there go
// on; the others say what they wait for, and have their turn when there is room.
func TestLinksAreHeldToTheCapacity(t *testing.T) {
	inSim(t, func(s *sim) {
		allow := func(n int) {
			s.update(func(tx *storage.Txn) error {
				return engines.PutRecord(tx, state.ConfigKey, &state.Config{QueueCapacity: n})
			})
			s.pass(time.Second)
		}
		var all *state.Association
		synced := func(n int) (names []string) {
			t.Helper()
			if got := len(s.links(all)); got != n {
				t.Errorf("%d links are stored, want %d", got, n)
			}
			for name := range s.sites.Site(syncsim.Marked, "m").Objects() {
				names = append(names, name)
			}
			if len(names) != n {
				t.Errorf("there are %d names, want %d", len(names), n)
			}
			slices.Sort(names)
			return names
		}
		statuses := func() map[string]int {
			resp, err := s.svc.RespondAssociations(s.ctx(), s.dests[0], all)
			s.must(err)
			of := map[string]int{}
			for _, e := range resp.Data.(map[string]any)["associated_secrets"].(map[string]any) {
				e := e.(map[string]any)
				status := fmt.Sprint(e["sync_status"])
				if status == state.ClientError && (e["code"] != index.CodeQueueCapacity || !strings.Contains(fmt.Sprint(e["cause"]), "allows 3")) {
					t.Errorf("it says %v: %v", e["code"], e["cause"])
				}
				of[status]++
			}
			return of
		}
		allow(3)
		for i := range 5 {
			s.mounts[0].Put(fmt.Sprint("s", i), "k", "1")
		}
		all = s.tie(0, "", func(a *state.Association) { a.Selector, a.Template = true, "{{ .SecretPath }}" })
		first := synced(3)
		for i := range 40 {
			s.mounts[0].Put(fmt.Sprint("more", i), "k", "1")
		}
		s.pass(time.Hour)
		if again := synced(3); !slices.Equal(again, first) {
			t.Errorf("%q are there in place of %q", again, first)
		}
		if got, want := statuses(), map[string]int{state.Synced: 3, state.ClientError: 42}; !maps.Equal(got, want) {
			t.Errorf("statuses are %v, want %v", got, want)
		}
		if n := s.svc.Numbers()["sync_attention"]; n != 42 {
			t.Errorf("%v need action, want 42", n)
		}
		if _, err := s.svc.PutAssociation(s.ctx(), s.dests[0], &state.Association{
			Destination: s.dests[0].ID, Type: s.dests[0].Type, Name: "d0", NS: "root", ID: "own", Secret: "own",
		}, nil); err == nil || !strings.Contains(err.Error(), "queue_capacity") {
			t.Errorf("another secret is associated: %v", err)
		}

		s.stop()
		s.start()
		s.pass(time.Second)
		if again := synced(3); !slices.Equal(again, first) {
			t.Errorf("a new node has %q in place of %q", again, first)
		}
		s.mounts[0].Put(first[0], "k", "2")
		s.pass(time.Second)
		if got, _ := s.sites.Site(syncsim.Marked, "m").Get(first[0]); got != `{"k":"2"}` {
			t.Errorf("one that is there does not go on: %s", got)
		}
		s.mounts[0].Drop(first[0])
		s.pass(time.Minute)
		if again := synced(3); slices.Contains(again, first[0]) {
			t.Errorf("one that has gone is among %q", again)
		}
		allow(5)
		s.pass(time.Minute)
		fifth := synced(5)
		allow(1)
		s.mounts[0].Put(fifth[0], "k", "3")
		s.pass(time.Hour)
		synced(5)
		if got, _ := s.sites.Site(syncsim.Marked, "m").Get(fifth[0]); got != `{"k":"3"}` {
			t.Errorf("one that is there does not go on: %s", got)
		}
		allow(100)
		s.pass(time.Minute)
		synced(44)
		if n := s.svc.Numbers()["sync_attention"]; n != 0 {
			t.Errorf("%v need action, want none", n)
		}
	})
}

// TestRoomOfWhatIsForgotten: it is there for others at once.
func TestRoomOfWhatIsForgotten(t *testing.T) {
	inSim(t, func(s *sim) {
		s.update(func(tx *storage.Txn) error {
			return engines.PutRecord(tx, state.ConfigKey, &state.Config{QueueCapacity: 2})
		})
		s.pass(time.Second)
		for _, secret := range []string{"a", "b"} {
			s.mounts[0].Put(secret, "k", "1")
		}
		s.tie(0, "", func(a *state.Association) { a.Selector = true })
		waits := s.tie(2, "", func(a *state.Association) { a.Selector = true })
		s.there(syncsim.Plain)
		s.forceDelete(s.dests[0])
		s.pass(time.Minute)
		s.status(waits, "a", state.Synced)
		s.status(waits, "b", state.Synced)
	})
}

// TestASecretIsCountedOnce: by whatever associations it goes to a destination.
func TestASecretIsCountedOnce(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		s.sites.Site(syncsim.Marked, "m").Put("same", "theirs")
		same := func(a *state.Association) { a.Template = "same" }
		prefix := s.tie(0, "", func(a *state.Association) { same(a); a.Selector = true })
		own := s.tie(0, "a", same)
		s.pass(time.Minute)
		s.status(prefix, "a", state.Conflict)
		s.status(own, "a", state.Conflict)
		if n := s.svc.Numbers()["sync_attention"]; n != 1 {
			t.Errorf("%v secrets need action, want 1", n)
		}
		s.untie(own)
		if n := s.svc.Numbers()["sync_attention"]; n != 1 {
			t.Errorf("%v secrets need action, want still 1", n)
		}
		s.sites.Site(syncsim.Marked, "m").Delete("same")
		s.pass(2 * time.Hour)
		if n := s.svc.Numbers()["sync_attention"]; n != 0 {
			t.Errorf("%v secrets need action, want none", n)
		}
	})
}
