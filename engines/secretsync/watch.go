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

	mu     sync.Mutex
	isOpen bool
	keys   []storage.Key
	every  bool
}

// maxInbox bounds what is remembered: above it everything is looked at.
const maxInbox = 100_000

func (i *inbox) open() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.isOpen, i.keys, i.every = true, nil, true
}

func (i *inbox) shut() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.isOpen, i.keys, i.every = false, nil, false
}

func (i *inbox) add(key storage.Key) {
	i.mu.Lock()
	if i.isOpen && !i.every {
		if i.keys = append(i.keys, key); len(i.keys) > maxInbox {
			i.keys, i.every = nil, true
		}
	}
	i.mu.Unlock()
	i.signal()
}

func (i *inbox) all() {
	i.mu.Lock()
	if i.isOpen {
		i.keys, i.every = nil, true
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
	keys, all = i.keys, i.every
	i.keys, i.every = nil, false
	slices.Sort(keys)
	return slices.Compact(keys), all
}

// watching are the associations of a mount.
type watching struct {
	all       map[string]*associationRecord            // by id
	exact     map[string]map[string]*associationRecord // by secret, then id
	selectors map[string]*associationRecord            // by id
}

// watch has changes of an association's secrets noticed.
func (s *Service) watch(a *associationRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.mounts[a.MountUUID]
	if w == nil {
		w = &watching{map[string]*associationRecord{}, map[string]map[string]*associationRecord{}, map[string]*associationRecord{}}
		if s.mounts == nil {
			s.mounts = map[string]*watching{}
		}
		s.mounts[a.MountUUID] = w
		s.publish()
	}
	w.all[a.ID] = a
	switch {
	case a.Selector:
		w.selectors[a.ID] = a
	case w.exact[a.Secret] == nil:
		w.exact[a.Secret] = map[string]*associationRecord{a.ID: a}
	default:
		w.exact[a.Secret][a.ID] = a
	}
}

func (s *Service) unwatch(id string) {
	s.gauges.associationGone(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unseen, id)
	for uuid, w := range s.mounts {
		a := w.all[id]
		if a == nil {
			continue
		}
		delete(w.all, id)
		delete(w.selectors, id)
		if delete(w.exact[a.Secret], id); len(w.exact[a.Secret]) == 0 {
			delete(w.exact, a.Secret)
		}
		if len(w.all) == 0 {
			delete(s.mounts, uuid)
			s.publish()
		}
	}
}

// watched returns the ids of the associations that are watched.
func (s *Service) watched() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, w := range s.mounts {
		all = slices.AppendSeq(all, maps.Keys(w.all))
	}
	return all
}

// watchedAs returns the association of an id, nil if there is none.
func (s *Service) watchedAs(id string) *associationRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.mounts {
		if a := w.all[id]; a != nil {
			return a
		}
	}
	return nil
}

// associated is how many associations there are.
func (s *Service) associated() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, w := range s.mounts {
		n += len(w.all)
	}
	return n
}

func (s *Service) forget() {
	s.gauges.clear()
	s.capacity.clear()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mounts, s.waiting, s.unseen, s.width = nil, nil, nil, nil
	s.publish()
}

// publish tells the feed which mounts are of interest. It needs the lock.
func (s *Service) publish() {
	of := make(map[string]bool, len(s.mounts))
	for uuid := range s.mounts {
		of[uuid] = true
	}
	s.interest.Store(&of)
}

// concerned returns the associations that a secret belongs to.
func (s *Service) concerned(uuid, secret string) []*associationRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.mounts[uuid]
	if w == nil {
		return nil
	}
	all := slices.Collect(maps.Values(w.exact[secret]))
	for _, a := range w.selectors {
		if a.covers(secret) {
			all = append(all, a)
		}
	}
	return all
}
