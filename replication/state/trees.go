package state

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// Trees has the digests of all units, and where their anchors are, on the active node. They are built from the state and
// brought up to date from the log of changes, whose records say what was there before; if the log has a gap, they are
// built again. They are in memory only: a large unit takes 1.5 MiB, a small one some bytes for each key.
type Trees struct {
	l *Local

	mu      sync.Mutex
	built   bool
	at      storage.Index // everything up to here is in them
	as      resolver      // by which positions were understood
	units   map[replication.Unit]*digest.Tree
	anchors map[replication.Unit]map[storage.Key]bool
	changed Signal // built
}

const (
	treesChunk = 4 << 20                // of the log at a time
	treesPace  = 250 * time.Millisecond // between two reads of the log without a request
)

func NewTrees(l *Local) *Trees { return &Trees{l: l} }

// Run builds the trees, and builds them again when that is necessary, until ctx ends.
func (t *Trees) Run(ctx context.Context) {
	tick := time.NewTicker(treesPace)
	defer tick.Stop()
	for {
		changed := t.changed.Wait()
		switch err := t.advance(); {
		case err == nil:
		case !t.l.o.Log.Active(): // there is no cluster to compare with
		default:
			began := time.Now()
			err := t.Build(ctx)
			if err != nil && ctx.Err() == nil {
				t.l.log.Warn("building the digests of shared data", "err", err)
			}
			if err == nil {
				t.mu.Lock()
				at, units := t.at, len(t.units)
				t.mu.Unlock()
				t.l.log.Info("built the digests of shared data", "index", uint64(at), "units", units, "seconds", time.Since(began).Seconds())
			}
		}
		select {
		case <-tick.C:
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// content is what trees are made of.
type content struct {
	layout  replication.Layout
	as      resolver
	units   map[replication.Unit]*digest.Tree
	anchors map[replication.Unit]map[storage.Key]bool
}

func (c *content) tree(unit replication.Unit) *digest.Tree {
	t := c.units[unit]
	if t == nil {
		t = digest.New()
		c.units[unit] = t
	}
	return t
}

func (c *content) put(unit replication.Unit, key storage.Key, mod storage.Position) {
	c.tree(unit).Add(key, mod)
	if c.layout.Anchor(key) {
		if c.anchors[unit] == nil {
			c.anchors[unit] = map[storage.Key]bool{}
		}
		c.anchors[unit][key] = true
	}
}

func (c *content) remove(unit replication.Unit, key storage.Key, mod storage.Position) {
	t := c.tree(unit)
	t.Remove(key, mod)
	if t.Root().Count == 0 {
		delete(c.units, unit)
	}
	if c.layout.Anchor(key) {
		if delete(c.anchors[unit], key); len(c.anchors[unit]) == 0 {
			delete(c.anchors, unit)
		}
	}
}

// record makes up for one record of the log.
func (c *content) record(r *storage.Record) {
	for i := range r.Ops {
		op := &r.Ops[i]
		unit, ok := c.layout.Unit(op.Key)
		if !ok {
			continue
		}
		if !op.Prior.IsZero() {
			c.remove(unit, op.Key, c.as.position(op.Prior))
		}
		if !op.Deleted {
			c.put(unit, op.Key, c.as.mod(op.Origin, r.Index))
		}
	}
}

// Build makes the trees from the state.
func (t *Trees) Build(ctx context.Context) error {
	z, as, err := t.l.freeze(ctx)
	if err != nil {
		return err
	}
	defer z.Close()
	c := content{layout: t.l.o.Layout, as: as, units: map[replication.Unit]*digest.Tree{}, anchors: map[replication.Unit]map[storage.Key]bool{}}
	n := 0
	err = z.Walk(ctx, sharedPrefix, "", func(key storage.Key, mod storage.Position, _ []byte) bool {
		if unit, ok := c.layout.Unit(key); ok {
			c.put(unit, key, as.position(mod))
		}
		n++
		return n%1024 != 0 || ctx.Err() == nil
	})
	if err = errors.Join(err, ctx.Err()); err != nil {
		return fmt.Errorf("reading the state: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.built, t.at, t.as, t.units, t.anchors = true, z.Index(), as, c.units, c.anchors
	t.changed.Raise()
	return nil
}

// errNotBuilt says that the trees are not there yet, or not any more.
var errNotBuilt = errors.New("the digests are being built")

// advance brings the trees up to what is applied. Afterwards an error says that they have to be built.
func (t *Trees) advance() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.advanceLocked()
}

func (t *Trees) advanceLocked() error {
	if !t.built {
		return errNotBuilt
	}
	for {
		records, through, err := t.l.records(t.at, treesChunk)
		if err != nil {
			return t.dropLocked(err)
		}
		as := t.l.resolver() // not older than the records
		if !t.understoodAsLocked(as) {
			return t.dropLocked(errors.New("the history of the set has changed"))
		}
		c := content{layout: t.l.o.Layout, as: as, units: t.units, anchors: t.anchors}
		for i := range records {
			c.record(&records[i])
		}
		t.as = as
		if t.at = max(t.at, through); len(records) == 0 {
			return nil
		}
	}
}

func (t *Trees) dropLocked(why error) error {
	t.l.log.Info("the digests of shared data are built again", "reason", why.Error())
	t.built, t.units, t.anchors = false, nil, nil
	t.changed.Raise()
	return errNotBuilt
}

// understoodAsLocked reports whether positions up to t.at mean the same with another history: of the cluster's own epochs
// there may only be more, that begin later.
func (t *Trees) understoodAsLocked(as resolver) bool {
	was, is := t.as.own(), as.own()
	if t.as.clusterID != as.clusterID || len(is) < len(was) {
		return false
	}
	for i, b := range is {
		switch {
		case i < len(was) && (b.Epoch != was[i].Epoch || b.Base != was[i].Base):
			return false
		case i >= len(was) && b.Base <= t.at:
			return false
		}
	}
	return true
}

// ready waits until there are trees.
func (t *Trees) ready(ctx context.Context) error {
	for {
		changed := t.changed.Wait()
		if t.advance() == nil {
			return nil
		}
		select {
		case <-changed:
		case <-time.After(treesPace): // a log that is not yet active announces nothing
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Roots returns the sums of all units, and the index they are of. false: not built.
func (t *Trees) Roots() (storage.Index, map[replication.Unit]digest.Sum, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.advanceLocked() != nil {
		return 0, nil, false
	}
	roots := make(map[replication.Unit]digest.Sum, len(t.units))
	for unit, tree := range t.units {
		roots[unit] = tree.Root()
	}
	return t.at, roots, true
}

// sums returns the sums of a unit's groups, or of the buckets of a group. false: not built.
func (t *Trees) sums(unit replication.Unit, group int) ([]digest.Sum, storage.Index, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.advanceLocked() != nil {
		return nil, 0, false
	}
	tree := t.units[unit]
	if tree == nil {
		return make([]digest.Sum, digest.Groups), t.at, true
	}
	return tree.Sums(group), t.at, true
}

// Whole returns the sum of everything. false: not built.
func (t *Trees) Whole() (sum digest.Sum, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.advanceLocked() != nil {
		return sum, false
	}
	for _, tree := range t.units {
		sum.Add(tree.Root())
	}
	return sum, true
}

// Count returns how many keys there are. 0 while the trees are built.
func (t *Trees) Count(in func(replication.Unit) bool) (n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for unit, tree := range t.units {
		if in(unit) {
			n += tree.Root().Count
		}
	}
	return n
}

// anchorsOf returns where a unit's anchor is: usually one key. It waits until the trees are built.
func (t *Trees) anchorsOf(ctx context.Context, unit replication.Unit) ([]storage.Key, error) {
	for {
		if err := t.ready(ctx); err != nil {
			return nil, err
		}
		t.mu.Lock()
		built := t.advanceLocked() == nil
		var keys []storage.Key
		for key := range t.anchors[unit] {
			keys = append(keys, key)
		}
		t.mu.Unlock()
		if built {
			slices.Sort(keys)
			return keys, nil
		}
	}
}
