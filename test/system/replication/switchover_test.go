package replication

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// TestSwitchOverUnderWrites demotes and promotes while both clusters are written to as fast as they take it, with and without
// the loss of the leader right after it was demoted: what was acknowledged is there afterwards, on both.
func TestSwitchOverUnderWrites(t *testing.T) {
	t.Parallel()
	primary := harness.NewCluster(t, 3, harness.Options{Prefix: "p"})
	secondary := harness.NewCluster(t, 3, harness.Options{Prefix: "s"})
	must(t, primary, primary.Leader(), "POST", "sys/mounts/kv", object{"type": "kv"})
	harness.Replicate(primary, secondary, "eu")
	acknowledged := map[string]bool{}
	rounds := 2
	if harness.Long {
		rounds = 4
	}
	for round := range rounds {
		ctx, stop := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		var mu sync.Mutex
		for id := range 8 {
			writers.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					c := primary
					if id%2 == 1 {
						c = secondary
					}
					path := fmt.Sprintf("kv/r%d/w%d/%d", round, id, n)
					limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					a, err := c.Nodes[rand.IntN(len(c.Nodes))].Do(limit, http.MethodPost, "/v1/"+path, c.RootToken, object{"value": path})
					cancel()
					if err == nil && a.Status < 300 {
						mu.Lock()
						acknowledged[path] = true
						mu.Unlock()
					}
				}
			})
		}
		written := func() int { mu.Lock(); defer mu.Unlock(); return len(acknowledged) }
		before := written()
		harness.Await(t, "writes", time.Minute, func() error {
			if n := written() - before; n < 100 {
				return fmt.Errorf("%d writes", n)
			}
			return nil
		})
		leader := primary.Leader()
		must(t, primary, leader, "POST", "sys/replication/performance/primary/demote", nil)
		if round%2 == 1 {
			leader.Kill9()
		}
		promote(t, secondary)
		secondary.AwaitReplication("to be the primary", func(r harness.Replication) bool { return r.Mode == "primary" })
		stop()
		writers.Wait()
		if round%2 == 1 {
			leader.Start()
		}
		primary, secondary = secondary, primary
		secondary.WaitServing()
		secondary.UpdatePrimary(primary, primary.SecondaryToken(fmt.Sprint("former", round)))
		secondary.AwaitStreaming()
		secondary.AwaitHead(primary)
		lost := 0
		for _, c := range []*harness.Cluster{primary, secondary} {
			r := reader{Cluster: c}
			for path := range acknowledged {
				if status, data := r.read(t, path, holds(path)); !holds(path)(status, data) {
					lost++
					t.Errorf("round %d: %s was acknowledged, and %s answers %d", round, path, c.Nodes[0].ID, status)
				}
				if lost > 10 {
					t.FailNow()
				}
			}
		}
		t.Logf("round %d: %d acknowledged", round, len(acknowledged))
		clear(acknowledged)
		if t.Failed() {
			break
		}
	}
	compare(t, primary, secondary, nil)
}

// TestEnableInterrupted kills the leaders of both clusters while one becomes a secondary of the other: it has what the primary
// has in the end, and nothing of its own is left, on no node.
func TestEnableInterrupted(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	primary := harness.NewCluster(t, 3, harness.Options{Prefix: "p"})
	secondary := harness.NewCluster(t, 3, harness.Options{Prefix: "s"})
	for _, c := range []*harness.Cluster{primary, secondary} {
		leader := c.Leader()
		must(t, c, leader, "POST", "sys/mounts/kv", object{"type": "kv"})
		var writers sync.WaitGroup
		for w := range 8 {
			writers.Go(func() {
				for i := w; i < 400; i += 8 {
					must(t, c, leader, "POST", fmt.Sprintf("kv/%s/%d", c.Nodes[0].ID, i), object{"value": "x"})
				}
			})
		}
		writers.Wait()
	}
	old := secondary.RootToken
	primary.EnablePrimary()
	primary.AddOperator()
	leader := secondary.Leader()
	must(t, secondary, leader, "POST", "sys/replication/performance/secondary/enable", object{"token": primary.SecondaryToken("eu"), "ca_file": primary.CAFile})
	leader.Kill9()
	secondary.AwaitReplication("to be a secondary", func(r harness.Replication) bool { return r.Mode == "secondary" })
	other := primary.Leader()
	other.Kill9()
	secondary.Adopt(primary)
	leader.Start()
	secondary.AwaitStreaming()
	secondary.LogIn()
	other.Start()
	for _, c := range []*harness.Cluster{primary, secondary} {
		c.WaitServing()
	}
	secondary.AwaitHead(primary)
	for _, n := range secondary.Nodes {
		eventually(t, secondary, n, "kv/"+primary.Nodes[0].ID+"/399", holds("x"))
		isGone(t, secondary, "kv/"+secondary.Nodes[0].ID+"/1")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if a, err := n.Do(ctx, http.MethodGet, "/v1/sys/mounts", old, nil); err != nil || a.Status != http.StatusForbidden {
			t.Errorf("the root token of before on %s: status %d, %v", n.ID, a.Status, err)
		}
		cancel()
	}
	compare(t, primary, secondary, nil)
}
