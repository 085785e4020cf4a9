package index

import (
	"fmt"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"hash/maphash"
	"maps"
	"sync"
)

// Capacity limits the number of links to queue_capacity. Every new secret below the prefix of an association makes a link: at the limit
// it has to wait until the limit is raised or other links are deleted. Safe for concurrent use.
type Capacity struct {
	seed maphash.Seed

	Mu       sync.Mutex
	limit    int
	Counted  bool                  // all links have been counted since this node is the active one
	round    int                   // of full scans
	links    map[uint64]int        // by the hash of their job's key, with the round in which they were seen last
	rejected map[state.LinkID]bool // of those that wait for room
}

// maxRejected bounds the links that are remembered; the next full scan finds the others.
const maxRejected = 1000

const CodeQueueCapacity = "queue_capacity"

func NewCapacity() *Capacity {
	c := &Capacity{seed: maphash.MakeSeed(), limit: state.DefaultQueueCapacity}
	c.Clear()
	return c
}

// Clear forgets everything: this node has not counted yet, or does not sync any more.
func (c *Capacity) Clear() {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.Counted, c.links, c.rejected = false, map[uint64]int{}, map[state.LinkID]bool{}
}

// BeginScan starts a full scan. EndScan drops the links that were not added since, and returns waiting links that there is room for.
func (c *Capacity) BeginScan() {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.round++
	c.rejected = map[state.LinkID]bool{}
}

func (c *Capacity) EndScan() (fit []state.LinkID) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	maps.DeleteFunc(c.links, func(_ uint64, round int) bool { return round < c.round })
	for key := range c.rejected {
		if len(c.links)+len(fit) >= c.limit {
			break
		}
		fit = append(fit, key)
		delete(c.rejected, key)
	}
	return fit
}

func (c *Capacity) SetLimit(limit int) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.limit = limit
}

// Add notes a link that is stored.
func (c *Capacity) Add(key state.LinkID) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.links[maphash.Comparable(c.seed, key)] = c.round
}

// Remove notes that a link is not stored any more, and returns one that has its room now.
func (c *Capacity) Remove(key state.LinkID) (next state.LinkID, ok bool) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	delete(c.links, maphash.Comparable(c.seed, key))
	for next := range c.rejected {
		delete(c.rejected, next)
		return next, true
	}
	return state.LinkID{}, false
}

// Admit counts a link, and reports whether there is room for it. If not, it waits.
func (c *Capacity) Admit(key state.LinkID) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.fullLocked(key) {
		if len(c.rejected) < maxRejected {
			c.rejected[key] = true
		}
		return false
	}
	delete(c.rejected, key)
	c.links[maphash.Comparable(c.seed, key)] = c.round
	return true
}

// IsFull reports whether there is no room for a link that is not stored.
func (c *Capacity) IsFull(key state.LinkID) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.fullLocked(key)
}

func (c *Capacity) fullLocked(key state.LinkID) bool {
	_, known := c.links[maphash.Comparable(c.seed, key)]
	return !known && len(c.links) >= c.limit
}

// Cause returns the error text for links without room.
func (c *Capacity) Cause() string {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return fmt.Sprintf("%d secrets are synced, and queue_capacity of sync/config allows %d: raise it, or end associations that are not needed", len(c.links), c.limit)
}

func (c *Capacity) Waiting() int {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return len(c.rejected)
}
