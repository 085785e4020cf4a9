package index

import (
	"cmp"
	"hash/maphash"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// Gauges count what there is, for metrics: what a node has seen since it became the active one. Safe for concurrent use.
type Gauges struct {
	seed maphash.Seed

	mu           sync.Mutex
	round        int32
	destinations map[storage.Key]*destinationGauge // by key
	counts       []*linkCounts                     // of links by their destination
	countsOf     map[string]uint32                 // index in counts, by destination id
	links        map[uint64]linkGauge              // by the hash of their id
	unsynced     map[state.LinkID]unsyncedGauge    // those of links whose last attempt has failed
	secrets      map[SecretRef]int                 // how many links of a secret need action
	unreadable   map[storage.Key]storage.Index     // records that cannot be decoded, with the version that was seen
}

type destinationGauge struct {
	round  int32 // in which it was seen last
	id, ns string
	name   string // with its type
	held   bool   // nothing is done at it
	check  state.DriftCheck
}

// linkCounts counts the links of a destination.
type linkCounts struct {
	byStatus [len(statuses)]int
	drifted  int // names
}

// statuses are those that links are stored with.
var statuses = [...]string{
	state.Synced, state.Unsynced, state.Pending, state.Unsyncing, state.ExternalError, state.Conflict, state.ClientError, state.InternalError,
}

// linkGauge is kept for each link, and so is small.
type linkGauge struct {
	version storage.Index // of the record
	round   int32
	counts  uint32 // index
	drifted uint16
	status  uint8 // index in statuses
}

type unsyncedGauge struct {
	since  time.Time
	secret SecretRef
	action bool // an operator has to act
}

// SecretRef is a secret at a destination, by whatever associations.
type SecretRef struct{ Destination, Mount, Secret string }

// BeginScan starts a full scan. EndScan drops what was not set since.
func (g *Gauges) BeginScan() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.round++
}

func (g *Gauges) EndScan() {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.destinations, func(_ storage.Key, d *destinationGauge) bool { return d.round < g.round })
	for key := range g.unsynced {
		if g.links[g.hash(key)].round < g.round {
			g.dropLocked(key)
		}
	}
	for hash, l := range g.links {
		if l.round < g.round {
			g.dropCountLocked(hash)
		}
	}
}

// SetDestination notes a destination. held says that nothing is done at it for now.
func (g *Gauges) SetDestination(d *state.Destination, held bool, check state.DriftCheck) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.destinations == nil {
		g.destinations = map[storage.Key]*destinationGauge{}
	}
	g.destinations[d.Key()] = &destinationGauge{g.round, d.ID, d.NS, d.Type + "/" + d.Name, held, check}
}

// SetDriftCheck notes the last drift check of a destination that is known.
func (g *Gauges) SetDriftCheck(key storage.Key, check state.DriftCheck) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if d := g.destinations[key]; d != nil {
		d.check = check
	}
}

func (g *Gauges) RemoveDestination(key storage.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.destinations, key)
}

func (g *Gauges) hash(key state.LinkID) uint64 { return maphash.Comparable(g.seed, key) }

// SetLink notes a link of a mount as it is stored, nil if it is gone. A scan may have read an earlier record than the one that is known.
func (g *Gauges) SetLink(key state.LinkID, mount string, l *state.Link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l != nil && g.links != nil {
		if known, ok := g.links[g.hash(key)]; ok && known.version > l.StoredAt {
			known.round = g.round
			g.links[g.hash(key)] = known
			return
		}
	}
	g.dropLocked(key)
	if l == nil {
		return
	}
	if g.links == nil {
		g.seed = maphash.MakeSeed()
		g.links, g.countsOf = map[uint64]linkGauge{}, map[string]uint32{}
		g.unsynced, g.secrets = map[state.LinkID]unsyncedGauge{}, map[SecretRef]int{}
	}
	of, ok := g.countsOf[key.Destination]
	if !ok {
		of = uint32(len(g.counts)) //nolint:gosec // there are not as many destinations
		g.countsOf[key.Destination], g.counts = of, append(g.counts, new(linkCounts))
	}
	drifted := 0
	for i := range l.Items {
		if it := &l.Items[i]; it.Drift != "" && !it.Retained {
			drifted++
		}
	}
	status := slices.Index(statuses[:], l.Status)
	if status < 0 { // nothing came of it yet
		status = slices.Index(statuses[:], state.Pending)
	}
	g.links[g.hash(key)] = linkGauge{l.StoredAt, g.round, of, uint16(min(drifted, math.MaxUint16)), uint8(status)} //nolint:gosec // it is bounded
	g.counts[of].byStatus[status]++
	g.counts[of].drifted += min(drifted, math.MaxUint16)
	if l.IsInSync() {
		return
	}
	u := unsyncedGauge{
		since: l.UnsyncedSince, secret: SecretRef{key.Destination, mount, key.Secret}, action: l.Status == state.Conflict || l.Status == state.ClientError,
	}
	if u.since.IsZero() { // stored by an earlier version
		u.since = l.UpdatedAt
	}
	g.unsynced[key] = u
	if u.action {
		g.secrets[u.secret]++
	}
}

