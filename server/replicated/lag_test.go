package replicated_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// TestLagOfASecondaryThatIsAway: a primary tells it of every enrolled secondary, from the moment at which both were equal, also
// on a node that has become active since, and of one that was never equal since it has enrolled.
func TestLagOfASecondaryThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := network{}
		p, c, d := newCluster(t, net, "p"), newCluster(t, net, "c"), newCluster(t, net, "d")
		p.mustPost("primary/enable", "{}")
		p.join(c, "c")
		p.join(d, "d") // never connects
		stop := p.run()
		equal := time.Now()
		st := traffic.SessionStatus{
			Peer: roles.Peer{ID: "c", ClusterID: "c"}, Cursor: storage.Position{Epoch: 1, Index: 400}, EqualAt: equal, LastHeartbeat: equal,
		}
		p.link.set(func(l *fakeLink) { l.sessions = []traffic.SessionStatus{st} })
		entry := func(id string) map[string]any {
			t.Helper()
			for _, e := range p.mustGet("status")["secondaries"].([]any) {
				if m := e.(map[string]any); m["node_id"] == id {
					return m
				}
			}
			t.Fatalf("the status does not have %s", id)
			return nil
		}
		if e := entry("c"); e["lag_seconds"] != 0.0 || e["connection_status"] != "connected" {
			t.Errorf("connected: %v", e)
		}
		time.Sleep(10 * time.Second) // not heard meanwhile: the link has not noticed yet
		if e := entry("c"); e["connection_status"] != "disconnected" || e["last_heartbeat_duration_ms"] != "10000" {
			t.Errorf("silent: %v", e)
		}
		st.EndedAt = time.Now()
		p.link.set(func(l *fakeLink) { l.sessions = []traffic.SessionStatus{st} })
		time.Sleep(20 * time.Second)
		for _, restarted := range []bool{false, true} {
			if restarted {
				stop()
				p.link.set(func(l *fakeLink) { l.sessions = nil })
			}
			age := time.Since(equal).Seconds()
			e := entry("c")
			if e["lag_seconds"] != age || e["lag_entries"] != 17.0 || e["position"] != "1:400" || e["connection_status"] != "disconnected" ||
				e["last_equal"] != equal.UTC().Format(time.RFC3339) || e["last_heartbeat"] == nil {
				t.Errorf("away for %v s, restarted %v: %v", age, restarted, e)
			}
			if e := entry("d"); e["lag_seconds"] != age || e["last_equal"] != "" {
				t.Errorf("never connected for %v s: %v", age, e)
			}
			n := p.Numbers()
			if n["replication_lag_seconds"] != age || n["replication_secondaries_known"] != 2 || n["replication_secondaries_connected"] != 0 {
				t.Errorf("numbers after %v s: %v", age, n)
			}
			time.Sleep(time.Hour)
		}
	})
}

// TestLagWithoutAPrimary: a connection that stands counts for nothing if nothing is heard over it, and without one the last
// canary tells how late the secondary is.
func TestLagWithoutAPrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := network{}
		p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
		p.mustPost("primary/enable", "{}")
		p.join(c, "c")
		c.put("s/sys/set/canary", map[string]any{"format": 1, "time_ms": time.Now().UnixMilli()})
		c.link.set(func(l *fakeLink) {
			l.status.State, l.status.Connected, l.status.LastHeard = "streaming", p.addr, time.Now()
		})
		if got := c.mustGet("status"); got["connection_state"] != "ready" || got["reason"] != "" {
			t.Errorf("heard just now: %v, %v", got["connection_state"], got["reason"])
		}
		time.Sleep(7 * time.Second)
		got := c.mustGet("status")
		if got["connection_state"] != "transient_failure" || !strings.Contains(got["reason"].(string), "for 7 s") || c.Numbers()["replication_connected"] != 0 {
			t.Errorf("silent: %v, %v", got["connection_state"], got["reason"])
		}
		if got := fmt.Sprint(got["primaries"]); !strings.Contains(got, "connection_status:disconnected") {
			t.Errorf("the silent primary: %s", got)
		}
		c.link.set(func(l *fakeLink) { l.status = traffic.FollowStatus{State: "disconnected"} })
		for range 2 {
			time.Sleep(time.Minute)
			age := c.Numbers()["replication_canary_age_seconds"]
			if got := c.Numbers()["replication_lag_seconds"]; age < 60 || got != age || c.mustGet("status")["lag_seconds"] != age {
				t.Errorf("lag %v, age of the canary %v", got, age)
			}
		}
		c.link.final()
		if got := c.Numbers()["replication_lag_seconds"]; got != 0 {
			t.Errorf("with the final word of its primary a secondary is %v s behind", got)
		}
	})
}
