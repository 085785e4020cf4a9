package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/plan"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/template"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
)

// step is one name with its action.
type step struct {
	plan.Action
	state.Item      // the sync state, changed as the step proceeds
	desired         *plan.Desired
	object          bool // the desired value is a whole secret
	found           destination.Found
	tags            map[string]string
	tagsFingerprint string        // connection.Known.AppliedFingerprint
	refresh         bool          // read the destination in any case
	upToDate        bool          // by the sync state; the destination was not read
	claimedNow      bool          // the step has claimed the name
	sharedName      bool          // another association of the same secret owns the name
	deleted         bool          // the step has deleted the name
	before          state.Item    // the last applied state
	retryAfter      time.Duration // minimum time until the next attempt
	visibleAt       time.Time     // when a read reflects the last write; zero: now
	limitedUntil    time.Time     // when the name may be written again; zero: now
}

// steps returns the desired names, then the other names of the sync state.
func (t *target) steps(want []template.Item, refresh bool) []step {
	rules := t.dest.Rules
	var steps []step
	named := map[string]bool{}
	for _, w := range want {
		if len(w.Key) > maxName {
			w.Problem = fmt.Sprintf("the key begins with %q and is %d bytes long: only keys of up to %d bytes are synced", state.Truncate(w.Key, 50), len(w.Key), maxName)
		}
		if w.Problem != "" { // the name and the key are stored, whatever they are
			w.Name, w.Key = state.Truncate(w.Name, maxName), state.Truncate(w.Key, maxName)
		}
		st := step{Item: state.Item{Name: w.Name, Key: w.Key}, tags: t.dest.CustomTags, tagsFingerprint: t.dest.AppliedFingerprint, refresh: refresh}
		if had := t.link.Item(w.Name, rules); had != nil && !named[state.Fold(rules, w.Name)] {
			st.Item, st.before = *had, *had
			st.Item.Key, st.Retained = w.Key, false
		} else if st.Writes = t.link.PastWrites[state.Fold(rules, w.Name)]; st.Writes != nil {
			st.before.Writes = st.Writes
		}
		if w.Name != "" {
			named[state.Fold(rules, w.Name)] = true
		}
		if w.Problem != "" {
			st.Action = plan.Action{Do: plan.Reject, Reason: state.TruncateCause(w.Problem)}
		} else {
			st.desired, st.object = &plan.Desired{Value: w.Value, Fingerprint: t.dest.Fingerprint(w.Value)}, w.Object
		}
		steps = append(steps, st)
	}
	for _, had := range t.link.Items {
		if !named[state.Fold(rules, had.Name)] {
			steps = append(steps, step{Item: had, before: had})
		}
	}
	return steps
}

// maxName bounds names and keys in the sync state. All destinations have lower limits for names.
const maxName = 512

// planSteps reads the destination and decides. It changes nothing.
func (s *Syncer) planSteps(ctx context.Context, t *target, dest destination.Destination, want []template.Item, refresh bool) ([]step, error) {
	steps := t.steps(want, refresh)
	if err := s.checkCapacity(ctx, t, steps); err != nil {
		return nil, err
	}
	for i := range steps {
		if err := s.decideStep(ctx, t, dest, &steps[i]); err != nil {
			return steps, err
		}
	}
	return steps, nil
}

