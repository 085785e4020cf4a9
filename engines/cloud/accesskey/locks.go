package accesskey

import (
	"context"
	"sync"

	"github.com/coffer-project/coffer/engines"
)

// Locks are those of one mount on one node: who makes something at the provider, and who changes the keys of a name. The zero
// value is ready.
type Locks struct {
	making sync.RWMutex // read-locked while something is made or a key lock is held, see Begin; write-locked while the mount goes
	keys   namedLocks   // of static roles, by name, and of the root key
}

// Begin permits a request to create something at the provider until end is called. It fails while the mount goes: it could be gone
// before there is a record of it.
func (l *Locks) Begin() (end func(), err error) {
	if !l.making.TryRLock() {
		return nil, &engines.Error{Kind: engines.KindUnavailable, Detail: "the mount is being disabled or moved"}
	}
	return l.making.RUnlock, nil
}

// Stop makes Begin fail until resume is called; resume is nil if something is being made.
func (l *Locks) Stop() (resume func()) {
	if !l.making.TryLock() {
		return nil
	}
	return l.making.Unlock
}

// Lock waits for the lock of a name, or of the root key. Its holder may create keys, so Stop fails until it is free.
func (l *Locks) Lock(ctx context.Context, name string) (unlock func(), err error) {
	end, err := l.Begin()
	if err != nil {
		return nil, err
	}
	free, err := l.keys.lock(ctx, name)
	if err != nil {
		end()
		return nil, err
	}
	return func() { free(); end() }, nil
}

// TryLock is Lock without waiting; unlock is nil if the lock is held.
func (l *Locks) TryLock(name string) (unlock func()) {
	end, err := l.Begin()
	if err != nil {
		return nil
	}
	free, busy := l.keys.try(name)
	if busy != nil {
		end()
		return nil
	}
	return func() { free(); end() }
}

// namedLocks are mutexes by name: one goroutine of this node at a time changes the keys of a name. The zero value is ready.
type namedLocks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when it is free again
}

// lock waits for the lock of a name.
func (l *namedLocks) lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		unlock, busy := l.try(name)
		if busy == nil {
			return unlock, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-busy:
		}
	}
}

// try returns the function that unlocks, or a channel that is closed when the lock is free again.
func (l *namedLocks) try(name string) (unlock func(), busy <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ch, ok := l.held[name]; ok {
		return nil, ch
	}
	if l.held == nil {
		l.held = map[string]chan struct{}{}
	}
	ch := make(chan struct{})
	l.held[name] = ch
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, name)
		close(ch)
	}, nil
}
