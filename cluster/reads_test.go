package cluster

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// A leader that was cut off, and does not know it yet, must not confirm a read: that is what the heartbeats
// of a read index are for.
func TestIsolatedLeaderConfirmsNothing(t *testing.T) {
	t.Parallel()
	all := three(t, func(o *Options) {
		if o.ID == "a" { // it believes in its leadership long after the others have elected
			o.HeartbeatTimeout, o.ElectionTimeout, o.LeaderLeaseTimeout = 3*time.Second, 3*time.Second, 3*time.Second
		}
	})
	old := all[0]
	mustCommit(t, old, "k", "1")
	var newest atomic.Uint64
	newest.Store(uint64(old.machine.AppliedIndex()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for newest.Load() != 0 {
			before := newest.Load()
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			index, err := old.ReadIndex(ctx)
			cancel()
			if err == nil && uint64(index) < before {
				t.Errorf("the old leader confirmed %d when %d was acknowledged", index, before)
			}
		}
	}()
	old.raft.Cut()
	next := leaderOf(t, all[1:])
	if old.raft.Raft().State() != raft.Leader {
		t.Log("the old leader knew already: the test does not test")
	}
	for range 20 {
		newest.Store(uint64(mustCommit(t, next, "k", "2")))
	}
	newest.Store(0)
	<-done
	if _, err := next.ReadIndex(testContext(t)); err != nil {
		t.Errorf("ReadIndex on the new leader = %v", err)
	}
	old.calls.Isolate()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := old.ReadIndex(ctx); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("ReadIndex on a node without a leader = %v, want ErrUnavailable", err)
	}
}

// Raft's VerifyLeader counts non-voters; a read index must not.
func TestNonVotersConfirmNothing(t *testing.T) {
	t.Parallel()
	all := three(t, patient)
	a := all[0]
	d := start(t, "d", func(o *Options) { o.NonVoter = true })
	if err := a.Join(testContext(t), "d", d.addr, true, false); err != nil {
		t.Fatal(err)
	}
	until(t, "the non-voter to follow", func() bool { return d.machine.AppliedIndex() >= a.machine.AppliedIndex() })
	all[1].stop()
	all[2].stop()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if index, err := a.ReadIndex(ctx); err == nil {
		t.Errorf("ReadIndex = %d without a quorum", index)
	}
}

func benchmarkReadIndex(b *testing.B, m *member) {
	ctx := context.Background()
	b.SetParallelism(32) // 64 callers on two cores
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := m.ReadIndex(ctx); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reads/s")
}

func BenchmarkReadIndexOneNode(b *testing.B)    { benchmarkReadIndex(b, single(b)) }
func BenchmarkReadIndexThreeNodes(b *testing.B) { benchmarkReadIndex(b, three(b)[0]) }

func benchmarkCommit(b *testing.B, m *member) {
	value := make([]byte, 1024)
	var i atomic.Int64
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			key := storage.NewKey(storage.Local, "bench", time.Duration(i.Add(1)%100_000).String())
			if _, err := m.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: key, Value: value}}}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	s := m.Stats()
	b.ReportMetric(float64(s.Ops)/float64(s.Entries), "ops/entry")
}

func BenchmarkCommitOneNode(b *testing.B)    { benchmarkCommit(b, single(b)) }
func BenchmarkCommitThreeNodes(b *testing.B) { benchmarkCommit(b, three(b)[0]) }
