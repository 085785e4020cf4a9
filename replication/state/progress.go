package state

import (
	"context"
	"sync"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// progress is what is stored of a secondary's progress, kept until it changes, and how much further the follower of this
// node is. Safe for concurrent use.
type progress struct {
	moved Signal

	mu      sync.Mutex
	changes uint64 // of what is stored that were announced
	cursor  kept[storedCursor]
	mine    kept[storedOwn]
	ahead   storage.Position // of the follower; zero if this node follows no primary
}

// kept is a stored value in memory.
type kept[T any] struct {
	value T
	asOf  uint64 // changes + 1 when it was read, 0: never
}

// get returns the value, read again if that is necessary.
func (k *kept[T]) get(p *progress, read func() (T, error)) (T, error) {
	p.mu.Lock()
	now, value := p.changes+1, k.value
	fresh := k.asOf == now
	p.mu.Unlock()
	if fresh {
		return value, nil
	}
	value, err := read()
	if err == nil {
		p.mu.Lock()
		k.value, k.asOf = value, now
		p.mu.Unlock()
	}
	return value, err
}

// outdated takes note of a change of what is stored.
func (p *progress) outdated() {
	p.mu.Lock()
	p.changes++
	p.mu.Unlock()
	p.moved.Raise()
}

// follower says how far the follower is. Zero: there is none any more.
func (p *progress) follower(at storage.Position) {
	p.mu.Lock()
	moved := p.ahead != at
	p.ahead = at
	p.mu.Unlock()
	if moved {
		p.moved.Raise()
	}
}

// at returns the cursor.
func (p *progress) at(ctx context.Context, store storage.Reader) (storage.Position, error) {
	p.mu.Lock()
	ahead := p.ahead
	p.mu.Unlock()
	stored, err := p.cursor.get(p, func() (storedCursor, error) {
		c, _, err := readCursor(ctx, store)
		return c, err
	})
	if err != nil || !stored.Cursor.Before(ahead) {
		return stored.Cursor, err
	}
	return ahead, nil
}

// own returns the epochs in which this cluster was the primary, as far as they are stored.
func (p *progress) own(store storage.Reader) storage.Lineage {
	own, err := p.mine.get(p, func() (storedOwn, error) { return readOwn(context.Background(), store) })
	if err != nil {
		return nil // it is sealed, and resolves nothing
	}
	return own.Branches
}

// Cursor returns how far this node is, on any node of a secondary.
func (l *Local) Cursor(ctx context.Context) (storage.Position, error) {
	return l.progress.at(ctx, l.o.Store)
}

// AwaitCursor waits until everything up to a position is applied and visible on this node.
func (l *Local) AwaitCursor(ctx context.Context, at storage.Position) error {
	for {
		moved := l.progress.moved.Wait()
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

// Applied returns what is stored of how far the cluster is: the cursor, and when what was applied last was written, by the clock of the
// primary. Zero: nothing is stored, or it is sealed.
func (l *Local) Applied(ctx context.Context) (cursor storage.Position, at time.Time) {
	c, version, err := readCursor(ctx, l.o.Store)
	if err != nil || version == 0 {
		return storage.Position{}, time.Time{}
	}
	if c.TimeMS != 0 {
		at = time.UnixMilli(c.TimeMS)
	}
	return c.Cursor, at
}

// FollowerAt says how far the follower of this node is, which may be ahead of what is stored. Zero: there is none any more.
func (l *Local) FollowerAt(at storage.Position) { l.progress.follower(at) }
