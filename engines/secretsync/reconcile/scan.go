package reconcile

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/apply"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/source"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// scanAll queues all links that are due, in all namespaces. After a snapshot has replaced the store it queues all links with refresh:
// the destinations may be newer than the sync state.
func (s *Reconciler) scanAll(ctx context.Context) error {
	restores := s.resets.Load()
	refresh := restores != s.handledResets
	if refresh {
		s.Gauges.Clear() // they are of the store that was replaced
		s.Pool.Close()
	}
	all, err := s.Host.Namespaces(ctx)
	if err != nil {
		return err
	}
	if err := s.countLinks(ctx, all); err != nil {
		return err
	}
	before := s.Associations.IDs()
	s.Gauges.BeginScan()
	s.Capacity.BeginScan()
	seen := map[string]bool{}
	for _, ns := range all {
		left, err := s.orphanedDestinations(ctx, ns)
		if err != nil {
			return err
		}
		unreadable, err := s.EachDestinationOf(ctx, ns, func(d *state.Destination) error {
			delete(left, d.ID)
			return s.scanDestination(ctx, d, refresh, func(a *state.Association) { seen[a.ID] = true })
		})
		if err != nil {
			return err
		}
		if unreadable > 0 {
			left = nil // they may be of the unreadable ones
		}
		if err := s.deleteOrphans(ctx, ns, left); err != nil {
			return err
		}
		if err := s.finishPurges(ctx, ns); err != nil {
			return err
		}
	}
	if err := s.checkUnreadable(ctx); err != nil {
		return err
	}
	s.handledResets = restores
	s.Gauges.EndScan()
	for _, key := range s.Capacity.EndScan() {
		s.Queue.Push(key, time.Now(), false, nil)
	}
	for _, id := range before { // what was made meanwhile is not among them
		if !seen[id] {
			s.ForgetAssociation(id)
		}
	}
	return nil
}

// orphanedDestinations returns the ids of destinations of which anything is stored. Those of them that are not there were forgotten, and
// that was interrupted.
func (s *Reconciler) orphanedDestinations(ctx context.Context, ns string) (map[string]bool, error) {
	left := map[string]bool{}
	for _, kind := range []string{"a/", "l/", "k/"} {
		ids, err := s.Host.Store().List(ctx, state.Area(ns, kind), "", 0)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			left[strings.TrimSuffix(id, "/")] = true
		}
	}
	return left, nil
}

// deleteOrphans deletes the records of destinations that were deleted, their claims first.
func (s *Reconciler) deleteOrphans(ctx context.Context, ns string, left map[string]bool) error {
	if len(left) == 0 {
		return nil
	}
	claims := map[storage.Key]string{}
	_, err := apply.Survey(ctx, s.Syncer, state.Area(state.RootNS, "c/"), func(key storage.Key, c *state.Claim) bool {
		if left[c.Destination] {
			claims[key] = c.Destination
		}
		return true
	})
	if err != nil {
		return err
	}
	for key, id := range claims {
		if err := s.deleteClaim(ctx, key, id); err != nil {
			return err
		}
	}
	for id := range left {
		for _, kind := range []string{"a/", "l/"} {
			if err := storage.DeletePrefix(ctx, s.Host.Store(), state.Area(ns, kind+id+"/")); err != nil {
				return err
			}
		}
		if _, err := s.Host.Store().Commit(ctx, storage.Batch{Deletes: []storage.Key{state.DriftCheckKey(ns, id)}}); err != nil {
			return err
		}
	}
	return nil
}

// countDestination counts a destination for metrics.
func (s *Reconciler) countDestination(ctx context.Context, d *state.Destination) error {
	c, err := s.Config(ctx)
	if err != nil && !s.Unreadable(err) {
		return err
	}
	check, err := s.DriftCheck(ctx, d)
	if err != nil {
		return err
	}
	s.Gauges.SetDestination(d, c.Disabled || d.Paused || !d.PurgeAt.IsZero(), check)
	return nil
}

// scanDestination queues the links of a destination that are due, with refresh all, and calls saw with each of its associations.
func (s *Reconciler) scanDestination(ctx context.Context, d *state.Destination, refresh bool, saw func(*state.Association)) error {
	if err := s.countDestination(ctx, d); err != nil {
		return err
	}
	known, err := s.Pool.Known(ctx, s.Host.Store(), d.Key())
	switch {
	case errors.Is(err, connection.ErrUnknownType):
		s.Log.Warn("a destination is left alone", "destination", d.Type+"/"+d.Name, "err", err)
		return nil
	case err != nil || known == nil || known.ID != d.ID:
		return err
	}
	if !d.PurgeAt.IsZero() { // it may have been interrupted
		if err := s.removeAll(ctx, d); err != nil {
			return err
		}
	}
	var all []*state.Association
	_, err = apply.Survey(ctx, s.Syncer, state.Area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *state.Association) bool {
		all = append(all, a)
		return true
	})
	if err != nil {
		return err
	}
	for _, a := range all {
		saw(a)
		s.Associations.Put(a)
		if err := s.scanLinks(ctx, known, a, refresh); err != nil {
			return err
		}
	}
	return s.QueueRedeploy(ctx, d)
}

