package secondary

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// welcome takes over the primary's history and scope. Units that are held stay as they are if the stream goes on where it
// ended, unless they have something that the history may not have; otherwise they are compared.
func (f *Follower) welcome(ctx context.Context, w replication.Welcome) error {
	if err := f.acceptable(w); err != nil {
		return err
	}
	f.collided = f.collided || w.Diverged && collide(f.state.Lineage, w.Lineage)
	units, compare, ahead := f.place(w)
	c := replication.Change{Lineage: w.Lineage, Scope: &w.Scope, Units: map[replication.Unit]*replication.UnitState{}}
	for unit, st := range units {
		if before, held := f.state.Units[unit]; !held || before != st {
			c.Units[unit] = &st
		}
	}
	switch {
	case w.Diverged:
		c.Diverged = f.diverged(w.Common)
	case ahead:
		common, _ := w.Lineage.Common(f.state.Lineage)
		c.Diverged = f.diverged(common)
	}
	cause := "scope"
	switch {
	case c.Diverged != nil:
		cause = "diverged"
	case f.state.Cursor.IsZero():
		cause = "first copy"
	case !w.Resume:
		cause = "position not kept"
	}
	f.at, f.welcomed, f.primaryID = w.Start, true, w.ClusterID
	f.begin(cause, compare)
	return f.commit(ctx, c)
}

func (f *Follower) acceptable(w replication.Welcome) error {
	switch {
	case w.SetID != f.o.SetID:
		return replication.ErrOtherSet
	case w.Proto != replication.ProtocolVersion || w.Lineage.Epoch() == 0 || len(w.Units) == 0:
		return fmt.Errorf("welcomed with version %d, epoch %d and %d units: %w", w.Proto, w.Lineage.Epoch(), len(w.Units), replication.ErrProtocol)
	case w.Lineage.Epoch() < f.state.Lineage.Epoch():
		return fmt.Errorf("the primary is of epoch %d, and this cluster has seen %d: %w", w.Lineage.Epoch(), f.state.Lineage.Epoch(), replication.ErrFenced)
	case w.Resume && w.Start != f.state.Cursor, w.Start.IsZero():
		return fmt.Errorf("the stream begins at %s, and this is at %s: %w", w.Start, f.state.Cursor, replication.ErrProtocol)
	}
	return nil
}

// place returns the states of all units after a welcome, and how many there are to compare or fetch. ahead: something was
// fetched from behind the point where the history was left.
func (f *Follower) place(w replication.Welcome) (units map[replication.Unit]replication.UnitState, compare int, ahead bool) {
	changed := !slices.Equal(w.Lineage, f.state.Lineage)
	units = maps.Clone(f.state.Units)
	inScope := make(map[replication.Unit]bool, len(w.Units))
	for _, unit := range w.Units {
		inScope[unit] = true
	}
	for unit := range f.adopted {
		switch {
		case !f.state.Cursor.IsZero():
			units[unit] = replication.UnitState{Phase: replication.Whole}
		case !inScope[unit]:
			units[unit] = replication.UnitState{Phase: replication.Dropping}
		}
	}
	for unit, st := range units {
		ahead = ahead || changed && !st.Until.IsZero() && !w.Lineage.Contains(st.Until)
		if !inScope[unit] && st.Phase != replication.Dropping {
			units[unit] = replication.UnitState{Phase: replication.Dropping}
		}
	}
	for unit := range inScope {
		st, held := units[unit]
		switch {
		case !held:
			st = replication.UnitState{Phase: replication.Adding}
		case st.Phase == replication.Dropping:
			f.wanted[unit] = true
		case !w.Resume || changed && (st.Phase != replication.Whole || f.state.Cursor.Before(st.Until)):
			// What was fetched of another history may be of a place that this one does not have.
			st = again(st)
		}
		if st.Phase == replication.Adding || st.Phase == replication.Checking {
			st.List = st.List || f.collided
			compare++
		}
		units[unit] = st
	}
	return units, compare, ahead
}

// diverged returns what State.Diverged becomes if the primary's history was left at common: the earlier one of two.
func (f *Follower) diverged(common storage.Position) *storage.Position {
	if d := f.state.Diverged; !d.IsZero() && d.Before(common) {
		common = d
	}
	if common.IsZero() { // nothing in common: everything is only here
		common = storage.Position{Epoch: 1}
	}
	return &common
}

// again returns the state of a unit that must be compared from its beginning.
func again(st replication.UnitState) replication.UnitState {
	if st.Phase == replication.Adding {
		return replication.UnitState{Phase: replication.Adding, Attempts: st.Attempts, List: st.List}
	}
	return replication.UnitState{Phase: replication.Checking, Attempts: st.Attempts, List: st.List}
}

// collide reports whether two histories have epochs of one number that are not the same.
func collide(l, m storage.Lineage) bool {
	for _, a := range l {
		for _, b := range m {
			if a.Epoch == b.Epoch && (a.ClusterID != b.ClusterID || a.From != b.From) {
				return true
			}
		}
	}
	return false
}

