package secretsync

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/storage"
)

// TestAPurgeGoesOn: of a purge, all that may be stored is that it has begun, or that and some of the associations that are to
// go. The active node continues it, also a new one.
func TestAPurgeGoesOn(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		for _, marked := range []int{0, 16, 20} {
			t.Run(fmt.Sprintf("restarted %v, %d of 20 marked", restarted, marked), func(t *testing.T) {
				inSim(t, func(s *sim) {
					var all []storage.Key
					for i := range 20 {
						name := fmt.Sprintf("secret-%d", i)
						s.mounts[0].Put(name, "k", "1")
						all = append(all, s.tie(0, name, nil).Key())
					}
					if got := len(s.names(syncsim.Marked)); got != len(all) {
						t.Fatalf("%d names were synced, want %d", got, len(all))
					}
					if restarted {
						s.stop()
					}
					d := s.dests[0]
					s.update(func(tx *storage.Txn) error {
						d.PurgeAt = time.Now()
						if err := engines.PutRecord(tx, d.Key(), d); err != nil {
							return err
						}
						for _, key := range all[:marked] {
							var a state.Association
							if _, err := engines.GetRecord(s.ctx(), tx, key, &a); err != nil {
								return err
							}
							a.Removing, a.UpdatedAt = true, time.Now()
							if err := engines.PutRecord(tx, key, &a); err != nil {
								return err
							}
						}
						return nil
					})
					if restarted {
						s.start()
					}
					s.pass(time.Minute)
					s.there(syncsim.Marked)
					var gone state.Destination
					if _, err := state.GetDestination(s.ctx(), s.w.Store, d.Key(), &gone); err != nil || gone.ID != "" {
						t.Errorf("the destination is still there (%v)", err)
					}
				})
			})
		}
	}
}

// TestADeletedNamespaceSaysWhatItWaitsFor: it is no fault of the server.
func TestADeletedNamespaceSaysWhatItWaitsFor(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		s.tie(0, "a", nil)
		s.sites.SetFault(func(syncsim.Call) syncsim.Fault { return syncsim.Fault{Delay: time.Millisecond} }) // it is not removed at once
		err := s.svc.NamespaceGone(s.ctx(), "root")
		if e, ok := errors.AsType[*engines.Error](err); !ok || e.Kind != engines.KindUnavailable || !strings.Contains(e.Detail, s.dests[0].Name+" is still being removed") {
			t.Errorf("%v", err)
		}
		s.pass(time.Second)
		s.must(s.svc.NamespaceGone(s.ctx(), "root"))
	})
}

// forceDelete deletes a destination by force.
func (s *sim) forceDelete(d *state.Destination) {
	s.t.Helper()
	_, _, err := s.svc.ForceDelete(s.ctx(), d, engines.Principal{NamespaceID: d.NS})
	s.must(err)
}
