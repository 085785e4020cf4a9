package chaos_test

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// TestOneConfigurationFoundsACluster: nodes that all name all of them in retry_join become one cluster by one
// initialization of any of them, and a node that loses everything comes back, also the one that was initialized.
func TestOneConfigurationFoundsACluster(t *testing.T) {
	concurrent(t)
	c := harness.NewCluster(t, 3, harness.Options{Bare: true, OneConfiguration: true})
	tryInit := func(n *harness.Node) harness.Answer {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		a, err := n.Do(ctx, "PUT", "/v1/sys/init", "", map[string]any{})
		if err != nil {
			t.Errorf("initializing %s: %v", n.ID, err)
		}
		return a
	}
	founders := make([]*harness.Node, len(c.Nodes))
	var trying sync.WaitGroup
	for i, n := range c.Nodes { // all at once: at most one may succeed
		trying.Go(func() {
			if a := tryInit(n); a.Status == 200 {
				founders[i] = n
				var out struct {
					Token string `json:"root_token"`
				}
				a.Decode(t, &out)
				c.RootToken = out.Token
			} else if !strings.Contains(string(a.Body), "initialized") && !strings.Contains(string(a.Body), "is in a cluster") {
				t.Errorf("initializing %s answers %d %s", n.ID, a.Status, a.Body)
			}
		})
	}
	trying.Wait()
	var founder *harness.Node
	for _, n := range founders {
		if n != nil && founder != nil {
			t.Fatalf("%s and %s have both founded a cluster", founder.ID, n.ID)
		}
		if n != nil {
			founder = n
		}
	}
	if founder == nil {
		founder = c.Nodes[1]
		c.Initialize(founder)
	}
	founder.WaitHealth(200)
	founder.MustDo("POST", "/v1/sys/storage/raft/autopilot/configuration", map[string]any{"server_stabilization_time": "500ms"})
	c.WaitServing()
	c.WaitVoters(3)
	for _, n := range c.Nodes {
		if a := tryInit(n); a.Status != 400 || !strings.Contains(string(a.Body), "already initialized") {
			t.Errorf("initializing %s again answers %d %s", n.ID, a.Status, a.Body)
		}
	}
	if !harness.Long {
		return
	}
	founder.Kill9()
	if err := os.RemoveAll(founder.Dir); err != nil {
		t.Fatal(err)
	}
	founder.Start()
	founder.WaitHealth(200, 429)
	c.WaitVoters(3)
}
