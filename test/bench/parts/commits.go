// Package parts measures parts of Coffer in this process, without a server in front of them: transactions through Raft
// to the disk, leases and tokens, and what goes between clusters that replicate. Each section is a function of a
// run.Bench and a run.Scope; StartMain is the child process of the section of leases.
package parts

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/cluster"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/test/bench/run"
)

// Commits measures the core alone: encrypted transactions of one 1 KiB value, from 64 callers through Raft to
// the disk, without HTTP, tokens and policies. All nodes are in this process and share one disk.
func Commits(b *run.Bench, s *run.Scope) {
	b.MeasureDisk(s)
	commitRow(b, s, 1, 4)
	commitRow(b, s, 3, 1.5)
}

func commitRow(b *run.Bench, s *run.Scope, nodes int, target float64) {
	store := startCluster(b, s, nodes)
	took, elapsed := commitAll(b, s, store, "bench")
	slices.Sort(took)
	b.Add(run.Row{
		Name:  fmt.Sprintf("transaction of 1 KiB without HTTP, %d node(s), 64 callers", nodes),
		Value: float64(len(took)) / elapsed.Seconds(), Unit: "/s",
		Latency:   run.Short(took[len(took)/2]) + " / " + run.Short(took[len(took)*99/100]),
		Yardstick: b.FsyncRate, Beside: "fdatasync", Target: target,
	})
}

// commitAll returns how long each transaction took, of values in an area of the store.
func commitAll(b *run.Bench, s *run.Scope, store storage.Store, area string) ([]time.Duration, time.Duration) {
	value := bytes.Repeat([]byte("x"), 1024)
	var mu sync.Mutex
	var all []time.Duration
	var callers sync.WaitGroup
	start := time.Now()
	for c := range 64 {
		callers.Go(func() {
			var took []time.Duration
			for i := 0; time.Since(start) < b.Seconds; i++ {
				key := storage.NewKey(storage.Shared, area, fmt.Sprintf("%d/%d", c, i))
				before := time.Now()
				_, err := store.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: key, Value: value}}})
				s.Check(err)
				took = append(took, time.Since(before))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	callers.Wait()
	return all, time.Since(start)
}

// raw is the store below the encryption: reads of the state machine, commits through Raft.
type raw struct {
	*fsm.FSM
	*cluster.Node
}

// startCluster returns the encrypted store of the leader.
func startCluster(b *run.Bench, s *run.Scope, nodes int) storage.Store {
	ca, err := cluster.NewCA()
	s.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	s.Cleanup(cancel)
	var leader *cluster.Node
	var machine *fsm.FSM
	base := s.TempDir()
	for i := range nodes {
		dir := filepath.Join(base, fmt.Sprintf("%d-of-%d", i, nodes))
		s.Check(os.MkdirAll(dir, 0o700))
		m, err := fsm.Open(dir, fsm.Options{})
		s.Check(err)
		id, addr := cluster.NodeID(fmt.Sprintf("n%d", i)), freeAddr(s)
		n, err := cluster.Open(cluster.Options{
			ID: id, Dir: dir, Machine: m, ListenAddr: addr, CA: ca, StabilizationTime: 100 * time.Millisecond,
		})
		s.Check(err)
		s.Cleanup(func() {
			stop, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			_ = n.Close(stop)
			_ = m.Close()
		})
		if i == 0 {
			leader, machine = n, m
			s.Check(n.Bootstrap(ctx))
			for !n.IsLeader() {
				<-n.LeaderChanges()
			}
			continue
		}
		s.Check(leader.Join(ctx, id, addr, false, true))
	}
	for voters := 0; voters < nodes; {
		voters = 0
		for _, p := range leader.Peers() {
			if p.Voter {
				voters++
			}
		}
		s.Check(ctx.Err())
		<-time.After(20 * time.Millisecond)
	}
	below := raw{machine, leader}
	root := barrier.NewRootKey()
	ring, err := barrier.KeyringPut(root)
	s.Check(err)
	_, err = below.Commit(ctx, storage.Batch{Puts: []storage.Put{ring}})
	s.Check(err)
	enc := barrier.New(below)
	s.Check(enc.Unseal(ctx, root))
	return enc
}

// freeAddr returns an address that nothing listens on.
func freeAddr(s *run.Scope) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.Check(err)
	defer l.Close()
	return l.Addr().String()
}
