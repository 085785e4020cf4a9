package apply

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/plan"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/template"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// result is the result of an attempt.
type result struct {
	state.Outcome
	items      []state.Item
	done       string
	retryAfter time.Duration // minimum time until the next attempt
	visibleAt  time.Time     // when the destination shows the last write; zero: nothing waits for that
	limited    time.Time     // when the first name that waits for it may be written; zero: none waits
	pastWrites map[string]*state.Writes
	released   []string        // names whose claim is released
	left       []state.Orphan  // names that were let go at the destination
	adopted    map[string]bool // names whose adoption is decided; folded
	changed    bool            // something was written or deleted
}

// recordNoop records that a new version of the secret changes nothing at the destination.
func (s *Syncer) recordNoop(ctx context.Context, t *target) (time.Time, error) {
	l := t.link
	if l.Version == t.secret.Version && l.VersionAt.Equal(t.secret.CreatedAt) && l.Live == t.secret.Live && l.Mount == t.mount.Path {
		return t.expiresAt(), nil
	}
	t.recordSecret(&l)
	l.Items = slices.Clone(l.Items)
	for i := range l.Items {
		if it := &l.Items[i]; !it.Retained {
			it.SecretVersion = t.secret.Version
		}
	}
	l.NextRetry = time.Time{}
	_, err := t.update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		_, err := t.putLink(ctx, tx, &l, nil)
		return err
	})
	return t.expiresAt(), err
}

// recordSecret records in a link which version of the secret was synced.
func (t *target) recordSecret(l *state.Link) {
	l.Version, l.VersionAt, l.Live, l.Rules = t.secret.Version, t.secret.CreatedAt, t.secret.Live, t.assoc.RulesHash()
	if t.mount != nil {
		l.Mount = t.mount.Path
	}
}

// expiresAt returns when the version of the secret is deleted automatically; zero: never.
func (t *target) expiresAt() time.Time {
	if t.secret.Live && t.secret.DeletedAt.After(time.Now()) {
		return t.secret.DeletedAt
	}
	return time.Time{}
}

// recordFailure records why a secret could not be synced at all.
func (s *Syncer) recordFailure(ctx context.Context, t *target, why error) (time.Time, error) {
	if ctx.Err() != nil {
		return time.Time{}, ctx.Err()
	}
	var e *destination.Error
	if !errors.As(why, &e) {
		s.Log.Warn("a secret could not be synced", "association", t.assoc.ID, "err", why)
	}
	r := result{Outcome: state.OutcomeOf(workqueue.CauseOf(why)), items: slices.Clone(t.link.Items), retryAfter: workqueue.RetryAfter(why), pastWrites: t.link.PastWrites}
	for i := range r.items {
		if it := &r.items[i]; !it.Retained {
			it.Outcome = r.Outcome
		}
	}
	return s.recordResult(ctx, t, r)
}

// recordPanic records that syncing a link has panicked. Its intents stay, and the next attempt checks them.
func (s *Syncer) recordPanic(ctx context.Context, key state.LinkID) (time.Time, error) {
	t, err := s.load(ctx, key)
	if err != nil {
		return time.Time{}, err
	}
	return s.recordFailure(ctx, t, &destination.Error{Class: destination.Internal, Code: "panic", Text: "the server has a bug that was met here; its log says more", Err: errPanic})
}

