package secondary

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// job is the comparison of one unit with the primary. An empty unit is fetched page by page, with values; a small one is
// compared by the list of its keys; others by the sums of groups, then of buckets, then by the lists of the buckets that
// differ. What a page shows to be missing or different is asked for before the next page.
type job struct {
	unit    replication.Unit
	sums    bool            // the sums of the groups are wanted first
	values  bool            // pages bring the values
	groups  []int           // that differ, and were not asked for yet
	open    int             // that were asked for
	buckets *digest.Buckets // that differ; nil: all
	after   storage.Key     // everything up to it is dealt with
	until   storage.Position
	last    storage.Key
	done    bool          // the page was the last one
	want    []storage.Key // of the page, not answered yet
}

// ask is a question under way.
type ask struct {
	question replication.Message
	stale    bool // the answer is not waited for any more
}

// restart forgets the job if it is of one of the units, and the answers to its questions.
func (f *Follower) restart(affected func(replication.Unit) bool) {
	if f.job == nil || !affected(f.job.unit) {
		return
	}
	f.job = nil
	for i := range f.asked {
		f.asked[i].stale = true
	}
}

// ask returns the next question of the job, or of the next one.
func (f *Follower) ask(ctx context.Context) (replication.Message, error) {
	if f.job == nil {
		if err := f.choose(ctx); err != nil || f.job == nil {
			return nil, err
		}
	}
	j := f.job
	var m replication.Message
	switch {
	case len(j.groups) > 0 && len(f.asked) < maxAsked:
		m = replication.AskSums{Unit: j.unit, Group: j.groups[0]}
		j.groups = j.groups[1:]
		j.open++
	case len(f.asked) > 0:
		return nil, nil
	case j.sums:
		m = replication.AskSums{Unit: j.unit, Group: replication.AllGroups}
	case len(j.want) > 0:
		m = replication.AskItems{Unit: j.unit, Keys: j.want[:min(len(j.want), f.o.MaxAsk)]}
	default:
		m = replication.AskPage{Unit: j.unit, After: j.after, Buckets: j.buckets, Values: j.values}
	}
	f.asked = append(f.asked, ask{question: m})
	return m, nil
}

// Ahead returns what will be asked for once the message that has arrived is dealt with, or nil: to be sent before Receive
// is called with it, so that the primary reads the next page of a copy while this one is applied. It need not be called.
func (f *Follower) Ahead(m replication.Message) replication.Message {
	j, p := f.job, replication.Page{}
	if p, _ = m.(replication.Page); f.over != nil || f.final || j == nil || !j.values || p.Done || p.Last <= p.After {
		return nil
	}
	if len(f.asked) != 1 || f.asked[0].stale || !answers(p, f.asked[0].question) {
		return nil
	}
	q := replication.AskPage{Unit: j.unit, After: p.Last, Buckets: j.buckets, Values: true}
	f.asked = append(f.asked, ask{question: q})
	return q
}

// choose begins with the next unit that has to be fetched or compared, if the digests are there.
func (f *Follower) choose(ctx context.Context) error {
	for _, unit := range f.unfinished() {
		st := f.state.Units[unit]
		if st.Phase != replication.Checking && (st.Phase != replication.Adding || f.ready[unit]) {
			continue
		}
		j := &job{unit: unit, after: st.After, until: st.Until}
		if st.Phase == replication.Adding && st.After != "" {
			j.values = true
			f.job = j
			return nil
		}
		sums, ok := f.r.Sums(ctx, unit, replication.AllGroups)
		if !ok {
			return nil
		}
		switch n := count(sums); {
		case n == 0:
			j.values = true
		case st.List:
		case st.Phase == replication.Adding || n >= uint64(f.o.SmallUnit):
			j.sums = true
		}
		f.job = j
		return nil
	}
	return nil
}

