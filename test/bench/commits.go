package main

import (
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
)

// commits measures the core alone: encrypted transactions of one 1 KiB value, from 64 callers through Raft to
// the disk, without HTTP, tokens and policies. All nodes are in this process and share one disk.
func (b *bench) commits(s *scope) {
	b.syncRow(s)
	b.commitRow(s, 1, 4)
	b.commitRow(s, 3, 1.5)
}

func (b *bench) commitRow(s *scope, nodes int, target float64) {
	store := b.startCluster(s, nodes)
	took, elapsed := b.commitAll(s, store, "bench")
	slices.Sort(took)
	b.add(row{
		name:  fmt.Sprintf("transaction of 1 KiB without HTTP, %d node(s), 64 callers", nodes),
		value: float64(len(took)) / elapsed.Seconds(), unit: "/s",
		latency:   short(took[len(took)/2]) + " / " + short(took[len(took)*99/100]),
		yardstick: b.syncs, beside: "fdatasync", target: target,
	})
}

// commitAll returns how long each transaction took, of values in an area of the store.
func (b *bench) commitAll(s *scope, store storage.Store, area string) ([]time.Duration, time.Duration) {
	value := []byte(writeBody)[:1024]
	var mu sync.Mutex
	var all []time.Duration
	var callers sync.WaitGroup
	start := time.Now()
	for c := range 64 {
		callers.Go(func() {
			var took []time.Duration
			for i := 0; time.Since(start) < b.seconds; i++ {
				key := storage.NewKey(storage.Shared, area, fmt.Sprintf("%d/%d", c, i))
				before := time.Now()
				_, err := store.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: key, Value: value}}})
				s.check(err)
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
func (b *bench) startCluster(s *scope, nodes int) storage.Store {
	ca, err := cluster.NewCA()
	s.check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	s.Cleanup(cancel)
	var leader *cluster.Node
	var machine *fsm.FSM
	base := s.TempDir()
	for i := range nodes {
		dir := filepath.Join(base, fmt.Sprintf("%d-of-%d", i, nodes))
		s.check(os.MkdirAll(dir, 0o700))
		m, err := fsm.Open(dir, fsm.Options{})
		s.check(err)
		id, addr := cluster.NodeID(fmt.Sprintf("n%d", i)), freeAddr(s)
		n, err := cluster.Open(cluster.Options{
			ID: id, Dir: dir, Machine: m, ListenAddr: addr, CA: ca, StabilizationTime: 100 * time.Millisecond,
		})
		s.check(err)
		s.Cleanup(func() {
			stop, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			_ = n.Close(stop)
			_ = m.Close()
		})
		if i == 0 {
			leader, machine = n, m
			s.check(n.Bootstrap(ctx))
			for !n.IsLeader() {
				<-n.LeaderChanges()
			}
			continue
		}
		s.check(leader.Join(ctx, id, addr, false, true))
	}
	for voters := 0; voters < nodes; {
		voters = 0
		for _, p := range leader.Peers() {
			if p.Voter {
				voters++
			}
		}
		s.check(ctx.Err())
		<-time.After(20 * time.Millisecond)
	}
	below := raw{machine, leader}
	root := barrier.NewRootKey()
	ring, err := barrier.KeyringPut(root)
	s.check(err)
	_, err = below.Commit(ctx, storage.Batch{Puts: []storage.Put{ring}})
	s.check(err)
	enc := barrier.New(below)
	s.check(enc.Unseal(ctx, root))
	return enc
}

// freeAddr returns an address that nobody listens on.
func freeAddr(s *scope) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.check(err)
	defer l.Close()
	return l.Addr().String()
}
