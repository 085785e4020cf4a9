package secretsync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/template"
)

// step is one name with what is to be done about it.
type step struct {
	action
	item    // what the ledger says, or will say
	wanted  *wanted
	found   destination.Found
	tags    map[string]string
	tagged  string        // tagsPrint of tags
	refresh bool          // look at the destination in any case
	known   bool          // the ledger was believed: nothing was asked of the destination
	claimed bool          // the name was not claimed before
	shared  bool          // the name is left to another association
	deleted bool          // it was there, and was deleted
	before  item          // what the ledger has said
	after   time.Duration // how long the destination wants to be left alone
	shows   time.Time     // from when on what is found can be believed; zero: at once
}

// steps returns what there is to do: first what should be there, then what else the ledger has.
func (t *target) steps(want []template.Item, refresh bool) []step {
	rules := t.kind.Rules
	var steps []step
	named := map[string]bool{}
	tagged := tagsPrint(t.dest.CustomTags)
	for _, w := range want {
		if len(w.Key) > longestName {
			w.Problem = fmt.Sprintf("the key begins with %q and is %d bytes long: only keys of up to %d bytes are synced", cut(w.Key, 50), len(w.Key), longestName)
		}
		if w.Problem != "" { // it may be anything, and is stored
			w.Name, w.Key = cut(w.Name, longestName), cut(w.Key, longestName)
		}
		st := step{item: item{Name: w.Name, Key: w.Key}, tags: t.dest.CustomTags, tagged: tagged, refresh: refresh}
		if had := t.link.item(w.Name, rules); had != nil && !named[fold(rules, w.Name)] {
			st.item, st.before = *had, *had
			st.item.Key, st.Retained = w.Key, false
		}
		if w.Name != "" {
			named[fold(rules, w.Name)] = true
		}
		if w.Problem != "" {
			st.action = action{Do: actRefuse, Reason: shortened(w.Problem)}
		} else {
			st.wanted = &wanted{Value: w.Value, Print: t.dest.print(w.Value)}
		}
		steps = append(steps, st)
	}
	for _, had := range t.link.Items {
		if !named[fold(rules, had.Name)] {
			steps = append(steps, step{item: had, before: had})
		}
	}
	return steps
}

// longestName bounds what is stored of names and keys. All places have lower limits for names.
const longestName = 512

