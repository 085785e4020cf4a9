package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/plan"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// result is the result of an attempt.
type result struct {
	state.Outcome
	items      []state.Item
	done       string
	retryAfter time.Duration   // minimum time until the next attempt
	visibleAt  time.Time       // when the destination shows the last write; zero: nothing waits for that
	released   []string        // names whose claim is released
	adopted    map[string]bool // names whose adoption is decided; folded
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
	_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		if err := t.checkUnchanged(ctx, tx); err != nil {
			return err
		}
		return t.putLink(ctx, tx, &l, nil)
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
	r := result{Outcome: OutcomeOf(why), items: slices.Clone(t.link.Items), retryAfter: retryAfter(why)}
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
	r := result{adopted: map[string]bool{}}
	now := time.Now()
	did := map[string]int{}
	for _, name := range slices.Concat(t.link.Adopt, t.link.AdoptEqual) {
		r.adopted[name] = true // unless its step has failed
	}
	for i := range steps {
		st := &steps[i]
		switch {
		case st.Do == plan.Forget:
			r.released = append(r.released, st.Name)
			if st.deleted {
				did["deleted"]++
			} else if st.Owned {
				did["left"]++
			}
			continue
		case st.Do == plan.Retain:
			r.released = append(r.released, st.Name)
			did["left"]++
		case st.Status == state.Synced && st.writes():
			did[pastTense[st.Do]]++
		case st.Status == state.Conflict && st.before.Status != state.Conflict:
			s.Counts.Conflicts.Add(1)
		}
		if st.desired != nil && st.Status == state.Synced {
			st.SecretVersion = t.secret.Version
		}
		if st.desired != nil && st.Status != state.Synced && st.Status != state.Conflict {
			delete(r.adopted, state.Fold(t.destType.Rules, st.Name))
		}
		if st.Outcome != st.before.Outcome || !st.WrittenAt.Equal(st.before.WrittenAt) {
			st.Item.UpdatedAt = now
		}
		r.retryAfter = max(r.retryAfter, st.retryAfter)
		if st.visibleAt.After(r.visibleAt) {
			r.visibleAt = st.visibleAt
		}
		r.items = append(r.items, st.Item)
	}
	r.Outcome, r.done = worstOutcome(r.items, t.secret.Live), summarize(did)
	return s.recordResult(ctx, t, r)
}

// pastTense has the words of histories.
var pastTense = map[string]string{plan.Create: "created", plan.Update: "updated", plan.Recover: "recovered", plan.Adopt: "adopted"}

func summarize(did map[string]int) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(did)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, did[what]))
	}
	return strings.Join(parts, ", ")
}

// severity orders statuses, the worst last.
var severity = []string{state.Synced, state.Unsynced, state.Unsyncing, state.Pending, state.ExternalError, state.Conflict, state.ClientError, state.InternalError}

// worstOutcome returns the status of a secret: the worst of its names.
func worstOutcome(items []state.Item, live bool) state.Outcome {
	items = slices.DeleteFunc(slices.Clone(items), func(it state.Item) bool { return it.Retained })
	if len(items) == 0 {
		if live {
			return state.Outcome{Status: state.Synced, Code: "empty", Cause: "the secret has no keys that are chosen"}
		}
		return state.Outcome{Status: state.Unsynced, Code: "no_version", Cause: "the secret has no live version"}
	}
	total := items[0].Outcome
	for _, it := range items[1:] {
		if slices.Index(severity, it.Status) > slices.Index(severity, total.Status) {
			total = it.Outcome
		}
	}
	return total
}

// LongestWait is the longest time until the next attempt, whatever Retry-After a destination sends.
const LongestWait = workqueue.LongestWait

func retryAfter(err error) time.Duration {
	var e *destination.Error
	if errors.As(err, &e) {
		return min(e.RetryAfter, LongestWait)
	}
	return 0
}