// ScanAssociation queues the links of an association that are not as they should be.
func (s *Reconciler) ScanAssociation(ctx context.Context, a *state.Association) error {
	d, err := s.Pool.Known(ctx, s.Host.Store(), state.DestinationKey(a.NS, a.Type, a.Name))
	switch {
	case errors.Is(err, connection.ErrUnknownType): // looking through everything tells
		return nil
	case err != nil || d == nil || d.ID != a.Destination:
		return err
	}
	return s.scanLinks(ctx, d, a, false)
}

func (s *Reconciler) scanLinks(ctx context.Context, d *connection.Known, a *state.Association, refresh bool) error {
	m, err := s.Host.MountOf(ctx, a.MountUUID)
	if err != nil {
		return err
	}
	if !d.IsPaused() && !a.Paused {
		refresh = s.PendingRefresh.Take(a.ID) || refresh
	}
	err = s.EachSecret(ctx, a, m, func(secret string, l *state.Link) error {
		if l != nil && l.Unreadable {
			s.Capacity.Add(a.LinkID(secret))
			return nil
		}
		err := s.scanLink(ctx, d, a, m, secret, l, refresh)
		if s.Unreadable(err) {
			return nil
		}
		return err
	})
	if err != nil && refresh {
		s.PendingRefresh.Set(a.ID)
	}
	return err
}

// scanLink queues one link if it is due; l is nil if there is none yet.
func (s *Reconciler) scanLink(ctx context.Context, d *connection.Known, a *state.Association, m *engines.Mounted, secret string, l *state.Link, refresh bool) error {
	at, due, err := s.Due(ctx, a, m, secret, l)
	if err != nil {
		return err
	}
	now := time.Now()
	if l != nil {
		if s.Gauges.Status(a.LinkID(secret)) == "" {
			s.Notices.Found(a, l)
		}
		s.UpdateCounters(a.LinkID(secret), a.MountUUID, l)
	}
	switch {
	case l == nil && !a.IsEnding() && !s.Capacity.Admit(a.LinkID(secret)):
		return nil
	case l == nil:
	case refresh:
		at, due = now, true
	case due && at.After(now) && l.Attempts > 0 && (d.UpdatedAt.After(l.LastAttempt) || a.UpdatedAt.After(l.LastAttempt)):
		at = now // the change may have removed the cause of the failure
	case !due && slices.ContainsFunc(l.Items, func(it state.Item) bool {
		return it.Owned && !it.Retained && it.TagsFingerprint != d.AppliedFingerprint
	}):
		at, due = now, true
	case !due && a.Drift == state.DriftRepair && slices.ContainsFunc(l.Items, func(it state.Item) bool { return it.Owned && !it.Retained && it.Drift != "" }):
		at, due = now, true // it was found while nothing was to be done
	case (!due || at.After(now)) && l.WaitsForName():
		free, err := s.AnyNameFree(ctx, d, l, a.LinkID(secret))
		if err != nil {
			return err
		}
		if free {
			at, due = now, true
		}
	}
	if due {
		s.Queue.Push(a.LinkID(secret), at, refresh, nil)
	}
	return nil
}

// EachSecret goes through the secrets of an association: those with a link, then those that are there and have none yet, for
// which the link is nil. Links that cannot be read are lost.
func (s *Reconciler) EachSecret(ctx context.Context, a *state.Association, m *engines.Mounted, do func(secret string, l *state.Link) error) error {
	linked := map[string]bool{}
	var failed error
	prefix := state.LinkKey(a.NS, a.Destination, a.ID, "")
	one := func(key storage.Key, l *state.Link) bool {
		linked[l.Secret] = true
		failed = do(l.Secret, l)
		return failed == nil
	}
	err := state.ScanReadable(ctx, s.Host.Store(), prefix, one, func(key storage.Key, err error) error {
		if !s.Unreadable(err) {
			return err
		}
		one(key, state.UnreadableLink(strings.TrimPrefix(string(key), string(prefix))))
		return failed
	})
	if err := cmp.Or(err, failed); err != nil {
		return err
	}
	switch {
	case !a.Selector && linked[a.Secret]:
		return nil
	case !a.Selector:
		return do(a.Secret, nil)
	case a.IsEnding() && len(linked) == 0:
		return do("", nil) // for the record itself to go
	case a.IsEnding() || m == nil:
		return nil
	}
	source, ok := m.Engine.(engines.SecretSource)
	if !ok {
		return nil
	}
	const page = 500
	for after := ""; ; {
		names, err := source.SecretNames(ctx, m.Mount, a.Secret, after, page)
		if err != nil {
			return err
		}
		for _, name := range names {
			after = name
			if linked[name] {
				continue
			}
			if now, err := source.LatestSecret(ctx, m.Mount, name); err == nil && now.Version == 0 {
				continue // only metadata
			}
			if ok, err := s.OwnerReads(ctx, a, m, name); err != nil {
				return err
			} else if !ok {
				continue
			}
			if err := do(name, nil); err != nil {
				return err
			}
		}
		if len(names) < page {
			return nil
		}
	}
}

