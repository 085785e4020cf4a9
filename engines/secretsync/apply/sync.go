package apply

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/plan"
	"github.com/coffer-project/coffer/engines/secretsync/source"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/template"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// target has the stored records of one link.
type target struct {
	key      state.LinkID
	dest     *connection.Known
	assoc    state.Association
	link     state.Link // as loaded
	mount    *engines.Mounted
	secret   engines.Secret
	ownerTag string // the prefix of the ownership tags of its names
	// assocAt and linkAt are the indexes of the records of assoc and link; that of a link changes when an attempt stores it.
	assocAt, linkAt storage.Index
	expects         bool // see update
}

// errNotAssociated means that there is nothing to sync any more.
var errNotAssociated = errors.New("the association is gone")

// load reads what is stored about a link.
func (s *Syncer) load(ctx context.Context, key state.LinkID) (*target, error) {
	store := s.Host.Store()
	t := &target{key: key}
	a := state.Association{NS: key.NS, Destination: key.Destination, ID: key.Association}
	var err error
	if t.assocAt, err = state.Get(ctx, store, a.Key(), &t.assoc); err != nil {
		return nil, err
	}
	if t.assocAt == 0 {
		return nil, errNotAssociated
	}
	t.dest, err = s.Pool.Known(ctx, store, state.DestinationKey(key.NS, t.assoc.Type, t.assoc.Name))
	if err != nil {
		return nil, err
	}
	if t.dest == nil || t.dest.ID != key.Destination {
		return nil, errNotAssociated
	}
	if t.linkAt, err = state.Get(ctx, store, t.linkKey(), &t.link); err != nil {
		return nil, err
	}
	t.link.Secret = key.Secret
	if t.ownerTag, err = state.OwnerTagPrefix(ctx, s.Host.Store(), &t.assoc); err != nil {
		return nil, err
	}
	t.mount, err = s.Host.MountOf(ctx, t.assoc.MountUUID)
	return t, err
}

// upToDate reports whether, by the sync state, every desired name was written, so that the destination need not be read.
func (t *target) upToDate(want []template.Item) bool {
	if l := &t.link; len(want) == 0 {
		return t.hasOnly(nil, nil) && l.Outcome == state.WorstOutcome(nil, t.secret.Live)
	}
	return t.link.Status == state.Synced && t.hasOnly(want, func(it *state.Item, print []byte, tagged string) bool { return it.UpToDate(print, tagged) })
}

// isRateLimited reports whether, by the sync state, every desired name was written or waits for its next write, so that there is nothing
// to do until then.
func (t *target) isRateLimited(want []template.Item) bool {
	now := time.Now()
	return t.link.Code == state.CodeRateLimited && t.link.NextRetry.After(now) && t.hasOnly(want, func(it *state.Item, print []byte, tagged string) bool {
		if it.IsRateLimited() {
			return !it.HasValue(print, tagged) && plan.NextWrite(t.dest.Rules.WritesPerDay, it.Writes, now, false).After(now)
		}
		return it.UpToDate(print, tagged)
	})
}

// hasOnly reports whether the sync state has the desired names and no others, nothing of it unfinished, and is says so of each.
func (t *target) hasOnly(want []template.Item, is func(it *state.Item, print []byte, tagged string) bool) bool {
	l := &t.link
	if t.assoc.IsEnding() || t.secretGone() || len(l.Active()) != len(want) || l.IsUnfinished() || l.Rules != t.assoc.RulesHash() {
		return false
	}
	for _, w := range want {
		had := l.Item(w.Name, t.dest.Rules)
		if had == nil || had.Retained || w.Problem != "" || had.Key != w.Key || !is(had, t.dest.Fingerprint(w.Value), t.dest.AppliedFingerprint) {
			return false
		}
	}
	return true
}

