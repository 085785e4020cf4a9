package saml

import (
	"context"

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
