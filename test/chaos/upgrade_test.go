package chaos_test

import (
	"errors"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// TestRollingUpgrade takes a cluster of the previous release to this one, node by node, under the load of clients that must not
// see a failure; then again in the other order with leaders that are killed in between, of both releases, which loses nothing
// that was acknowledged. In the middle of both a node goes back to the previous release, which is possible until all have gone.
func TestRollingUpgrade(t *testing.T) {
	harness.LongOnly(t)
	previous := harness.Previous(t)
	for _, tt := range []struct {
		name  string
		order func(c *harness.Cluster) []*harness.Node
		kills bool
	}{
		{"standbys first", func(c *harness.Cluster) []*harness.Node { return append(c.Standbys(), c.Leader()) }, false},
		{"leader first, with kills", func(c *harness.Cluster) []*harness.Node { return append([]*harness.Node{c.Leader()}, c.Standbys()...) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := harness.NewCluster(t, 3, harness.Options{Binary: previous})
			r := startRolling(t, c)
			for i, n := range tt.order(c) {
				r.upgrade(t, n, "", tt.kills)
				if i == 0 {
					r.upgrade(t, n, previous, tt.kills)
					r.upgrade(t, n, "", tt.kills)
				}
			}
			r.stop()
			if !tt.kills {
				r.report(t)
			}
			r.checkAcked(t)
			if tt.kills {
				r.goBack(t, c.Standbys()[0], previous)
			}
		})
	}
}

// goBack starts one node of an upgraded cluster with the previous release, which does not read what the cluster writes by now:
// that changes nothing for the others, and the node is whole again with the present release.
func (r *rolling) goBack(t *testing.T, n *harness.Node, previous string) {
	t.Helper()
	n.Stop()
	n.Use(previous)
	n.Start()
	leader := r.c.Leader()
	leader.Kill9()
	leader.Start()
	harness.Await(t, "a write beside a node of the previous release", 2*time.Minute, func() error {
		if put(r.c.Leader(), r.c.RootToken, "/v1/ack/back", `{"v":"back"}`, 20*time.Second) != written {
			return errors.New("it was not acknowledged")
		}
		return nil
	})
	r.acked = append(r.acked, "back")
	n.Stop()
	n.Use("")
	n.Start()
	r.c.WaitVoters(3)
	r.checkAcked(t)
}

// upgrade restarts a node with another binary, then, if there are to be kills, ends whichever node leads.
func (r *rolling) upgrade(t *testing.T, n *harness.Node, binary string, kills bool) {
	t.Helper()
	r.restart(t, n, func() {
		n.Stop()
		n.Use(binary)
	})
	if !kills {
		return
	}
	leader := r.c.Leader()
	r.restart(t, leader, leader.Kill9)
}
