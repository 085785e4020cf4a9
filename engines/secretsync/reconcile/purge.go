package reconcile

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/apply"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// Purge has all associations of a destination removed; finishPurge deletes it behind the last one.
func (s *Reconciler) Purge(ctx context.Context, d *state.Destination) error {
	if err := s.removeAll(ctx, d); err != nil {
		return err
	}
	return s.finishPurge(ctx, d)
}

// removeAll ownership tags all associations of a destination as being removed. If it is interrupted, the next scan continues it.
func (s *Reconciler) removeAll(ctx context.Context, d *state.Destination) error {
	var keys []storage.Key
	_, err := apply.Survey(ctx, s.Syncer, state.Area(d.NS, "a/"+d.ID+"/"), func(key storage.Key, a *state.Association) bool {
		if !a.Removing {
			keys = append(keys, key)
		}
		return true
	})
	if err != nil {
		return err
	}
	return s.ChangeAssociations(ctx, keys, func(a *state.Association) bool {
		had := a.Removing
		a.Removing, a.Paused = true, false
		return !had
	})
}

// ChangeAssociations changes associations that are still there, some at a time. change reports whether it has changed anything.
func (s *Reconciler) ChangeAssociations(ctx context.Context, keys []storage.Key, change func(*state.Association) bool) error {
	const atOnce = 32 // records that are as large as they may be fit into one batch
	for some := range slices.Chunk(keys, atOnce) {
		_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
			for _, key := range some {
				var a state.Association
				found, err := engines.GetRecord(ctx, tx, key, &a)
				if err != nil {
					return err
				}
				if !found || !change(&a) {
					continue
				}
				a.UpdatedAt = time.Now().UTC()
				if err := engines.PutRecord(tx, key, &a); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// finishPurge deletes a destination that is being purged if it has no associations any more.
func (s *Reconciler) finishPurge(ctx context.Context, d *state.Destination) error {
	if d.PurgeAt.IsZero() {
		return nil
	}
	_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		var now state.Destination
		if _, err := state.GetDestination(ctx, tx, d.Key(), &now); err != nil || now.ID != d.ID {
			return err
		}
		if has, err := s.HasAssociations(ctx, d); has || err != nil {
			return err
		}
		for _, key := range d.Keys() {
			tx.Delete(key)
		}
		return nil
	})
	return err
}

// finishPurges does so with those of a namespace.
func (s *Reconciler) finishPurges(ctx context.Context, ns string) error {
	var all []*state.Destination
	_, err := apply.Survey(ctx, s.Syncer, state.Area(ns, "d/"), func(_ storage.Key, d *state.Destination) bool {
		if !d.PurgeAt.IsZero() {
			all = append(all, d)
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, d := range all {
		if err := s.finishPurge(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// PurgeFailure returns why something of a destination could not be removed yet, "" if nothing is known to be in the way.
func (s *Reconciler) PurgeFailure(ctx context.Context, d *state.Destination) (cause string, err error) {
	if c, err := s.Config(ctx); err != nil || c.Disabled {
		return DisabledCause, err
	}
	links, err := apply.Survey(ctx, s.Syncer, state.Area(d.NS, "l/"+d.ID+"/"), func(_ storage.Key, l *state.Link) bool {
		if l.Attempts > 0 && l.Cause != "" {
			cause = l.Cause
		}
		return cause == ""
	})
	if err != nil || cause != "" {
		return cause, err
	}
	associations, err := apply.Survey(ctx, s.Syncer, state.Area(d.NS, "a/"+d.ID+"/"), func(storage.Key, *state.Association) bool { return true })
	if links+associations > 0 {
		cause = state.UnreadableCause
	}
	return cause, err
}

// ForceDelete forgets a destination with all that is stored about it, on behalf of who. What was synced stays where it is: left are its
// names, as far as they can be read; unreadable is the number of links that cannot.
func (s *Reconciler) ForceDelete(ctx context.Context, d *state.Destination, who engines.Principal) (left *state.Orphans, unreadable int, err error) {
	left, all, unreadable, err := s.leftBehind(ctx, d)
	if err != nil {
		return nil, 0, err
	}
	for some := range slices.Chunk(all, state.MaxOrphans) {
		if err := s.RecordLeft(ctx, d, who, "", left.Total, some); err != nil {
			return nil, 0, err
		}
	}
	// First the destination: running jobs cannot store anything any more.
	if _, err := s.Host.Store().Commit(ctx, storage.Batch{Deletes: d.Keys()}); err != nil {
		return nil, 0, err
	}
	s.Pool.Drop(d.ID)
	defer s.inbox.addAll() // there may be room for others now
	return left, unreadable, s.deleteOrphans(context.WithoutCancel(ctx), d.NS, map[string]bool{d.ID: true})
}

// leftBehind returns the names that stay at a destination if it is forgotten now, those included that were let go before. left lists as many
// of them as it has room for.
func (s *Reconciler) leftBehind(ctx context.Context, d *state.Destination) (left *state.Orphans, all []state.Orphan, unreadable int, err error) {
	left = new(state.Orphans)
	if _, err := engines.GetRecord(ctx, s.Host.Store(), state.OrphansKey(d.NS, d.Type, d.Name), left); err != nil && !s.Unreadable(err) {
		return nil, nil, 0, err
	}
	all = slices.Clone(left.Names)
	now := time.Now().UTC()
	mounts := map[string]string{} // paths, by association id
	_, err = apply.Survey(ctx, s.Syncer, state.Area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *state.Association) bool {
		mounts[a.ID] = a.MountPath
		return true
	})
	if err != nil {
		return nil, nil, 0, err
	}
	before := len(all)
	prefix := state.Area(d.NS, "l/"+d.ID+"/")
	unreadable, err = apply.Survey(ctx, s.Syncer, prefix, func(key storage.Key, l *state.Link) bool {
		id, _, _ := strings.Cut(strings.TrimPrefix(string(key), string(prefix)), "/")
		all = append(all, l.Orphans(mounts[id], now)...)
		return true
	})
	left.Add(all[before:]...)
	return left, all, unreadable, err
}

func (s *Reconciler) deleteClaim(ctx context.Context, key storage.Key, dest string) error {
	_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		var c state.Claim
		found, err := engines.GetRecord(ctx, tx, key, &c)
		if err != nil || !found || c.Destination != dest {
			return err
		}
		tx.Delete(key)
		return nil
	})
	if err == nil {
		s.WakeWaiters(key)
	}
	return err
}

// MountGone ends the associations of a mount that is being disabled. An error keeps the mount.
func (s *Reconciler) MountGone(ctx context.Context, uuid string) error {
	return s.eachDestination(ctx, func(d *state.Destination) error {
		var keys []storage.Key
		_, err := apply.Survey(ctx, s.Syncer, state.Area(d.NS, "a/"+d.ID+"/"), func(key storage.Key, a *state.Association) bool {
			if a.MountUUID == uuid {
				keys = append(keys, key)
			}
			return true
		})
		if err != nil {
			return err
		}
		return s.ChangeAssociations(ctx, keys, func(a *state.Association) bool {
			had := a.Gone
			a.Gone, a.Paused, a.UpdatedAt = true, false, time.Now().UTC() // ends the backoff of jobs that met the disabled mount
			return !had
		})
	})
}

// NamespaceDeletionTimeout is how long the deletion of a namespace waits for its destinations to be purged.
const NamespaceDeletionTimeout = 15 * time.Minute

// NamespaceGone purges the destinations of a namespace that is being deleted. It returns an error for as long as something is
// left, for the client that deletes the namespace; after namespaceDeletionTimeout it retains what cannot be removed.
func (s *Reconciler) NamespaceGone(ctx context.Context, ns string) error {
	left := ""
	unreadable, err := s.EachDestinationOf(ctx, ns, func(d *state.Destination) error {
		if d.PurgeAt.IsZero() {
			_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
				if at, err := state.GetDestination(ctx, tx, d.Key(), d); err != nil || at == 0 {
					return err
				}
				d.PurgeAt = time.Now().UTC()
				return engines.PutRecord(tx, d.Key(), d)
			})
			if err != nil {
				return err
			}
			if err := s.Purge(ctx, d); err != nil {
				return err
			}
		}
		if has, err := s.HasAssociations(ctx, d); err != nil || !has {
			return err
		}
		if time.Since(d.PurgeAt) > NamespaceDeletionTimeout {
			s.Log.Warn("a namespace is deleted, and what its destination holds stays there", "destination", d.Type+"/"+d.Name)
			_, _, err := s.ForceDelete(ctx, d, engines.Principal{NamespaceID: ns})
			return err
		}
		left = d.Type + "/" + d.Name
		return nil
	})
	switch {
	case err != nil:
		return err
	case left != "":
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "what was synced to the destination " + left + " is still being removed"}
	case unreadable > 0:
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "a destination of the namespace cannot be read, so that what it holds cannot be removed"}
	}
	return nil
}

func (s *Reconciler) HasAssociations(ctx context.Context, d *state.Destination) (bool, error) {
	some, err := s.Host.Store().Scan(ctx, state.Area(d.NS, "a/"+d.ID+"/"), "", 1)
	return len(some) > 0, err
}

func (s *Reconciler) CountAssociations(ctx context.Context, d *state.Destination) (all, removing int, err error) {
	left, err := apply.Survey(ctx, s.Syncer, state.Area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *state.Association) bool {
		all++
		if a.Removing {
			removing++
		}
		return true
	})
	return all + left, removing, err
}

const DisabledCause = "secret sync is disabled in sync/config"

// SelectorsOf returns the associations with a prefix that cover a secret, the longest prefix first.
func (s *Reconciler) SelectorsOf(ctx context.Context, d *state.Destination, mountUUID, secret string) (all []*state.Association, err error) {
	_, err = apply.Survey(ctx, s.Syncer, state.Area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *state.Association) bool {
		if a.Selector && a.MountUUID == mountUUID && a.Covers(secret) {
			all = append(all, a)
		}
		return true
	})
	slices.SortFunc(all, func(a, b *state.Association) int { return cmp.Compare(len(b.Secret), len(a.Secret)) })
	return all, err
}