// decideStep reads one name and decides.
func (s *Syncer) decideStep(ctx context.Context, t *target, dest destination.Destination, st *step) error {
	v := plan.View{
		Desired: st.desired, OwnerTag: t.dest.OwnerTag(t.ownerTag, st.Name, t.dest.Rules), HasOwnerTags: t.dest.Rules.HasOwnerTags, PropagationDelay: t.dest.Rules.PropagationDelay,
		Repair: t.assoc.Drift == state.DriftRepair, KeepChanges: t.assoc.Drift == state.DriftConflict,
		Adopt:      slices.Contains(t.link.Adopt, state.Fold(t.dest.Rules, st.Name)),
		AdoptEqual: slices.Contains(t.link.AdoptEqual, state.Fold(t.dest.Rules, st.Name)),
		Retain:     t.retainsNames() || st.before.Retained, Ending: t.assoc.IsEnding(),
	}
	if st.before.Name != "" {
		v.LastApplied = &st.before
	}
	switch {
	case st.Do == plan.Reject:
		return nil
	case v.Desired == nil && !st.Owned && st.Intent == nil:
		st.Action = plan.Action{Do: plan.Forget, Reason: "was never written"}
		return nil
	case v.Desired == nil && st.before.Retained && !v.Ending:
		st.Action, st.upToDate = plan.Action{Do: plan.None, Reason: plan.RetainReason}, true
		return nil
	case v.Desired == nil && v.Retain:
		st.Action = v.DecideRemoval() // without a read
		return nil
	case v.Desired != nil && !st.refresh && st.UpToDate(v.Desired.Fingerprint, st.tagsFingerprint):
		st.Action, st.upToDate = plan.Action{Do: plan.None, Reason: "is as it should be", OwnedThere: true}, true
		return nil
	}
	if !st.refresh && v.Desired != nil && st.isLimited(t) {
		return nil // without a read, so that a secret that changes all the time leaves the destination's rate to others
	}
	for {
		var err error
		v.Now = time.Now() // before the read
		if st.found, err = t.readName(ctx, dest, st, &v); err != nil {
			return err
		}
		if v.Found = st.found; st.found.Known {
			v.FoundFingerprint = t.dest.Fingerprint(st.found.Value)
		}
		st.Action = v.Decide()
		if st.Do != plan.Wait {
			break
		}
		soon := time.Until(v.VisibleAt())
		if soon > maxWait {
			st.visibleAt = v.VisibleAt()
			break
		}
		if !workqueue.Sleep(ctx, soon) {
			return ctx.Err()
		}
	}
	if st.Do == plan.None && v.Desired != nil && t.dest.Rules.WriteOnly {
		st.Action = plan.Action{Do: plan.Update, Reason: "is sent again, as requested", OwnedThere: true}
	}
	if in := st.before.Intent; in != nil && in.Overwrites && st.OwnedThere {
		st.Overwrites = true // that write may have been made
	}
	if st.Do == plan.Conflict && st.found.OwnerTag != v.OwnerTag {
		st.Reason += t.conflictHint()
	}
	if st.Do == plan.Adopt || st.Do == plan.Recover && st.found.OwnerTag != v.OwnerTag {
		if whose, err := s.ownerElsewhere(ctx, t, st.found); err != nil || whose != "" {
			st.Action = plan.Action{Do: plan.Conflict, Reason: whose}
			return err
		}
	}
	if st.Do == plan.None && v.Desired != nil && st.TagsFingerprint != st.tagsFingerprint {
		st.Action = plan.Action{Do: plan.Update, Reason: "has other tags or settings", OwnedThere: true}
	}
	if st.writes() {
		st.isLimited(t)
	}
	return nil
}

// readName reads one name. Where it cannot be read, it is as the sync state has it: a write or deletion of unknown outcome may have to
// be undone, and a name that is to be adopted exists.
func (t *target) readName(ctx context.Context, dest destination.Destination, st *step, v *plan.View) (destination.Found, error) {
	if !t.dest.Rules.WriteOnly {
		return dest.Read(ctx, st.Name)
	}
	f := destination.Found{Name: st.Name, ID: st.before.ID, Version: st.before.Version}
	if st.before.Intent != nil {
		f.ChangedAt = st.before.Intent.At
	}
	switch {
	case v.Adopt:
		f.State = destination.Present
	case st.before.Owned, v.Desired == nil && st.before.Intent != nil:
		f.State, f.OwnerTag = destination.Present, v.OwnerTag
	}
	return f, nil
}

// isLimited makes a step wait, and reports that it does, if the destination takes no write of its name now. A write whose outcome is
// unknown is repeated nevertheless.
func (st *step) isLimited(t *target) bool {
	now, most := time.Now(), t.dest.Rules.WritesPerDay
	at := plan.NextWrite(most, st.Writes, now, st.refresh)
	if !at.After(now) || st.repeats() || st.before.HasValue(st.desired.Fingerprint, st.tagsFingerprint) {
		return false
	}
	st.limitedUntil = at
	st.Action = plan.Action{Do: plan.Wait, Reason: fmt.Sprintf("rate limited until %s UTC: it was written %d times in the last 24 hours, and the destination takes %d; the newest value is written then",
		at.UTC().Format(time.TimeOnly), st.Writes.Count(now), most)}
	return true
}

// repeats reports whether the step writes what a write with unknown outcome was to write.
func (st *step) repeats() bool { return st.before.Intent.IsOf(st.desired.Fingerprint) }

