package fsm_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/storage/wal"
)

// One op is one write of 1 KiB; entries hold 32 of them, as a busy coalescer makes them.
func BenchmarkApply(b *testing.B) { benchmarkApply(b, open(b, b.TempDir())) }

// The same with a log of changes that keeps them all.
func BenchmarkApplyLogged(b *testing.B) {
	dir := b.TempDir()
	log, err := wal.Open(filepath.Join(dir, "wal"), wal.Options{})
	if err != nil {
		b.Fatal(err)
	}
	f, err := fsm.Open(dir, fsm.Options{Log: log})
	if err == nil {
		err = f.BeginLog(log.Begin)
	}
	if err != nil {
		b.Fatal(err)
	}
	benchmarkApply(b, f)
	if err := errors.Join(f.Close(), log.Close()); err != nil {
		b.Fatal(err)
	}
}

func benchmarkApply(b *testing.B, f *fsm.FSM) {
	const ops, keys = 32, 100_000
	value := make([]byte, 1<<10)
	b.ReportAllocs()
	index, n := uint64(0), 0
	for b.Loop() {
		if n++; n%ops != 0 {
			continue
		}
		b.StopTimer() // encoding is the leader's work
		batches := make([]storage.Batch, ops)
		for i := range batches {
			key := storage.Key(fmt.Sprintf("s/0a1b2c3d/data/%08d", (n+i)*7919%keys))
			batches[i].Puts = []storage.Put{{Key: key, Value: value}}
		}
		data, err := fsm.EncodeCommand(0, batches)
		if err != nil {
			b.Fatal(err)
		}
		index++
		b.StartTimer()
		if _, ok := f.ApplyBatch([]*raft.Log{command(index, data)})[0].(fsm.Result); !ok {
			b.Fatal(f.Err())
		}
	}
}

func BenchmarkGet(b *testing.B) {
	f := open(b, b.TempDir())
	apply(b, f, 1, puts("s/0a1b2c3d/data/k", string(make([]byte, 1<<10))))
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Get(ctx, "s/0a1b2c3d/data/k"); err != nil {
			b.Fatal(err)
		}
	}
}
