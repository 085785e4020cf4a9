package reconcile

import (
	"slices"
	"sync"

	"github.com/coffer-project/coffer/storage"
)

// inbox collects the changed keys of the feed.
type inbox struct {
	wake chan struct{} // capacity 1, level-triggered; never closed

	mu      sync.Mutex
	running bool
	keys    []storage.Key
	scanAll bool
}

// maxInbox bounds the keys; more lead to a full scan.
const maxInbox = 100_000

func (i *inbox) start() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.running, i.keys, i.scanAll = true, nil, true
}

func (i *inbox) stop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.running, i.keys, i.scanAll = false, nil, false
}

func (i *inbox) add(key storage.Key) {
	i.mu.Lock()
	if i.running && !i.scanAll {
		if i.keys = append(i.keys, key); len(i.keys) > maxInbox {
			i.keys, i.scanAll = nil, true
		}
	}
	i.mu.Unlock()
	i.signal()
}

func (i *inbox) addAll() {
	i.mu.Lock()
	if i.running {
		i.keys, i.scanAll = nil, true
	}
	i.mu.Unlock()
	i.signal()
}

func (i *inbox) signal() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

func (i *inbox) take() (keys []storage.Key, all bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	keys, all = i.keys, i.scanAll
	i.keys, i.scanAll = nil, false
	slices.Sort(keys)
	return slices.Compact(keys), all
}
