package lease

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// place is what leases are counted by.
type place struct{ ns, mountPath string }

// counts say how many leases there are. A first scan counts what is stored, up to its cursor; what changes beyond
// the cursor meanwhile is noted, so that the scan leaves it out. The owner's lock guards them.
type counts struct {
	total    int
	stuck    int
	byPlace  map[place]int
	byNS     map[string]int
	complete bool

	cursor storage.Key          // counted up to here, both indexes in key order
	skip   map[storage.Key]bool // beyond cursor: counted already, or gone
}

func newCounts() *counts {
	return &counts{byPlace: map[place]int{}, byNS: map[string]int{}, skip: map[storage.Key]bool{}}
}

// add counts a lease that was put at this key of an index.
func (c *counts) add(key storage.Key) {
	if !c.complete && key > c.cursor {
		c.skip[key] = true
	}
	c.change(key, 1)
}

// remove is for a lease that is no longer at this key.
func (c *counts) remove(key storage.Key) {
	if !c.complete && key > c.cursor && !c.skip[key] {
		c.skip[key] = true // never counted
		return
	}
	c.change(key, -1)
}

// scanned counts a key that the scan found, and moves the cursor.
func (c *counts) scanned(key storage.Key) {
	c.cursor = key
	if c.skip[key] {
		delete(c.skip, key)
		return
	}
	c.change(key, 1)
}

func (c *counts) change(key storage.Key, by int) {
	name, stuck := strings.CutPrefix(string(key), string(stuckPrefix))
	if !stuck {
		name = strings.TrimPrefix(name, string(expPrefix))
	}
	r, ok := parseName(name)
	if !ok {
		return
	}
	c.total += by
	if stuck {
		c.stuck += by
	}
	bump(c.byNS, r.ns, by)
	bump(c.byPlace, place{r.ns, r.mountPath}, by)
}

// bump forgets what is down to zero.
func bump[K comparable](counts map[K]int, key K, by int) {
	if counts[key] += by; counts[key] == 0 {
		delete(counts, key)
	}
}

// countAll counts what is stored, from where c has come to. It runs beside everything else.
func (m *Manager) countAll(ctx context.Context, c *counts) error {
	for _, prefix := range []storage.Key{expPrefix, stuckPrefix} {
		for more := true; more; {
			var err error
			if more, err = m.countPage(ctx, c, prefix); err != nil {
				return err
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c.complete, c.skip = true, nil
	if m.again == c {
		m.counts, m.again = c, nil
	}
	return nil
}

const namesPage = 8192

// countPage counts some names. No commit of ours runs meanwhile: what was committed before has been followed by
// the counts, and what comes later will be.
func (m *Manager) countPage(ctx context.Context, c *counts, prefix storage.Key) (more bool, err error) {
	m.counting.Lock()
	defer m.counting.Unlock()
	m.mu.Lock()
	after, inside := strings.CutPrefix(string(c.cursor), string(prefix))
	m.mu.Unlock()
	if !inside {
		if after > string(prefix) {
			return false, nil // this was counted before an earlier try failed
		}
		after = ""
	}
	names, err := m.store.List(ctx, prefix, after, namesPage)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		c.scanned(prefix + storage.Key(name))
	}
	return len(names) == namesPage, nil
}

// names yields the names below prefix that are greater than after, in order.
func (m *Manager) names(ctx context.Context, prefix storage.Key, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for {
			page, err := m.store.List(ctx, prefix, after, namesPage)
			if err != nil {
				yield("", err)
				return
			}
			for _, name := range page {
				if !yield(name, nil) {
					return
				}
			}
			if len(page) < namesPage {
				return
			}
			after = page[len(page)-1]
		}
	}
}

// CountBy returns how many leases a namespace has at a mount, or in all if mountPath is "". On the active node it
// comes from memory; for a moment after Run began it is too low.
func (m *Manager) CountBy(ns, mountPath string) int {
	if ns == "" {
		ns = rootNS
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if mountPath == "" {
		return m.counts.byNS[ns]
	}
	return m.counts.byPlace[place{ns, mountPath}]
}

// Counted reports whether CountBy and Numbers know all leases. They do soon after Run began.
func (m *Manager) Counted() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.work != nil && m.counts.complete
}

// Numbers are for metrics. They mean something on the active node.
func (m *Manager) Numbers() map[string]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]float64{
		"leases":                          float64(m.counts.total),
		"leases_irrevocable":              float64(m.counts.stuck),
		"lease_creations_total":           float64(m.created.Load()),
		"lease_renewals_total":            float64(m.renewed.Load()),
		"lease_revocations_total":         float64(m.revoked.Load()),
		"lease_revocation_failures_total": float64(m.failed.Load()),
		"lease_revocation_queue":          0,
		"lease_due_lag_seconds":           0,
		"lease_brake":                     0,
	}
	if w := m.work; w != nil {
		now := m.clock.now()
		queued, oldest := w.queue.waiting()
		if next, ok := w.window.next(); ok && (oldest == 0 || next < oldest) {
			oldest = next
		}
		out["lease_revocation_queue"] = float64(queued)
		if oldest > 0 {
			out["lease_due_lag_seconds"] = max(now.Sub(time.Unix(0, oldest)), 0).Seconds()
		}
		if w.brake != nil {
			out["lease_brake"] = 1
		}
	}
	return out
}
