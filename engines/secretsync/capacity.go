package secretsync

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// capacity holds links to queue_capacity. An association with a prefix is made once, and from then on whoever may write secrets
// below it makes links: past the capacity there are no new ones, until it is raised or others go. Safe for concurrent use.
type capacity struct {
	seed maphash.Seed

	mu      sync.Mutex
	limit   int
	counted bool            // all links have been counted since this node is the active one
	round   int             // of looking at everything
	links   map[uint64]int  // by the hash of their job's key, with the round in which they were seen last
	refused map[jobKey]bool // of those that wait for room
}

// maxRefused bounds those that are remembered; when everything is looked through, the others are found.
const maxRefused = 1000

const codeCapacity = "queue_capacity"

func newCapacity() *capacity {
	c := &capacity{seed: maphash.MakeSeed(), limit: defaultQueueCapacity}
	c.clear()
	return c
}

// clear forgets everything: this node has not counted yet, or does not sync any more.
func (c *capacity) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counted, c.links, c.refused = false, map[uint64]int{}, map[jobKey]bool{}
}

// begin starts a look at everything. end finishes it, and returns some of those that there is room for by now: what was not seen
// since is not there any more.
func (c *capacity) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.round++
	c.refused = map[jobKey]bool{}
}

func (c *capacity) end() (fit []jobKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.links, func(_ uint64, round int) bool { return round < c.round })
	for key := range c.refused {
		if len(c.links)+len(fit) >= c.limit {
			break
		}
		fit = append(fit, key)
		delete(c.refused, key)
	}
	return fit
}

func (c *capacity) allow(limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = limit
}

// seen notes a link that is stored.
func (c *capacity) seen(key jobKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.links[maphash.Comparable(c.seed, key)] = c.round
}

// gone notes that a link is not stored any more, and returns one that has its room now.
func (c *capacity) gone(key jobKey) (next jobKey, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.links, maphash.Comparable(c.seed, key))
	for next := range c.refused {
		delete(c.refused, next)
		return next, true
	}
	return jobKey{}, false
}

// admit reports whether there may be a link, and counts it. One that is refused is remembered.
func (c *capacity) admit(key jobKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fullLocked(key) {
		if len(c.refused) < maxRefused {
			c.refused[key] = true
		}
		return false
	}
	delete(c.refused, key)
	c.links[maphash.Comparable(c.seed, key)] = c.round
	return true
}

// full reports whether there is no room for a link that is not there.
func (c *capacity) full(key jobKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fullLocked(key)
}

func (c *capacity) fullLocked(key jobKey) bool {
	_, known := c.links[maphash.Comparable(c.seed, key)]
	return !known && len(c.links) >= c.limit
}

// cause is what those are told whom there is no room for.
func (c *capacity) cause() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%d secrets are synced, and queue_capacity of sync/config allows %d: raise it, or end associations that are not needed", len(c.links), c.limit)
}

func (c *capacity) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.refused)
}

// countLinks counts what there is, once, before anything new is let in, and learns the limit.
func (s *Service) countLinks(ctx context.Context, namespaces []string) error {
	config, err := s.config(ctx)
	switch {
	case s.unreadable(err): // nothing is synced anyhow
	case err != nil:
		return err
	default:
		s.capacity.allow(config.QueueCapacity)
	}
	s.capacity.mu.Lock()
	counted := s.capacity.counted
	s.capacity.mu.Unlock()
	if counted {
		return nil
	}
	for _, ns := range namespaces {
		if err := s.countLinksOf(ctx, ns); err != nil {
			return err
		}
	}
	s.capacity.mu.Lock()
	defer s.capacity.mu.Unlock()
	s.capacity.counted = true
	return nil
}

func (s *Service) countLinksOf(ctx context.Context, ns string) error {
	const page = 500
	prefix := area(ns, "l/")
	for after := storage.Key(""); ; {
		entries, err := s.host.Store().Scan(ctx, prefix, after, page)
		if err != nil {
			return err
		}
		for _, e := range entries {
			after = e.Key
			if parts := strings.SplitN(strings.TrimPrefix(string(e.Key), string(prefix)), "/", 3); len(parts) == 3 {
				s.capacity.seen(jobKey{ns, parts[0], parts[1], parts[2]})
			}
		}
		if len(entries) < page {
			return nil
		}
	}
}

// noteLink keeps account of a link: its status, "" if it is gone.
func (s *Service) noteLink(key jobKey, mount, status string) {
	s.gauges.link(key, mount, status)
	if status != "" {
		s.capacity.seen(key)
		return
	}
	if next, ok := s.capacity.gone(key); ok {
		s.queue.Push(next, time.Now(), false, nil)
	}
}

// admits reports whether a link may be worked on: one that is stored, or that there is room for.
func (s *Service) admits(t *target) bool {
	return !t.link.UpdatedAt.IsZero() || t.assoc.ending() || s.capacity.admit(t.key)
}
