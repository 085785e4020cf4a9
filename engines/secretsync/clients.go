package secretsync

import (
	"fmt"
	"sync"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// clients keeps destinations open for as long as their record does not change. Safe for concurrent use.
type pool struct {
	mu   sync.Mutex
	open map[string]*connection // by destination id
}

type connection struct {
	key     storage.Key   // of the record it was opened by
	version storage.Index // likewise
	dest    *workqueue.RateLimited
}

// get returns the destination of a record, which was stored at a version.
func (c *pool) get(d *Destination, version storage.Index, open func() (destination.Destination, destination.Rate, error)) (*workqueue.RateLimited, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	had := c.open[d.ID]
	if had != nil && had.version == version {
		return had.dest, nil
	}
	dest, rate, err := open()
	if err != nil {
		return nil, fmt.Errorf("opening the destination: %w", err)
	}
	now := &connection{d.Key(), version, workqueue.NewRateLimited(dest, rate)}
	if had != nil { // whoever uses it finishes; what it has spent is spent
		now.dest.Share(had.dest)
		had.dest.Close() //nolint:errcheck // there is nothing to lose
	}
	if c.open == nil {
		c.open = map[string]*connection{}
	}
	for id, old := range c.open { // of the place that it was before
		if old.key == now.key && id != d.ID {
			old.dest.Close() //nolint:errcheck // there is nothing to lose
			delete(c.open, id)
		}
	}
	c.open[d.ID] = now
	return now.dest, nil
}

// drop closes what is open of a destination.
func (c *pool) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if had := c.open[id]; had != nil {
		had.dest.Close() //nolint:errcheck // there is nothing to lose
		delete(c.open, id)
	}
}

// dropAt closes what was opened by a record that is not there any more.
func (c *pool) dropByKey(key storage.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, had := range c.open {
		if had.key == key {
			had.dest.Close() //nolint:errcheck // there is nothing to lose
			delete(c.open, id)
		}
	}
}

// close closes all.
func (c *pool) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, had := range c.open {
		had.dest.Close() //nolint:errcheck // there is nothing to lose
	}
	c.open = nil
}
