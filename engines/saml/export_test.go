package saml

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/fairqueue"
)

// SetFetch replaces how an engine fetches metadata.
func SetFetch(e engines.Engine, fetch func(ctx context.Context, url string) ([]byte, error)) {
	e.(*engine).provider.FetchMetadata = fetch
}

// Pending returns how many logins an engine believes to be pending.
func Pending(e engines.Engine) int {
	p := &e.(*engine).pending
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// Occupy lets an engine verify nothing until done is called.
func Occupy(t *testing.T, e engines.Engine) (done func()) {
	release := make([]func(), max(1, runtime.GOMAXPROCS(0)/2))
	for i := range release {
		var err error
		if release[i], err = e.(*engine).queue.Acquire(t.Context(), fairqueue.Source{}); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for _, r := range release {
			r()
		}
	}
}

// FillUp makes an engine believe that there is no room for another login, until it counts again.
func FillUp(e engines.Engine) {
	e.(*engine).pending.endSweep(time.Now(), maxPending, false)
}
