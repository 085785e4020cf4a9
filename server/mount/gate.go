package mount

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount/gate"
	"github.com/coffer-project/coffer/storage"
)

// gates of one mount, the same for all its Mounted on this node.
//
// Only the active node commits, and it is the one that disables. So a mount's data is known to be all there once
// its commits were shut out here and one more commit went through the log behind those whose outcome is unknown:
// nothing can be written after the wipe, and the log carries no precondition for it in each write.
type gates struct {
	requests, commits gate.Gate
	left              atomic.Bool   // the mount was shut to be lost: if its entry is written again, it is another one
	version           atomic.Uint64 // of the entry, as last seen before that
}

// reopen opens what an entry gives no reason to keep shut: a move is over, or a snapshot brought back what was there
// before it was disabled.
func (g *gates) reopen(e *Entry) {
	if e.Deleting {
		return
	}
	g.commits.Open()
	if e.Moving == nil {
		g.requests.Open()
	}
}

// longestWait is how long a disable or a move waits for requests that are running in the mount. Their commits are
// shut out whatever they do.
const longestWait = 30 * time.Second

// shutRequests waits for the requests that are running in the mount, though not forever.
func (g *gates) shutRequests(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, longestWait)
	defer cancel()
	if err := g.requests.Close(waiting); err != nil {
		return ctx.Err()
	}
	return nil
}

// Hold keeps the mount from being disabled or moved until Release, so that what a request hands out is known
// before it is revoked. It fails if that has begun since the mount was resolved; then Release must not be called.
func (m *Mounted) Hold() error {
	if !m.gates.requests.Enter() {
		return engines.NotFound("the mount at this path is being disabled or moved")
	}
	return nil
}

// Release ends a Hold.
func (m *Mounted) Release() { m.gates.requests.Leave() }

// HoldWhile is Hold for work that ends early where it may: the context it returns ends with ctx, and when the mount is to be
// disabled or moved. release ends the Hold; it must be called unless there is an error.
func (m *Mounted) HoldWhile(ctx context.Context) (held context.Context, release func(), err error) {
	if err := m.Hold(); err != nil {
		return nil, nil, err
	}
	held, done := m.gates.requests.WhileOpen(ctx)
	return held, func() { done(); m.Release() }, nil
}

// gated is a store whose commits can be shut out.
type gated struct {
	storage.Store
	gate   *gate.Gate
	quotas Quotas        // nil admits all
	mount  engines.Mount // for them
}

// Commit implements storage.Committer.
func (s gated) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if !s.gate.Enter() {
		return 0, engines.NotFound("the mount at this path was disabled")
	}
	defer s.gate.Leave()
	if s.quotas != nil {
		if err := s.quotas.AdmitWrite(ctx, s.mount, b); err != nil {
			return 0, err
		}
	}
	return s.Store.Commit(ctx, b)
}
