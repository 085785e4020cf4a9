package secretsync

import (
	"maps"
	"sync"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// gauges count what there is, for metrics: what a node has seen since it became the active one. Safe for concurrent use.
type gauges struct {
	mu           sync.Mutex
	round        int
	destinations map[storage.Key]int           // by key, with the round in which it was seen last
	attention    map[jobKey]attending          // links that wait for somebody
	secrets      map[secretAt]int              // how many of those are of one secret
	unreadable   map[storage.Key]storage.Index // records that cannot be decoded, with the version that was seen
}

// begin starts a look at everything, end finishes it: what was not seen since is not there any more.
func (g *gauges) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.round++
}

func (g *gauges) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, round := range g.destinations {
		if round < g.round {
			delete(g.destinations, key)
		}
	}
	for key, a := range g.attention {
		if a.round < g.round {
			g.drop(key)
		}
	}
}

func (g *gauges) destination(d *destinationRecord) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.destinations == nil {
		g.destinations = map[storage.Key]int{}
	}
	g.destinations[d.key()] = g.round
}

func (g *gauges) destinationGone(key storage.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.destinations, key)
}

// secretAt is a secret at a destination, by whatever associations.
type secretAt struct{ Destination, Mount, Secret string }

type attending struct {
	round int // in which it was seen last
	of    secretAt
}

// link notes the status of a link of a mount, "" if it is gone.
func (g *gauges) link(key jobKey, mount, status string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(key)
	if status != Conflict && status != ClientError {
		return
	}
	if g.attention == nil {
		g.attention, g.secrets = map[jobKey]attending{}, map[secretAt]int{}
	}
	of := secretAt{key.Destination, mount, key.Secret}
	g.attention[key] = attending{g.round, of}
	g.secrets[of]++
}

// drop forgets a link. It needs the lock.
func (g *gauges) drop(key jobKey) {
	a, ok := g.attention[key]
	if !ok {
		return
	}
	delete(g.attention, key)
	if g.secrets[a.of]--; g.secrets[a.of] == 0 {
		delete(g.secrets, a.of)
	}
}

// associationGone forgets the links of an association.
func (g *gauges) associationGone(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.attention {
		if key.Association == id {
			g.drop(key)
		}
	}
}

// unreadableFound notes a record that cannot be decoded, and reports whether it is news.
func (g *gauges) unreadableFound(e *engines.UnreadableError) bool {
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

func (g *gauges) unreadableGone(key storage.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.unreadable, key)
}

func (g *gauges) allUnreadable() map[storage.Key]storage.Index {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.unreadable)
}

// clear forgets everything: this node does not sync any more.
func (g *gauges) clear() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.destinations, g.attention, g.secrets, g.unreadable = nil, nil, nil, nil
}

func (g *gauges) counts() (destinations, attention, unreadable int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.destinations), len(g.secrets), len(g.unreadable)
}
