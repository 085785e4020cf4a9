package fsm

import (
	"maps"
	"slices"
	"sync"

	"github.com/coffer-project/coffer/storage"
)

// feed calls subscribers with one change after the other. The mutex is held while they run, so that stop
// can promise that they do not run any more; a subscriber therefore must not subscribe or stop.
type feed struct {
	mu   sync.Mutex
	next int
	subs map[int]func(storage.Change)
}

// OnChange implements storage.Feed. fn must not call OnChange or stop.
func (f *FSM) OnChange(fn func(storage.Change)) (stop func()) {
	f.feed.mu.Lock()
	defer f.feed.mu.Unlock()
	if f.feed.subs == nil {
		f.feed.subs = map[int]func(storage.Change){}
	}
	id := f.feed.next
	f.feed.next++
	f.feed.subs[id] = fn
	return func() {
		f.feed.mu.Lock()
		defer f.feed.mu.Unlock()
		delete(f.feed.subs, id)
	}
}

func (f *feed) announce(changes []storage.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	order := slices.Sorted(maps.Keys(f.subs))
	for _, ch := range changes {
		for _, id := range order {
			f.subs[id](ch)
		}
	}
}
