package replication

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// storm is a pair of clusters that is written to while nodes of both are killed.
type storm struct {
	pair
	written, refused, open atomic.Int64
	latest                 sync.Map // path to numbers
}

// numbers of a path, of its one writer.
type numbers struct{ acknowledged, tried int }

// TestStorm kills leaders and standbys of both clusters with -9 while several clients write through both, then compares the
// two byte for byte: ten thousand secrets for ten minutes, or for COFFER_REPLICATION_KILLS. COFFER_CHAOS_SEED repeats a choice of
// faults. It runs with COFFER_CHAOS=long only.
func TestStorm(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	const secrets = 10_000
	lasting := 10 * time.Minute
	if text := os.Getenv("COFFER_REPLICATION_KILLS"); text != "" {
		var err error
		if lasting, err = time.ParseDuration(text); err != nil {
			t.Fatalf("COFFER_REPLICATION_KILLS is not a duration: %v", err)
		}
	}
	seed := uint64(time.Now().UnixNano() & 0xffffff)
	if text := os.Getenv("COFFER_CHAOS_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("COFFER_CHAOS_SEED is not a number: %v", err)
		}
		seed = n
	}
	t.Logf("COFFER_CHAOS_SEED=%d", seed)
	s := &storm{pair: pair{T: t, secrets: map[string]string{}}}
	s.primary = harness.NewCluster(t, 3, harness.Options{Prefix: "p"})
	s.secondary = harness.NewCluster(t, 3, harness.Options{Prefix: "s"})
	s.fill(secrets)
	harness.Replicate(s.primary, s.secondary, "eu")

	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range 6 {
		clients.Go(func() { s.client(ctx, i, secrets) })
	}
	kills := s.kill(rand.New(rand.NewPCG(seed, 1)), time.Now().Add(lasting))
	stop()
	clients.Wait()
	t.Logf("%d kills, %d writes acknowledged, %d refused, %d of unknown outcome", kills, s.written.Load(), s.refused.Load(), s.open.Load())
	if s.written.Load() == 0 {
		t.Fatal("nothing was written: the storm proves nothing")
	}
	for _, c := range []*harness.Cluster{s.primary, s.secondary} {
		c.WaitServing()
	}
	s.secondary.AwaitStreaming()
	s.acknowledged()
	compare(t, s.primary, s.secondary, nil)
	if r := s.secondary.Replication(); r.Quarantined > 0 {
		t.Errorf("%d units were given up on", r.Quarantined)
	}
}

// fill writes the secrets that are there before the secondary is.
func (s *storm) fill(n int) {
	s.Helper()
	leader := s.primary.Leader()
	for _, m := range []string{"m0", "m1", "m2", "m3"} {
		must(s.T, s.primary, leader, "POST", "sys/mounts/"+m, object{"type": "kv"})
	}
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := w; i < n; i += 8 {
				must(s.T, s.primary, leader, "POST", fmt.Sprintf("m%d/s%d", i%4, i), object{"value": "first"})
			}
		})
	}
	writers.Wait()
}

// client writes growing numbers to paths that are its own, through nodes of both clusters.
func (s *storm) client(ctx context.Context, id, secrets int) {
	r := rand.New(rand.NewPCG(uint64(id), 2))
	left := map[int]int{} // how often a path was left alone after a write of unknown outcome, which may happen at any time
	for n := 1; ctx.Err() == nil; n++ {
		c := s.primary
		if r.IntN(3) == 0 {
			c = s.secondary
		}
		node := c.Nodes[r.IntN(len(c.Nodes))]
		at := r.IntN(secrets/6)*6 + id
		path := fmt.Sprintf("m%d/s%d%s", at%4, at, strings.Repeat("+", left[at]))
		last, _ := s.latest.LoadOrStore(path, numbers{})
		now := last.(numbers)
		now.tried = n
		s.latest.Store(path, now)
		limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		a, err := node.Do(limit, "POST", "/v1/"+path, c.RootToken, object{"value": strconv.Itoa(n), "more": "0123456789012345678901234567890123456789"})
		cancel()
		switch {
		case err == nil && a.Status < 300:
			s.written.Add(1)
			now.acknowledged = n
			s.latest.Store(path, now)
		case err == nil && a.Status < 500, errors.Is(err, syscall.ECONNREFUSED):
			s.refused.Add(1)
			<-time.After(20 * time.Millisecond) // a dead node refuses at once
		default:
			s.open.Add(1)
			left[at]++
			<-time.After(20 * time.Millisecond)
		}
	}
}

// kill kills one or two nodes at a time, anywhere, and starts them again. A cluster keeps its majority.
func (s *storm) kill(r *rand.Rand, until time.Time) (kills int) {
	s.Helper()
	for time.Now().Before(until) {
		var victims []*harness.Node
		for _, c := range []*harness.Cluster{s.primary, s.secondary} {
			switch r.IntN(3) {
			case 0:
				victims = append(victims, c.Leader())
			case 1:
				victims = append(victims, c.Nodes[r.IntN(len(c.Nodes))])
			}
		}
		for _, n := range victims {
			n.Kill9()
			kills++
		}
		<-time.After(time.Duration(500+r.IntN(2500)) * time.Millisecond) // how long they stay away is part of the faults
		for _, n := range victims {
			n.Start()
		}
		s.primary.WaitServing()
		s.secondary.WaitServing()
	}
	return kills
}

// acknowledged checks that no acknowledged write is lost: a path holds its writer's last acknowledged number or a later one
// that was tried.
func (s *storm) acknowledged() {
	s.Helper()
	s.secondary.AwaitHead(s.primary)
	checked := 0
	readers := []*reader{{Cluster: s.primary}, {Cluster: s.secondary}}
	s.latest.Range(func(path, v any) bool {
		want := v.(numbers)
		right := func(_ int, data object) bool {
			got, err := strconv.Atoi(fmt.Sprint(data["value"]))
			if err != nil {
				return want.acknowledged == 0 // there is nothing, or still what was there before
			}
			return got >= want.acknowledged && got <= want.tried
		}
		for _, r := range readers {
			if status, data := r.read(s.T, path.(string), right); !right(status, data) {
				s.Errorf("%s on %s has %v, want one of %d to %d", path, r.Nodes[0].ID, data["value"], want.acknowledged, want.tried)
			}
		}
		checked++
		return true
	})
	s.Logf("%d paths checked", checked)
}
