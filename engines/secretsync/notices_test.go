package secretsync

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/storage"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (do roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return do(r) }

// TestNoticesOfCircuitsAndDrift: what a drift check finds is reported once, and a circuit when it opens and when it closes.
func TestNoticesOfCircuitsAndDrift(t *testing.T) {
	inSim(t, func(s *sim) {
		var mu sync.Mutex
		var got []string
		s.svc.notices.Client = func(*state.Network) (*http.Client, error) {
			return &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				b, err := io.ReadAll(r.Body)
				mu.Lock()
				defer mu.Unlock()
				got = append(got, string(b))
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, err
			})}, nil
		}
		s.update(func(tx *storage.Txn) error {
			return engines.PutRecord(tx, state.ConfigKey, &state.Config{
				QueueCapacity: 10, Notifications: state.Notifications{URL: "https://ops.example.com", SigningKey: "0123456789abcdef"},
			})
		})
		received := func(what ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if len(got) != 1 {
				t.Errorf("received %q, want one with %q", got, what)
			}
			for _, part := range what {
				if all := strings.Join(got, ""); !strings.Contains(all, part) || strings.Contains(all, "kv_00000001") {
					t.Errorf("received %s, want %s", all, part)
				}
			}
			got = nil
		}
		s.mounts[0].Put("a", "k", "1")
		s.tie(0, "a", nil)
		s.pass(20 * time.Minute) // with nothing to report
		s.sites.Site(syncsim.Marked, "m").Put("vault/kv_00000001/a", "another client's")
		s.pass(3 * time.Hour)
		received(`"destination":"`+syncsim.Marked+`/d0"`, `"events":[{"event":"drift",`, `"names":1}]`)

		s.sites.SetFault(func(syncsim.Call) syncsim.Fault {
			return syncsim.Fault{Kind: syncsim.Throttle, RetryAfter: 10 * time.Minute}
		})
		s.mounts[0].Put("a", "k", "2")
		s.pass(time.Minute)
		received(`"events":[{"event":"circuit_opened",`, `"code":"throttled"`, `"until":"`)
		s.sites.SetFault(nil)
		s.pass(30 * time.Minute)
		received(`"events":[{"event":"circuit_closed",`)
		if n := s.svc.Numbers()["sync_notifications_total"]; n != 3 {
			t.Errorf("%v are counted", n)
		}
	})
}
