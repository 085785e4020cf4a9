// Package index keeps in memory what the active node knows of the sync state: the associations by mount and secret, the number of links
// against queue_capacity, and gauges for metrics. All of it is built again from the store by a full scan. Start reading at Associations.
package index

import (
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Associations is the index of all associations by mount and secret. Safe for concurrent use; the zero value is empty.
type Associations struct {
	mu     sync.Mutex
	mounts map[string]*mountIndex // by uuid
	// areas are the keys of mounts, for Mounts, which takes no lock.
	areas atomic.Pointer[map[string]bool]
}

// mountIndex holds the associations of a mount.
type mountIndex struct {
	byID      map[string]*state.Association
	bySecret  map[string]map[string]*state.Association // without selectors; then by id
	selectors map[string]*state.Association            // by id
}

// Put adds an association, or replaces it.
func (x *Associations) Put(a *state.Association) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.mounts[a.MountUUID]
	if m == nil {
		m = &mountIndex{map[string]*state.Association{}, map[string]map[string]*state.Association{}, map[string]*state.Association{}}
		if x.mounts == nil {
			x.mounts = map[string]*mountIndex{}
		}
		x.mounts[a.MountUUID] = m
		x.publishLocked()
	}
	m.byID[a.ID] = a
	switch {
	case a.Selector:
		m.selectors[a.ID] = a
	case m.bySecret[a.Secret] == nil:
		m.bySecret[a.Secret] = map[string]*state.Association{a.ID: a}
	default:
		m.bySecret[a.Secret][a.ID] = a
	}
}

// Remove removes the association of an id.
func (x *Associations) Remove(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for uuid, m := range x.mounts {
		a := m.byID[id]
		if a == nil {
			continue
		}
		delete(m.byID, id)
		delete(m.selectors, id)
		if delete(m.bySecret[a.Secret], id); len(m.bySecret[a.Secret]) == 0 {
			delete(m.bySecret, a.Secret)
		}
		if len(m.byID) == 0 {
			delete(x.mounts, uuid)
			x.publishLocked()
		}
	}
}

// Clear removes all associations.
func (x *Associations) Clear() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mounts = nil
	x.publishLocked()
}

func (x *Associations) publishLocked() {
	areas := make(map[string]bool, len(x.mounts))
	for uuid := range x.mounts {
		areas[uuid] = true
	}
	x.areas.Store(&areas)
}

// Mounts returns the mounts that have associations, by uuid. Do not modify the map. It does not block.
func (x *Associations) Mounts() map[string]bool {
	if areas := x.areas.Load(); areas != nil {
		return *areas
	}
	return nil
}

// IDs returns the ids of all associations, in no order.
func (x *Associations) IDs() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var all []string
	for _, m := range x.mounts {
		all = slices.AppendSeq(all, maps.Keys(m.byID))
	}
	return all
}

// Get returns the association of an id, nil if there is none.
func (x *Associations) Get(id string) *state.Association {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range x.mounts {
		if a := m.byID[id]; a != nil {
			return a
		}
	}
	return nil
}

// Len returns the number of associations.
func (x *Associations) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for _, m := range x.mounts {
		n += len(m.byID)
	}
	return n
}

// OfMount returns the associations of a mount, in no order.
func (x *Associations) OfMount(uuid string) []*state.Association {
	x.mu.Lock()
	defer x.mu.Unlock()
	if m := x.mounts[uuid]; m != nil {
		return slices.Collect(maps.Values(m.byID))
	}
	return nil
}

// OfSecret returns the associations that a secret belongs to, in no order.
func (x *Associations) OfSecret(uuid, secret string) []*state.Association {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.mounts[uuid]
	if m == nil {
		return nil
	}
	all := slices.Collect(maps.Values(m.bySecret[secret]))
	for _, a := range m.selectors {
		if a.Covers(secret) {
			all = append(all, a)
		}
	}
	return all
}
