package secretsync

import (
	"maps"
	"slices"
	"sync"

	"github.com/coffer-project/coffer/storage"
)

// inbox gathers the keys that the feed tells of.
type inbox struct {
	wake chan struct{} // capacity 1, level-triggered; never closed

	mu      sync.Mutex
	running bool
	keys    []storage.Key
	scanAll bool
}

// maxInbox bounds what is remembered: above it everything is looked at.
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

// watching are the associations of a mount.
type mountIndex struct {
	byID      map[string]*Association            // by id
	bySecret  map[string]map[string]*Association // by secret, then id
	selectors map[string]*Association            // by id
}

// watch has changes of an association's secrets noticed.
func (s *Service) watch(a *Association) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.mounts[a.MountUUID]
	if w == nil {
		w = &mountIndex{map[string]*Association{}, map[string]map[string]*Association{}, map[string]*Association{}}
		if s.mounts == nil {
			s.mounts = map[string]*mountIndex{}
		}
		s.mounts[a.MountUUID] = w
		s.publishInterest()
	}
	w.byID[a.ID] = a
	switch {
	case a.Selector:
		w.selectors[a.ID] = a
	case w.bySecret[a.Secret] == nil:
		w.bySecret[a.Secret] = map[string]*Association{a.ID: a}
	default:
		w.bySecret[a.Secret][a.ID] = a
	}
}

func (s *Service) unwatch(id string) {
	s.gauges.RemoveAssociation(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pendingRefresh, id)
	for uuid, w := range s.mounts {
		a := w.byID[id]
		if a == nil {
			continue
		}
		delete(w.byID, id)
		delete(w.selectors, id)
		if delete(w.bySecret[a.Secret], id); len(w.bySecret[a.Secret]) == 0 {
			delete(w.bySecret, a.Secret)
		}
		if len(w.byID) == 0 {
			delete(s.mounts, uuid)
			s.publishInterest()
		}
	}
}

// watched returns the ids of the associations that are watched.
func (s *Service) watchedIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, w := range s.mounts {
		all = slices.AppendSeq(all, maps.Keys(w.byID))
	}
	return all
}

// watchedAs returns the association of an id, nil if there is none.
func (s *Service) watchedAssociation(id string) *Association {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.mounts {
		if a := w.byID[id]; a != nil {
			return a
		}
	}
	return nil
}

// associated is how many associations there are.
func (s *Service) watchedCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, w := range s.mounts {
		n += len(w.byID)
	}
	return n
}

func (s *Service) clearIndex() {
	s.gauges.Clear()
	s.capacity.Clear()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mounts, s.waiting, s.pendingRefresh, s.concurrency = nil, nil, nil, nil
	s.publishInterest()
}

// publish tells the feed which mounts are of interest. It needs the lock.
func (s *Service) publishInterest() {
	of := make(map[string]bool, len(s.mounts))
	for uuid := range s.mounts {
		of[uuid] = true
	}
	s.interest.Store(&of)
}

// concerned returns the associations that a secret belongs to.
func (s *Service) associationsOf(uuid, secret string) []*Association {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.mounts[uuid]
	if w == nil {
		return nil
	}
	all := slices.Collect(maps.Values(w.bySecret[secret]))
	for _, a := range w.selectors {
		if a.Covers(secret) {
			all = append(all, a)
		}
	}
	return all
}
