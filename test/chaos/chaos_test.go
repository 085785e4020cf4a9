// Package chaos_test does to a cluster of real processes what machines and networks do: kill -9, pauses,
// partitions, full disks, flipped bits. Meanwhile clients write and read through all nodes; what they saw must
// be linearizable, and what was acknowledged must be there at the end, on every node.
//
// By default a short version runs. COFFER_CHAOS=long is `make chaos`, COFFER_CHAOS_KILLS the number of leaders
// to kill, COFFER_CHAOS_SEED repeats a choice of faults.
package chaos_test

import (
	"errors"
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

var long = os.Getenv("COFFER_CHAOS") == "long"

// amount returns the number for the short or the long version.
func amount(short, whenLong int) int {
	if long {
		return whenLong
	}
	return short
}

// concurrent lets a test run beside the others; but not in the long version, whose times are reported.
func concurrent(t *testing.T) {
	if !long {
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
	if !t.Run("kill the leader", func(t *testing.T) { s.killLeaders(t, number(t, "COFFER_CHAOS_KILLS", amount(3, 50))) }) {
		return // the cluster did not come back
	}
	t.Run("pause the leader", func(t *testing.T) { s.pauseLeaders(t, amount(1, 10)) })
	t.Run("partitions", func(t *testing.T) { s.partitions(t, amount(1, 5)) })
	t.Run("add and remove a node", func(t *testing.T) { s.membership(t, amount(1, 5)) })
	t.Run("crash everything", func(t *testing.T) { s.crashAll(t, amount(1, 3)) })
	s.load.stop()
	t.Run("acknowledged writes", s.acknowledged)
	t.Run("linearizable", s.linearizable)
}

// settle waits until the cluster is whole again, and gives the clients new keys.
func (s *storm) settle(t *testing.T) {
	t.Helper()
	s.WaitServing()
	s.WaitVoters(len(s.Nodes))
	s.load.nextRound()
}

// killLeaders kills the leader with -9 again and again and measures how long nobody can write.
func (s *storm) killLeaders(t *testing.T, times int) {
	var took []time.Duration
	for range times {
		leader := s.Leader()
		var survivors []*harness.Node
		for _, n := range s.Nodes {
			if n != leader {
				survivors = append(survivors, n)
			}
		}
		start := time.Now()
		leader.Kill9()
		took = append(took, s.firstWrite(t, survivors).Sub(start))
		leader.Start()
		s.settle(t)
	}
	report(t, "first write after kill -9 of the leader", took)
}

// firstWrite returns when a write was first accepted by one of the nodes.
func (s *storm) firstWrite(t *testing.T, nodes []*harness.Node) time.Time {
	t.Helper()
	accepted := make(chan time.Time, len(nodes)) // one for each prober, so that none is left waiting
	done := make(chan struct{})
	defer close(done)
	for _, n := range nodes {
		go func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if put(n, s.RootToken, "/v1/ack/probe", `{"a":"b"}`, 3*time.Second) == written {
					accepted <- time.Now()
					return
				}
				<-time.After(5 * time.Millisecond) // a refused connection fails at once
			}
		}()
	}
	select {
	case at := <-accepted:
		return at
	case <-time.After(90 * time.Second):
		t.Fatalf("no write was accepted for 90 s")
		return time.Time{}
	}
}

// pauseLeaders stops the leader's process for a while. It wakes up believing that it still leads.
func (s *storm) pauseLeaders(t *testing.T, times int) {
	for range times {
		leader := s.Leader()
		pause := time.Duration(1000+s.rand.IntN(amount(2000, 4000))) * time.Millisecond
		leader.Pause()
		<-time.After(pause)
		leader.Resume()
		s.settle(t)
	}
}

// partitions cuts the network between the nodes in several shapes.
func (s *storm) partitions(t *testing.T, times int) {
	ids := []string{"n1", "n2", "n3"}
	for range times {
		for _, shape := range []struct {
			name  string
			moves bool // another node has to take over
			cut   func(leader, other, third string)
		}{
			{"the leader is alone", true, func(l, _, _ string) { s.Network.Isolate(l, ids...) }},
			{"a follower is alone", false, func(_, a, _ string) { s.Network.Isolate(a, ids...) }},
			{"the leader cannot send", true, func(l, a, b string) { s.Network.Cut(l, a); s.Network.Cut(l, b) }},
			{"the leader cannot hear", true, func(l, a, b string) { s.Network.Cut(a, l); s.Network.Cut(b, l) }},
			{"the leader and one follower do not meet", false, func(l, a, _ string) { s.Network.Cut(l, a); s.Network.Cut(a, l) }},
		} {
			leader := s.Leader()
			others := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id == leader.ID })
			s.rand.Shuffle(2, func(i, j int) { others[i], others[j] = others[j], others[i] })
			shape.cut(leader.ID, others[0], others[1])
			<-time.After(time.Duration(amount(1500, 5000)) * time.Millisecond)
			if shape.moves {
				harness.Await(t, "a new leader while "+shape.name, time.Minute, func() error {
					if s.Node(others[0]).Health() != 200 && s.Node(others[1]).Health() != 200 {
						return errors.New("neither of the others is active")
					}
					return nil
				})
			}
			s.Network.Heal()
			s.settle(t)
			t.Logf("healed: %s", shape.name)
		}
	}
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

// crashAll kills every node at once, as a power cut does.
func (s *storm) crashAll(t *testing.T, times int) {
	for range times {
		for _, n := range s.Nodes {
			n.Kill9()
		}
		for _, n := range s.Nodes {
			n.Start()
		}
		s.settle(t)
	}
}

func report(t *testing.T, what string, took []time.Duration) {
	slices.Sort(took)
	if len(took) > 0 {
		t.Logf("chaos: %s: %d times, median %v, max %v", what, len(took), took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	}
}
