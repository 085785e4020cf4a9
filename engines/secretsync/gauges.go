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
	attention    map[jobKey]int                // links that wait for somebody, likewise
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
	for key, round := range g.attention {
		if round < g.round {
			delete(g.attention, key)
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

// link notes the status of a link, "" if it is gone.
func (g *gauges) link(key jobKey, status string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if status != Conflict && status != ClientError {
		delete(g.attention, key)
		return
	}
	if g.attention == nil {
		g.attention = map[jobKey]int{}
	}
	g.attention[key] = g.round
}

// associationGone forgets the links of an association.
func (g *gauges) associationGone(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.attention {
		if key.Association == id {
			delete(g.attention, key)
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
	g.destinations, g.attention, g.unreadable = nil, nil, nil
}

func (g *gauges) counts() (destinations, attention, unreadable int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.destinations), len(g.attention), len(g.unreadable)
}
