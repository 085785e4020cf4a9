package wal

import (
	"fmt"
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/wal/record"
)

func bench(index storage.Index, valueBytes int) storage.Record {
	return storage.Record{Index: index, TimeMS: int64(index), Ops: []storage.RecordOp{{
		Key: storage.Key(fmt.Sprintf("s/0123456789abcdef0123456789abcdef/some/secret/%d", index)), Value: make([]byte, valueBytes),
		Prior: storage.Position{Index: index},
	}}}
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{100, 1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("value=%d", size), func(b *testing.B) {
			l := mustOpen(b, b.TempDir(), Options{MaxBytes: 1 << 30})
			must(b, l.Begin(0))
			r := bench(0, size)
			b.SetBytes(int64(frameBytes + record.Size(&r)))
			b.ReportAllocs()
			for b.Loop() {
				r.Index++
				must(b, l.Append(r))
			}
			b.StopTimer()
			must(b, l.Close())
		})
	}
}

func BenchmarkSince(b *testing.B) {
	for _, from := range []string{"memory", "files"} {
		b.Run(from, func(b *testing.B) {
			const last = 100_000
			o := Options{MemoryBytes: 1 << 30}
			if from == "files" {
				o.MemoryBytes = 1
			}
			l := mustOpen(b, b.TempDir(), o)
			must(b, l.Begin(0))
			for i := range storage.Index(last) {
				must(b, l.Append(bench(i+1, 1<<10)))
			}
			b.SetBytes(l.Bytes())
			b.ReportAllocs()
			for b.Loop() {
				after := storage.Index(0)
				for after < last {
					_, through, err := l.Since(after, 1<<20)
					must(b, err)
					after = through
				}
			}
			b.StopTimer()
			must(b, l.Close())
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	l := mustOpen(b, b.TempDir(), Options{})
	must(b, l.Begin(0))
	for i := storage.Index(1); l.Bytes() < 60<<20; i++ {
		must(b, l.Append(bench(i, 1<<10)))
	}
	must(b, l.Close())
	for b.Loop() {
		must(b, mustOpen(b, l.dir, Options{}).Close())
	}
}
