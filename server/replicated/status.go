package replicated

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/server/replicated/primaries"
	"github.com/coffer-project/coffer/server/replicated/registry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
)

// FollowStatus is that of the link. A secondary is not behind a primary that is none any more, although that goes on writing
// what is its own. One that follows no primary is as late as the last canary.
func (s *Store) FollowStatus() traffic.FollowStatus {
	st := s.link.FollowStatus()
	switch {
	case st.Final:
		st.LagEntries, st.LagBytes, st.LagSeconds, st.Head = 0, 0, 0, st.Cursor
	case st.Connected == "":
		r := s.Role()
		if self, _ := s.opts.Node.Active(); !self || r.Mode != roles.Secondary || r.Demoted || r.Wiping {
			st.LagSeconds = 0 // of the active node of a secondary only
			break
		}
		if !st.EqualAt.IsZero() {
			break
		}
		if age, ok := s.CanaryAgeAt(context.Background(), 0); ok {
			st.LagSeconds, st.EqualAt = max(st.LagSeconds, age.Seconds()), time.Now().Add(-age)
		}
	}
	return st
}

// Silent reports whether a connection stands over which nothing is heard.
func (s *Store) Silent(st *traffic.FollowStatus) bool {
	return st.Connected != "" && !st.LastHeard.IsZero() && time.Since(st.LastHeard) > silentAfter
}

// silentAfter is how old the last sign of life may be of the other side of a connection that works: it comes each second.
const silentAfter = 5 * time.Second

// CountQuarantined returns how many units differ although they were repaired.
func CountQuarantined(st *traffic.FollowStatus) int {
	n := 0
	for _, phase := range st.Units {
		if phase == "quarantined" {
			n++
		}
	}
	return n
}

// TimeText is how the API writes a time; "" for the zero one.
func TimeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Options returns those of the Store.
func (s *Store) Options() Options { return s.opts }

// Registry returns who may follow this cluster.
func (s *Store) Registry() *registry.Registry { return s.registry }

// Others returns what is known of the other primaries of the set.
func (s *Store) Others() *primaries.Known { return s.others }