// answer takes the answer to the first question under way.
func (f *Follower) answer(ctx context.Context, m replication.Message) error {
	if len(f.asked) == 0 {
		return fmt.Errorf("an answer that was not asked for: %w", replication.ErrProtocol)
	}
	a := f.asked[0]
	f.asked = f.asked[1:]
	if !answers(m, a.question) {
		return fmt.Errorf("a %T was answered with a %T: %w", a.question, m, replication.ErrProtocol)
	}
	if a.stale || f.job == nil {
		return nil
	}
	switch m := m.(type) {
	case replication.Sums:
		return f.sums(ctx, m)
	case replication.Page:
		return f.page(ctx, m)
	case replication.Items:
		return f.items(ctx, m)
	case replication.Gone:
		return f.rescope(ctx, replication.Scope{Version: f.state.Scope, Drop: []replication.Unit{m.Unit}})
	}
	return nil
}

// answers reports whether m may be the answer to a question.
func answers(m, question replication.Message) bool {
	gone, isGone := m.(replication.Gone)
	switch q := question.(type) {
	case replication.AskSums:
		a, ok := m.(replication.Sums)
		return ok && a.Unit == q.Unit && a.Group == q.Group && len(a.Sums) == digest.Groups || isGone && gone.Unit == q.Unit
	case replication.AskPage:
		a, ok := m.(replication.Page)
		return ok && a.Unit == q.Unit && a.After == q.After || isGone && gone.Unit == q.Unit
	case replication.AskItems:
		a, ok := m.(replication.Items)
		return ok && a.Unit == q.Unit && a.N > 0 && a.N <= len(q.Keys) || isGone && gone.Unit == q.Unit
	}
	return false
}

// sums finds the groups, and then the buckets, that differ.
func (f *Follower) sums(ctx context.Context, m replication.Sums) error {
	j := f.job
	j.until = later(j.until, m.At)
	mine, ok := f.r.Sums(ctx, m.Unit, m.Group)
	if !ok { // they are being built again: begin again when they are there
		f.restart(func(replication.Unit) bool { return true })
		return nil
	}
	f.repair.Bytes += int64(len(m.Sums)) * 24
	if m.Group == replication.AllGroups {
		j.sums = false
		if count(mine)*4 < count(m.Sums) {
			j.values = true // most of it is missing
			return nil
		}
		for group := range m.Sums {
			if mine[group] != m.Sums[group] {
				j.groups = append(j.groups, group)
			}
		}
		j.buckets = new(digest.Buckets)
	} else {
		j.open--
		for i := range m.Sums {
			if mine[i] != m.Sums[i] {
				j.buckets.Add(m.Group*digest.Groups + i)
				f.repair.Buckets++
			}
		}
	}
	if len(j.groups)+j.open > 0 || *j.buckets != (digest.Buckets{}) {
		return nil
	}
	j.done = true // nothing differs
	return f.proceed(ctx, replication.Change{}, f.state.Units[j.unit])
}

// page compares a page with the keys that are here in the same interval.
func (f *Follower) page(ctx context.Context, m replication.Page) error {
	j := f.job
	if err := f.checkItems(m.Unit, m.Items); err != nil {
		return err
	}
	if !m.Done && m.Last <= m.After {
		return fmt.Errorf("a page after %q ends at %q: %w", m.After, m.Last, replication.ErrProtocol)
	}
	j.until, j.done, j.last = later(j.until, m.At), m.Done, max(m.After, m.Last)
	end := m.Last
	if m.Done {
		end = ""
	}
	mine, err := f.r.Keys(ctx, m.Unit, m.After, end, j.buckets)
	if err != nil {
		return fmt.Errorf("listing the keys of %s: %w", m.Unit, err)
	}
	here := make(map[storage.Key]storage.Position, len(mine))
	for _, k := range mine {
		here[k.Key] = k.Mod
	}
	st := f.state.Units[j.unit]
	adding := st.Phase == replication.Adding
	c := replication.Change{}
	anchor := false
	for _, item := range m.Items {
		f.repair.Bytes += int64(len(item.Key) + len(item.Value))
		switch aside := adding && f.layout.Anchor(item.Key); {
		case aside:
			anchor = true
			if st.Anchor != nil && st.Anchor.Key == item.Key && st.Anchor.Mod == item.Mod {
				continue
			}
			if j.values {
				st.Anchor = &item
			}
		case !j.buckets.Has(item.Key):
			continue // an anchor that does not differ
		case here[item.Key] == item.Mod && !(st.List && f.state.Diverged.Before(item.Mod)):
			delete(here, item.Key)
			continue
		default:
			delete(here, item.Key)
			if j.values {
				c.Puts = append(c.Puts, item)
			}
		}
		if !j.values {
			j.want = append(j.want, item.Key)
		}
	}
	if m.Done && adding && !anchor && st.Anchor != nil && j.buckets.Has(st.Anchor.Key) {
		st.Anchor = nil // one outside of the buckets came by the stream since they were compared
	}
	for _, k := range mine {
		if _, extra := here[k.Key]; extra {
			c.Deletes = append(c.Deletes, k.Key)
		}
	}
	return f.proceed(ctx, c, st)
}

