package snapmap_test

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/coffer-project/coffer/server/snapmap"
)

// TestMapIsLikeAGoMap makes random changes to a map and to one of Go, and keeps some of both as they were.
func TestMapIsLikeAGoMap(t *testing.T) {
	type pair struct {
		snap  snapmap.Map[int, int]
		plain map[int]int
	}
	random := rand.New(rand.NewPCG(1, 2))
	var kept []pair
	for _, keys := range []int{3, 100, 100_000} { // of the last, many share a chain
		now := pair{plain: map[int]int{}}
		for i := range 150_000 {
			k := random.IntN(keys)
			if random.IntN(3) > 0 {
				now.snap, now.plain[k] = now.snap.With(k, i), i
			} else {
				now.snap = now.snap.Without(k)
				delete(now.plain, k)
			}
			if i%30_000 == 0 {
				kept = append(kept, pair{now.snap, maps.Clone(now.plain)})
			}
		}
		kept = append(kept, now)
	}
	for i, p := range kept {
		if got := maps.Collect(p.snap.All()); p.snap.Len() != len(p.plain) || !maps.Equal(got, p.plain) {
			t.Errorf("map %d has %d entries, says %d, and should have %d", i, len(got), p.snap.Len(), len(p.plain))
		}
		for k := range 100_001 {
			v, ok := p.snap.Get(k)
			if want, there := p.plain[k]; ok != there || v != want {
				t.Fatalf("map %d: key %d has %d, %v; want %d, %v", i, k, v, ok, want, there)
			}
		}
	}
	for range kept[len(kept)-1].snap.All() {
		break // ends early
	}
}
