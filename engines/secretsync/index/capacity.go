package index

import (
	"fmt"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"hash/maphash"
	"maps"
	"sync"
)

// capacity holds links to queue_capacity. An association with a prefix is made once, and from then on whoever may write secrets
// below it makes links: past the capacity there are no new ones, until it is raised or others go. Safe for concurrent use.
type Capacity struct {
	seed maphash.Seed

	Mu       sync.Mutex
	limit    int
	Counted  bool                  // all links have been counted since this node is the active one
	round    int                   // of looking at everything
	links    map[uint64]int        // by the hash of their job's key, with the round in which they were seen last
	rejected map[state.LinkID]bool // of those that wait for room
}

// maxRefused bounds those that are remembered; when everything is looked through, the others are found.
const maxRejected = 1000

const CodeQueueCapacity = "queue_capacity"

func NewCapacity() *Capacity {
	c := &Capacity{seed: maphash.MakeSeed(), limit: state.DefaultQueueCapacity}
	c.Clear()
	return c
}

// clear forgets everything: this node has not counted yet, or does not sync any more.
func (c *Capacity) Clear() {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.Counted, c.links, c.rejected = false, map[uint64]int{}, map[state.LinkID]bool{}
}

// begin starts a look at everything. end finishes it, and returns some of those that there is room for by now: what was not seen
// since is not there any more.
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

// seen notes a link that is stored.
func (c *Capacity) Add(key state.LinkID) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.links[maphash.Comparable(c.seed, key)] = c.round
}

// gone notes that a link is not stored any more, and returns one that has its room now.
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

// admit reports whether there may be a link, and counts it. One that is refused is remembered.
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

// full reports whether there is no room for a link that is not there.
func (c *Capacity) IsFull(key state.LinkID) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.fullLocked(key)
}

func (c *Capacity) fullLocked(key state.LinkID) bool {
	_, known := c.links[maphash.Comparable(c.seed, key)]
	return !known && len(c.links) >= c.limit
}

// cause is what those are told whom there is no room for.
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
