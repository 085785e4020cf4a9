package chaos_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// TestRestoreIntoNewCluster: after the loss of a whole cluster, its snapshot brings everything back in new
// machines, under the old cluster's keys and tokens. One of them gets the state a moment after the others: they may not leave before.
func TestRestoreIntoNewCluster(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	old := harness.NewCluster(t, 1, harness.Options{Shamir: true})
	n := old.Nodes[0]
	n.MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	n.MustDo("POST", "/v1/sys/policies/acl/mine", map[string]any{"policy": `path "ack/*" { capabilities = ["read"] }`})
	keys, _ := fill(t, n, "k", 200)
	archive := n.MustDo("GET", "/v1/sys/storage/raft/snapshot", nil).Body
	old.Nodes[0].Kill9()

	c := harness.NewCluster(t, 3, harness.Options{Shamir: true})
	leader := c.Leader()
	restore := func(path string) harness.Answer {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		a, err := leader.Do(ctx, http.MethodPost, path, c.RootToken, archive)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := restore("/v1/sys/storage/raft/snapshot"); a.Status != 400 || !strings.Contains(string(a.Body), "snapshot-force") {
		t.Fatalf("a foreign snapshot without force: status %d: %s", a.Status, a.Body)
	}
	slow := c.Standbys()[0]
	slow.Pause()
	if a := restore("/v1/sys/storage/raft/snapshot-force"); a.Status >= 300 {
		t.Fatalf("with force: status %d: %s", a.Status, a.Body)
	}
	c.RootToken, c.Keys = old.RootToken, old.Keys
	for _, n := range c.Nodes {
		if n != slow {
			n.WaitHealth(503) // the state has other keys now
		}
	}
	slow.Resume()
	slow.WaitHealth(503)
	for _, n := range c.Nodes {
		n.Unseal()
	}
	c.WaitServing()
	c.WaitVoters(3)
	last := c.Leader().MustDo("POST", "/v1/ack/last", map[string]any{"v": "last"})
	for _, n := range c.Nodes {
		checkAcked(t, n, c.RootToken, last.Header.Get("X-Vault-Index"), keys)
	}
	policy := c.Leader().MustDo("GET", "/v1/sys/policies/acl/mine", nil)
	if !strings.Contains(string(policy.Body), "ack/*") {
		t.Errorf("the policy is not what it was: %s", policy.Body)
	}
}
