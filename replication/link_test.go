package replication

import (
	"fmt"
	"testing"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// pair is a primary with some mounts, and a cluster to be its secondary.
func pair(t *testing.T) (p, s *testCluster) {
	t.Helper()
	p, s = newTestCluster(t, "p", 2), newTestCluster(t, "s", 2)
	p.enable()
	p.put("s/sys/root/policies/x", "policy")
	p.put("s/index/not", "replicated")
	p.put("l/token/x", "local of the primary")
	s.put("l/token/y", "local of the secondary")
	for _, mount := range []string{"a", "b", "c"} {
		p.put(anchorKey(mount), "mount "+mount)
		for i := range 50 {
			p.put(key(mount, i), fmt.Sprint(i))
		}
	}
	return p, s
}

func key(mount string, i int) storage.Key {
	return storage.Key(fmt.Sprintf("s/%s/%v", mount, i))
}

func TestBackfillAndStream(t *testing.T) {
	p, s := pair(t)
	s.follows(p.certify("one", s, time.Now()), FollowHooks{})
	s.catchesUp(p)
	for i := range 200 {
		p.put(key("a", i), fmt.Sprint("again ", i))
		if i%3 == 0 {
			p.remove(key("b", i))
		}
	}
	s.catchesUp(p)
	if got := s.shared()["l/token/x"]; got != "" {
		t.Error("what is local has travelled")
	}
	if e, err := (testStore{s}).Get(t.Context(), "l/token/y"); err != nil || string(e.Value) != "local of the secondary" {
		t.Errorf("what is local has changed: %q, %v", e.Value, err)
	}
	if a, b := p.nodes[0].link.Root(), s.nodes[0].link.Root(); a != b || a == "" {
		t.Errorf("the digests are %q and %q", a, b)
	}
}
