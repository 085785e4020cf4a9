package secretsync

import (
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/synctest"
	"github.com/coffer-project/coffer/storage"
)

// versions returns the versions that clients are told of, by the entries' names without the accessor, and holds them to a status.
func (s *sim) versions(a *associationRecord, status string) map[string]any {
	s.t.Helper()
	resp, err := s.svc.answerAssociations(s.ctx(), s.destOf(a), a)
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

// TestAFailedSecretHasTheVersionThatIsThere: what was tried in vain is not at the destination.
func TestAFailedSecretHasTheVersionThatIsThere(t *testing.T) {
	inSim(t, func(s *sim) {
		kv, large := s.mounts[0], strings.Repeat("x", 1001)
		kv.Put("a", "k", "1")
		kv.Put("b", "k", "1", "l", "1")
		kv.Put("new", "k", large)
		whole := s.tie(0, "a", nil)
		keys := s.tie(0, "b", func(a *associationRecord) { a.Granularity = destination.SecretKey })
		never := s.tie(0, "new", nil)
		if got := s.versions(whole, Synced)["a"]; got != 1 {
			t.Errorf("version %v after the first sync, want 1", got)
		}
		if got := s.versions(never, ClientError)["new"]; got != 0 {
			t.Errorf("version %v of what was never written, want 0", got)
		}
		kv.Put("a", "k", large)
		kv.Put("b", "k", "2", "l", large)
		s.pass(time.Second)
		if got := s.versions(whole, ClientError)["a"]; got != 1 {
			t.Errorf("version %v after the second was refused, want 1", got)
		}
		if got := s.versions(keys, ""); got["b/k"] != 2 || got["b/l"] != 1 {
			t.Errorf("versions %v, want 2 of the key that was written and 1 of the one that was refused", got)
		}
		kv.Put("a", "k", "1") // a new version that changes nothing
		s.w.SetMayRead(func(engines.Principal, string, string) bool { return false })
		s.pass(time.Second)
		if got := s.versions(whole, ClientError)["a"]; got != 1 {
			t.Errorf("version %v, of which nobody could look whether it is there, want 1", got)
		}
		s.w.SetMayRead(nil)
		s.pass(2 * time.Hour)
		if got := s.versions(whole, Synced)["a"]; got != 3 {
			t.Errorf("version %v, want 3", got)
		}
		kv.Put("a", "k", "1")
		s.pass(time.Second)
		s.places.SetFault(func(synctest.Call) synctest.Fault { return synctest.Fault{Kind: synctest.Trouble} })
		kv.Put("a", "k", "2")
		s.pass(time.Second)
		if got := s.versions(whole, ExternalError)["a"]; got != 4 {
			t.Errorf("version %v during an outage, want the 4 that is there", got)
		}
		s.places.SetFault(nil)
	})
}

// TestABugEndsNothingElse: a panic in a destination, or a vendor's library, is a status of the secret that met it.
func TestABugEndsNothingElse(t *testing.T) {
	inSim(t, func(s *sim) {
		kv, kind := s.mounts[0], synctest.Panic
		s.places.SetFault(func(c synctest.Call) synctest.Fault {
			if strings.HasSuffix(strings.ToLower(c.Name), "bad") || c.Op == "list" {
				return synctest.Fault{Kind: kind}
			}
			return synctest.Fault{}
		})
		kv.Put("bad", "k", s.value())
		kv.Put("good", "k", s.value())
		marked, plain, good := s.tie(0, "bad", nil), s.tie(2, "bad", nil), s.tie(0, "good", nil)
		s.status(good, "good", Synced)
		for _, a := range []*associationRecord{marked, plain} {
			s.status(a, "bad", InternalError)
			if l := s.link(a, "bad"); l.Attempts == 0 || l.NextRetry.IsZero() || l.Cause == "" {
				t.Errorf("%+v is not told, or not tried again", l)
			}
		}
		s.pass(2 * driftInterval)
		log := s.logs.b.String()
		if !strings.Contains(log, "scanning for drift") || !strings.Contains(log, "syncing a secret") || !strings.Contains(log, "places.go") {
			t.Error("the log must tell where, with the stack")
		}
		if strings.Contains(log, "a bug: ") {
			t.Error("what was panicked with is logged")
		}
		before := len(s.places.Calls())
		s.pass(time.Hour)
		if n := len(s.places.Calls()) - before; n > 60 {
			t.Errorf("%d calls in an hour at a bug", n)
		}
		kind = synctest.None
		s.pass(10 * time.Minute)
		s.status(marked, "bad", Synced)
		s.status(plain, "bad", Synced)
		s.checkLeaks()
	})
}

// TestABugThatHidesItsStatusIsMetAgain: where not even the status can be stored, it is tried again.
func TestABugThatHidesItsStatusIsMetAgain(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		bugs := 4
		s.w.OnCommit(func(b storage.Batch) error {
			if _, kind, _ := splitKey(b.Puts[0].Key); kind == "l" && len(s.places.Calls()) > 0 && bugs > 0 {
				bugs--
				panic("a bug")
			}
			return nil
		})
		a := s.tie(0, "a", nil)
		s.pass(5 * time.Minute)
		s.status(a, "a", Synced)
		if bugs > 0 {
			t.Error("no bug was met")
		}
	})
}
