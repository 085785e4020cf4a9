package mount_test

import (
	"fmt"
	"testing"

	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/storage"
)

// BenchmarkResolve finds the mount of a request among ten, and among 20,000.
func BenchmarkResolve(b *testing.B) {
	for _, count := range []int{10, 20_000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			f := &fixture{}
			batch := storage.Batch{Puts: mount.Defaults(ns)}
			for i := range count {
				batch.Puts = append(batch.Puts, mount.PutOf(mount.NewEntry(ns, fmt.Sprintf("m%d/", i), "kv", "")))
			}
			if _, err := f.memory.Commit(b.Context(), batch); err != nil {
				b.Fatal(err)
			}
			f.Table = newTable(f)
			if err := f.Load(b.Context()); err != nil {
				b.Fatal(err)
			}
			var paths [64]string
			for i := range paths {
				paths[i] = fmt.Sprintf("m%d/data/app", i*count/len(paths))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if m, _, err := f.Resolve(b.Context(), ns, paths[i%len(paths)]); err != nil || m == nil {
					b.Fatal(m, err)
				}
			}
		})
	}
}
