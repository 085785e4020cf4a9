// Package reconcile finds the links that are due and queues them: those of secrets that the feed reports as changed, all that a scan of
// the stored state finds, and those that a drift scan has found changed at their destination. It also purges destinations, and ends the
// associations of mounts and namespaces that are deleted. Start reading at Reconciler.Run.
package reconcile

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/apply"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// Reconciler finds the links that are due, and queues them: after changes of the feed, at the start, and periodically. Safe for
// concurrent use.
type Reconciler struct {
	*apply.Syncer
	inbox inbox

	resets        atomic.Int64 // how often a snapshot has replaced the store
	handledResets int64        // resets at the last full scan; Run's alone
}

// NewReconciler returns a Reconciler that is not running.
func NewReconciler(s *apply.Syncer) *Reconciler {
	r := &Reconciler{Syncer: s, inbox: inbox{wake: make(chan struct{}, 1)}}
	s.Queue.Concurrency = s.Pool.LinksAtOnce
	s.Redeploys.Do, s.Redeploys.Partition = r.redeployJob, func(key storage.Key) string { return string(key) }
	s.Redeploys.Concurrency = func(string) int { return 1 }
	return r
}

// RescanInterval is the interval of full scans, which find links that no event has reported. There should be none.
const RescanInterval = 10 * time.Minute

// Run syncs until ctx ends. The active node calls it; on a cluster that does not write what is shared it waits to become one
// that does.
func (s *Reconciler) Run(ctx context.Context) {
	s.handledResets = s.resets.Load() // until now it may have been this node's alone that was behind
	s.Capacity.Clear()
	s.inbox.start()
	defer s.inbox.stop()
	defer s.Pool.Close()
	defer s.Reset() // what another node does is not in these numbers
	var running sync.WaitGroup
	defer running.Wait()
	began, redeploys := make(chan struct{}), make(chan struct{}) // closed when the queues take jobs
	running.Go(func() { s.Queue.Run(ctx, began) })
	running.Go(func() { s.Redeploys.Run(ctx, redeploys) })
	running.Go(func() { s.runDriftChecks(ctx) })
	<-began
	<-redeploys
	again := time.NewTicker(RescanInterval)
	defer again.Stop()
	for {
		if err := s.RecoverPanic("looking for what is due", func() error { return s.handleEvents(ctx) }); err != nil && ctx.Err() == nil {
			s.Log.Warn("secret sync cannot see what is due", "err", err)
			s.inbox.addAll() // and try again
			if !workqueue.Sleep(ctx, time.Second) {
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

// RoleChanged starts a full scan after a change of the host's Owner.
func (s *Reconciler) RoleChanged() { s.inbox.addAll() }

// Changed takes every applied change, on every node. It neither blocks nor reads.
func (s *Reconciler) Changed(ch storage.Change) {
	if ch.Reset {
		s.resets.Add(1)
		s.inbox.addAll()
		return
	}
	synced := s.Associations.Mounts()
	for _, area := range ch.Areas {
		if area != "sys" && !synced[area] {
			continue
		}
		for i := range ch.Entries {
			key := ch.Entries[i].Key
			if key.Area() == area && (synced[area] || isSyncInput(key) || synced[mountUUIDOf(key)]) {
				s.inbox.add(key)
			}
		}
	}
}

// handleEvents handles the changed keys, or scans everything.
func (s *Reconciler) handleEvents(ctx context.Context) error {
	keys, all := s.inbox.take()
	if !s.Host.Owner() {
		s.Reset()
		return nil
	}
	if all {
		return s.scanAll(ctx)
	}
	for _, key := range keys {
		if err := s.handleEvent(ctx, key); err != nil && !s.Unreadable(err) {
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
	switch ns, kind, rest := state.SplitKey(key); kind {
	case "config":
		return s.scanAll(ctx)
	case "d":
		var d state.Destination
		found, err := engines.GetRecord(ctx, s.Host.Store(), key, &d)
		if err != nil {
			return err
		}
		if !found {
			s.Pool.DropByKey(key)
			s.Gauges.RemoveDestination(key)
			return nil
		}
		if err := s.scanDestination(ctx, &d, false, func(*state.Association) {}); err != nil {
			return err
		}
		return s.finishPurge(ctx, &d)
	case "a":
		var a state.Association
		found, err := engines.GetRecord(ctx, s.Host.Store(), key, &a)
		if err != nil {
			return err
		}
		if !found {
			_, id, _ := strings.Cut(rest, "/")
			s.ForgetAssociation(id)
			return s.finishPurges(ctx, ns)
		}
		s.Associations.Put(&a)
		return s.ScanAssociation(ctx, &a)
	}
	return nil
}

// secretChanged queues the links of a secret.
func (s *Reconciler) secretChanged(ctx context.Context, key storage.Key) error {
	m, err := s.Host.MountOf(ctx, key.Area())
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
	for _, a := range s.Associations.OfSecret(key.Area(), name) {
		s.Queue.Push(a.LinkID(name), time.Now().Add(apply.ChangeDelay), false, nil)
	}
	return nil
}

// mountChanged scans the associations of a mount, which may have another path.
func (s *Reconciler) mountChanged(ctx context.Context, uuid string) error {
	for _, a := range s.Associations.OfMount(uuid) {
		if err := s.ScanAssociation(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// isSyncInput reports whether a key of a system area is one that work follows from: a destination, an association, or the
// configuration. What work itself writes is none of them.
func isSyncInput(key storage.Key) bool {
	_, kind, _ := state.SplitKey(key)
	return kind == "d" || kind == "a" || kind == "config"
}

// mountUUIDOf returns the mount whose record a key of a system area is, "" for others.
func mountUUIDOf(key storage.Key) (uuid string) {
	_, uuid, ok := strings.Cut(key.Path(), "/mounts/")
	if !ok || strings.Contains(uuid, "/") {
		return ""
	}
	return uuid
}
