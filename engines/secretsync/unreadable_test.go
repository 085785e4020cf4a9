package secretsync

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/api"
	"github.com/coffer-project/coffer/engines/secretsync/api/config"
	"github.com/coffer-project/coffer/engines/secretsync/reconcile"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/storage"
)

// spoil makes a record one of a newer version, and returns what puts it right.
func (s *sim) spoil(key storage.Key) (repair func()) {
	s.t.Helper()
	e, err := s.w.Store.Get(s.ctx(), key)
	s.must(err)
	put := func(value []byte) {
		_, err := s.w.Store.Commit(s.ctx(), storage.Batch{Puts: []storage.Put{{Key: key, Value: value}}})
		s.must(err)
	}
	put([]byte(`{"format":2,"later":"content-of-it"}`))
	return func() { put(e.Value) }
}

// alone fails unless a record is the one that cannot be read, which the log says once.
func (s *sim) alone(kind string) {
	s.t.Helper()
	if n := s.svc.Numbers()["sync_unreadable"]; n != 1 {
		s.t.Errorf("%v records cannot be read, want 1", n)
	}
	text := s.logs.String()
	if n := strings.Count(text, "cannot be read and is left alone"); n != 1 || !strings.Contains(text, kind) || strings.Contains(text, "content-of-it") {
		s.t.Errorf("the log has %d lines about %s: %s", n, kind, text)
	}
}

// refusesToRead fails unless an error says to a client what is the matter.
func (s *sim) refusesToRead(err error) {
	s.t.Helper()
	e, ok := errors.AsType[*engines.Error](api.ClientError(err))
	if !ok || e.Kind != engines.KindFailed || !strings.Contains(e.Detail, "newer version") {
		s.t.Errorf("%v does not say that a record cannot be read", err)
	}
}

// TestARecordThatCannotBeRead: what it is about is left as it is, everything else goes on, on a node that sees it happen and on a
// new one.
func TestARecordThatCannotBeRead(t *testing.T) {
	const name = "vault/kv_00000001/"
	for _, test := range []struct {
		kind  string
		key   func(s *sim, a *state.Association) storage.Key
		check func(s *sim, a *state.Association)
	}{
		{"link", func(_ *sim, a *state.Association) storage.Key { return state.LinkKey(a.NS, a.Destination, a.ID, "a") }, func(s *sim, a *state.Association) {
			resp, err := s.svc.RespondAssociations(s.ctx(), s.dests[0], a)
			s.must(err)
			e, _ := resp.Data.(map[string]any)["associated_secrets"].(map[string]any)["kv_00000001/a"].(map[string]any)
			if e["sync_status"] != state.InternalError || e["code"] != state.CodeUnreadable {
				s.t.Errorf("it is shown as %v", e)
			}
		}},
		{"association", func(_ *sim, a *state.Association) storage.Key { return a.Key() }, func(s *sim, a *state.Association) {
			_, err := state.GetAssociation(s.ctx(), s.w.Store, a.Key())
			s.refusesToRead(err)
		}},
		{"destination", func(s *sim, _ *state.Association) storage.Key { return s.dests[0].Key() }, func(s *sim, _ *state.Association) {
			_, err := s.svc.FindDestination(s.ctx(), s.w.Store, "root", syncsim.Marked, "d0")
			s.refusesToRead(err)
		}},
		{"claim", func(s *sim, _ *state.Association) storage.Key {
			place, err := s.svc.Pool.Location(s.dests[0])
			s.must(err)
			return state.ClaimKey(syncsim.Marked, place, name+"a")
		}, func(s *sim, a *state.Association) {
			if l := s.link(a, "a"); l.Status != state.InternalError || l.Code != state.CodeUnreadable {
				s.t.Errorf("the link is %+v", l.Outcome)
			}
		}},
	} {
		for _, restarted := range []bool{false, true} {
			t.Run(test.kind, func(t *testing.T) {
				inSim(t, func(s *sim) {
					for _, secret := range []string{"a", "b"} {
						s.mounts[0].Put(secret, "k", "1")
					}
					a, b := s.tie(0, "a", nil), s.tie(1, "b", nil)
					all := s.tie(2, "", func(a *state.Association) { a.Selector = true })
					if restarted {
						s.stop()
					}
					repair := s.spoil(test.key(s, a))
					if restarted {
						s.start()
					}
					s.pass(time.Second)
					for _, secret := range []string{"a", "b"} {
						s.mounts[0].Put(secret, "k", "2")
					}
					s.pass(time.Hour)
					site := s.sites.Site(syncsim.Marked, "m")
					for secret, want := range map[string]string{"a": `{"k":"1"}`, "b": `{"k":"2"}`} {
						if got, _ := site.Get(name + secret); got != want {
							t.Errorf("%s is %s, want %s", secret, got, want)
						}
					}
					s.status(b, "b", state.Synced)
					s.status(all, "a", state.Synced)
					s.alone(test.kind)
					test.check(s, a)
					s.mounts[0].Delete("a")
					s.pass(time.Second)
					s.there(syncsim.Marked, name+"a", name+"b")

					repair()
					s.pass(11 * time.Minute)
					s.there(syncsim.Marked, name+"b")
					s.status(a, "a", state.Unsynced)
					if n := s.svc.Numbers()["sync_unreadable"]; n != 0 {
						t.Errorf("%v records cannot be read although they can", n)
					}
				})
			})
		}
	}
}

