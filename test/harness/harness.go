// Package harness runs real Coffer processes for tests: it builds the binary once, gives every node its own
// directory, ports, certificate and configuration, and ends everything it started. Nothing in it knows how
// the server works inside; all it uses is what an operator has: files, signals and the API.
//
// Start reading at NewCluster, then Node. A node's cluster port can sit behind a Network, which cuts and heals
// the connections between nodes. COFFER_TEST_BINARY names a binary to use instead of building one, and
// COFFER_TEST_LOGS=1 shows the end of every node's log also when the test passes.
package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness/described"
)

// TB is what the harness needs of a testing.TB, so that programs can use it too.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
	TempDir() string
	Failed() bool
}

// Options of NewCluster. The zero value is a cluster that unseals and joins by itself.
type Options struct {
	// Shamir seals with key shares instead of a static key. Nodes are then unsealed with Cluster.Keys.
	Shamir bool
	// Prefix of the names of nodes, "n" if empty; for tests with two clusters.
	Prefix string
	// Bare starts the processes and stops there: nothing is initialised, unsealed or joined.
	Bare bool
	// OneConfiguration has every node's retry_join name all of them, itself included. For Bare clusters.
	OneConfiguration bool
	// NoRetryJoin leaves retry_join out of the configurations.
	NoRetryJoin bool
	// Network puts every cluster port behind a proxy, see Cluster.Network.
	Network bool
	// Dir returns the data directory of a node, "" for one below TempDir.
	Dir func(id string) string
	// StorageConfig and Config are more lines for the storage stanza and for the top level.
	StorageConfig, Config string
	// ListenerConfig is more lines for the listener stanza.
	ListenerConfig string
	// Memory is for tests that measure memory: garbage is collected early, whatever the environment says.
	Memory bool
	// Files is how many descriptors a process may have, 0 for what the test has.
	Files int
	// Binary is what the nodes run, "" for Binary; see Previous.
	Binary string
	// Described compares each response to the nodes' clients with the server's OpenAPI document.
	Described bool
	// Plain turns TLS off.
	Plain bool
	// ReadyIn bounds the wait for a started node or cluster; 0 means 60 s.
	ReadyIn time.Duration
}

// Cluster is a set of nodes, with what the initialisation handed out.
type Cluster struct {
	Nodes     []*Node
	Network   *Network // nil unless Options.Network
	RootToken string
	Keys      []string // base64; empty with a static seal
	CAFile    string

	t     TB
	opts  Options
	dir   string
	certs *authority
	docs  described.Cluster
	seal  string

	operator string // password of AddOperator's user
}

// NewCluster starts n nodes named n1, n2, … (see Options.Prefix); unless Options.Bare it returns when all of them serve and vote.
// Everything ends with the test.
func NewCluster(t TB, n int, opts Options) *Cluster {
	t.Helper()
	if opts.ReadyIn == 0 {
		opts.ReadyIn = time.Minute
	}
	if opts.Prefix == "" {
		opts.Prefix = "n"
	}
	c := &Cluster{t: t, opts: opts, dir: t.TempDir()}
	c.certs = newAuthority(t)
	c.CAFile = filepath.Join(c.dir, "ca.pem")
	c.write(c.CAFile, c.certs.pem)
	c.seal = sealKey()
	if opts.Network {
		c.Network = newNetwork(t)
	}
	t.Cleanup(c.end)
	for i := range n {
		c.add(fmt.Sprintf("%s%d", opts.Prefix, i+1))
	}
	if opts.Bare {
		for _, node := range c.Nodes {
			if opts.OneConfiguration {
				node.configure(true)
			}
			node.Start()
		}
		return c
	}
	c.bootstrap()
	return c
}

// bootstrap initialises the first node and lets the others join it.
func (c *Cluster) bootstrap() {
	c.t.Helper()
	first := c.Nodes[0]
	first.configure(false)
	first.Start()
	first.WaitHealth(501)
	c.Initialize(first)
	if c.opts.Shamir {
		first.Unseal()
	}
	first.WaitHealth(200)
	// Joiners vote once they have been healthy for a while: in a test, a short one.
	c.must(first.Do(c.context(), "POST", "/v1/sys/storage/raft/autopilot/configuration", c.RootToken,
		map[string]any{"server_stabilization_time": "500ms"}))
	first.configure(!c.opts.NoRetryJoin)
	for _, node := range c.Nodes[1:] {
		node.Start()
		c.join(node)
	}
	c.WaitVoters(len(c.Nodes))
}

// Add starts one more node and lets it join.
func (c *Cluster) Add(id string) *Node {
	c.t.Helper()
	node := c.add(id)
	node.Start()
	c.join(node)
	return node
}

// Twin returns a second machine that is configured with a node's id: addresses and an empty data directory of its own.
func (c *Cluster) Twin(of *Node) *Node {
	c.t.Helper()
	twin := newNode(c, fmt.Sprintf("%s-twin%d", of.ID, len(c.Nodes)))
	twin.ID = of.ID
	c.Nodes = append(c.Nodes, twin)
	twin.configure(true)
	return twin
}

