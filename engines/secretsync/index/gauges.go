package index

import (
	"maps"
	"sync"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// Gauges count what there is, for metrics: what a node has seen since it became the active one. Safe for concurrent use.
type Gauges struct {
	mu           sync.Mutex
	round        int
	destinations map[storage.Key]int           // by key, with the round in which it was seen last
	needsAction  map[state.LinkID]linkGauge    // links that need action
	secrets      map[SecretRef]int             // how many of those are of one secret
	unreadable   map[storage.Key]storage.Index // records that cannot be decoded, with the version that was seen
}

// BeginScan starts a full scan. EndScan drops what was not set since.
func (g *Gauges) BeginScan() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.round++
}

func (g *Gauges) EndScan() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, round := range g.destinations {
		if round < g.round {
			delete(g.destinations, key)
		}
	}
	for key, a := range g.needsAction {
		if a.round < g.round {
			g.dropLocked(key)
		}
	}
}

func (g *Gauges) SetDestination(d *state.Destination) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.destinations == nil {
		g.destinations = map[storage.Key]int{}
	}
	g.destinations[d.Key()] = g.round
}

func (g *Gauges) RemoveDestination(key storage.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.destinations, key)
}

// SecretRef is a secret at a destination, by whatever associations.
type SecretRef struct{ Destination, Mount, Secret string }

type linkGauge struct {
	round  int // in which it was seen last
	secret SecretRef
}

// SetLink notes the status of a link of a mount, "" if it is gone.
func (g *Gauges) SetLink(key state.LinkID, mount, status string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked(key)
	if status != state.Conflict && status != state.ClientError {
		return
	}
	if g.needsAction == nil {
		g.needsAction, g.secrets = map[state.LinkID]linkGauge{}, map[SecretRef]int{}
	}
	of := SecretRef{key.Destination, mount, key.Secret}
	g.needsAction[key] = linkGauge{g.round, of}
	g.secrets[of]++
}

// dropLocked forgets a link. It needs the lock.
func (g *Gauges) dropLocked(key state.LinkID) {
	a, ok := g.needsAction[key]
	if !ok {
		return
	}
	delete(g.needsAction, key)
	if g.secrets[a.secret]--; g.secrets[a.secret] == 0 {
		delete(g.secrets, a.secret)
	}
}

// RemoveAssociation forgets the links of an association.
func (g *Gauges) RemoveAssociation(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.needsAction {
		if key.Association == id {
			g.dropLocked(key)
		}
	}
}

// AddUnreadable notes a record that cannot be decoded, and reports whether it is news.
func (g *Gauges) AddUnreadable(e *engines.UnreadableError) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if version, known := g.unreadable[e.Key]; known && version == e.Version {
		return false
	}
	if g.unreadable == nil {
		g.unreadable = map[storage.Key]storage.Index{}
	}
	g.unreadable[e.Key] = e.Version
	return true
}

func (g *Gauges) RemoveUnreadable(key storage.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.unreadable, key)
}

func (g *Gauges) Unreadable() map[storage.Key]storage.Index {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.unreadable)
}

// Clear forgets everything: this node does not sync any more.
func (g *Gauges) Clear() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.destinations, g.needsAction, g.secrets, g.unreadable = nil, nil, nil, nil
}

func (g *Gauges) Counts() (destinations, attention, unreadable int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.destinations), len(g.secrets), len(g.unreadable)
}