// recordSteps records the results of the steps, and releases the claims of names that are gone.
func (s *Syncer) recordSteps(ctx context.Context, t *target, steps []step) (time.Time, error) {
	r := result{adopted: map[string]bool{}, pastWrites: t.pastWrites(steps)}
	now := time.Now()
	did, over := map[string]int{}, 0
	for _, name := range slices.Concat(t.link.Adopt, t.link.AdoptEqual) {
		r.adopted[name] = true // unless its step has failed
	}
	for i := range steps {
		st := &steps[i]
		r.changed = r.changed || st.hasChanged()
		switch {
		case st.Do == plan.Forget:
			r.released = append(r.released, st.Name)
			switch {
			case st.deleted:
				did["deleted"]++
				over += st.overwritten()
			case st.LeavesChange:
				did["left as changed by another client"]++
				r.left = append(r.left, state.Orphan{Name: st.Name, Mount: t.assoc.MountPath, Secret: t.key.Secret, At: now.UTC(), Changed: true})
			case st.Owned:
				did["left"]++
			}
			continue
		case st.Do == plan.Retain:
			r.released = append(r.released, st.Name)
			did["left"]++
		case st.Status == state.Synced && (st.writes() || st.Overwrites):
			did[plan.PastTense[st.Do]]++
			over += st.overwritten()
		case st.Status == state.Conflict && st.before.Status != state.Conflict:
			s.Counts.Conflicts.Add(1)
		}
		if st.desired != nil && st.Status == state.Synced {
			st.SecretVersion = t.secret.Version
		}
		if st.desired != nil && st.Status != state.Synced && st.Status != state.Conflict {
			delete(r.adopted, state.Fold(t.dest.Rules, st.Name))
		}
		if st.Outcome != st.before.Outcome || !st.WrittenAt.Equal(st.before.WrittenAt) {
			st.Item.UpdatedAt = now
		}
		r.retryAfter = max(r.retryAfter, st.retryAfter)
		if st.visibleAt.After(r.visibleAt) {
			r.visibleAt = st.visibleAt
		}
		if !st.limitedUntil.IsZero() && (r.limited.IsZero() || st.limitedUntil.Before(r.limited)) {
			r.limited = st.limitedUntil
		}
		r.items = append(r.items, st.Item)
	}
	s.Counts.Overwritten.Add(int64(over))
	r.Outcome, r.done = state.WorstOutcome(r.items, t.secret.Live), plan.Summarize(did, over)
	return s.recordResult(ctx, t, r)
}

// pastWrites returns the writes of the last day of names that the link does not have any more.
func (t *target) pastWrites(steps []step) map[string]*state.Writes {
	all := maps.Clone(t.link.PastWrites)
	if all == nil {
		all = map[string]*state.Writes{}
	}
	for i := range steps {
		st := &steps[i]
		if name := state.Fold(t.dest.Rules, st.Name); st.Do == plan.Forget && st.Writes != nil {
			all[name] = st.Writes
		} else {
			delete(all, name)
		}
	}
	maps.DeleteFunc(all, func(_ string, w *state.Writes) bool { return w.Count(time.Now()) == 0 })
	for name := range all { // a secret whose keys always have other names
		if len(all) <= template.MaxItems {
			break
		}
		delete(all, name)
	}
	return all
}

// hasChanged reports whether the step, or an earlier one whose outcome was unknown, has written or deleted its name.
func (st *step) hasChanged() bool {
	if st.Do == plan.Forget {
		return st.deleted || st.before.Status == state.Unsyncing
	}
	return st.Status == state.Synced && (st.writes() || st.before.Intent != nil)
}

