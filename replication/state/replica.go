package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// Replica is the Replica of this node's cluster.
type Replica struct {
	l       *Local
	trees   *Trees
	cursor  storedCursor
	version storage.Index // of the cursor's entry, 0: there is none
	units   map[replication.Unit]replication.UnitState
	open    map[replication.Unit]bool // of these, those that were not exact
}

var _ replication.Replica = (*Replica)(nil)

// NewReplica returns the Replica of this node's cluster.
func NewReplica(l *Local, t *Trees) *Replica { return &Replica{l: l, trees: t} }

// Load implements Replica.
func (r *Replica) Load(ctx context.Context) (replication.State, error) {
	c, version, err := readCursor(ctx, r.l.o.Store)
	if err != nil {
		return replication.State{}, err
	}
	if version == 0 {
		if c.Conflicts, err = r.l.nextConflict(ctx); err != nil {
			return replication.State{}, err
		}
	}
	units, err := readUnits(ctx, r.l.o.Store)
	if err != nil {
		return replication.State{}, err
	}
	r.cursor, r.version, r.units, r.open = c, version, maps.Clone(units), map[replication.Unit]bool{}
	for unit := range units {
		r.open[unit] = true
	}
	return replication.State{Cursor: c.Cursor, Lineage: c.Lineage, Diverged: c.Diverged, Scope: c.Scope, Units: units}, nil
}

// Commit implements Replica.
func (r *Replica) Commit(ctx context.Context, c replication.Change) error {
	next := r.cursor
	next.Part = false
	if c.Cursor != nil {
		next.Cursor = *c.Cursor
	}
	if c.TimeMS != 0 {
		next.TimeMS = c.TimeMS
	}
	if c.Lineage != nil {
		next.Lineage = c.Lineage
	}
	if c.Diverged != nil {
		next.Diverged = *c.Diverged
	}
	if c.Scope != nil {
		next.Scope = *c.Scope
	}
	w := &writer{r: r, ctx: ctx}
	if changeBytes(&c) > partBytes {
		w.announce(&c, next.Cursor)
	}
	w.conflicts = next.Conflicts
	for i := range c.Lost {
		w.conflict(&c.Lost[i])
	}
	next.Conflicts = w.conflicts
	var last []storage.Put // anchors make visible: they come with the end
	for _, key := range c.Deletes {
		w.remove(key)
	}
	for _, item := range c.Puts {
		put := storage.Put{Key: item.Key, Value: item.Value, Origin: item.Mod}
		if r.l.o.Layout.Anchor(item.Key) {
			last = append(last, put)
			continue
		}
		w.put(put)
	}
	for _, put := range last {
		w.put(put)
	}
	for _, unit := range slices.Sorted(maps.Keys(c.Units)) {
		key := unitPrefix + storage.Key(unit)
		if state := c.Units[unit]; state != nil {
			w.put(storage.Put{Key: key, Value: encodeStored(storedUnit{Format: unitFormat, UnitState: *state})})
		} else {
			w.remove(key)
		}
	}
	next.Exact = r.exact(&c, &next)
	w.commit(next)
	return w.err
}

// exact notes what the change does to the units, and reports whether then all of them are exact.
func (r *Replica) exact(c *replication.Change, next *storedCursor) bool {
	for unit, state := range c.Units {
		if state == nil {
			delete(r.units, unit)
			delete(r.open, unit)
		} else {
			r.units[unit] = *state
			r.open[unit] = true
		}
	}
	for unit := range r.open {
		if st := r.units[unit]; st.Phase == replication.Whole && !next.Cursor.Before(st.Until) {
			delete(r.open, unit)
		}
	}
	return len(r.open) == 0 && next.Diverged.IsZero()
}

// changeBytes is about how much a change writes.
func changeBytes(c *replication.Change) (n int) {
	for i := range c.Puts {
		n += len(c.Puts[i].Key) + len(c.Puts[i].Value)
	}
	for _, key := range c.Deletes {
		n += len(key)
	}
	for i := range c.Lost {
		n += len(c.Lost[i].Key) + len(c.Lost[i].Value) + 512
	}
	return n
}

// announce says, before a change that takes several writes, that the units it touches are not exact until its end.
func (w *writer) announce(c *replication.Change, end storage.Position) {
	touched := map[replication.Unit]bool{}
	touch := func(key storage.Key) {
		if unit, ok := w.r.l.o.Layout.Unit(key); ok {
			touched[unit] = true
		}
	}
	for i := range c.Puts {
		touch(c.Puts[i].Key)
	}
	for _, key := range c.Deletes {
		touch(key)
	}
	for _, unit := range slices.Sorted(maps.Keys(touched)) {
		if st, ok := w.r.units[unit]; ok && st.Phase == replication.Whole && st.Until.Before(end) {
			st.Until = end
			w.r.units[unit], w.r.open[unit] = st, true
			w.put(storage.Put{Key: unitPrefix + storage.Key(unit), Value: encodeStored(storedUnit{Format: unitFormat, UnitState: st})})
		}
	}
	w.flush()
}

// writer makes one step of batches that are not too large. Each has the cursor's entry as of the one before as a
// precondition, and writes it.
type writer struct {
	r     *Replica
	ctx   context.Context // of the step
	batch storage.Batch
	bytes int
	err   error

	conflicts uint64 // the counter, with the copies in batch
}

// partBytes is how large a batch becomes, in keys and values, if its last part is not very large itself.
const partBytes = storage.MaxBatchBytes - storage.MaxValueBytes - 2*storage.MaxKeyBytes