// conflictHint says what to do about a name of another client.
func (t *target) conflictHint() string {
	mount := t.assoc.MountPath
	if t.mount != nil {
		mount = t.mount.Path
	}
	return fmt.Sprintf(": adopt it with coffer sync adopt %s/%s %s%s, or choose another secret_name_template", t.dest.Type, t.dest.Name, mount, t.key.Secret)
}

// maxWait is how long a job waits for a destination to show the last write, before it is queued again.
const maxWait = 5 * time.Second

// writes reports whether the step writes a value.
func (st *step) writes() bool {
	switch st.Do {
	case plan.Create, plan.Update, plan.Recover, plan.Adopt:
		return true
	}
	return false
}

// overwritten returns the number of changes of other clients that the step has ended.
func (st *step) overwritten() int {
	if st.Overwrites {
		return 1
	}
	return 0
}

// needsClaim reports whether the step needs the claim of its name, or has to learn its owner.
func (st *step) needsClaim() bool {
	return st.writes() || st.Do == plan.None && !st.upToDate || st.Do == plan.Conflict
}

// recordIntent records in the sync state what is about to be done.
func (st *step) recordIntent(rules destination.Rules) {
	switch there := st.OwnedThere && !st.upToDate && st.found.State != destination.Absent; {
	case there && (st.Overwrites || st.found.Known): // the last version that is ours stays known until the next one is written
		if st.Owned = true; st.ID != st.found.ID || st.Version != st.found.Version {
			st.SecretVersion = 0
		}
	case there:
		if st.Fingerprint != nil && (st.ID != st.found.ID || st.Version != st.found.Version) {
			st.Fingerprint, st.SecretVersion = nil, 0 // another value may be there
		}
		st.Owned, st.ID, st.Version = true, st.found.ID, st.found.Version
	}
	if st.Do == plan.Delete { // until the deletion is confirmed
		st.Outcome = state.Outcome{Status: state.Unsyncing}
	}
	if st.writes() {
		if rules.WritesPerDay > 0 && !st.repeats() {
			st.Writes = st.Writes.Add(time.Now())
		}
		st.Intent = &state.Intent{At: time.Now(), Create: st.found.State == destination.Absent, Fingerprints: st.before.Intent.With(st.desired.Fingerprint), Overwrites: st.Overwrites}
		tags := slices.AppendSeq(slices.Clone(st.before.Tags), maps.Keys(st.tags))
		slices.Sort(tags)
		st.Item.Tags = slices.Compact(tags) // tags that may exist from now on
	}
}

// itemsOf returns the names of a link while its steps are applied. Deleted names stay for as long as they are claimed.
func itemsOf(steps []step) []state.Item {
	var items []state.Item
	for i := range steps {
		st := &steps[i]
		if st.Status == "" {
			st.Outcome = state.Outcome{Status: state.Pending}
		}
		items = append(items, st.Item)
	}
	return items
}

// applyStep carries out the action of one name.
func (s *Syncer) applyStep(ctx context.Context, t *target, dest destination.Destination, st *step) {
	switch st.Do {
	case plan.Reject:
		st.Outcome = state.Outcome{Status: state.ClientError, Code: "limit", Cause: st.Reason}
	case plan.Conflict:
		code := "conflict"
		if st.isTaken() {
			code = state.CodeNameTaken
		}
		st.Outcome = state.Outcome{Status: state.Conflict, Code: code, Cause: st.Reason}
	case plan.None:
		switch {
		case st.sharedName:
			st.Outcome = state.Outcome{Status: state.Synced, Code: state.CodeNameTaken, Cause: sharedReason}
		case !st.upToDate && st.desired != nil:
			st.succeed(destination.Held{ID: st.found.ID, Version: st.found.Version})
		}
	case plan.Retain:
		st.Retained, st.Outcome = true, state.Outcome{Status: state.Unsynced, Code: "retained", Cause: "it " + st.Reason}
	case plan.Wait:
		if !st.limitedUntil.IsZero() {
			st.Outcome = state.Outcome{Status: state.Pending, Code: state.CodeRateLimited, Cause: st.Reason}
			return
		}
		st.Outcome = state.Outcome{Status: state.Unsyncing, Code: "waits", Cause: "it " + st.Reason}
	case plan.Delete:
		err := dest.Delete(ctx, st.found)
		if e, ok := errors.AsType[*destination.Error](err); ok && e.Code == destination.Changed && t.dest.Rules.WriteOnly {
			st.Action = plan.Action{Do: plan.Forget, Reason: "stays at the destination: it belongs to another client"}
			return
		}
		if err != nil {
			st.fail(err)
			return
		}
		s.Counts.Deleted.Add(1)
		st.Do, st.deleted = plan.Forget, true
	case plan.Create, plan.Update, plan.Recover, plan.Adopt:
		s.writeName(ctx, t, dest, st)
	}
}