// inBackoff reports whether the link has failed, its next attempt is later, and nothing has changed since. err is desiredState's.
func (t *target) inBackoff(err error) bool {
	l, now := &t.link, time.Now()
	if l.Attempts == 0 || !l.NextRetry.After(now) || l.NextRetry.After(now.Add(workqueue.LongestWait)) {
		return false
	}
	if err != nil && l.Outcome != state.OutcomeOf(err) || err == nil && source.MayRecover(l.Code) {
		return false
	}
	return l.IsOf(t.secret) && l.Rules == t.assoc.RulesHash() && (t.mount == nil || l.Mount == t.mount.Path) &&
		!t.assoc.UpdatedAt.After(l.LastAttempt) && !t.dest.UpdatedAt.After(l.LastAttempt)
}

// retainsNames reports whether names that are not desired any more are retained.
func (t *target) retainsNames() bool {
	return t.assoc.Retain || t.assoc.Deletion == state.RetainOnRemoval
}

// secretGone reports whether a secret of a selector was deleted with its metadata.
func (t *target) secretGone() bool {
	return t.assoc.Selector && t.secret.Version == 0
}

// syncJob is the queue's Do: it syncs a link, and queues it again for its next attempt.
func (s *Syncer) syncJob(ctx context.Context, key state.LinkID, refresh bool) {
	if !s.Host.Owner() {
		return // the full scan after a promotion queues it again
	}
	var at time.Time
	err := s.RecoverPanic("syncing a secret", func() (err error) { at, err = s.syncLink(ctx, key, refresh); return err })
	if errors.Is(err, errPanic) {
		err = s.RecoverPanic("noting that", func() (err error) { at, err = s.recordPanic(ctx, key); return err })
	}
	switch {
	case errors.Is(err, errNotAssociated) || ctx.Err() != nil:
	case s.Unreadable(err) || errors.Is(err, connection.ErrUnknownType): // the next full scan tries it again
	case errors.Is(err, storage.ErrTooLarge): // the record of a name that long cannot be stored
		s.Log.Warn("a secret cannot be synced", "association", key.Association, "err", err)
		s.Queue.Push(key, time.Now().Add(workqueue.LongestWait), false, nil)
	case errors.Is(err, errChanged):
		s.Queue.Push(key, time.Now(), refresh, nil)
	case err != nil:
		s.Log.Warn("a secret could not be synced", "association", key.Association, "err", err)
		s.Queue.Push(key, time.Now().Add(10*time.Second), refresh, nil)
	case !at.IsZero():
		s.Queue.Push(key, at, false, nil)
	}
}

// syncLink syncs one secret to its destination, and returns when the next attempt is due; zero: after a change. With refresh it reads
// the destination even if the sync state is up to date. Failures of the destination or its configuration are recorded in the link; an
// error is one of the store.
func (s *Syncer) syncLink(ctx context.Context, key state.LinkID, refresh bool) (again time.Time, err error) {
	defer s.commits.Begin()()
	t, err := s.load(ctx, key)
	if err != nil {
		return time.Time{}, err
	}
	if held, err := s.isPaused(ctx, t); held || err != nil {
		if refresh {
			s.PendingRefresh.Set(key.Association)
		}
		return time.Time{}, err // resuming scans for links that are due
	}
	want, err := s.desiredState(ctx, t)
	switch {
	case source.IsLostAccess(err) && t.assoc.Selector && t.link.UpdatedAt.IsZero():
		return time.Time{}, nil // its owner cannot read it; a full scan finds out if that changes
	case !s.admits(t):
		return time.Time{}, nil // queued again when there is room
	case refresh: // the caller may have changed something: the backoff starts again
		t.link.Attempts = 0
	case t.inBackoff(err):
		if free, err := s.AnyNameFree(ctx, t.dest, &t.link, key); !free || err != nil {
			return t.link.NextRetry, err
		}
	}
	if err != nil {
		return s.recordFailure(ctx, t, err)
	}
	if !refresh && t.upToDate(want) {
		return s.recordNoop(ctx, t)
	}
	if !refresh && t.isRateLimited(want) {
		return t.link.NextRetry, nil
	}
	steps := t.steps(want, refresh)
	dest, err := s.Pool.Get(&t.dest.Destination, t.dest.Version)
	if err != nil {
		return s.recordFailure(ctx, t, err)
	}
	if c := dest.Circuit(); !refresh && t.link.Attempts > 0 && c.Until.After(time.Now()) {
		return c.Until.Add(rand.N(time.Second)), nil //nolint:gosec // jitter, not a secret
	}
	err = s.applySteps(ctx, t, dest, steps, len(want))
	if err == nil {
		again, err = s.recordSteps(ctx, t, steps)
	}
	lost := s.Unreadable(err)
	if lost || errors.Is(err, storage.ErrTooLarge) { // the intents could not be stored, so the stored link is still true
		secret, why := t.secret, err
		if t, err = s.load(ctx, key); err != nil {
			return time.Time{}, err
		}
		t.secret = secret
		if lost {
			return s.recordFailure(ctx, t, errUnreadable(why))
		}
		return s.recordFailure(ctx, t, &destination.Error{
			Class: destination.Client, Code: "too_many_names", Text: "the names of the secret's keys are too many, or too long, to keep account of: choose some with include", Err: err,
		})
	}
	return again, err
}

