package boltstore_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/storage/record"
)

// bigFile builds a file of n records of 1 KiB.
func bigFile(b *testing.B, n int) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "big.db")
	value := make([]byte, 1<<10)
	rand.NewChaCha8([32]byte{}).Read(value)
	err := boltstore.Build(path, func(add func(string, []byte) error) (boltstore.Position, error) {
		for i := range n {
			binary.BigEndian.PutUint64(value, uint64(i))
			if err := add(benchKey(i), record.New(record.Header{Version: 1}, value)); err != nil {
				return boltstore.Position{}, err
			}
		}
		return boltstore.Position{Index: 1, Term: 1}, nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return path
}

func benchKey(i int) string { return fmt.Sprintf("s/0a1b2c3d/data/%08d", i) }

func BenchmarkOpenVerify(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			path := bigFile(b, n)
			for b.Loop() {
				s, err := boltstore.Open(path, "", boltstore.Options{})
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	const n = 100_000
	s, err := boltstore.Open(bigFile(b, n), "", boltstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	keys := make([]string, 1<<12)
	for i := range keys {
		keys[i] = benchKey(rand.IntN(n))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		v, err := s.View()
		if err != nil {
			b.Fatal(err)
		}
		if rec, err := v.Get(keys[i%len(keys)]); err != nil || rec == nil {
			b.Fatal("not found", err)
		}
		v.Close()
	}
}
