package security_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// TestRemovedNodes: a node that was removed is no peer any more, neither as it runs nor with its data and the key of the
// seal: it forwards nothing, disturbs no leader, and says that it was removed. The rest goes on through it, and
// through new CAs and restarts.
func TestRemovedNodes(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{})
	root := user{t, c.Leader(), c.RootToken, ""}
	standbys := c.Standbys()
	away, live := standbys[0], standbys[1]
	root.must("POST", "sys/mounts/kv", fields{"type": "kv"})
	root.must("POST", "auth/token/roles/far", fields{"allowed_policies": "default", "token_bound_cidrs": "10.1.0.0/16"})
	bound := authOf(t, root.must("POST", "auth/token/create/far", nil)).Token

	before := root.certificates()
	key, err := os.ReadFile(filepath.Join(away.Dir, "node-key"))
	if err != nil || strings.Contains(string(key), "PRIVATE") {
		t.Fatalf("the node's key is not kept encrypted: %v", err)
	}
	away.Stop()
	root.must("POST", "sys/storage/raft/remove-peer", fields{"server_id": away.ID})
	if after := root.certificates(); after.CA == before.CA || len(after.Nodes) != 2 {
		t.Errorf("after the removal the certificates are %+v, before %+v", after, before)
	}
	root.must("PUT", "kv/after", fields{"v": hidden})
	term := root.term()
	away.Start()
	var asking sync.WaitGroup
	for _, token := range []string{c.RootToken, bound} {
		for _, path := range []string{"kv/after", "auth/token/lookup-self"} {
			for _, header := range [][]string{nil, {"X-Forwarded-For", "10.1.2.3"}, {"X-Vault-Forward", "active-node"}} {
				asking.Go(func() {
					if a := root.at(away).with(token).do("GET", path, nil, header...); a.Status < 400 {
						t.Errorf("the removed node answers %s with %.200s", path, a.Body)
					}
				})
			}
		}
	}
	asking.Wait()
	away.WaitHealth(530)
	if a := root.nobody().at(away).do("GET", "sys/health?removedcode=200", nil); !strings.Contains(string(a.Body), `"removed_from_cluster":true`) || !strings.Contains(string(a.Body), `"sealed":true`) {
		t.Errorf("the removed node's health: %.300s", a.Body)
	}
	if now := root.term(); now != term {
		t.Errorf("the term went from %v to %v", term, now)
	}
	away.Stop()
	away.Start() // and it does not forget
	away.WaitHealth(530)
	away.Stop()

	t.Run("a live one", func(t *testing.T) {
		fourth := c.Add("n4")
		harness.Await(t, "four certificates", time.Minute, func() error {
			if got := root.certificates(); len(got.Nodes) != 3 || got.Nodes["n4"].Expiration == "" {
				return fmt.Errorf("%+v", got)
			}
			return nil
		})
		root.must("POST", "sys/storage/raft/remove-peer", fields{"server_id": "n4"})
		fourth.WaitHealth(530)
		fourth.Stop()
	})
	t.Run("a new CA under load", func(t *testing.T) {
		var stop atomic.Bool
		done := make(chan int)
		go func() {
			n := 0
			for ; !stop.Load(); n++ {
				if a := root.at(live).do("PUT", fmt.Sprintf("kv/load/%d", n), fields{"v": n}); a.Status >= 300 {
					t.Errorf("a write during the rotation: %d %.200s", a.Status, a.Body)
				}
			}
			done <- n
		}()
		seen := map[string]bool{}
		for range 3 {
			root.must("POST", "sys/storage/raft/rotate-ca", nil)
			got := root.certificates()
			seen[got.CA] = true
			for id, n := range got.Nodes {
				if !n.Current {
					t.Errorf("%s has a certificate of an earlier CA", id)
				}
			}
		}
		stop.Store(true)
		n := <-done
		if names := dataOf(t, root.at(c.Leader()).must("LIST", "kv/load", nil))["keys"].([]any); len(names) != n || n == 0 {
			t.Errorf("%d of %d writes are there", len(names), n)
		}
		root.having("default").refused("without sudo", "POST", "sys/storage/raft/rotate-ca", nil)
	})
	t.Run("after restarts", func(t *testing.T) {
		for _, n := range []*harness.Node{live, root.n} {
			n.Stop()
			n.Start()
			n.WaitHealth(200, 429)
		}
		root := root.at(c.Leader())
		if a := root.must("GET", "kv/after", nil); !strings.Contains(string(a.Body), hidden) {
			t.Errorf("after the restarts: %.200s", a.Body)
		}
	})
}

type certificates struct {
	CA    string `json:"ca_expiration"`
	Nodes map[string]struct {
		Expiration string
		Current    bool `json:"current_ca"`
	}
}

func (u user) certificates() certificates {
	u.t.Helper()
	var out struct{ Data certificates }
	u.must("GET", "sys/storage/raft/certificates", nil).Decode(u.t, &out)
	return out.Data
}

// term returns the present term of Raft.
func (u user) term() any {
	u.t.Helper()
	servers := dataOf(u.t, u.must("GET", "sys/storage/raft/autopilot/state", nil))["servers"].(map[string]any)
	return servers[u.n.ID].(map[string]any)["last_term"]
}