// applySteps applies the steps in batches: the first n, which are of desired names, and then the others.
func (s *Syncer) applySteps(ctx context.Context, t *target, dest destination.Destination, steps []step, n int) error {
	if err := s.checkCapacity(ctx, t, steps); err != nil {
		return err
	}
	for _, some := range [][]step{steps[:n], steps[n:]} {
		for part := range slices.Chunk(some, workqueue.NamesAtOnce(s.Pool.RateOf(&t.dest.Destination))) {
			if err := s.applyBatch(ctx, t, dest, steps, part); err != nil {
				return err
			}
			ctx = workqueue.Further(ctx)
		}
	}
	return nil
}

// applyBatch decides, prepares and applies some of the steps.
func (s *Syncer) applyBatch(ctx context.Context, t *target, dest destination.Destination, all, part []step) error {
	calls := ctx
	for i := range part {
		st := &part[i]
		if err := s.decideStep(calls, t, dest, st); err != nil {
			st.fail(err)
			continue
		}
		calls = workqueue.Further(ctx)
		if st.Do == plan.Delete {
			s.canDelete(ctx, t, dest, all, st)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := s.prepare(ctx, t, all, part); err != nil {
		return err
	}
	calls = ctx
	for i := range part {
		changes := part[i].writes() || part[i].Do == plan.Delete
		if s.applyStep(calls, t, dest, &part[i]); changes {
			calls = workqueue.Further(ctx)
		}
	}
	return ctx.Err()
}

// isPaused reports whether the destination, the association or all of secret sync is paused.
func (s *Syncer) isPaused(ctx context.Context, t *target) (bool, error) {
	if t.dest.IsPaused() || t.assoc.Paused {
		return true, nil
	}
	c, err := s.Config(ctx)
	return c.Disabled, err
}

// prepare claims names and stores intents. Steps whose name belongs to another association become conflicts.
func (s *Syncer) prepare(ctx context.Context, t *target, all, part []step) error {
	s.commits.Wait(ctx)
	place, writes, unchanged := t.dest.Location, false, false
	decided := slices.Clone(part)
	at, err := t.update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		copy(part, decided) // Update may call this again
		unchanged = false
		claimed := false
		for i := range part {
			st := &part[i]
			if st.Do == plan.Delete {
				if err := t.retainIfClaimed(ctx, tx, place, st); err != nil {
					return err
				}
			}
			if st.needsClaim() {
				if err := s.claimName(ctx, tx, t, place, st); err != nil {
					return err
				}
				claimed = claimed || st.claimedNow
			}
			st.recordIntent(t.dest.Rules)
		}
		if writes = anyWrites(part); !writes && !claimed {
			return nil // nothing is written: recordSteps stores the result
		}
		var err error
		unchanged, err = t.putLink(ctx, tx, t.inProgress(all), nil)
		return err
	})
	if err == nil && unchanged {
		t.linkAt = at
	}
	if err != nil || !writes {
		return err
	}
	if err := s.Host.Record(ctx, t.auditEvent(part)); err != nil {
		return errors.Join(err, s.withdrawIntents(ctx, t, all, part))
	}
	return nil
}

