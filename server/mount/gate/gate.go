// Package gate counts what is inside of something that can be shut: requests in a mount, commits to its store.
//
// It promises that after Close no request is inside, and none enters until Open. Start reading at Gate.
package gate

import (
	"context"
	"sync"
)

// Gate counts who is inside and can be shut. The zero Gate is open. Safe for concurrent use.
type Gate struct {
	mu     sync.Mutex
	shut   bool
	inside int
	left   chan struct{} // nil unless a caller waits; closed when the last request has left

	opening context.Context    // lasts until the gate is shut; nil unless it was asked for
	end     context.CancelFunc // of opening
}

// Enter reports whether the gate was open; then Leave must follow.
func (g *Gate) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return false
	}
	g.inside++
	return true
}

// Leave ends an Enter.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.inside == 0 && g.left != nil {
		close(g.left)
		g.left = nil
	}
}

// WhileOpen returns a context that ends with ctx, and when the gate is shut. done must be called.
func (g *Gate) WhileOpen(ctx context.Context) (open context.Context, done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	open, end := context.WithCancel(ctx)
	if g.shut {
		end()
		return open, end
	}
	if g.opening == nil {
		g.opening, g.end = context.WithCancel(context.Background())
	}
	stop := context.AfterFunc(g.opening, end)
	return open, func() { stop(); end() }
}

// Close shuts the gate and waits until the last request has left, or ctx ends.
func (g *Gate) Close(ctx context.Context) error {
	g.mu.Lock()
	g.shut = true
	if g.opening != nil {
		g.end()
		g.opening, g.end = nil, nil
	}
	if g.inside > 0 && g.left == nil {
		g.left = make(chan struct{})
	}
	left := g.left
	g.mu.Unlock()
	if left == nil {
		return nil
	}
	select {
	case <-left:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Open opens the gate again.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}
