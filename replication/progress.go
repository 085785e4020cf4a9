package replication

import (
	"context"
	"sync"

	"github.com/coffer-project/coffer/storage"
)

// progress is how far this node is, if it is of a secondary: as stored, kept until the entry changes, or, on the node that
// follows, further. Safe for concurrent use.
type progress struct {
	moved signal

	mu      sync.Mutex
	changes uint64 // of the stored cursor that were announced
	read    uint64 // changes + 1 as of which stored was read, 0: never
	stored  storedCursor
	ahead   storage.Position // of the follower; zero on others
}

// outdated takes note of a change of the stored cursor.
func (p *progress) outdated() {
	p.mu.Lock()
	p.changes++
	p.mu.Unlock()
	p.moved.raise()
}

// follower says how far the follower is. Zero: there is none any more.
func (p *progress) follower(at storage.Position) {
	p.mu.Lock()
	moved := p.ahead != at
	p.ahead = at
	p.mu.Unlock()
	if moved {
		p.moved.raise()
	}
}

// at returns the cursor.
func (p *progress) at(ctx context.Context, store storage.Reader) (storage.Position, error) {
	p.mu.Lock()
	changes, fresh, stored, ahead := p.changes, p.read == p.changes+1, p.stored, p.ahead
	p.mu.Unlock()
	if !fresh {
		c, _, err := readCursor(ctx, store)
		if err != nil {
			return storage.Position{}, err
		}
		stored = c
		p.mu.Lock()
		p.stored, p.read = c, changes+1
		p.mu.Unlock()
	}
	if stored.Cursor.Before(ahead) {
		return ahead, nil
	}
	return stored.Cursor, nil
}

// Cursor returns how far this node is, on any node of a secondary.
func (l *Link) Cursor(ctx context.Context) (storage.Position, error) {
	return l.progress.at(ctx, l.o.Store)
}

// AwaitCursor waits until everything up to a position is applied and visible on this node.
func (l *Link) AwaitCursor(ctx context.Context, at storage.Position) error {
	for {
		moved := l.progress.moved.wait()
		cursor, err := l.Cursor(ctx)
		if err != nil {
			return err
		}
		if !cursor.Before(at) {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
