package run

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// RaftAlone is what Raft itself gives: three nodes on this disk, in this process, over TCP on loopback. Each has a log of raft-boltdb, which
// syncs every append, and a state machine that keeps nothing. So many callers each propose values of 1 KiB, one after the other.
func (b *Bench) RaftAlone(s *Scope, callers int) Row {
	leader := startRafts(s, 3)
	value := bytes.Repeat([]byte("x"), 1024)
	var all []time.Duration
	var mu sync.Mutex
	var running sync.WaitGroup
	begin := time.Now()
	for range callers {
		running.Go(func() {
			var took []time.Duration
			for time.Since(begin) < b.Seconds {
				before := time.Now()
				s.Check(leader.Apply(value, time.Minute).Error())
				took = append(took, time.Since(before))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	running.Wait()
	return Rated(fmt.Sprintf("Raft alone, entries of 1 KiB, three nodes on one disk, raft-boltdb, %d callers", callers), all, time.Since(begin))
}

// startRafts returns the leader of a new cluster.
func startRafts(s *Scope, nodes int) *raft.Raft {
	var servers raft.Configuration
	var transports []*raft.NetworkTransport
	for i := range nodes {
		t, err := raft.NewTCPTransport("127.0.0.1:0", nil, 3, time.Minute, io.Discard)
		s.Check(err)
		s.Cleanup(func() { _ = t.Close() })
		transports = append(transports, t)
		servers.Servers = append(servers.Servers, raft.Server{ID: raft.ServerID(fmt.Sprint(i)), Address: t.LocalAddr()})
	}
	dir := s.TempDir()
	var first *raft.Raft
	for i, t := range transports {
		c := raft.DefaultConfig()
		c.LocalID, c.LogOutput = servers.Servers[i].ID, io.Discard
		logs, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(dir, fmt.Sprintf("raft-%d.db", i))})
		s.Check(err)
		s.Cleanup(func() { _ = logs.Close() })
		snapshots := raft.NewInmemSnapshotStore()
		if i == 0 { // the others learn of it from the leader
			s.Check(raft.BootstrapCluster(c, logs, logs, snapshots, t, servers))
		}
		r, err := raft.NewRaft(c, nothing{}, logs, logs, snapshots, t)
		s.Check(err)
		s.Cleanup(func() { _ = r.Shutdown().Error() })
		if i == 0 {
			first = r
		}
	}
	for leads := range first.LeaderCh() {
		if leads {
			break
		}
	}
	return first
}

// nothing is a state machine that keeps nothing.
type nothing struct{}

func (nothing) Apply(*raft.Log) any                  { return nil }
func (nothing) Snapshot() (raft.FSMSnapshot, error)  { return nothing{}, nil }
func (nothing) Restore(r io.ReadCloser) error        { return r.Close() }
func (nothing) Persist(sink raft.SnapshotSink) error { return sink.Close() }
func (nothing) Release()                             {}