// writeName writes one name.
func (s *Syncer) writeName(ctx context.Context, t *target, dest destination.Destination, st *step) {
	it := destination.Item{
		Name: st.Name, Value: st.desired.Value, Object: st.object, OwnerTag: t.dest.OwnerTag(t.ownerTag, st.Name, t.dest.Rules), Tags: st.tags,
		Token: state.Hash(t.ownerTag, st.Name, fmt.Sprint(t.secret.Version, t.secret.CreatedAt.UnixNano()), string(st.desired.Fingerprint), st.found.Version, st.tagsFingerprint),
	}
	for _, tag := range st.Item.Tags {
		if _, still := st.tags[tag]; !still {
			it.OldTags = append(it.OldTags, tag)
		}
	}
	held, err := dest.Write(ctx, it, st.found)
	if err != nil {
		st.fail(err)
		// This write was not made, or the name belongs to another client. The outcome of an earlier attempt is as unknown as before.
		var e *destination.Error
		if errors.As(err, &e) && (!e.Unknown || e.Code == destination.Exists || e.Code == destination.Changed) {
			st.Intent = st.before.Intent
			if e.Code != destination.Changed { // found after a version was stored, at some destinations
				st.Writes = st.before.Writes
			}
		}
		if e != nil && t.dest.Rules.WriteOnly && (e.Code == destination.Exists || e.Code == destination.Changed) {
			st.Status = state.Conflict // the next attempt would read it, which is not possible
		}
		return
	}
	s.Counts.Written.Add(1)
	st.Item.Tags, st.Item.TagsFingerprint, st.WrittenAt = slices.Sorted(maps.Keys(st.tags)), st.tagsFingerprint, time.Now()
	st.succeed(held)
}

// succeed records that a name is in sync.
func (st *step) succeed(h destination.Held) {
	st.Owned, st.ID, st.Version, st.Fingerprint, st.Intent, st.Drift = true, h.ID, h.Version, st.desired.Fingerprint, nil, ""
	st.Outcome = state.Outcome{Status: state.Synced}
}

// fail records why a name is not in sync.
func (st *step) fail(err error) {
	st.Action = plan.Action{} // no further action
	st.Outcome, st.retryAfter = state.OutcomeOf(workqueue.CauseOf(err)), workqueue.RetryAfter(err)
}

// canDelete postpones a deletion until the destination shows the name that replaces it.
func (s *Syncer) canDelete(ctx context.Context, t *target, dest destination.Destination, all []step, st *step) {
	for i := range all {
		by := &all[i]
		if by.desired == nil && by.Do != plan.Reject || !by.replaces(st) {
			continue
		}
		if by.Status != state.Synced {
			st.Action = plan.Action{Do: plan.Wait, Reason: fmt.Sprintf("is deleted when %q, which replaces it, is right", by.Name)}
			return
		}
		if !by.writes() || by.upToDate || t.dest.Rules.WriteOnly {
			continue
		}
		f, err := dest.Read(ctx, by.Name)
		switch {
		case err != nil:
			st.fail(err)
			return
		case f.State != destination.Present || f.Version != by.Version || f.ID != by.ID:
			st.Action = plan.Action{Do: plan.Wait, Reason: fmt.Sprintf("is deleted when the destination shows %q, which replaces it", by.Name)}
			return
		}
		by.upToDate = true // the destination shows it
	}
}

// replaces reports whether a step's name replaces another name: it has the same key, or one has the whole secret and the other a key.
func (st *step) replaces(old *step) bool {
	return st.Key == old.Key || (st.Key == "") != (old.Key == "")
}

// isTaken reports whether a conflict is one with another association.
func (st *step) isTaken() bool { return strings.HasPrefix(st.Reason, takenReason) }