// recordResult stores the result of an attempt, and releases claims. It deletes a link without names whose association or secret is
// gone, and with the last link the association.
func (s *Syncer) recordResult(ctx context.Context, t *target, r result) (time.Time, error) {
	place, err := s.Pool.Location(&t.dest)
	if err != nil {
		return time.Time{}, err
	}
	now := time.Now()
	l := t.link
	if l.Outcome != r.Outcome || r.done != "" {
		l.UpdatedAt = now
		l.History = append(slices.Clone(l.History), state.Attempt{At: now, Version: t.secret.Version, Done: r.done, Outcome: r.Outcome})
		l.History = l.History[max(0, len(l.History)-state.MaxHistory):]
	}
	l.Outcome, l.Items, l.LastAttempt = r.Outcome, r.items, now
	t.recordSecret(&l)
	right := r.Status == state.Synced || r.Status == state.Unsynced
	if right {
		l.Attempts, l.NextRetry, l.LastSuccess = 0, time.Time{}, now
	} else {
		l.Attempts++
		l.NextRetry = now.Add(max(r.retryAfter, backoff(r.Outcome, l.Attempts)))
		if r.Status == state.Unsyncing && !r.visibleAt.IsZero() {
			l.NextRetry = r.visibleAt
		}
		s.Counts.Failed.Add(1)
	}
	left, err := s.letGo(ctx, t, &l, &r)
	if err != nil {
		return time.Time{}, err
	}
	free := make([]storage.Key, len(r.released))
	for i, name := range r.released {
		free[i] = state.ClaimKey(t.dest.Type, place, state.Fold(t.destType.Rules, name))
	}
	over := t.assoc.IsEnding() && len(r.items) == 0
	gone := over || right && t.secretGone() && !slices.ContainsFunc(r.items, t.isNeeded)
	_, err = storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		if err := t.checkUnchanged(ctx, tx); err != nil {
			return err
		}
		for _, key := range free {
			if err := t.releaseClaim(ctx, tx, key); err != nil {
				return err
			}
		}
		switch {
		case over:
			if err := addOrphans(ctx, tx, &t.dest, left); err != nil {
				return err
			}
			tx.Delete(t.linkKey())
			return s.dropIfLast(ctx, tx, t)
		case gone:
			tx.Delete(t.linkKey())
			return nil
		}
		return t.putLink(ctx, tx, &l, r.adopted)
	})
	if err != nil {
		return time.Time{}, err
	}
	s.WakeWaiters(free...)
	status := r.Status
	if gone {
		status = ""
	}
	s.UpdateCounters(t.key, t.assoc.MountUUID, status)
	switch {
	case over && t.assoc.Selector && t.key.Secret != "": // two jobs that end at once may each have seen the link of the other
		s.Queue.Push(t.assoc.LinkID(""), now.Add(ChangeDelay), false, nil)
		return time.Time{}, nil
	case !over && !right:
		return l.NextRetry, nil
	}
	return t.expiresAt(), nil
}

// isNeeded reports whether the sync state of a name is kept after its secret was deleted with its metadata. A retained name with an
// ownership tag is recognised without it.
func (t *target) isNeeded(it state.Item) bool { return !it.Retained || !t.destType.Rules.HasOwnerTags }

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
	first, longest := 5*time.Second, 5*time.Minute
	if o.Status == state.ClientError || o.Status == state.Conflict {
		first, longest = time.Minute, LongestWait
	}
	d := engines.Backoff(first, longest, attempts)
	return d/2 + rand.N(d/2+1) //nolint:gosec // jitter, not a secret
}

const codeInternal = "internal"

// OutcomeOf turns an error into an outcome.
func OutcomeOf(err error) state.Outcome {
	var e *destination.Error
	if !errors.As(err, &e) {
		return state.Outcome{Status: state.InternalError, Code: codeInternal, Cause: "the server could not do its part; its log says why"}
	}
	o := state.Outcome{Status: state.ExternalError, Code: e.Code, Cause: truncateCause(e.Text)}
	switch {
	case e.Code == destination.Exists || e.Code == destination.Changed: // the next attempt reads it again
	case e.Class == destination.Client:
		o.Status = state.ClientError
	case e.Class == destination.Internal:
		o.Status = state.InternalError
	}
	return o
}

// truncateCause bounds the length of a cause, which is stored once for each name.
func truncateCause(text string) string {
	const most = 400
	if len(text) > most {
		return truncate(text, most) + "…"
	}
	return text
}
