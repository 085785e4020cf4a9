package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// killAll ends all nodes at once, up to 50 ms after what was just acknowledged.
func killAll(c *harness.Cluster) {
	time.Sleep(time.Duration(rand.Int64N(int64(50 * time.Millisecond)))) // the moment of the crash
	var killing sync.WaitGroup
	for _, n := range c.Nodes {
		killing.Go(n.Kill9)
	}
	killing.Wait()
}

// rekey replaces the unseal keys, and with them the root key. The last answer is the acknowledgement.
func rekey(t *testing.T, c *harness.Cluster) (keys []string) {
	t.Helper()
	leader := c.Leader()
	var status struct {
		Nonce    string
		Complete bool
		Keys     []string `json:"keys_base64"`
	}
	leader.MustDo(http.MethodPut, "/v1/sys/rekey/init", map[string]any{"secret_shares": 3, "secret_threshold": 2}).Decode(t, &status)
	for _, key := range c.Keys[:2] {
		leader.MustDo(http.MethodPut, "/v1/sys/rekey/update", map[string]any{"key": key, "nonce": status.Nonce}).Decode(t, &status)
	}
	if !status.Complete || len(status.Keys) != 3 {
		t.Fatalf("the rekey is not complete: %d keys", len(status.Keys))
	}
	return status.Keys
}

// TestSealedStateIsDurable: what a sealed node reads is on its disk when it is acknowledged. A node that is killed right after
// init was initialised, and after a rekey the new keys open it.
func TestSealedStateIsDurable(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	c := harness.NewCluster(t, 1, harness.Options{Shamir: true, Bare: true})
	n := c.Nodes[0]
	for range 15 {
		n.Kill9()
		if err := os.RemoveAll(n.Dir); err != nil {
			t.Fatal(err)
		}
		n.Start()
		c.Initialize(n)
		killAll(c)
		n.Start()
		n.WaitHealth(503)
		n.Unseal()
		n.WaitHealth(200)
		c.Keys = rekey(t, c)
		killAll(c)
		n.Start()
		n.Unseal()
		n.WaitHealth(200)
	}
	n.MustDo(http.MethodPost, "/v1/sys/storage/raft/autopilot/configuration", map[string]any{"server_stabilization_time": "500ms"})
	c.Add("n2")
	c.Add("n3")
	n.Configure(true)
	for range 6 {
		c.WaitVoters(3)
		c.Keys = rekey(t, c)
		killAll(c)
		for _, n := range c.Nodes {
			n.Start()
		}
		// The keys open a majority at once, and the rest as soon as that leads: until then a node that has not heard of the
		// rekey takes them for wrong ones.
		harness.Await(t, "the new keys to open every node", time.Minute, func() error {
			var sealed error
			for _, n := range c.Nodes {
				sealed = errors.Join(sealed, opens(n, c.Keys))
			}
			return sealed
		})
		c.WaitServing()
	}
}

// opens gives a node key shares from the first one on, and reports which node stays sealed.
func opens(n *harness.Node, keys []string) error {
	bodies := []map[string]any{{"reset": true}}
	for _, key := range keys {
		bodies = append(bodies, map[string]any{"key": key})
	}
	for _, body := range bodies {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		a, err := n.Do(ctx, http.MethodPut, "/v1/sys/unseal", "", body)
		cancel()
		if err != nil {
			return err
		}
		var status struct{ Sealed *bool }
		if json.Unmarshal(a.Body, &status) == nil && a.Status == 200 && status.Sealed != nil && !*status.Sealed {
			return nil
		}
	}
	return fmt.Errorf("%s is sealed", n.ID)
}