// recordResult stores the result of an attempt, and releases claims. It deletes a link without names whose association or secret is
// gone, and with the last link the association.
func (s *Syncer) recordResult(ctx context.Context, t *target, r result) (time.Time, error) {
	now := time.Now()
	l := t.link
	if l.Outcome != r.Outcome || r.done != "" {
		l.UpdatedAt = now
		l.History = append(slices.Clone(l.History), state.Attempt{At: now, Version: t.secret.Version, Done: r.done, Outcome: r.Outcome})
		l.History = l.History[max(0, len(l.History)-state.MaxHistory):]
	}
	l.Outcome, l.Items, l.PastWrites, l.LastAttempt = r.Outcome, r.items, r.pastWrites, now
	t.recordSecret(&l)
	right := r.Status == state.Synced || r.Status == state.Unsynced
	if !right && l.UnsyncedSince.IsZero() {
		l.UnsyncedSince = t.changedAt(now)
	}
	switch {
	case right:
		l.Attempts, l.NextRetry, l.LastSuccess, l.UnsyncedSince = 0, time.Time{}, now, time.Time{}
	case r.Code == state.CodeRateLimited: // nothing has failed
		l.Attempts, l.NextRetry = 0, r.limited
		if !r.visibleAt.IsZero() && r.visibleAt.Before(r.limited) {
			l.NextRetry = r.visibleAt
		}
	default:
		l.Attempts++
		l.NextRetry = now.Add(max(r.retryAfter, backoff(r.Outcome, l.Attempts)))
		if r.Status == state.Unsyncing && !r.visibleAt.IsZero() {
			l.NextRetry = r.visibleAt
		}
		s.Counts.Failed.Add(1)
	}
	err := s.recordLeft(ctx, t, &l, &r)
	if err != nil {
		return time.Time{}, err
	}
	free := make([]storage.Key, len(r.released))
	for i, name := range r.released {
		free[i] = state.ClaimKey(t.dest.Type, t.dest.Location, state.Fold(t.dest.Rules, name))
	}
	over := t.assoc.IsEnding() && len(r.items) == 0
	gone := over || right && t.secretGone() && !slices.ContainsFunc(r.items, t.isNeeded)
	redeploy := r.changed && destination.RedeploysBy(t.dest.Config) != ""
	s.commits.Wait(ctx)
	l.StoredAt, err = t.update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		if redeploy {
			if err := t.dest.NeedRedeploy(ctx, tx, t.assoc.Owner, now); err != nil {
				return err
			}
		}
		for _, key := range free {
			if err := state.ReleaseClaim(ctx, tx, key, &t.dest.Destination, &t.assoc, t.key.Secret); err != nil {
				return err
			}
		}
		if err := state.AddOrphans(ctx, tx, &t.dest.Destination, r.left); err != nil {
			return err
		}
		switch {
		case over:
			tx.Delete(t.linkKey())
			return s.dropIfLast(ctx, tx, t)
		case gone:
			tx.Delete(t.linkKey())
			return nil
		}
		_, err := t.putLink(ctx, tx, &l, r.adopted)
		return err
	})
	if err != nil {
		return time.Time{}, err
	}
	if redeploy {
		s.Redeploys.Push(t.dest.Key(), now.Add(workqueue.RedeployInterval), false, nil)
	}
	s.Notices.Synced(&t.assoc, t.link.Outcome, r.Outcome)
	s.WakeWaiters(free...)
	stored := &l
	if gone {
		stored = nil
	}
	s.UpdateCounters(t.key, t.assoc.MountUUID, stored)
	switch {
	case over && t.assoc.Selector && t.key.Secret != "": // two jobs that end at once may each have seen the link of the other
		s.Queue.Push(t.assoc.LinkID(""), now.Add(ChangeDelay), false, nil)
		return time.Time{}, nil
	case !over && !right:
		return l.NextRetry, nil
	}
	return t.expiresAt(), nil
}

// changedAt returns when the secret or its association was changed, if that was after the last success, and else now.
func (t *target) changedAt(now time.Time) time.Time {
	at := t.secret.CreatedAt
	if t.assoc.UpdatedAt.After(at) {
		at = t.assoc.UpdatedAt
	}
	if at.After(t.link.LastSuccess) && at.Before(now) {
		return at
	}
	return now
}

// isNeeded reports whether the sync state of a name is kept after its secret was deleted with its metadata. A retained name with an
// ownership tag is recognised without it.
func (t *target) isNeeded(it state.Item) bool { return !it.Retained || !t.dest.Rules.HasOwnerTags }

// dropIfLast deletes an association that is being removed with its last link.
func (s *Syncer) dropIfLast(ctx context.Context, tx *storage.Txn, t *target) error {
	links, err := s.Host.Store().Scan(ctx, state.LinkKey(t.key.NS, t.key.Destination, t.key.Association, ""), "", 2)
	if err != nil {
		return err
	}
	for _, e := range links {
		if e.Key != t.linkKey() {
			return nil
		}
	}
	tx.Delete(t.assoc.Key())
	return nil
}

// backoff returns the time until the next attempt: longer for failures that need action by an operator.
func backoff(o state.Outcome, attempts int) time.Duration {
	return workqueue.Backoff(o.Status == state.ClientError || o.Status == state.Conflict, attempts)
}
