package fairqueue_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines/fairqueue"
)

func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p fairqueue.Pacer
		hold := func(ctx context.Context, address string) time.Duration {
			began := time.Now()
			p.Hold(ctx, from("m", address))
			return time.Since(began)
		}
		var wg sync.WaitGroup
		var longest time.Duration
		var mu sync.Mutex
		for range 300 {
			wg.Go(func() {
				d := hold(t.Context(), "192.0.2.1")
				mu.Lock()
				defer mu.Unlock()
				longest = max(longest, d)
			})
		}
		synctest.Wait()
		if d := hold(t.Context(), "192.0.2.2"); d != 0 {
			t.Errorf("another address waits %s", d)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if d := hold(ended, "192.0.2.1"); d != 0 {
			t.Errorf("a request that has ended waits %s", d)
		}
		wg.Wait()
		if longest != 15*time.Second { // 280 behind the burst are more than that at ten a second
			t.Errorf("the last of 300 waits %s", longest)
		}
		time.Sleep(time.Minute) // of the bubble's clock
		for range 20 {
			if d := hold(t.Context(), "192.0.2.1"); d != 0 {
				t.Errorf("after a minute, a response waits %s", d)
			}
		}
		if d := hold(t.Context(), "192.0.2.1"); d == 0 {
			t.Error("behind a burst, no response waits")
		}
	})
}
