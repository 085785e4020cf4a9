package secretsync

import (
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/synctest"
)

// TestClaimsOutliveAnotherEndpoint: where the operator has a vendor reached says nothing of whose a name is.
func TestClaimsOutliveAnotherEndpoint(t *testing.T) {
	inSim(t, func(s *sim) {
		same := func(a *associationRecord) { a.Template = "same" }
		s.mounts[0].Put("a", "k", "1")
		s.mounts[0].Put("b", "k", "2")
		a := s.tie(0, "a", same)
		s.stop()
		s.operator.Endpoints = map[string]Endpoint{synctest.Marked: {URL: "https://elsewhere.example"}}
		s.start()
		s.pass(time.Second)
		b := s.tie(1, "b", same)
		if l := s.link(b, "b"); len(l.Items) != 1 || l.Items[0].Code != codeTaken {
			t.Errorf("the name of another association is not known to be taken: %+v", l.Items)
		}
		s.untie(a)
		s.pass(10 * time.Second)
		s.status(b, "b", Synced)
		s.checkClaims()
	})
}