// TestAPurgeDoesNotPassOverWhatItCannotRead: it does not end, and says why, until it is deleted by force.
func TestAPurgeDoesNotPassOverWhatItCannotRead(t *testing.T) {
	for _, kind := range []string{"link", "association"} {
		t.Run(kind, func(t *testing.T) {
			inSim(t, func(s *sim) {
				for _, secret := range []string{"a", "b"} {
					s.mounts[0].Put(secret, "k", "1")
				}
				a := s.tie(0, "a", nil)
				s.tie(0, "b", nil)
				if kind == "link" {
					s.spoil(state.LinkKey(a.NS, a.Destination, a.ID, "a"))
				} else {
					s.spoil(a.Key())
				}
				s.update(func(tx *storage.Txn) error {
					s.dests[0].PurgeAt = time.Now()
					return engines.PutRecord(tx, s.dests[0].Key(), s.dests[0])
				})
				s.must(s.svc.Purge(s.ctx(), s.dests[0]))
				s.pass(time.Hour)
				s.there(syncsim.Marked, "vault/kv_00000001/a")
				got, err := s.svc.DescribeDestination(s.ctx(), new(engines.Request), s.dests[0])
				if s.must(err); got["purge_error"] != state.UnreadableCause {
					t.Errorf("it says %v", got["purge_error"])
				}
				if has, err := s.svc.HasAssociations(s.ctx(), s.dests[0]); err != nil || !has {
					t.Errorf("what cannot be read has gone (%v)", err)
				}

				s.forceDelete(s.dests[0])
				s.pass(time.Minute)
				s.there(syncsim.Marked, "vault/kv_00000001/a")
				for _, prefix := range []storage.Key{state.Area("root", "a/"), state.Area("root", "l/"), state.Area("root", "c/"), s.dests[0].Key()} {
					if left, err := s.w.Store.Scan(s.ctx(), prefix, "", 0); err != nil || len(left) > 0 {
						t.Errorf("%d records below %s are left (%v)", len(left), prefix, err)
					}
				}
				s.pass(11 * time.Minute)
				if n := s.svc.Numbers()["sync_unreadable"]; n != 0 {
					t.Errorf("%v records cannot be read, and there are none", n)
				}
			})
		})
	}
}

// TestANamespaceStaysWithWhatCannotBeRead: with it, what is at the destination would be forgotten.
func TestANamespaceStaysWithWhatCannotBeRead(t *testing.T) {
	inSim(t, func(s *sim) {
		repair := s.spoil(s.dests[3].Key())
		for range 3 {
			s.pass(reconcile.NamespaceDeletionTimeout)
			if err := s.svc.NamespaceGone(s.ctx(), "n1"); err == nil {
				t.Error("the namespace may go")
			}
		}
		repair()
		s.must(s.svc.NamespaceGone(s.ctx(), "n1"))
	})
}

// TestAConfigurationThatCannotBeRead: it may say that nothing is to be done. Deleting it goes back to the defaults.
func TestAConfigurationThatCannotBeRead(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		a := s.tie(0, "a", nil)
		s.update(func(tx *storage.Txn) error {
			return engines.PutRecord(tx, state.ConfigKey, &state.Config{QueueCapacity: 10})
		})
		s.spoil(state.ConfigKey)
		s.mounts[0].Put("a", "k", "2")
		s.pass(time.Hour)
		if got, _ := s.sites.Site(syncsim.Marked, "m").Get("vault/kv_00000001/a"); got != `{"k":"1"}` {
			t.Errorf("%s is there, although the owner of the name is unknown", got)
		}
		s.alone("config")
		settings := config.API{Store: s.svc.Host.Store}
		_, err := settings.Read(s.ctx(), nil, nil)
		s.refusesToRead(err)
		_, err = settings.Reset(s.ctx(), nil, nil)
		s.must(err)
		s.pass(time.Second)
		if got, _ := s.sites.Site(syncsim.Marked, "m").Get("vault/kv_00000001/a"); got != `{"k":"2"}` {
			t.Errorf("%s is there", got)
		}
		s.status(a, "a", state.Synced)
	})
}