func (c *Cluster) add(id string) *Node {
	c.t.Helper()
	node := newNode(c, id)
	c.Nodes = append(c.Nodes, node)
	node.configure(len(c.Nodes) > 1 && !c.opts.NoRetryJoin)
	return node
}

func (c *Cluster) join(node *Node) {
	c.t.Helper()
	if c.opts.NoRetryJoin {
		c.must(node.Do(c.context(), "POST", "/v1/sys/storage/raft/join", "", map[string]any{
			"leader_api_addr": c.Nodes[0].URL, "leader_ca_cert": string(c.certs.pem),
		}))
	}
	if c.opts.Shamir {
		node.Unseal()
	}
	node.WaitHealth(200, 429)
}

// Initialize makes a node the first of a new cluster, with whose keys and root token the test goes on.
func (c *Cluster) Initialize(n *Node) {
	c.t.Helper()
	body := map[string]any{}
	if c.opts.Shamir {
		body = map[string]any{"secret_shares": 3, "secret_threshold": 2}
	}
	answer := c.must(n.Do(c.context(), "PUT", "/v1/sys/init", "", body))
	var out struct {
		Token string   `json:"root_token"`
		Keys  []string `json:"keys_base64"`
	}
	answer.Decode(c.t, &out)
	if out.Token == "" {
		c.t.Fatalf("sys/init answered no root token")
	}
	c.RootToken, c.Keys = out.Token, out.Keys
}

// Node returns the node of that name.
func (c *Cluster) Node(id string) *Node {
	c.t.Helper()
	i := slices.IndexFunc(c.Nodes, func(n *Node) bool { return n.ID == id })
	if i < 0 {
		c.t.Fatalf("there is no node %q", id)
	}
	return c.Nodes[i]
}

// Leader waits until exactly one running node says that it is active, and returns it.
func (c *Cluster) Leader() *Node {
	c.t.Helper()
	var leader *Node
	Await(c.t, "an active node", c.opts.ReadyIn, func() error {
		leader = nil
		for _, n := range c.Nodes {
			if n.Running() && n.Health() == 200 {
				if leader != nil {
					return fmt.Errorf("%s and %s both say that they are active", leader.ID, n.ID)
				}
				leader = n
			}
		}
		if leader == nil {
			return fmt.Errorf("no node is active")
		}
		return nil
	})
	return leader
}

// Standbys returns the running nodes other than the leader.
func (c *Cluster) Standbys() []*Node {
	c.t.Helper()
	leader := c.Leader()
	return slices.DeleteFunc(slices.Clone(c.Nodes), func(n *Node) bool { return n == leader || !n.Running() })
}

// WaitVoters waits until the cluster has n voters and all of them are healthy.
func (c *Cluster) WaitVoters(n int) {
	c.t.Helper()
	Await(c.t, fmt.Sprintf("%d healthy voters", n), c.opts.ReadyIn, func() error {
		leader := c.Leader()
		answer, err := leader.Do(c.context(), "GET", "/v1/sys/storage/raft/autopilot/state", c.RootToken, nil)
		if err != nil || answer.Status != 200 {
			return fmt.Errorf("autopilot state: status %d, %v", answer.Status, err)
		}
		var state struct {
			Data struct {
				Healthy bool
				Voters  []string
			}
		}
		answer.Decode(c.t, &state)
		if len(state.Data.Voters) != n || !state.Data.Healthy {
			return fmt.Errorf("healthy: %v, voters: %v", state.Data.Healthy, state.Data.Voters)
		}
		return nil
	})
}

// WaitServing waits until every running node is active or standby.
func (c *Cluster) WaitServing() {
	c.t.Helper()
	for _, n := range c.Nodes {
		if n.Running() {
			n.WaitHealth(200, 429)
		}
	}
}

// end stops the processes and shows their logs if the test failed.
func (c *Cluster) end() {
	for _, n := range c.Nodes {
		n.Kill9()
	}
	for _, n := range c.Nodes {
		n.inspectLog()
	}
	if c.t.Failed() || os.Getenv("COFFER_TEST_LOGS") != "" {
		for _, n := range c.Nodes {
			c.t.Logf("the end of %s's log:\n%s", n.ID, tail(n.LogFile, 60))
		}
	}
}

func (c *Cluster) must(a Answer, err error) Answer {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	if a.Status >= 300 {
		c.t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	return a
}

func (c *Cluster) write(name string, text []byte) {
	c.t.Helper()
	if err := os.WriteFile(name, text, 0o600); err != nil {
		c.t.Fatalf("%v", err)
	}
}

func (c *Cluster) context() context.Context { return context.Background() }

func contextFor(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// Await polls until condition returns nil, with growing pauses, and fails the test with its last error when
// the time is up. It is for what only a running process can tell; never assert on how long it took.
func Await(t TB, what string, within time.Duration, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for pause := 5 * time.Millisecond; ; pause = min(pause*3/2, 200*time.Millisecond) {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting %v for %s: %v", within, what, err)
			return
		}
		<-time.After(pause)
	}
}

var _ TB = testing.TB(nil)
