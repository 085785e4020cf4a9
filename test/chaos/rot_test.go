package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// flipLive flips bits in a file that a running node has open: in some pages, of those that were ever written.
func flipLive(t *testing.T, path string, pages int, rng *rand.Rand) {
	t.Helper()
	const size = 4096
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var used []int
	for page := 2; (page+1)*size <= len(b); page++ {
		if kind := b[page*size+8]; kind == 1 || kind == 2 {
			used = append(used, page)
		}
	}
	for range min(pages, len(used)) {
		at := used[rng.IntN(len(used))]*size + rng.IntN(size/2)
		if _, err := f.WriteAt([]byte{b[at] ^ 1<<rng.IntN(8)}, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
}

// askAll reads keys that exist at one node. A node that has found damage may be away; it must not say that a key does not
// exist, or give another value.
func askAll(t *testing.T, n *harness.Node, token string, keys []string, rng *rand.Rand, until func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for i := 0; !until() || i < len(keys); i++ {
		if time.Now().After(deadline) {
			t.Fatalf("%s has not noticed the damage; its health is %d", n.ID, n.Health())
		}
		key := keys[rng.IntN(len(keys))]
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		a, err := n.Do(ctx, "GET", "/v1/ack/"+key, token, nil)
		cancel()
		switch {
		case err != nil:
		case a.Status == 404:
			t.Fatalf("%s: %s is there, but the answer is 404", n.ID, key)
		case a.Status == 200 && !strings.Contains(string(a.Body), `"v":"`+key+`"`):
			t.Fatalf("%s: the answer for %s is another value", n.ID, key)
		}
	}
}

// TestRotWhileRunning flips bits in the files of running nodes, of standbys and of the active one. Nothing wrong is read, and
// the node that has the damage hands leadership over, moves its files aside and fetches them from the others by itself.
func TestRotWhileRunning(t *testing.T) {
	harness.LongOnly(t)
	c := harness.NewCluster(t, 3, harness.Options{StorageConfig: `  scrub_interval = "2s"`})
	c.Leader().MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	keys, index := fill(t, c.Leader(), "k", 600)
	for _, n := range c.Nodes {
		checkAcked(t, n, c.RootToken, index, keys)
	}
	rng := rand.New(rand.NewPCG(7, 8))
	for round, tt := range []struct {
		file   string
		active bool
	}{{"fsm.db", false}, {"fsm.db", true}, {"raft.db", false}, {"raft.db", true}} {
		victim := c.Standbys()[0]
		if tt.active {
			victim = c.Leader()
		}
		more, _ := fill(t, c.Leader(), fmt.Sprintf("round%d", round), 50)
		keys = append(keys, more...)
		<-time.After(500 * time.Millisecond)
		logged := len(victim.Log())
		flipLive(t, filepath.Join(victim.Dir, tt.file), 60, rng)
		askAll(t, victim, c.RootToken, keys, rng, func() bool {
			return strings.Contains(victim.Log()[logged:], "moved aside")
		})
		if text := victim.Log()[logged:]; !strings.Contains(text, tt.file+" is corrupt") {
			t.Errorf("the log of %s does not name %s", victim.ID, tt.file)
		}
		harness.Await(t, "another node to lead", 20*time.Second, func() error {
			for _, n := range c.Nodes {
				if n.Health() == 200 {
					return nil
				}
			}
			return fmt.Errorf("no node leads")
		})
		victim.WaitHealth(200, 429)
		c.WaitServing()
		c.WaitVoters(3)
		last := c.Leader().MustDo("POST", "/v1/ack/last", map[string]any{"v": "last"})
		for _, n := range c.Nodes {
			checkAcked(t, n, c.RootToken, last.Header.Get("X-Vault-Index"), keys)
		}
	}
}

// TestRotOfTheOnlyNode: with no node to fetch from, the process ends with an error that names the file.
func TestRotOfTheOnlyNode(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	c := harness.NewCluster(t, 1, harness.Options{NoRetryJoin: true, StorageConfig: `  scrub_interval = "2s"`})
	n := c.Nodes[0]
	n.MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	keys, _ := fill(t, n, "k", 600)
	<-time.After(500 * time.Millisecond)
	rng := rand.New(rand.NewPCG(9, 10))
	logged := len(n.Log())
	flipLive(t, filepath.Join(n.Dir, "fsm.db"), 60, rng)
	askAll(t, n, c.RootToken, keys, rng, func() bool {
		return strings.Contains(n.Log()[logged:], "does not start on damaged data")
	})
	if text := n.WaitEnd(20 * time.Second); !strings.Contains(n.Log()[logged:], filepath.Join(n.Dir, "fsm.db")+" is corrupt") {
		t.Errorf("what it wrote does not name the file: %s", text)
	}
}

// flipLeaves flips a bit in each page of records of a stopped node's state file, but for the one that is read at every start.
func flipLeaves(t *testing.T, n *harness.Node) {
	t.Helper()
	const size = 4096
	path := filepath.Join(n.Dir, "fsm.db")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := 0
	for at := 2 * size; at+size <= len(b); at += size {
		if b[at+8] == 2 && b[at+10] > 0 && b[at+16] == 0 { // a leaf whose first element is no bucket
			b[at+size/2] ^= 4
			flipped++
		}
	}
	if flipped < 10 {
		t.Fatalf("the file has only %d pages of records", flipped)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRotBeforeStart damages the state file of a node that is off, as it is opened when it is large: by the checksums beside it. What is
// damaged is found soon after the start, serves no read, and is fetched from the others; without others the process ends.
func TestRotBeforeStart(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	const large = `  verify_at_start = 0`
	t.Run("three nodes", func(t *testing.T) {
		c := harness.NewCluster(t, 3, harness.Options{StorageConfig: large})
		c.Leader().MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
		keys, index := fill(t, c.Leader(), "k", 300)
		for _, n := range c.Nodes {
			checkAcked(t, n, c.RootToken, index, keys)
		}
		for _, victim := range []*harness.Node{c.Standbys()[0], c.Leader()} {
			victim.Stop()
			flipLeaves(t, victim)
			logged := len(victim.Log())
			if err := victim.Launch(); err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(11, 12))
			askAll(t, victim, c.RootToken, keys, rng, func() bool { return strings.Contains(victim.Log()[logged:], "moved aside") })
			if text := victim.Log()[logged:]; !strings.Contains(text, "fsm.db is corrupt") || strings.Contains(text, "do not fit") {
				t.Errorf("the log of %s does not name the file, or the damage was found before the node was opened:\n%s", victim.ID, text)
			}
			victim.WaitHealth(200, 429)
			c.WaitServing()
			c.WaitVoters(3)
		}
		last := c.Leader().MustDo("POST", "/v1/ack/last", map[string]any{"v": "last"})
		for _, n := range c.Nodes {
			checkAcked(t, n, c.RootToken, last.Header.Get("X-Vault-Index"), keys)
		}
	})
	t.Run("one node", func(t *testing.T) {
		c := harness.NewCluster(t, 1, harness.Options{NoRetryJoin: true, StorageConfig: large})
		n := c.Nodes[0]
		n.MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
		fill(t, n, "k", 300)
		n.Stop()
		flipLeaves(t, n)
		logged := len(n.Log())
		if err := n.Launch(); err != nil {
			t.Fatal(err)
		}
		text := n.WaitEnd(30 * time.Second)
		if log := n.Log()[logged:]; !strings.Contains(log, "does not start on damaged data") || !strings.Contains(log, filepath.Join(n.Dir, "fsm.db")+" is corrupt") {
			t.Errorf("what it wrote does not name the file: %s", text)
		}
	})
}
