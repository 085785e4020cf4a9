package tally

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/storage"
)

func TestCountsAgainstModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		c := New()
		stored := map[storage.Key]bool{}
		key := func() storage.Key {
			prefix := index.ExpPrefix
			if rnd.IntN(4) == 0 {
				prefix = index.StuckPrefix
			}
			return prefix + storage.Key(index.Name(time.Unix(0, rnd.Int64N(40)), "root", "a", "m/", fmt.Sprint("m/", rnd.IntN(3))))
		}
		for range 30 {
			stored[key()] = true
		}
		change := func() {
			k := key()
			if stored[k] {
				delete(stored, k)
				c.Remove(k)
			} else {
				stored[k] = true
				c.Add(k)
			}
		}
		for {
			for range rnd.IntN(4) {
				change()
			}
			page := []storage.Key{}
			for k := range stored {
				if k > c.cursor {
					page = append(page, k)
				}
			}
			slices.Sort(page)
			if len(page) == 0 {
				break
			}
			for _, k := range page[:min(3, len(page))] {
				c.Scanned(k)
			}
		}
		c.complete = true
		for range 10 {
			change()
		}
		if c.total != len(stored) || c.byNS["root"] != len(stored) {
			t.Fatalf("counted %d, %v; want %d", c.total, c.byNS, len(stored))
		}
	}
}
