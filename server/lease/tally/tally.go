// Package tally counts leases by namespace and mount, from the keys of their index entries.
//
// It promises that the counts are right once the first scan has ended, whatever changed beside it. Start reading at Tally.
package tally

import (
	"strings"

	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/storage"
)

// place is what leases are counted by.
type place struct{ ns, mountPath string }

// Tally says how many leases there are. A first scan counts what is stored, up to its cursor; what changes beyond
// the cursor meanwhile is noted, so that the scan leaves it out. The owner's lock guards it.
type Tally struct {
	total    int
	stuck    int
	byPlace  map[place]int
	byNS     map[string]int
	complete bool

	cursor storage.Key          // counted up to here, both indexes in key order
	skip   map[storage.Key]bool // beyond cursor: counted already, or gone
}

// New returns a Tally whose first scan has not begun.
func New() *Tally {
	return &Tally{byPlace: map[place]int{}, byNS: map[string]int{}, skip: map[storage.Key]bool{}}
}

// Add counts a lease that was put at this key of an index.
func (c *Tally) Add(key storage.Key) {
	if !c.complete && key > c.cursor {
		c.skip[key] = true
	}
	c.change(key, 1)
}

// Remove is for a lease that is no longer at this key.
func (c *Tally) Remove(key storage.Key) {
	if !c.complete && key > c.cursor && !c.skip[key] {
		c.skip[key] = true // never counted
		return
	}
	c.change(key, -1)
}

// Scanned counts a key that the scan found, and moves the cursor.
func (c *Tally) Scanned(key storage.Key) {
	c.cursor = key
	if c.skip[key] {
		delete(c.skip, key)
		return
	}
	c.change(key, 1)
}

func (c *Tally) change(key storage.Key, by int) {
	name, stuck := strings.CutPrefix(string(key), string(index.StuckPrefix))
	if !stuck {
		name = strings.TrimPrefix(name, string(index.ExpPrefix))
	}
	r, ok := index.Parse(name)
	if !ok {
		return
	}
	c.total += by
	if stuck {
		c.stuck += by
	}
	bump(c.byNS, r.Namespace, by)
	bump(c.byPlace, place{r.Namespace, r.MountPath}, by)
}

// bump forgets what is down to zero.
func bump[K comparable](counts map[K]int, key K, by int) {
	if counts[key] += by; counts[key] == 0 {
		delete(counts, key)
	}
}

// All returns how many leases there are.
func (c *Tally) All() int { return c.total }

// Irrevocable returns how many of them are irrevocable.
func (c *Tally) Irrevocable() int { return c.stuck }

// Of returns how many leases a namespace has at a mount, or in all if mountPath is "".
func (c *Tally) Of(ns, mountPath string) int {
	if mountPath == "" {
		return c.byNS[ns]
	}
	return c.byPlace[place{ns, mountPath}]
}

// Where returns how many leases there are at the mounts that match says.
func (c *Tally) Where(match func(ns, mountPath string) bool) int {
	n := 0
	for at, count := range c.byPlace {
		if match(at.ns, at.mountPath) {
			n += count
		}
	}
	return n
}

// Reached returns up to which key the scan has counted.
func (c *Tally) Reached() storage.Key { return c.cursor }

// Finish ends the scan.
func (c *Tally) Finish() { c.complete, c.skip = true, nil }

// Finished reports whether the scan has ended.
func (c *Tally) Finished() bool { return c.complete }