// withdrawIntents removes the stored intents of writes that will not be made.
func (s *Syncer) withdrawIntents(ctx context.Context, t *target, all, part []step) error {
	for i := range part {
		part[i].Intent, part[i].Writes = part[i].before.Intent, part[i].before.Writes
	}
	_, err := t.update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		_, err := t.putLink(ctx, tx, t.inProgress(all), nil)
		return err
	})
	return err
}

// inProgress returns the link to store before its steps are applied.
func (t *target) inProgress(all []step) *state.Link {
	l := t.link
	l.Items = itemsOf(all)
	if l.Status == "" {
		l.Status, l.UpdatedAt = state.Pending, time.Now()
	}
	return &l
}

func anyWrites(steps []step) bool {
	return slices.ContainsFunc(steps, func(st step) bool { return st.writes() || st.Do == plan.Delete })
}

func (t *target) linkKey() storage.Key {
	return state.LinkKey(t.key.NS, t.key.Destination, t.key.Association, t.key.Secret)
}

// putLink stores the link in a transaction. It keeps requests to adopt names that came since the link was loaded, and drops those in
// adopted. unchanged reports that the stored link was still the loaded one.
func (t *target) putLink(ctx context.Context, tx *storage.Txn, l *state.Link, adopted map[string]bool) (unchanged bool, err error) {
	now, at := t.link, t.linkAt
	if t.expects {
		tx.Expect(t.linkKey(), t.linkAt)
	} else {
		now = state.Link{}
		if at, err = state.Get(ctx, tx, t.linkKey(), &now); err != nil {
			return false, err
		}
	}
	l.Adopt = slices.DeleteFunc(slices.Clone(now.Adopt), func(name string) bool { return adopted[name] && slices.Contains(t.link.Adopt, name) })
	l.AdoptEqual = slices.DeleteFunc(slices.Clone(now.AdoptEqual), func(name string) bool { return adopted[name] && slices.Contains(t.link.AdoptEqual, name) })
	return at == t.linkAt, engines.PutRecord(tx, t.linkKey(), l)
}

// update is storage.Update that fails if the association, or its destination, has changed since it was loaded. At first it expects that
// nothing was stored since; only if that is wrong it reads what has changed.
func (t *target) update(ctx context.Context, store storage.Store, do func(*storage.Txn) error) (storage.Index, error) {
	t.expects = true
	return storage.Update(ctx, store, func(tx *storage.Txn) error {
		if err := t.checkUnchanged(ctx, tx); err != nil {
			return err
		}
		defer func() { t.expects = false }()
		return do(tx)
	})
}

func (t *target) checkUnchanged(ctx context.Context, tx *storage.Txn) error {
	if t.expects {
		tx.Expect(t.assoc.Key(), t.assocAt)
		tx.Expect(t.dest.Key(), t.dest.Version)
		return nil
	}
	var a state.Association
	found, err := engines.GetRecord(ctx, tx, t.assoc.Key(), &a)
	if err != nil {
		return err
	}
	e, err := tx.Get(ctx, t.dest.Key())
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	if !found || !a.UpdatedAt.Equal(t.assoc.UpdatedAt) || a.Removing != t.assoc.Removing || a.Gone != t.assoc.Gone || e.Version != t.dest.Version {
		return errChanged
	}
	return nil
}

// errChanged makes syncJob queue the link again.
var errChanged = errors.New("the association or its destination has changed meanwhile")

// auditEvent returns the audit record of the writes that are about to be made.
func (t *target) auditEvent(steps []step) engines.Event {
	var done, over []string
	for i := range steps {
		if st := &steps[i]; st.writes() || st.Do == plan.Delete {
			done = append(done, st.Do+" "+st.Name)
			if st.Overwrites {
				over = append(over, st.Name)
			}
		}
	}
	e := engines.Event{
		NamespaceID: t.key.NS, Operation: engines.Update, Who: t.assoc.Owner,
		Path: "sys/sync/destinations/" + t.dest.Type + "/" + t.dest.Name + "/associations/sync",
		Data: map[string]any{"mount": t.assoc.MountPath, "secret_name": t.key.Secret, "version": t.secret.Version, "external": done},
	}
	if len(over) > 0 {
		e.Data["over_changes"] = over
	}
	return e
}
