package storage

import (
	"context"
	"sync"
)

// Cache keeps decoded objects by key and drops each one when the change feed says that its key changed.
// Because a change is announced before its index becomes visible, a reader that waited for an index never
// gets an object older than it. Absence is not cached. Safe for concurrent use.
type Cache[T any] struct {
	max int

	mu      sync.RWMutex
	items   map[Key]T
	changes uint64 // counts announced changes, so that a load that raced with one is not kept
}

// NewCache returns a cache of at most max objects; when full it drops an arbitrary one. A max below 1 keeps
// nothing.
func NewCache[T any](max int) *Cache[T] {
	return &Cache[T]{max: max, items: map[Key]T{}}
}

// Get returns the object under key, from memory or by load, which must not use anything read before it was
// called. Two callers may load the same object at once. Objects are shared: do not modify them. An error of
// load is returned and not remembered.
func (c *Cache[T]) Get(ctx context.Context, key Key, load func(context.Context) (T, error)) (T, error) {
	c.mu.RLock()
	item, ok := c.items[key]
	before := c.changes
	c.mu.RUnlock()
	if ok {
		return item, nil
	}
	item, err := load(ctx)
	if err != nil {
		return item, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes != before || c.max < 1 {
		return item, nil // something changed while loading: correct for this caller, not for later ones
	}
	if _, ok := c.items[key]; !ok && len(c.items) >= c.max {
		for k := range c.items {
			delete(c.items, k)
			break
		}
	}
	c.items[key] = item
	return item, nil
}

// Apply drops what ch changed. Give it every Change of the feed.
func (c *Cache[T]) Apply(ch Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	if ch.Reset {
		clear(c.items)
		return
	}
	for i := range ch.Entries {
		delete(c.items, ch.Entries[i].Key)
	}
}

// Clear drops everything, for instance when the server seals.
func (c *Cache[T]) Clear() { c.Apply(Change{Reset: true}) }
