package lthash

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestLanesAreIndependent(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		a, b := r.Uint64(), r.Uint64()
		if r.IntN(4) == 0 {
			a |= 0xffff
		}
		var x, y [8]byte
		binary.LittleEndian.PutUint64(x[:], a)
		binary.LittleEndian.PutUint64(y[:], b)
		var plus, minus uint64
		for i := range 4 {
			u, v := uint16(a>>(16*i)), uint16(b>>(16*i))
			plus |= uint64(u+v) << (16 * i)
			minus |= uint64(u-v) << (16 * i)
		}
		sum, difference, other := Sum{[words]uint64{a}}, Sum{[words]uint64{a}}, Sum{[words]uint64{b}}
		sum.Merge(&other)
		difference.subtract(&other)
		if sum.lanes[0] != plus || difference.lanes[0] != minus {
			t.Fatalf("%x and %x: sum %x, want %x; difference %x, want %x", a, b, sum.lanes[0], plus, difference.lanes[0], minus)
		}
	}
}

func TestOrderDoesNotMatter(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var want Sum
	var half [2]Sum
	for i := range 100 {
		key, rec := fmt.Appendf(nil, "k%d", i), fmt.Appendf(nil, "v%d", i)
		want.Add(key, rec)
		half[i%2].Add(key, rec)
	}
	var got Sum
	got.Add([]byte("other"), []byte("x"))
	for _, i := range r.Perm(100) {
		got.Add(fmt.Appendf(nil, "k%d", i), fmt.Appendf(nil, "v%d", i))
	}
	got.Remove([]byte("other"), []byte("x"))
	half[0].Merge(&half[1])
	if got != want || half[0] != want || got.Fingerprint() != want.Fingerprint() {
		t.Error("the sum depends on the order")
	}
	if got == (Sum{}) {
		t.Error("the sum of something is that of nothing")
	}
	for i := range 100 {
		got.Remove(fmt.Appendf(nil, "k%d", i), fmt.Appendf(nil, "v%d", i))
	}
	if got != (Sum{}) {
		t.Error("the sum of nothing is not zero")
	}
}

func TestWhatDiffers(t *testing.T) {
	seen := map[[Size]byte]string{}
	for _, records := range [][]string{
		{}, {"", ""}, {"a", "b"}, {"ab", ""}, {"", "ab"}, {"b", "a"}, {"a", "b", "a", "b"}, {"a", "c"}, {"a", "b", "c", "d"}, {"a", "d", "c", "b"},
	} {
		var s Sum
		for i := 0; i < len(records); i += 2 {
			s.Add([]byte(records[i]), []byte(records[i+1]))
		}
		if other, ok := seen[s.Fingerprint()]; ok {
			t.Errorf("%q has the fingerprint of %s", records, other)
		}
		seen[s.Fingerprint()] = fmt.Sprintf("%q", records)
	}
}

// TestStable: nodes of different builds compare their fingerprints, so they never change.
func TestStable(t *testing.T) {
	var s Sum
	s.Add([]byte("l/test/key"), []byte("record"))
	s.Add([]byte("s/test/key"), []byte("record"))
	const want = "605d7246d34fcba53b0e02002c3f9a1f0c273696533961204d2e5e8cb9a0539d"
	if f := s.Fingerprint(); fmt.Sprintf("%x", f) != want {
		t.Errorf("the fingerprint is %x, want %s", f, want)
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, size := range []int{100, 1 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var s Sum
			key, rec := []byte("s/0a1b2c3d/data/00000001"), make([]byte, size)
			b.ReportAllocs()
			for b.Loop() {
				s.Add(key, rec)
			}
		})
	}
}