func cut(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// plan looks at the destination and decides. It changes nothing.
func (s *Service) plan(ctx context.Context, t *target, dest destination.Destination, want []template.Item, refresh bool) ([]step, error) {
	steps := t.steps(want, refresh)
	if err := s.makeRoom(ctx, t, steps); err != nil {
		return nil, err
	}
	for i := range steps {
		if err := s.decideStep(ctx, t, dest, &steps[i]); err != nil {
			return steps, err
		}
	}
	return steps, nil
}

// decideStep looks at one name and decides.
func (s *Service) decideStep(ctx context.Context, t *target, dest destination.Destination, st *step) error {
	v := view{
		Want: st.wanted, Mark: t.dest.marked(t.mark, st.Name, t.kind.Rules), Marks: t.kind.Rules.Marks, Settles: t.kind.Rules.Settles, Repair: t.assoc.Drift == driftRepair,
		Adopt:  slices.Contains(t.link.Adopt, fold(t.kind.Rules, st.Name)),
		Retain: t.retains() || st.before.Retained, Ending: t.assoc.ending(),
	}
	if st.before.Name != "" {
		v.Had = &st.before
	}
	switch {
	case st.Do == actRefuse:
		return nil
	case v.Want == nil && !st.Owned && st.Intent == nil:
		st.action = action{Do: actForget, Reason: "was never written"}
		return nil
	case v.Want == nil && st.before.Retained && !v.Ending:
		st.action, st.known = action{Do: actNone, Reason: retainReason}, true
		return nil
	case v.Want == nil && v.Retain:
		st.action = v.decideGone() // whatever is there
		return nil
	case v.Want != nil && !st.refresh && st.stands(v.Want.Print, st.tagged):
		st.action, st.known = action{Do: actNone, Reason: "is as it should be", Ours: true}, true
		return nil
	}
	for {
		var err error
		v.Now = time.Now() // what is read is no older
		if st.found, err = dest.Read(ctx, st.Name); err != nil {
			return err
		}
		v.Found = st.found
		st.action = v.decide()
		if st.Do != actWait {
			break
		}
		soon := time.Until(v.shows())
		if soon > longestPause {
			st.shows = v.shows()
			break
		}
		if !wait(ctx, soon) {
			return ctx.Err()
		}
	}
	if st.Do == actAdopt || st.Do == actRecover && st.found.Mark != v.Mark {
		if whose, err := s.heldElsewhere(ctx, t, st.found); err != nil || whose != "" {
			st.action = action{Do: actConflict, Reason: whose}
			return err
		}
	}
	if st.Do == actNone && v.Want != nil && st.Tagged != st.tagged {
		st.action = action{Do: actUpdate, Reason: "has other tags", Ours: true}
	}
	return nil
}

// longestPause is how long a job waits for a destination to show what is there, before others have their turn.
const longestPause = 5 * time.Second

// tagsPrint stands for tags with their values.
func tagsPrint(tags map[string]string) string {
	if len(tags) == 0 {
		return ""
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		all = append(all, key, tags[key])
	}
	return short(all...)
}

// item returns what a link says of a name, or nil.
func (l *link) item(name string, r destination.Rules) *item {
	for i := range l.Items {
		if fold(r, l.Items[i].Name) == fold(r, name) {
			return &l.Items[i]
		}
	}
	return nil
}

func fold(r destination.Rules, name string) string {
	if r.Fold == nil {
		return name
	}
	return r.Fold(name)
}

// writes reports whether the step writes a value.
func (st *step) writes() bool {
	switch st.Do {
	case actCreate, actUpdate, actRecover, actAdopt:
		return true
	}
	return false
}

// needsClaim reports whether the name is to be ours, or would be.
func (st *step) needsClaim() bool {
	return st.writes() || st.Do == actNone && !st.known || st.Do == actConflict
}

// intend notes what is about to be done.
func (st *step) intend() {
	if st.Ours && !st.known && st.found.State != destination.Absent {
		if st.Print != nil && (st.ID != st.found.ID || st.Version != st.found.Version) {
			st.Print, st.Source = nil, 0 // who knows what is there
		}
		st.Owned, st.ID, st.Version = true, st.found.ID, st.found.Version
	}
	if st.Do == actDelete { // until it is known that it is gone, it is neither there nor not
		st.outcome = outcome{Status: Unsyncing}
	}
	if st.writes() {
		st.Intent = &intent{At: time.Now(), Create: st.found.State == destination.Absent}
		tags := slices.AppendSeq(slices.Clone(st.before.Tags), maps.Keys(st.tags))
		slices.Sort(tags)
		st.item.Tags = slices.Compact(tags) // those that may be there from now on
	}
}

// itemsOf is what a link says of its names while some of the steps are done. Those that are gone stay for as long as they are
// claimed.
func itemsOf(steps []step) []item {
	var items []item
	for i := range steps {
		st := &steps[i]
		if st.Status == "" {
			st.outcome = outcome{Status: Pending}
		}
		items = append(items, st.item)
	}
	return items
}

// carryOut does what was decided about one name.
func (s *Service) carryOut(ctx context.Context, t *target, dest destination.Destination, st *step) {
	switch st.Do {
	case actRefuse:
		st.outcome = outcome{Status: ClientError, Code: "limit", Cause: st.Reason}
	case actConflict:
		code := "conflict"
		if st.taken() {
			code = codeTaken
		}
		st.outcome = outcome{Status: Conflict, Code: code, Cause: st.Reason}
	case actNone:
		switch {
		case st.shared:
			st.outcome = outcome{Status: Synced, Code: codeTaken, Cause: sharedReason}
		case !st.known && st.wanted != nil:
			st.done(destination.Held{ID: st.found.ID, Version: st.found.Version})
		}
	case actRetain:
		st.Retained, st.outcome = true, outcome{Status: Unsynced, Code: "retained", Cause: "it " + st.Reason}
	case actWait:
		st.outcome = outcome{Status: Unsyncing, Code: "waits", Cause: "it " + st.Reason}
	case actDelete:
		if err := dest.Delete(ctx, st.found); err != nil {
			st.fails(err)
			return
		}
		s.counts.deleted.Add(1)
		st.Do, st.deleted = actForget, true
	case actCreate, actUpdate, actRecover, actAdopt:
		s.write(ctx, t, dest, st)
	}
}

// write writes one name.
func (s *Service) write(ctx context.Context, t *target, dest destination.Destination, st *step) {
	it := destination.Item{
		Name: st.Name, Value: st.wanted.Value, Mark: t.dest.marked(t.mark, st.Name, t.kind.Rules), Tags: st.tags,
		Token: short(t.mark, st.Name, fmt.Sprint(t.secret.Version, t.secret.CreatedAt.UnixNano()), string(st.wanted.Print), st.found.Version, st.tagged),
	}
	for _, tag := range st.item.Tags {
		if _, still := st.tags[tag]; !still {
			it.OldTags = append(it.OldTags, tag)
		}
	}
	held, err := dest.Write(ctx, it, st.found)
	if err != nil {
		st.fails(err)
		// What was about to be done was not, or was done to a name of somebody else. How an earlier attempt ended is as open as it was.
		var e *destination.Error
		if errors.As(err, &e) && (!e.Unknown || e.Code == destination.Exists || e.Code == destination.Changed) {
			st.Intent = st.before.Intent
		}
		return
	}
	s.counts.written.Add(1)
	st.item.Tags, st.item.Tagged, st.WrittenAt = slices.Sorted(maps.Keys(st.tags)), st.tagged, time.Now()
	st.done(held)
}

// done notes that a name is right.
func (st *step) done(h destination.Held) {
	st.Owned, st.ID, st.Version, st.Print, st.Intent, st.Drift = true, h.ID, h.Version, st.wanted.Print, nil, ""
	st.outcome = outcome{Status: Synced}
}

// fails notes why the name is not as it should be.
func (st *step) fails(err error) {
	st.action = action{} // nothing more is done about it
	st.outcome, st.after = failure(err), retryAfter(err)
}

// mayGo holds a deletion back until what replaces the name is certainly there.
func (s *Service) mayGo(ctx context.Context, t *target, dest destination.Destination, all []step, st *step) {
	for i := range all {
		by := &all[i]
		if by.wanted == nil && by.Do != actRefuse || !by.replaces(st) {
			continue
		}
		if by.Status != Synced {
			st.action = action{Do: actWait, Reason: fmt.Sprintf("is deleted when %q, which replaces it, is right", by.Name)}
			return
		}
		if !by.writes() || by.known {
			continue
		}
		f, err := dest.Read(ctx, by.Name)
		switch {
		case err != nil:
			st.fails(err)
			return
		case f.State != destination.Present || f.Version != by.Version || f.ID != by.ID:
			st.action = action{Do: actWait, Reason: fmt.Sprintf("is deleted when the destination shows %q, which replaces it", by.Name)}
			return
		}
		by.known = true // seen with own eyes
	}
}

// replaces reports whether a step's name holds what another name has held: the same key, or the whole secret for its keys, or
// the other way round.
func (st *step) replaces(old *step) bool {
	return st.Key == old.Key || (st.Key == "") != (old.Key == "")
}

// taken reports whether a conflict is one with another association.
func (st *step) taken() bool { return strings.HasPrefix(st.Reason, takenReason) }
