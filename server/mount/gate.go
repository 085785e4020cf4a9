package mount

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// gate counts who is inside and can be shut. The zero gate is open.
type gate struct {
	mu     sync.Mutex
	shut   bool
	inside int
	left   chan struct{} // nil unless a caller waits; closed when the last request has left

	opening context.Context    // lasts until the gate is shut; nil unless it was asked for
	end     context.CancelFunc // of opening
}

// enter reports whether the gate was open; then leave must follow.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return false
	}
	g.inside++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.inside == 0 && g.left != nil {
		close(g.left)
		g.left = nil
	}
}

// whileOpen returns a context that ends with ctx, and when the gate is shut. done must be called.
func (g *gate) whileOpen(ctx context.Context) (open context.Context, done func()) {
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

// close shuts the gate and waits until the last request has left, or ctx ends.
func (g *gate) close(ctx context.Context) error {
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

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}

// gates of one mount, the same for all its Mounted on this node.
//
// Only the active node commits, and it is the one that disables. So a mount's data is known to be all there once
// its commits were shut out here and one more commit went through the log behind those whose outcome is unknown:
// nothing can be written after the wipe, and the log carries no precondition for it in each write.
type gates struct {
	requests, commits gate
	left              atomic.Bool   // the mount was shut to be lost: if its entry is written again, it is another one
	version           atomic.Uint64 // of the entry, as last seen before that
}

// reopen opens what an entry gives no reason to keep shut: a move is over, or a snapshot brought back what was there
// before it was disabled.
func (g *gates) reopen(e *Entry) {
	if e.Deleting {
		return
	}
	g.commits.open()
	if e.Moving == nil {
		g.requests.open()
	}
}

// longestWait is how long a disable or a move waits for requests that are running in the mount. Their commits are
// shut out whatever they do.
const longestWait = 30 * time.Second

// shutRequests waits for the requests that are running in the mount, though not forever.
func (g *gates) shutRequests(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, longestWait)
	defer cancel()
	if err := g.requests.close(waiting); err != nil {
		return ctx.Err()
	}
	return nil
}

// Hold keeps the mount from being disabled or moved until Release, so that what a request hands out is known
// before it is revoked. It fails if that has begun since the mount was resolved; then Release must not be called.
func (m *Mounted) Hold() error {
	if !m.gates.requests.enter() {
		return engines.NotFound("the mount at this path is being disabled or moved")
	}
	return nil
}

// Release ends a Hold.
func (m *Mounted) Release() { m.gates.requests.leave() }

// HoldWhile is Hold for work that ends early where it may: the context it returns ends with ctx, and when the mount is to be
// disabled or moved. release ends the Hold; it must be called unless there is an error.
func (m *Mounted) HoldWhile(ctx context.Context) (held context.Context, release func(), err error) {
	if err := m.Hold(); err != nil {
		return nil, nil, err
	}
	held, done := m.gates.requests.whileOpen(ctx)
	return held, func() { done(); m.Release() }, nil
}

// gated is a store whose commits can be shut out.
type gated struct {
	storage.Store
	gate  *gate
	admit func(context.Context, storage.Batch) error // nil admits all
}

// Commit implements storage.Committer.
func (s gated) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if !s.gate.enter() {
		return 0, engines.NotFound("the mount at this path was disabled")
	}
	defer s.gate.leave()
	if s.admit != nil {
		if err := s.admit(ctx, b); err != nil {
			return 0, err
		}
	}
	return s.Store.Commit(ctx, b)
}
