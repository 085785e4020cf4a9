// Package chaos_test does to a cluster of real processes what machines and networks do: kill -9, pauses,
// partitions, full disks, flipped bits. Meanwhile clients write and read through all nodes; what they saw must
// be linearizable, what a node shows must never go back, and what was acknowledged must be there at the end, on every node.
//
// By default a short version runs. COFFER_CHAOS=long is `make chaos`, COFFER_CHAOS_KILLS the number of leaders
// to kill (the other faults come in proportion), COFFER_CHAOS_SEED repeats a choice of faults. `make chaos-figures`
// inflicts many faults of few kinds and writes what came of it into docs/faults.md.
package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// amount returns the number for the short or the long version.
func amount(short, whenLong int) int {
	if harness.Long {
		return whenLong
	}
	return short
}

// concurrent lets a test run beside the others; but not in the long version, whose times are reported.
func concurrent(t *testing.T) {
	if !harness.Long {
		t.Parallel()
	}
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s must be a number: %v", name, err)
	}
	return n
}

// storm is a cluster under load.
type storm struct {
	*testing.T
	*harness.Cluster
	rand *rand.Rand
	load *load
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	seed := uint64(number(t, "COFFER_CHAOS_SEED", int(time.Now().UnixNano()&0xffffff)))
	t.Logf("COFFER_CHAOS_SEED=%d", seed)
	c := harness.NewCluster(t, 3, harness.Options{Network: true})
	s := &storm{T: t, Cluster: c, rand: rand.New(rand.NewPCG(seed, 1))}
	leader := c.Leader()
	leader.MustDo("POST", "/v1/sys/mounts/lin", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}})
	leader.MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	for _, n := range c.Nodes {
		// The mounts must have arrived: a standby that does not know them yet answers 404, rightly.
		harness.Await(t, n.ID+" to know the mounts", time.Minute, func() error { return mounted(n, c.RootToken) })
	}
	s.load = startLoad(t, c)
	return s
}

func TestChaos(t *testing.T) {
	concurrent(t)
	s := newStorm(t)
	if !t.Run("faults", func(t *testing.T) { s.inflict(t, inProportion(t)) }) {
		return // the cluster did not come back
	}
	t.Run("add and remove a node", func(t *testing.T) { s.membership(t, amount(1, 5)) })
	s.load.stop()
	t.Run("acknowledged writes", func(t *testing.T) { s.acknowledged(t) })
	t.Run("linearizable", func(t *testing.T) { s.linearizable(t) })
}

// settle waits until the cluster is whole again, and gives the clients new keys.
func (s *storm) settle(t *testing.T) {
	t.Helper()
	s.WaitServing()
	s.WaitVoters(len(s.Nodes))
	s.load.nextRound()
}

// membership adds a node under load and removes it again.
func (s *storm) membership(t *testing.T, times int) {
	for i := range times {
		id := fmt.Sprintf("n%d", 4+i)
		n := s.Add(id)
		s.WaitVoters(4)
		s.Leader().MustDo("POST", "/v1/sys/storage/raft/remove-peer", map[string]any{"server_id": id})
		n.Stop()
		s.Nodes = slices.DeleteFunc(s.Nodes, func(m *harness.Node) bool { return m == n })
		s.settle(t)
	}
}

func report(t *testing.T, what string, took []time.Duration) {
	slices.Sort(took)
	if len(took) > 0 {
		t.Logf("chaos: %s: %d times, median %v, p99 %v, max %v", what, len(took), harness.Quantile(took, 0.5).Round(time.Millisecond),
			harness.Quantile(took, 0.99).Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	}
}
