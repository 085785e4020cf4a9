package status

import (
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/index"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
)

// maxSeries bounds the destinations that metrics tell apart. The others are one, with the name "other" in no namespace.
const maxSeries = 100

// Numbers are metrics, by name. A name may have labels, as Prometheus writes them.
func (s *Reporter) Numbers() map[string]float64 {
	attention, failed, unreadable := s.Gauges.Counts()
	all, running, due := s.healthOfAll()
	n := map[string]float64{
		"sync_destinations":      float64(len(all)),
		"sync_attention":         float64(attention + s.Capacity.Waiting()),
		"sync_unreadable":        float64(unreadable),
		"sync_associations":      float64(s.Associations.Len()),
		"sync_writes_total":      float64(s.Counts.Written.Load()),
		"sync_deletes_total":     float64(s.Counts.Deleted.Load()),
		"sync_failures_total":    float64(s.Counts.Failed.Load()),
		"sync_conflicts_total":   float64(s.Counts.Conflicts.Load()),
		"sync_drift_found_total": float64(s.Counts.Drifted.Load()),
		"sync_pending":           float64(failed + due),

		"sync_overwritten_changes_total": float64(s.Counts.Overwritten.Load()),
		"sync_redeploys_total":           float64(s.Counts.Redeploys.Load()),
		"sync_redeploy_failures_total":   float64(s.Counts.RedeploysFailed.Load()),
		"sync_notifications_total":       float64(s.Notices.Counts.Sent.Load()),

		"sync_notification_failures_total": float64(s.Notices.Counts.Failed.Load()),

		"sync_running": float64(running),
	}
	now := time.Now()
	for i := range all {
		all[i].addTo(n, i < maxSeries, now)
	}
	return n
}

// Health is how a destination is doing, as far as this node knows since it became the active one.
type Health struct {
	index.Destination
	Circuit workqueue.Circuit
	// OldestChange is when the oldest change was that is not at the destination; zero: all are.
	OldestChange time.Time
}

// healthOfAll returns the health of all destinations, by namespace and name, how many links are running, and how many are due besides
// those whose last attempt has failed. A link whose change, or first sync, is queued or running is PENDING.
func (s *Reporter) healthOfAll() (all []Health, running, due int) {
	pending := map[string]map[string]int{} // by destination and stored status; "": none is stored
	loads := s.Queue.Loads(func(key state.LinkID, running, refresh bool) {
		stored := s.Gauges.Status(key)
		inSync := stored == state.Synced || stored == state.Unsynced
		if !running && (inSync || stored == "") {
			due++
		}
		if stored == "" && key.Secret != "" || inSync && !refresh {
			if pending[key.Destination] == nil {
				pending[key.Destination] = map[string]int{}
			}
			pending[key.Destination][stored]++
		}
	})
	for _, d := range s.Gauges.Destinations() {
		h := Health{Destination: d, Circuit: s.Pool.Circuit(d.ID), OldestChange: d.Unsynced}
		if due := loads[d.ID].Since; h.OldestChange.IsZero() || !due.IsZero() && due.Before(h.OldestChange) {
			h.OldestChange = due
		}
		for stored, n := range pending[d.ID] {
			if stored != "" {
				n = min(n, h.Links[stored])
				h.Links[stored] -= n
			}
			h.Links[state.Pending] += n
		}
		all = append(all, h)
	}
	for _, load := range loads {
		running += load.Running
	}
	return all, running, due
}

// Health returns the health of destinations, by id.
func (s *Reporter) Health() map[string]Health {
	all, _, _ := s.healthOfAll()
	byID := make(map[string]Health, len(all))
	for _, h := range all {
		byID[h.ID] = h
	}
	return byID
}

// addTo adds the numbers of a destination.
func (h *Health) addTo(n map[string]float64, named bool, now time.Time) {
	of := `destination="other",namespace=""`
	if named {
		of = fmt.Sprintf("destination=%q,namespace=%q", h.Name, h.NS)
	}
	for status, links := range h.Links {
		n[fmt.Sprintf("sync_links{%s,status=%q}", of, status)] += float64(links)
	}
	age := 0.0
	if !h.OldestChange.IsZero() {
		age = now.Sub(h.OldestChange).Seconds()
	}
	n["sync_unsynced_seconds{"+of+"}"] = max(n["sync_unsynced_seconds{"+of+"}"], age)
	n["sync_drifted{"+of+"}"] += float64(h.Drifted)
	n["sync_circuit_open{"+of+"}"] += bit(h.Circuit.Open)
	if h.Held { // no checks are made
		return
	}
	n["sync_drift_check_failing{"+of+"}"] += bit(h.Check.Cause != "")
	if h.Check.At.IsZero() {
		return
	}
	const completed = "sync_drift_check_completed_time_seconds"
	at := float64(h.Check.At.Unix())
	if before, ok := n[completed+"{"+of+"}"]; ok {
		at = min(at, before)
	}
	n[completed+"{"+of+"}"] = at
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
