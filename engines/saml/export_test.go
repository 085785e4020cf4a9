package saml

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// SetFetch replaces how an engine fetches metadata.
func SetFetch(e engines.Engine, fetch func(ctx context.Context, url string) ([]byte, error)) {
	e.(*engine).providers.fetch = fetch
}

// Pending returns how many logins an engine believes to be pending.
func Pending(e engines.Engine) int {
	p := &e.(*engine).pending
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// FillUp makes an engine believe that there is no room for another login, until it counts again.
func FillUp(e engines.Engine) {
	e.(*engine).pending.end(time.Now(), maxPending, false)
}