// dropLocked forgets a link. It needs the lock.
func (g *Gauges) dropLocked(key state.LinkID) {
	if g.links == nil {
		return
	}
	g.dropCountLocked(g.hash(key))
	u, ok := g.unsynced[key]
	if !ok {
		return
	}
	delete(g.unsynced, key)
	if !u.action {
		return
	}
	if g.secrets[u.secret]--; g.secrets[u.secret] == 0 {
		delete(g.secrets, u.secret)
	}
}

func (g *Gauges) dropCountLocked(hash uint64) {
	if l, ok := g.links[hash]; ok {
		c := g.counts[l.counts]
		c.byStatus[l.status]--
		c.drifted -= int(l.drifted)
		delete(g.links, hash)
	}
}

// RemoveAssociation forgets the links of an association that have failed. The next full scan forgets the others, if they were not
// removed one by one.
func (g *Gauges) RemoveAssociation(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.unsynced {
		if key.Association == id {
			g.dropLocked(key)
		}
	}
}

// Status returns the stored status of a link; "": it is not known.
func (g *Gauges) Status(key state.LinkID) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.links == nil {
		return ""
	}
	l, ok := g.links[g.hash(key)]
	if !ok {
		return ""
	}
	return statuses[l.status]
}

// Destination is what the gauges say of a destination.
type Destination struct {
	ID, NS, Name string
	Held         bool // nothing is done at it for now
	Check        state.DriftCheck
	Links        map[string]int // by status; all statuses are there
	Drifted      int            // names
	Unsynced     time.Time      // when the oldest change was whose last attempt has failed; zero: there is none
}

// Destinations returns the destinations, by namespace and name.
func (g *Gauges) Destinations() []Destination {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]Destination, 0, len(g.destinations))
	at := map[string]int{}
	for _, d := range g.destinations {
		all = append(all, Destination{ID: d.id, NS: d.ns, Name: d.name, Held: d.held, Check: d.check})
	}
	slices.SortFunc(all, func(a, b Destination) int { return cmp.Or(cmp.Compare(a.NS, b.NS), cmp.Compare(a.Name, b.Name)) })
	for i := range all {
		d := &all[i]
		at[d.ID], d.Links = i, map[string]int{}
		var c linkCounts
		if of, ok := g.countsOf[d.ID]; ok {
			c = *g.counts[of]
		}
		for i, status := range statuses {
			d.Links[status] = c.byStatus[i]
		}
		d.Drifted = c.drifted
	}
	for key, u := range g.unsynced {
		if i, ok := at[key.Destination]; ok && (all[i].Unsynced.IsZero() || u.since.Before(all[i].Unsynced)) {
			all[i].Unsynced = u.since
		}
	}
	return all
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
	g.destinations, g.counts, g.countsOf, g.links, g.unsynced, g.secrets, g.unreadable = nil, nil, nil, nil, nil, nil, nil
}

// Counts returns how many secrets need action, how many links have failed and are tried again without one, and how many records are
// unreadable.
func (g *Gauges) Counts() (attention, failed, unreadable int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, u := range g.unsynced {
		if !u.action {
			failed++
		}
	}
	return len(g.secrets), failed, len(g.unreadable)
}