// items takes what the page showed to be missing or different.
func (f *Follower) items(ctx context.Context, m replication.Items) error {
	j := f.job
	if err := f.checkItems(m.Unit, m.Items); err != nil {
		return err
	}
	j.until = later(j.until, m.At)
	st := f.state.Units[j.unit]
	adding := st.Phase == replication.Adding
	if m.N > len(j.want) {
		return fmt.Errorf("%d answers to %d questions: %w", m.N, len(j.want), replication.ErrProtocol)
	}
	answered := make(map[storage.Key]bool, m.N)
	for _, key := range j.want[:m.N] {
		answered[key] = true
	}
	c := replication.Change{}
	for _, item := range m.Items {
		if !answered[item.Key] {
			return fmt.Errorf("an item that was not asked for: %w", replication.ErrProtocol)
		}
		delete(answered, item.Key)
		f.repair.Bytes += int64(len(item.Key) + len(item.Value))
		if adding && f.layout.Anchor(item.Key) {
			st.Anchor = &item
		} else {
			c.Puts = append(c.Puts, item)
		}
	}
	for _, key := range j.want[:m.N] { // what is not among the items does not exist any more
		switch {
		case !answered[key]:
		case !adding || !f.layout.Anchor(key):
			c.Deletes = append(c.Deletes, key)
		case st.Anchor != nil && st.Anchor.Key == key:
			st.Anchor = nil
		}
	}
	j.want = j.want[m.N:]
	return f.proceed(ctx, c, st)
}

// checkItems refuses what is not of the unit.
func (f *Follower) checkItems(unit replication.Unit, items []replication.Item) error {
	for i := range items {
		of, ok := f.layout.Unit(items[i].Key)
		if !ok || of != unit || items[i].Key.Class() != storage.Shared || items[i].Mod.Epoch == 0 || items[i].Mod.Index == 0 {
			return fmt.Errorf("an item that is not of %s: %w", unit, replication.ErrProtocol)
		}
	}
	return nil
}

// proceed commits what an answer led to, and, when nothing more of the page is wanted, that everything up to its end is
// dealt with. st is the unit's state, perhaps with another anchor.
func (f *Follower) proceed(ctx context.Context, c replication.Change, st replication.UnitState) error {
	j := f.job
	anchored := st.Anchor != f.state.Units[j.unit].Anchor
	finished := len(j.want) == 0
	if finished {
		j.after = max(j.after, j.last)
		st.After, st.Until = j.after, j.until
		if j.done {
			f.repair.Units++
			f.job = nil
			if st.Phase == replication.Adding {
				f.ready[j.unit] = true
			} else {
				st = replication.UnitState{Phase: replication.Whole, Until: j.until, Attempts: st.Attempts}
			}
		}
	}
	if finished || anchored {
		c.Units = map[replication.Unit]*replication.UnitState{j.unit: &st}
	}
	f.repair.Keys += len(c.Puts) + len(c.Deletes)
	if len(c.Puts)+len(c.Deletes)+len(c.Units) == 0 {
		return nil
	}
	slices.SortFunc(c.Puts, func(a, b replication.Item) int { return strings.Compare(string(a.Key), string(b.Key)) })
	if err := f.commit(ctx, c); err != nil {
		return err
	}
	return f.finishUnits(ctx)
}

// later returns the later one of two positions of one history.
func later(p, q storage.Position) storage.Position {
	if p.Before(q) {
		return q
	}
	return p
}
