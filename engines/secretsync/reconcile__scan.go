package secretsync

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// scanAll looks for everything that is due, in all namespaces. After the store was replaced by a snapshot that is all there is:
// what is at the destinations may be younger than what is known of it.
func (s *Reconciler) scanAll(ctx context.Context) error {
	restores := s.resets.Load()
	refresh := restores != s.handledResets
	all, err := s.host.Namespaces(ctx)
	if err != nil {
		return err
	}
	if err := s.countLinks(ctx, all); err != nil {
		return err
	}
	before := s.associations.IDs()
	s.gauges.BeginScan()
	s.capacity.BeginScan()
	seen := map[string]bool{}
	for _, ns := range all {
		left, err := s.orphanedDestinations(ctx, ns)
		if err != nil {
			return err
		}
		unreadable, err := s.eachDestinationOf(ctx, ns, func(d *Destination) error {
			delete(left, d.ID)
			return s.scanDestination(ctx, d, refresh, func(a *Association) { seen[a.ID] = true })
		})
		if err != nil {
			return err
		}
		if unreadable > 0 {
			left = nil // nobody knows whose they are
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
	s.gauges.EndScan()
	for _, key := range s.capacity.EndScan() {
		s.queue.Push(key, time.Now(), false, nil)
	}
	for _, id := range before { // what was made meanwhile is not among them
		if !seen[id] {
			s.forgetAssociation(id)
		}
	}
	return nil
}

// orphans returns the ids of destinations of which anything is stored. Those of them that are not there were forgotten, and
// that was interrupted.
func (s *Reconciler) orphanedDestinations(ctx context.Context, ns string) (map[string]bool, error) {
	left := map[string]bool{}
	for _, kind := range []string{"a/", "l/"} {
		ids, err := s.host.Store().List(ctx, Area(ns, kind), "", 0)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			left[strings.TrimSuffix(id, "/")] = true
		}
	}
	return left, nil
}

// sweep deletes what is stored of destinations that are not there, their claims first.
func (s *Reconciler) deleteOrphans(ctx context.Context, ns string, left map[string]bool) error {
	if len(left) == 0 {
		return nil
	}
	claims := map[storage.Key]string{}
	_, err := scanAllReadable(ctx, s.Syncer, Area(RootNS, "c/"), func(key storage.Key, c *Claim) bool {
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
			if err := storage.DeletePrefix(ctx, s.host.Store(), Area(ns, kind+id+"/")); err != nil {
				return err
			}
		}
	}
	return nil
}

// scanDestination looks for what is due at one destination, with refresh for everything, and calls saw with each of its associations.
func (s *Reconciler) scanDestination(ctx context.Context, d *Destination, refresh bool, saw func(*Association)) error {
	s.gauges.SetDestination(d)
	if _, err := s.pool.ConfigOf(d); err != nil {
		s.log.Warn("a destination is left alone", "destination", d.Type+"/"+d.Name, "err", err)
		return nil
	}
	s.setConcurrency(d)
	if !d.PurgeAt.IsZero() { // it may have been interrupted
		if err := s.removeAll(ctx, d); err != nil {
			return err
		}
	}
	var all []*Association
	_, err := scanAllReadable(ctx, s.Syncer, Area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *Association) bool {
		all = append(all, a)
		return true
	})
	if err != nil {
		return err
	}
	for _, a := range all {
		saw(a)
		s.associations.Put(a)
		if err := s.scanLinks(ctx, d, a, refresh); err != nil {
			return err
		}
	}
	return nil
}

// scanAssociation queues the links of an association that are not as they should be.
func (s *Reconciler) scanAssociation(ctx context.Context, a *Association) error {
	var d Destination
	if _, err := GetDestination(ctx, s.host.Store(), DestinationKey(a.NS, a.Type, a.Name), &d); err != nil || d.ID != a.Destination {
		return err
	}
	if _, err := s.pool.ConfigOf(&d); err != nil {
		return nil //nolint:nilerr // looking through everything tells
	}
	return s.scanLinks(ctx, &d, a, false)
}

func (s *Reconciler) scanLinks(ctx context.Context, d *Destination, a *Association, refresh bool) error {
	m, err := s.host.MountOf(ctx, a.MountUUID)
	if err != nil {
		return err
	}
	if !d.IsPaused() && !a.Paused {
		refresh = s.takePendingRefresh(a.ID) || refresh
	}
	err = s.eachSecret(ctx, a, m, func(secret string, l *Link) error {
		if l != nil && l.Unreadable {
			s.capacity.Add(LinkID{a.NS, a.Destination, a.ID, secret})
			return nil
		}
		err := s.scanLink(ctx, d, a, m, secret, l, refresh)
		if s.unreadable(err) {
			return nil
		}
		return err
	})
	if err != nil && refresh {
		s.setPendingRefresh(a.ID)
	}
	return err
}