// rescope follows a change of the scope.
func (f *Follower) rescope(ctx context.Context, m replication.Scope) error {
	c := replication.Change{Scope: &m.Version, Units: map[replication.Unit]*replication.UnitState{}}
	gone := map[replication.Unit]bool{}
	for _, unit := range m.Drop {
		if st, held := f.state.Units[unit]; held && st.Phase != replication.Dropping {
			c.Units[unit] = &replication.UnitState{Phase: replication.Dropping}
		}
		delete(f.wanted, unit)
		delete(f.ready, unit)
		gone[unit] = true
	}
	add := func(units []replication.Unit, st replication.UnitState) (added int) {
		for _, unit := range units {
			if held, ok := f.state.Units[unit]; ok || gone[unit] {
				if gone[unit] || held.Phase == replication.Dropping {
					f.wanted[unit] = true
				}
				continue
			}
			state := st
			c.Units[unit] = &state
			added++
		}
		return added
	}
	f.begin("scope", add(m.Add, replication.UnitState{Phase: replication.Adding}))
	add(m.New, replication.UnitState{Phase: replication.Whole})
	f.restart(func(unit replication.Unit) bool { return gone[unit] })
	if err := f.commit(ctx, c); err != nil {
		return err
	}
	return f.finishUnits(ctx)
}

// batch applies entries, or moves the position if there are none for this cluster.
func (f *Follower) batch(ctx context.Context, b replication.Batch) error {
	if b.Prev != f.at || b.Last.Before(b.Prev) {
		return fmt.Errorf("a batch of (%s, %s], and this is at %s: %w", b.Prev, b.Last, f.at, replication.ErrProtocol)
	}
	c, timeMS, err := f.merge(b.Entries)
	if err != nil {
		return err
	}
	f.at = b.Last
	f.credit += b.Bytes
	f.entries += uint64(len(b.Entries))
	f.bytes += b.Bytes
	f.timeMS = max(f.timeMS, timeMS)
	was := f.exact // when the cursor was stored last
	if len(c.Puts)+len(c.Deletes)+len(c.Units) > 0 || f.late() || !was && f.isExact() {
		if err := f.commit(ctx, c); err != nil {
			return err
		}
	}
	return f.finishUnits(ctx)
}

// late reports whether the cursor has to be stored although nothing was applied.
func (f *Follower) late() bool {
	stored := f.state.Cursor
	return stored.Epoch != f.at.Epoch || f.at.Index >= stored.Index+lazyIndexes || f.r.NowMS()-f.storedMS >= lazyMS
}

