package index

import (
	"maps"
	"slices"
	"sync"

	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// Waiters are the links that wait for a name. Safe for concurrent use; the zero value is empty.
type Waiters struct {
	mu      sync.Mutex
	waiting map[storage.Key]map[state.LinkID]bool // by the key of the name's claim
}

// Add records that a link waits for a name.
func (w *Waiters) Add(name storage.Key, who state.LinkID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = map[storage.Key]map[state.LinkID]bool{}
	}
	if w.waiting[name] == nil {
		w.waiting[name] = map[state.LinkID]bool{}
	}
	w.waiting[name][who] = true
}

// Take returns the links that wait for names, and forgets them.
func (w *Waiters) Take(names ...storage.Key) (who []state.LinkID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		who = slices.AppendSeq(who, maps.Keys(w.waiting[name]))
		delete(w.waiting, name)
	}
	return who
}

// Clear forgets everything.
func (w *Waiters) Clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = nil
}

// PendingRefresh are the paused associations, by id, whose links must be compared with the destination when they are resumed: after a
// restore the sync state may be older than the destination. Safe for concurrent use; the zero value is empty.
type PendingRefresh struct {
	mu  sync.Mutex
	ids map[string]bool
}

// Set adds an association.
func (p *PendingRefresh) Set(association string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ids == nil {
		p.ids = map[string]bool{}
	}
	p.ids[association] = true
}

// Take reports whether an association was added, and forgets it.
func (p *PendingRefresh) Take(association string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	owed := p.ids[association]
	delete(p.ids, association)
	return owed
}

// Clear forgets everything.
func (p *PendingRefresh) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = nil
}