// scanLink queues one link if it is due; l is nil if there is none yet.
func (s *Reconciler) scanLink(ctx context.Context, d *Destination, a *Association, m *engines.Mounted, secret string, l *Link, refresh bool) error {
	tagged := TagsFingerprint(d.CustomTags)
	at, due, err := s.due(ctx, a, m, secret, l)
	if err != nil {
		return err
	}
	now := time.Now()
	if l != nil {
		s.updateCounters(LinkID{a.NS, a.Destination, a.ID, secret}, a.MountUUID, l.Status)
	}
	switch {
	case l == nil && !a.IsEnding() && !s.capacity.Admit(LinkID{a.NS, a.Destination, a.ID, secret}):
		return nil
	case l == nil:
	case refresh:
		at, due = now, true
	case due && at.After(now) && l.Attempts > 0 && (d.UpdatedAt.After(l.LastAttempt) || a.UpdatedAt.After(l.LastAttempt)):
		at = now // somebody may have put right what was in the way
	case !due && slices.ContainsFunc(l.Items, func(it Item) bool { return it.Owned && !it.Retained && it.TagsFingerprint != tagged }):
		at, due = now, true
	case !due && a.Drift == DriftRepair && slices.ContainsFunc(l.Items, func(it Item) bool { return it.Owned && !it.Retained && it.Drift != "" }):
		at, due = now, true // it was found while nothing was to be done
	case (!due || at.After(now)) && l.WaitsForName():
		free, err := s.anyNameFree(ctx, d, l, LinkID{a.NS, a.Destination, a.ID, secret})
		if err != nil {
			return err
		}
		if free {
			at, due = now, true
		}
	}
	if due {
		s.queue.Push(LinkID{a.NS, a.Destination, a.ID, secret}, at, refresh, nil)
	}
	return nil
}

// eachSecret goes through the secrets of an association: those with a link, then those that are there and have none yet, for
// which the link is nil. Links that cannot be read are lost.
func (s *Reconciler) eachSecret(ctx context.Context, a *Association, m *engines.Mounted, do func(secret string, l *Link) error) error {
	linked := map[string]bool{}
	var failed error
	prefix := LinkKey(a.NS, a.Destination, a.ID, "")
	one := func(key storage.Key, l *Link) bool {
		linked[l.Secret] = true
		failed = do(l.Secret, l)
		return failed == nil
	}
	err := ScanReadable(ctx, s.host.Store(), prefix, one, func(key storage.Key, err error) error {
		if !s.unreadable(err) {
			return err
		}
		one(key, unreadableLink(strings.TrimPrefix(string(key), string(prefix))))
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
			if ok, err := s.ownerReads(ctx, a, m, name); err != nil {
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

// due reports whether a link has to be synced, and when.
func (s *Reconciler) due(ctx context.Context, a *Association, m *engines.Mounted, secret string, l *Link) (at time.Time, due bool, err error) {
	now := time.Now()
	if l == nil || a.IsEnding() || l.Rules != a.RulesHash() || l.IsUnfinished() {
		return s.notBefore(l, now), true, nil
	}
	if !l.NextRetry.IsZero() {
		return s.notBefore(l, now), true, nil
	}
	secretNow, err := latestSecret(ctx, m, secret)
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
func (s *Reconciler) notBefore(l *Link, now time.Time) time.Time {
	if l != nil && l.NextRetry.After(now) && !l.NextRetry.After(now.Add(longestWait)) {
		return l.NextRetry
	}
	return now
}

// countLinks counts what there is, once, before anything new is let in, and learns the limit.
func (s *Reconciler) countLinks(ctx context.Context, namespaces []string) error {
	config, err := s.config(ctx)
	switch {
	case s.unreadable(err): // nothing is synced anyhow
	case err != nil:
		return err
	default:
		s.capacity.SetLimit(config.QueueCapacity)
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

func (s *Reconciler) countLinksOf(ctx context.Context, ns string) error {
	const page = 500
	prefix := Area(ns, "l/")
	for after := storage.Key(""); ; {
		entries, err := s.host.Store().Scan(ctx, prefix, after, page)
		if err != nil {
			return err
		}
		for _, e := range entries {
			after = e.Key
			if parts := strings.SplitN(strings.TrimPrefix(string(e.Key), string(prefix)), "/", 3); len(parts) == 3 {
				s.capacity.Add(LinkID{ns, parts[0], parts[1], parts[2]})
			}
		}
		if len(entries) < page {
			return nil
		}
	}
}

// checkUnreadable forgets records that cannot be read and are not there any more, or are others by now.
func (s *Reconciler) checkUnreadable(ctx context.Context) error {
	for key, version := range s.gauges.Unreadable() {
		e, err := s.host.Store().Get(ctx, key)
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
		if err != nil || e.Version != version {
			s.gauges.RemoveUnreadable(key)
		}
	}
	return nil
}

// eachLink goes through the links of a destination.
func (s *Reconciler) eachLink(ctx context.Context, d *Destination, do func(*Association, *Link)) error {
	byID := map[string]*Association{}
	_, err := scanAllReadable(ctx, s.Syncer, Area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *Association) bool {
		byID[a.ID] = a
		return true
	})
	if err != nil {
		return err
	}
	prefix := Area(d.NS, "l/"+d.ID+"/")
	_, err = scanAllReadable(ctx, s.Syncer, prefix, func(key storage.Key, l *Link) bool {
		id, _, _ := strings.Cut(strings.TrimPrefix(string(key), string(prefix)), "/")
		if a := byID[id]; a != nil {
			do(a, l)
		}
		return true
	})
	return err
}

func (s *Reconciler) eachDestination(ctx context.Context, do func(*Destination) error) error {
	namespaces, err := s.host.Namespaces(ctx)
	if err != nil {
		return err
	}
	for _, ns := range namespaces {
		if _, err := s.eachDestinationOf(ctx, ns, do); err != nil {
			return err
		}
	}
	return nil
}

// eachDestinationOf goes through the destinations of a namespace. left is how many cannot be read.
func (s *Reconciler) eachDestinationOf(ctx context.Context, ns string, do func(*Destination) error) (left int, err error) {
	var all []*Destination
	left, err = scanAllReadable(ctx, s.Syncer, Area(ns, "d/"), func(_ storage.Key, d *Destination) bool {
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
