package secretsync

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Reconciler finds the links that are due, and queues them: after changes of the feed, at the start, and periodically. Safe for
// concurrent use.
type Reconciler struct {
	*Syncer
	inbox inbox

	resets        atomic.Int64 // how often a snapshot has replaced the store
	handledResets int64        // resets at the last full scan; Run's alone

	concurrencyMu sync.Mutex
	concurrency   map[string]int // concurrent calls, by destination id
}

// NewReconciler returns a Reconciler that is not running.
func NewReconciler(s *Syncer) *Reconciler {
	r := &Reconciler{Syncer: s, inbox: inbox{wake: make(chan struct{}, 1)}}
	s.queue.Concurrency = r.concurrencyOf
	return r
}

// rescan is how often everything is looked through for what has been missed. Nothing should be.
const rescanInterval = 10 * time.Minute

// Run syncs until ctx ends. The active node calls it; on a cluster that does not write what is shared it waits to become one
// that does.
func (s *Reconciler) Run(ctx context.Context) {
	s.handledResets = s.resets.Load() // until now it may have been this node's alone that was behind
	s.capacity.Clear()
	s.inbox.start()
	defer s.inbox.stop()
	defer s.pool.Close()
	var running sync.WaitGroup
	defer running.Wait()
	began := make(chan struct{}) // closed when the queue takes jobs
	running.Go(func() { s.queue.Run(ctx, began) })
	running.Go(func() { s.runDriftScans(ctx) })
	<-began
	again := time.NewTicker(rescanInterval)
	defer again.Stop()
	for {
		if err := s.recoverPanic("looking for what is due", func() error { return s.handleEvents(ctx) }); err != nil && ctx.Err() == nil {
			s.log.Warn("secret sync cannot see what is due", "err", err)
			s.inbox.addAll() // and try again
			if !sleep(ctx, time.Second) {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-s.inbox.wake:
		case <-again.C:
			s.inbox.addAll()
		}
	}
}

// RoleChanged tells that the host's Owner may answer otherwise now.
func (s *Reconciler) RoleChanged() { s.inbox.addAll() }

// Changed takes every applied change, on every node. It neither blocks nor reads.
func (s *Reconciler) Changed(ch storage.Change) {
	if ch.Reset {
		s.resets.Add(1)
		s.inbox.addAll()
		return
	}
	add := func(key storage.Key) {
		switch {
		case key.Area() == "sys":
			if isSyncInput(key) || s.associations.Concerns(mountUUIDOf(key)) {
				s.inbox.add(key)
			}
		case s.associations.Concerns(key.Area()):
			s.inbox.add(key)
		}
	}
	for _, e := range ch.Puts {
		add(e.Key)
	}
	for _, key := range ch.Deletes {
		add(key)
	}
}

// heed looks at what has changed since the last time.
func (s *Reconciler) handleEvents(ctx context.Context) error {
	keys, all := s.inbox.take()
	if !s.host.Owner() {
		s.reset()
		s.concurrencyMu.Lock()
		defer s.concurrencyMu.Unlock()
		s.concurrency = nil
		return nil
	}
	if all {
		return s.scanAll(ctx)
	}
	for _, key := range keys {
		if err := s.handleEvent(ctx, key); err != nil && !s.unreadable(err) {
			return err
		}
	}
	return nil
}

func (s *Reconciler) handleEvent(ctx context.Context, key storage.Key) error {
	if key.Area() != "sys" {
		return s.secretChanged(ctx, key)
	}
	if uuid := mountUUIDOf(key); uuid != "" {
		return s.mountChanged(ctx, uuid)
	}
	switch ns, kind, rest := SplitKey(key); kind {
	case "config":
		return s.scanAll(ctx)
	case "d":
		var d Destination
		found, err := engines.GetRecord(ctx, s.host.Store(), key, &d)
		if err != nil {
			return err
		}
		if !found {
			s.pool.DropByKey(key)
			s.gauges.RemoveDestination(key)
			return nil
		}
		if err := s.scanDestination(ctx, &d, false, func(*Association) {}); err != nil {
			return err
		}
		return s.finishPurge(ctx, &d)
	case "a":
		var a Association
		found, err := engines.GetRecord(ctx, s.host.Store(), key, &a)
		if err != nil {
			return err
		}
		if !found {
			_, id, _ := strings.Cut(rest, "/")
			s.forgetAssociation(id)
			return s.finishPurges(ctx, ns)
		}
		s.associations.Put(&a)
		return s.scanAssociation(ctx, &a)
	}
	return nil
}

// secretChanged queues the links of a secret.
func (s *Reconciler) secretChanged(ctx context.Context, key storage.Key) error {
	m, err := s.host.MountOf(ctx, key.Area())
	if err != nil || m == nil {
		return err
	}
	source, ok := m.Engine.(engines.SecretSource)
	if !ok {
		return nil
	}
	name, ok := source.SecretOf(storage.Key(key.Path()))
	if !ok {
		return nil
	}
	for _, a := range s.associations.OfSecret(key.Area(), name) {
		s.queue.Push(LinkID{a.NS, a.Destination, a.ID, name}, time.Now().Add(changeDelay), false, nil)
	}
	return nil
}

// mountChanged looks at the associations of a mount, which may have another path.
func (s *Reconciler) mountChanged(ctx context.Context, uuid string) error {
	for _, a := range s.associations.OfMount(uuid) {
		if err := s.scanAssociation(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

func (s *Reconciler) concurrencyOf(dest string) int {
	s.concurrencyMu.Lock()
	defer s.concurrencyMu.Unlock()
	return s.concurrency[dest]
}

func (s *Reconciler) setConcurrency(d *Destination) {
	s.concurrencyMu.Lock()
	defer s.concurrencyMu.Unlock()
	if s.concurrency == nil {
		s.concurrency = map[string]int{}
	}
	s.concurrency[d.ID] = s.pool.Types[d.Type].Rules.Rate.Concurrency
}

// Numbers are metrics, by name.
func (s *Reconciler) Numbers() map[string]float64 {
	due, running := s.queue.Counts()
	destinations, attention, unreadable := s.gauges.Counts()
	return map[string]float64{
		"sync_destinations":      float64(destinations),
		"sync_attention":         float64(attention + s.capacity.Waiting()),
		"sync_unreadable":        float64(unreadable),
		"sync_associations":      float64(s.associations.Len()),
		"sync_pending":           float64(due),
		"sync_running":           float64(running),
		"sync_writes_total":      float64(s.counts.written.Load()),
		"sync_deletes_total":     float64(s.counts.deleted.Load()),
		"sync_failures_total":    float64(s.counts.failed.Load()),
		"sync_conflicts_total":   float64(s.counts.conflicts.Load()),
		"sync_drift_found_total": float64(s.counts.drifted.Load()),
	}
}

// concernsSync reports whether a key of a system area is one that work follows from: a destination, an association, or the
// configuration. What work itself writes is none of them.
func isSyncInput(key storage.Key) bool {
	_, kind, _ := SplitKey(key)
	return kind == "d" || kind == "a" || kind == "config"
}

// mountOf returns the mount whose record a key of a system area is, "" for others.
func mountUUIDOf(key storage.Key) (uuid string) {
	_, uuid, ok := strings.Cut(key.Path(), "/mounts/")
	if !ok || strings.Contains(uuid, "/") {
		return ""
	}
	return uuid
}