func (w *writer) put(p storage.Put) {
	w.room(len(p.Key) + len(p.Value))
	w.batch.Puts = append(w.batch.Puts, p)
}

func (w *writer) remove(key storage.Key) {
	w.room(len(key))
	w.batch.Deletes = append(w.batch.Deletes, key)
}

func (w *writer) room(n int) {
	if w.bytes+n > partBytes {
		w.flush()
	}
	w.bytes += n
}

// flush writes what there is as a part.
func (w *writer) flush() {
	if w.bytes > 0 {
		w.commit(w.part())
	}
}

// part returns the cursor's entry for a write that is not the last of a step.
func (w *writer) part() storedCursor {
	part := w.r.cursor
	part.Part, part.Exact = true, false
	part.Conflicts = max(part.Conflicts, w.conflicts) // of copies that are written already no number is used again
	return part
}

func (w *writer) commit(c storedCursor) {
	if w.err != nil {
		return
	}
	w.batch.Reads = []storage.Read{{Key: replication.CursorKey, Version: w.r.version}}
	w.batch.Puts = append(w.batch.Puts, storage.Put{Key: replication.CursorKey, Value: encodeStored(c)})
	index, err := w.r.l.o.Store.Commit(w.ctx, w.batch)
	if err != nil {
		w.err = fmt.Errorf("writing what came from the primary: %w", err)
		return
	}
	w.r.cursor, w.r.version = c, index
	w.batch, w.bytes = storage.Batch{}, 0
}

// conflict keeps a copy of what is about to be replaced, and forgets the oldest copy if there are many.
func (w *writer) conflict(lost *replication.Conflict) {
	n := w.conflicts
	w.conflicts++
	w.put(storage.Put{Key: conflictKey(conflictPrefix, n), Value: encodeStored(storedConflict{
		Format: conflictFormat, Key: lost.Key, Mine: lost.Mod, Theirs: lost.Theirs, At: time.Now().UTC(),
	})})
	w.put(storage.Put{Key: conflictKey(conflictValuePrefix, n), Value: lost.Value})
	if n >= maxConflicts {
		w.remove(conflictKey(conflictPrefix, n-maxConflicts))
		w.remove(conflictKey(conflictValuePrefix, n-maxConflicts))
	}
}

// nextConflict returns the number that the next copy gets, when the cursor does not say it.
func (l *Local) nextConflict(ctx context.Context) (uint64, error) {
	names, err := l.o.Store.List(ctx, conflictPrefix, "", 0)
	if err != nil || len(names) == 0 {
		return 0, err
	}
	n, err := strconv.ParseUint(names[len(names)-1], 16, 64)
	if err != nil {
		return 0, errors.New("a copy of a conflict has no number")
	}
	return n + 1, nil
}

func conflictKey(prefix storage.Key, n uint64) storage.Key {
	return prefix + storage.Key(fmt.Sprintf("%016x", n))
}

// Keys implements Replica.
func (r *Replica) Keys(ctx context.Context, unit replication.Unit, after, until storage.Key, buckets *digest.Buckets) ([]replication.KeyMod, error) {
	z, as, anchors, err := r.l.anchors(ctx, r.trees, unit)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	var keys []replication.KeyMod
	err = r.l.walkUnit(ctx, z, unit, after, func(f found) bool {
		if until != "" && f.key > until {
			return false
		}
		if buckets.Has(f.key) {
			keys = append(keys, replication.KeyMod{Key: f.key, Mod: as.position(f.mod)})
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if until == "" {
		for _, e := range anchors {
			if buckets.Has(e.Key) {
				keys = append(keys, replication.KeyMod{Key: e.Key, Mod: as.modOf(e)})
			}
		}
		slices.SortFunc(keys, func(a, b replication.KeyMod) int { return strings.Compare(string(a.Key), string(b.Key)) })
	}
	return keys, nil
}

// Get implements Replica.
func (r *Replica) Get(ctx context.Context, key storage.Key) (replication.Item, error) {
	e, err := r.l.o.Store.Get(ctx, key)
	if err != nil {
		return replication.Item{}, err
	}
	return replication.Item{Key: key, Value: bytes.Clone(e.Value), Mod: r.l.resolver().modOf(e)}, nil
}

// dropAtOnce is how many keys one call of Drop removes.
const dropAtOnce = 1000

// Drop implements Replica.
func (r *Replica) Drop(ctx context.Context, unit replication.Unit) (done bool, err error) {
	z, _, anchors, err := r.l.anchors(ctx, r.trees, unit)
	if err != nil {
		return false, err
	}
	defer z.Close()
	w := &writer{r: r, ctx: ctx}
	for _, e := range anchors {
		w.remove(e.Key)
	}
	n := 0
	if len(anchors) == 0 { // else the unit disappears before its contents do
		err = r.l.walkUnit(ctx, z, unit, "", func(f found) bool {
			if n == dropAtOnce {
				return false
			}
			n++
			w.remove(f.key)
			return true
		})
		if err != nil || n == 0 {
			return err == nil, err
		}
	}
	w.commit(w.part()) // the unit's state still says that it is being dropped
	return false, w.err
}

// Digests implements Replica.
func (r *Replica) Digests(context.Context) (map[replication.Unit]digest.Sum, bool) {
	_, roots, ok := r.trees.Roots()
	return roots, ok
}

// Sums implements Replica.
func (r *Replica) Sums(_ context.Context, unit replication.Unit, group int) ([]digest.Sum, bool) {
	sums, _, ok := r.trees.sums(unit, group)
	return sums, ok
}

// NowMS implements Replica.
func (r *Replica) NowMS() int64 { return time.Now().UnixMilli() }
