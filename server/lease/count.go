package lease

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/server/lease/record"
	"github.com/coffer-project/coffer/server/lease/tally"
	"github.com/coffer-project/coffer/storage"
)

// countAll counts what is stored, from where c has come to. It runs beside everything else.
func (m *Manager) countAll(ctx context.Context, c *tally.Tally) error {
	for _, prefix := range []storage.Key{index.ExpPrefix, index.StuckPrefix} {
		for more := true; more; {
			var err error
			if more, err = m.countPage(ctx, c, prefix); err != nil {
				return err
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c.Finish()
	if m.again == c {
		m.counts, m.again = c, nil
	}
	return nil
}

var namesPage = 8192 // tests of what is longer have less

// countPage counts some names. No commit of ours runs meanwhile: what was committed before has been followed by
// the counts, and what comes later will be.
func (m *Manager) countPage(ctx context.Context, c *tally.Tally, prefix storage.Key) (more bool, err error) {
	m.counting.Lock()
	defer m.counting.Unlock()
	m.mu.Lock()
	after, inside := strings.CutPrefix(string(c.Reached()), string(prefix))
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
		c.Scanned(prefix + storage.Key(name))
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
		ns = record.RootNamespace
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts.Of(ns, mountPath)
}

// Counted reports whether CountBy and Numbers know all leases. They do soon after Run began.
func (m *Manager) Counted() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.work != nil && m.counts.Finished()
}

// Numbers are for metrics. They mean something on the active node.
func (m *Manager) Numbers() map[string]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]float64{
		"leases":                          float64(m.counts.All()),
		"leases_irrevocable":              float64(m.counts.Irrevocable()),
		"lease_creations_total":           float64(m.created.Load()),
		"lease_renewals_total":            float64(m.renewed.Load()),
		"lease_revocations_total":         float64(m.revoked.Load()),
		"lease_revocation_failures_total": float64(m.failed.Load()),
		"lease_revocation_queue":          0,
		"lease_due_lag_seconds":           0,
		"lease_brake":                     0,
	}
	if w := m.work; w != nil {
		now := m.clock.Now()
		queued, oldest := w.queue.Waiting()
		if next, ok := w.window.Next(); ok && (oldest == 0 || next < oldest) {
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
