package workqueue

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestCommitsAreGathered: those of many links go together, and those of few links, or of one whose context has ended, at once.
func TestCommitsAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gatherer
		began := time.Now()
		round := func(links int) map[time.Duration]int {
			var mu sync.Mutex
			at := map[time.Duration]int{}
			var all sync.WaitGroup
			ends := make([]func(), links)
			for i := range ends {
				ends[i] = g.Begin()
			}
			for i := range ends {
				all.Go(func() {
					defer ends[i]()
					time.Sleep(time.Duration(i%5) * time.Millisecond) // they do not come at one moment
					g.Wait(t.Context())
					mu.Lock()
					defer mu.Unlock()
					at[time.Since(began)]++
				})
			}
			all.Wait()
			began = time.Now()
			return at
		}
		if at := round(100); len(at) != 1 || at[gatherTime] != 100 {
			t.Errorf("100 links commit after %v", at)
		}
		if at := round(fewLinks); len(at) != fewLinks {
			t.Errorf("few links commit after %v", at)
		}
		for range fewLinks + 1 {
			defer g.Begin()()
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		g.Wait(ctx)
		if waited := time.Since(began); waited != 0 {
			t.Errorf("a link whose context has ended waits for %v", waited)
		}
	})
}