// Due reports whether a link has to be synced, and when.
func (s *Reconciler) Due(ctx context.Context, a *state.Association, m *engines.Mounted, secret string, l *state.Link) (at time.Time, due bool, err error) {
	now := time.Now()
	if l == nil || a.IsEnding() || l.Rules != a.RulesHash() || l.IsUnfinished() {
		return s.notBefore(l, now), true, nil
	}
	if !l.NextRetry.IsZero() {
		return s.notBefore(l, now), true, nil
	}
	secretNow, err := source.Latest(ctx, m, secret)
	if err != nil {
		return now, true, nil //nolint:nilerr // syncing it will say why
	}
	if !l.IsOf(secretNow) || l.Mount != m.Path {
		return now, true, nil
	}
	if secretNow.Live && secretNow.DeletedAt.After(now) {
		return secretNow.DeletedAt, true, nil
	}
	return time.Time{}, false, nil
}

// notBefore keeps to the time that a failed link is to be tried again, unless it is of a clock that was ahead.
func (s *Reconciler) notBefore(l *state.Link, now time.Time) time.Time {
	if l != nil && l.NextRetry.After(now) && !l.NextRetry.After(now.Add(workqueue.LongestWait)) {
		return l.NextRetry
	}
	return now
}

// countLinks counts what there is, once, before anything new is let in, and learns the limit.
func (s *Reconciler) countLinks(ctx context.Context, namespaces []string) error {
	config, err := s.Config(ctx)
	switch {
	case s.Unreadable(err): // nothing is synced anyhow
	case err != nil:
		return err
	default:
		s.Capacity.SetLimit(config.QueueCapacity)
	}
	s.Capacity.Mu.Lock()
	counted := s.Capacity.Counted
	s.Capacity.Mu.Unlock()
	if counted {
		return nil
	}
	for _, ns := range namespaces {
		if err := s.countLinksOf(ctx, ns); err != nil {
			return err
		}
	}
	s.Capacity.Mu.Lock()
	defer s.Capacity.Mu.Unlock()
	s.Capacity.Counted = true
	return nil
}

func (s *Reconciler) countLinksOf(ctx context.Context, ns string) error {
	const page = 500
	prefix := state.Area(ns, "l/")
	for after := storage.Key(""); ; {
		entries, err := s.Host.Store().Scan(ctx, prefix, after, page)
		if err != nil {
			return err
		}
		for _, e := range entries {
			after = e.Key
			if parts := strings.SplitN(strings.TrimPrefix(string(e.Key), string(prefix)), "/", 3); len(parts) == 3 {
				s.Capacity.Add(state.LinkID{NS: ns, Destination: parts[0], Association: parts[1], Secret: parts[2]})
			}
		}
		if len(entries) < page {
			return nil
		}
	}
}

// checkUnreadable drops records from the gauge of unreadable ones that were deleted or replaced.
func (s *Reconciler) checkUnreadable(ctx context.Context) error {
	for key, version := range s.Gauges.Unreadable() {
		e, err := s.Host.Store().Get(ctx, key)
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
		if err != nil || e.Version != version {
			s.Gauges.RemoveUnreadable(key)
		}
	}
	return nil
}

// EachLink goes through the links of a destination.
func (s *Reconciler) EachLink(ctx context.Context, d *state.Destination, do func(*state.Association, *state.Link)) error {
	byID := map[string]*state.Association{}
	_, err := apply.Survey(ctx, s.Syncer, state.Area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *state.Association) bool {
		byID[a.ID] = a
		return true
	})
	if err != nil {
		return err
	}
	prefix := state.Area(d.NS, "l/"+d.ID+"/")
	_, err = apply.Survey(ctx, s.Syncer, prefix, func(key storage.Key, l *state.Link) bool {
		id, _, _ := strings.Cut(strings.TrimPrefix(string(key), string(prefix)), "/")
		if a := byID[id]; a != nil {
			do(a, l)
		}
		return true
	})
	return err
}

func (s *Reconciler) eachDestination(ctx context.Context, do func(*state.Destination) error) error {
	namespaces, err := s.Host.Namespaces(ctx)
	if err != nil {
		return err
	}
	for _, ns := range namespaces {
		if _, err := s.EachDestinationOf(ctx, ns, do); err != nil {
			return err
		}
	}
	return nil
}

// EachDestinationOf calls do with the destinations of a namespace. left is the number of unreadable ones.
func (s *Reconciler) EachDestinationOf(ctx context.Context, ns string, do func(*state.Destination) error) (left int, err error) {
	var all []*state.Destination
	left, err = apply.Survey(ctx, s.Syncer, state.Area(ns, "d/"), func(_ storage.Key, d *state.Destination) bool {
		all = append(all, d)
		return true
	})
	for _, d := range all {
		if err == nil {
			err = do(d)
		}
	}
	return left, err
}
