package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// TestSnapshotInstall keeps a node away until the others have dropped the log that it needs, so that it gets
// the whole state instead; and kills it a few times while it does.
func TestSnapshotInstall(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{StorageConfig: `  snapshot_interval = "200ms"
  snapshot_threshold = 32
  trailing_logs = 16`})
	leader := c.Leader()
	leader.MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	away := c.Standbys()[0]
	away.Kill9()
	pad := strings.Repeat("p", 8<<10)
	var mu sync.Mutex
	var keys []string
	write := func(prefix string, count int) {
		t.Helper()
		var writers sync.WaitGroup
		for w := range 8 {
			writers.Go(func() {
				for i := range count / 8 {
					key := fmt.Sprintf("%s%d/%04d", prefix, w, i)
					if !accepted(leader, c.RootToken, key, pad) {
						t.Errorf("%s was not accepted", key)
						continue
					}
					mu.Lock()
					keys = append(keys, key)
					mu.Unlock()
				}
			})
		}
		writers.Wait()
	}
	write("away", 1600)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 10 {
		away.Start()
		write(fmt.Sprintf("back%d-", i), 80)
		<-time.After(time.Duration(r.IntN(100)) * time.Millisecond) // somewhere in the middle of it
		away.Kill9()
	}
	away.Start()
	c.WaitServing()
	c.WaitVoters(3)
	last := c.Leader().MustDo("POST", "/v1/ack/last", map[string]any{"v": "last"})
	for _, n := range c.Nodes {
		checkAcked(t, n, c.RootToken, last.Header.Get("X-Vault-Index"), keys)
	}
	if !strings.Contains(away.Log(), "the state was replaced by a snapshot") {
		t.Errorf("%s came back without a snapshot: the test shows nothing", away.ID)
	}
}

// accepted writes a key until that is acknowledged. With a node away, a busy machine is enough for the two others to be without a
// leader for a moment.
func accepted(n *harness.Node, token, key, pad string) bool {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-time.After(50 * time.Millisecond) {
		if put(n, token, "/v1/ack/"+key, `{"v":"`+key+`","pad":"`+pad+`"}`, 30*time.Second) == written {
			return true
		}
	}
	return false
}