// merge makes one change of entries: the last op on a key counts. Ops of units that are not held are left out; an anchor
// of a unit that is being added is kept aside.
func (f *Follower) merge(entries []replication.Entry) (c replication.Change, timeMS int64, err error) {
	last := map[storage.Key]replication.Op{}
	c.Units = map[replication.Unit]*replication.UnitState{}
	for _, e := range entries {
		timeMS = max(timeMS, e.TimeMS)
		for _, op := range e.Ops {
			unit, ok := f.layout.Unit(op.Key)
			if !ok || op.Key.Class() != storage.Shared || !op.Delete && (op.Mod.Epoch == 0 || op.Mod.Index == 0) {
				return replication.Change{}, 0, fmt.Errorf("entry %s has an op that does not replicate: %w", e.At, replication.ErrProtocol)
			}
			st, held := f.state.Units[unit]
			if c.Units[unit] != nil {
				st = *c.Units[unit]
			}
			switch {
			case !held || st.Phase == replication.Dropping:
			case st.Phase == replication.Adding && f.layout.Anchor(op.Key):
				if !op.Delete {
					item := op.Item
					st.Anchor = &item
				} else if st.Anchor != nil && st.Anchor.Key == op.Key {
					st.Anchor = nil
				}
				c.Units[unit] = &st
			default:
				last[op.Key] = op
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(last)) {
		if op := last[key]; op.Delete {
			c.Deletes = append(c.Deletes, key)
		} else {
			c.Puts = append(c.Puts, op.Item)
		}
	}
	return c, timeMS, nil
}

// finishUnits makes units visible that are complete, and have become exact: namespaces all at once and before mounts.
func (f *Follower) finishUnits(ctx context.Context) error {
	if len(f.ready) > 0 {
		if err := f.publish(ctx); err != nil {
			return err
		}
	}
	if !f.state.Diverged.IsZero() && f.isExact() && !f.drops() {
		if err := f.commit(ctx, replication.Change{Diverged: new(storage.Position)}); err != nil {
			return err
		}
	}
	f.end()
	return nil
}

func (f *Follower) publish(ctx context.Context) error {
	const none = 3
	waiting := none // lowest rank of a unit that is not there yet
	for unit := range f.open {
		st := f.state.Units[unit]
		if st.Phase == replication.Adding && (!f.ready[unit] || f.at.Before(st.Until)) {
			waiting = min(waiting, rank(unit))
		}
	}
	c := replication.Change{Units: map[replication.Unit]*replication.UnitState{}}
	for _, unit := range slices.Sorted(maps.Keys(f.ready)) {
		st, held := f.state.Units[unit]
		if !held || st.Phase != replication.Adding {
			delete(f.ready, unit)
			continue
		}
		if f.at.Before(st.Until) || rank(unit) > waiting || rank(unit) == waiting && waiting == 1 {
			continue
		}
		if st.Anchor != nil {
			c.Puts = append(c.Puts, *st.Anchor)
		}
		c.Units[unit] = &replication.UnitState{Phase: replication.Whole, Until: st.Until, Attempts: st.Attempts}
	}
	if len(c.Units) == 0 {
		return nil
	}
	if err := f.commit(ctx, c); err != nil {
		return err
	}
	for unit := range c.Units {
		delete(f.ready, unit)
	}
	return nil
}

// checkpoint compares the units that are exact with what the primary says of them. One that differs is compared key by
// key, twice at most; then it stays as it is until an operator asks for a repair, or a checkpoint agrees.
func (f *Follower) checkpoint(ctx context.Context, m replication.Checkpoint) error {
	if m.At != f.at {
		return fmt.Errorf("a checkpoint of %s, and this is at %s: %w", m.At, f.at, replication.ErrProtocol)
	}
	if f.repair != nil {
		f.repair.Estimated = 0
		for _, root := range m.Roots {
			f.repair.Estimated += int64(root.Count)
		}
	}
	roots, ok := f.r.Digests(ctx)
	if !ok {
		return nil
	}
	c := replication.Change{Units: map[replication.Unit]*replication.UnitState{}}
	compare := 0
	for unit, st := range f.state.Units {
		if st.Phase != replication.Quarantined && st.Phase != replication.Whole || f.at.Before(st.Until) {
			continue
		}
		same := roots[unit] == m.Roots[unit]
		switch {
		case same && (st.Phase == replication.Quarantined || st.Attempts > 0):
			c.Units[unit] = &replication.UnitState{Phase: replication.Whole}
		case same || st.Phase == replication.Quarantined:
		case st.Attempts >= maxAttempts:
			c.Units[unit] = &replication.UnitState{Phase: replication.Quarantined, Attempts: st.Attempts}
		default:
			c.Units[unit] = &replication.UnitState{Phase: replication.Checking, Attempts: st.Attempts + 1}
			compare++
		}
	}
	if len(c.Units) == 0 {
		return nil
	}
	f.begin("checkpoint", compare)
	return f.commit(ctx, c)
}

// drops reports whether a unit is being dropped.
func (f *Follower) drops() bool {
	for unit := range f.open {
		if f.state.Units[unit].Phase == replication.Dropping {
			return true
		}
	}
	return false
}

// drop deletes some of a unit that left the scope. One that has come back into it meanwhile is fetched again afterwards.
func (f *Follower) drop(ctx context.Context) error {
	f.dropping = false
	for _, unit := range f.unfinished() {
		if f.state.Units[unit].Phase != replication.Dropping || !f.o.Handouts.Ended(unit) {
			continue
		}
		f.dropping = true
		done, err := f.remove(ctx, unit)
		if err != nil {
			return fmt.Errorf("deleting %s: %w", unit, err)
		}
		if !done {
			return nil
		}
		c := replication.Change{Units: map[replication.Unit]*replication.UnitState{unit: nil}}
		if f.wanted[unit] {
			delete(f.wanted, unit)
			c.Units[unit] = &replication.UnitState{Phase: replication.Adding}
			f.begin("scope", 1)
		}
		if err := f.commit(ctx, c); err != nil {
			return err
		}
		return f.finishUnits(ctx)
	}
	return nil
}

// remove deletes some keys of a unit. While a divergence is repaired it does so itself, for the copies.
func (f *Follower) remove(ctx context.Context, unit replication.Unit) (done bool, err error) {
	if f.state.Diverged.IsZero() {
		return f.r.Drop(ctx, unit)
	}
	if f.victimsOf != unit {
		keys, err := f.r.Keys(ctx, unit, "", "", nil)
		if err != nil {
			return false, err
		}
		slices.SortStableFunc(keys, func(a, b replication.KeyMod) int { // the anchor first
			switch anchor := f.layout.Anchor(a.Key); {
			case anchor == f.layout.Anchor(b.Key):
				return 0
			case anchor:
				return -1
			default:
				return 1
			}
		})
		f.victims, f.victimsOf = keys, unit
	}
	var c replication.Change
	for _, k := range f.victims[:min(dropKeys, len(f.victims))] {
		c.Deletes = append(c.Deletes, k.Key)
	}
	if len(c.Deletes) > 0 {
		if err := f.commit(ctx, c); err != nil {
			return false, err
		}
	}
	f.victims = f.victims[len(c.Deletes):]
	if done = len(f.victims) == 0; done {
		f.victimsOf = ""
	}
	return done, nil
}

// count adds up the items of sums.
func count(sums []digest.Sum) uint64 {
	var n uint64
	for _, s := range sums {
		n += s.Count
	}
	return n
}
