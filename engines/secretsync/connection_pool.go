package secretsync

import (
	"fmt"
	"sync"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// PoolOptions configures a Pool.
type PoolOptions struct {
	Types    map[string]destination.Type // by name
	Operator Operator
	// Getenv reads the server's environment.
	Getenv func(string) string
}

// Pool opens destinations, and keeps each open until its record changes. Safe for concurrent use.
type Pool struct {
	Types map[string]destination.Type // by name; do not modify
	opts  PoolOptions

	mu   sync.Mutex
	open map[string]*connection // by destination id
}

// connection is an open destination.
type connection struct {
	key     storage.Key   // of the destination's record
	version storage.Index // of the record when it was opened
	dest    *workqueue.RateLimited
}

// NewPool returns a Pool without open destinations.
func NewPool(o PoolOptions) *Pool { return &Pool{Types: o.Types, opts: o} }

// Get returns the destination of a record that was stored at a version, within its rate limit.
func (p *Pool) Get(d *Destination, version storage.Index) (*workqueue.RateLimited, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.open[d.ID]
	if old != nil && old.version == version {
		return old.dest, nil
	}
	dest, err := p.Open(d)
	if err != nil {
		return nil, fmt.Errorf("opening the destination: %w", err)
	}
	now := &connection{d.Key(), version, workqueue.NewRateLimited(dest, p.rateOf(p.Types[d.Type]))}
	if old != nil { // its calls end by themselves, and count against the same rate
		now.dest.Share(old.dest)
		old.dest.Close() //nolint:errcheck // there is nothing to lose
	}
	if p.open == nil {
		p.open = map[string]*connection{}
	}
	for id, other := range p.open { // the same record, with the id of its former location
		if other.key == now.key && id != d.ID {
			p.closeLocked(id)
		}
	}
	p.open[d.ID] = now
	return now.dest, nil
}

func (p *Pool) closeLocked(id string) {
	p.open[id].dest.Close() //nolint:errcheck // there is nothing to lose
	delete(p.open, id)
}

// Drop closes a destination.
func (p *Pool) Drop(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[id] != nil {
		p.closeLocked(id)
	}
}

// DropByKey closes the destination of a record that was deleted.
func (p *Pool) DropByKey(key storage.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, c := range p.open {
		if c.key == key {
			p.closeLocked(id)
		}
	}
}

// Close closes all destinations.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.open {
		p.closeLocked(id)
	}
}
