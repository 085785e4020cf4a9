package replication_test

import (
	"bytes"
	"context"
	"slices"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/storage"
)

// What must always hold. The numbers are those of the list in DESIGN.md:
//
//	 1 checkSecondary, checkArrived   2 checkChange (the cursor never goes back)   3 checkSecondary (an entry that was skipped, or
//	applied twice in the wrong order, is a difference)   4, 5 checkNodes   6 checkMessage   7 checkChange (a unit that is gone
//	has left nothing)   8 checkSecondary (no anchor before the rest)   9 checkChange (nothing but replicated keys is
//	written), checkNodes   10 damage   11 converge, damage   12 checkMessage (revoked); one-time secrets are not part of the model: package
//	enrol tests them   13 onePrimary and the precondition of world.shared; that two primaries that do not see each other both write is
//	part of the simulation   14, 15 follow from 1 and 2   16 enrol is the only step that wipes, by construction

// checkMessage looks at everything that leaves a primary.
func (w *world) checkMessage(l *link, m replication.Message) {
	st := l.conn.src.n.st
	p, ok := st.peers[l.sec.name]
	switch m.(type) {
	case replication.Reject, replication.Welcome: // ids only, of the moment when Hello came
		return
	}
	if !ok || p.revoked {
		w.fail("%s sends %T to %s, which was revoked", l.pri.name, m, l.sec.name)
	}
	var scope map[replication.Unit]bool
	allowed := func(u replication.Unit) {
		if scope == nil {
			scope = st.scope(p)
		}
		if !scope[u] {
			w.fail("%s sends %s something of %s, which is out of scope: %T%+v", l.pri.name, l.sec.name, u, m, m)
		}
	}
	key := func(k storage.Key) {
		u, ok := simUnit(k)
		if !ok {
			w.fail("%s sends the key %s", l.pri.name, k)
		}
		allowed(u)
	}
	switch m := m.(type) {
	case replication.Batch:
		for _, e := range m.Entries {
			for _, op := range e.Ops {
				key(op.Key)
			}
		}
	case replication.Page:
		allowed(m.Unit)
		for _, it := range m.Items {
			key(it.Key)
		}
	case replication.Items:
		allowed(m.Unit)
		for _, it := range m.Items {
			key(it.Key)
		}
	case replication.Sums:
		allowed(m.Unit)
	case replication.Checkpoint:
		for u := range m.Roots {
			allowed(u)
		}
	case replication.Scope:
		for _, u := range slices.Concat(m.Add, m.New) {
			allowed(u)
		}
	}
}

// countMessage notes what a primary's message says about the run.
func (w *world) countMessage(l *link, m replication.Message) {
	switch m := m.(type) {
	case replication.Welcome:
		switch {
		case m.Diverged:
			w.count("diverged")
		case !m.Resume:
			w.count("everything compared")
		case m.Start.Epoch < m.Lineage.Epoch():
			w.count("resumed in another epoch")
		default:
			w.count("streams resumed")
		}
	case replication.Scope:
		w.counts["units that began"] += len(m.New)
		w.counts["units added"] += len(m.Add)
		w.counts["units dropped"] += len(m.Drop)
	case replication.Checkpoint:
		w.count("checkpoints")
	case replication.Page:
		if !m.Done {
			w.count("pages cut short")
		}
	}
}

func (w *world) countAnswer(l *link, m replication.Message) {
	var items []replication.Item
	switch m := m.(type) {
	case replication.Page:
		items = m.Items
	case replication.Items:
		items = m.Items
	}
	for _, it := range items {
		if it.Value != nil {
			l.fetched++
		}
	}
}

// checkChange looks at everything that a follower commits.
func (w *world) checkChange(r *replica, c replication.Change) {
	l, st := r.l, r.n.st
	if p := st.progress; c.Cursor != nil && p != nil && st.progressAt == r.base && c.Cursor.Before(p.Cursor) && c.Diverged == nil {
		w.fail("%s: the cursor goes back from %v to %v", l.sec.name, p.Cursor, *c.Cursor)
	}
	w.watchDivergence(l, st)
	next := merge(st.progress, c)
	seen := map[storage.Key]bool{}
	for _, it := range c.Puts {
		u, ok := simUnit(it.Key)
		if !ok || it.Mod.Epoch == 0 || it.Mod.Index == 0 || seen[it.Key] {
			w.fail("%s writes %s at %v", l.sec.name, it.Key, it.Mod)
		}
		seen[it.Key] = true
		if _, had := next.Units[u]; !had && st.progressAt == r.base {
			w.fail("%s writes %s of a unit that it does not have", l.sec.name, it.Key)
		}
	}
	for _, k := range c.Deletes {
		if _, ok := simUnit(k); !ok || seen[k] {
			w.fail("%s deletes %s", l.sec.name, k)
		}
		seen[k] = true
	}
	if st.progressAt != r.base {
		return // it will be refused
	}
	for u, us := range c.Units {
		if us != nil {
			continue
		}
		for _, cell := range st.cells {
			if cell.unit == u && !slices.Contains(c.Deletes, cell.Key) {
				w.fail("%s: the unit %s is gone, and %s is still there", l.sec.name, u, cell.Key)
			}
		}
	}
}

// watchDivergence remembers what a cluster has that its new primary's history has not, and sees that each of these values
// is either still there or kept in the end.
func (w *world) watchDivergence(l *link, st *state) {
	var d storage.Position
	if st.progress != nil {
		d = st.progress.Diverged
	}
	if d == l.common {
		return
	}
	for k, it := range l.behind {
		if i, ok := st.find(k); ok && st.cells[i].Mod == it.Mod && bytes.Equal(st.cells[i].Value, it.Value) {
			continue
		}
		if !slices.ContainsFunc(st.lost, func(c replication.Conflict) bool {
			return c.Key == k && c.Mod == it.Mod && bytes.Equal(c.Value, it.Value)
		}) {
			w.fail("%s: %s of %v was lost without a copy, common %v, kept %+v", l.sec.name, k, it.Mod, l.common, st.lost)
		}
	}
	l.common, l.behind = d, nil
	if d.IsZero() {
		return
	}
	l.behind = map[storage.Key]replication.Item{}
	for _, c := range st.cells {
		if _, ok := st.progress.Units[c.unit]; ok && d.Before(c.Mod) && !st.progress.Lineage.Contains(c.Mod) {
			l.behind[c.Key] = c.Item
		}
	}
}

// checkSecondary compares what a secondary holds with what its primary held at the cursor.
func (w *world) checkSecondary(l *link) {
	st := l.sec.at()
	if st == nil || st.torn || st.progress == nil {
		return
	}
	for i := range st.cells {
		c := &st.cells[i]
		if c.unit == "" || !simAnchor(c.Key) {
			continue
		}
		if p := st.progress.Units[c.unit].Phase; p == replication.Adding { // what is Dropping is hidden by package server, and its anchor goes first
			w.fail("%s shows %s while it is %s", l.sec.name, c.Key, p)
		}
	}
	if w.faults && w.chance(60) {
		return
	}
	whole := map[replication.Unit]bool{}
	for u, us := range st.progress.Units {
		if us.Phase == replication.Whole && !st.progress.Cursor.Before(us.Until) {
			whole[u] = true
		}
	}
	if ref := w.reference(l, st.progress); ref != nil && len(whole) > 0 {
		w.count("states compared")
		w.compare(l, st, ref, whole)
	}
}

// reference returns the state that the primary had at the cursor.
func (w *world) reference(l *link, p *replication.State) *state {
	for _, b := range p.Lineage {
		if b.Epoch != p.Cursor.Epoch {
			continue
		}
		for _, c := range w.clusters {
			if c.wasCalled(b.ClusterID) {
				if l.refOf != c {
					l.ref, l.refOf = nil, c
				}
				l.ref = c.replay(l.ref, p.Cursor.Index)
				return l.ref
			}
		}
	}
	return nil
}

func (c *cluster) wasCalled(id string) bool { return id[:1] == c.name }

// compare wants the same keys, values and positions in both, of some units.
func (w *world) compare(l *link, st, ref *state, whole map[replication.Unit]bool) {
	i, j := 0, 0
	for {
		for i < len(st.cells) && (st.cells[i].unit == "" || !whole[st.cells[i].unit]) {
			i++
		}
		for j < len(ref.cells) && (ref.cells[j].unit == "" || !whole[ref.cells[j].unit]) {
			j++
		}
		switch {
		case i == len(st.cells) && j == len(ref.cells):
			return
		case j == len(ref.cells) || i < len(st.cells) && st.cells[i].Key < ref.cells[j].Key:
			w.fail("%s has %s at %v, its primary has not at %v: %+v", l.sec.name, st.cells[i].Key, st.cells[i].Mod, st.progress.Cursor, st.progress)
		case i == len(st.cells) || ref.cells[j].Key < st.cells[i].Key:
			w.fail("%s has no %s, its primary has at %v, cursor %v: %+v", l.sec.name, ref.cells[j].Key, ref.cells[j].Mod, st.progress.Cursor, st.progress)
		case st.cells[i].Mod != ref.cells[j].Mod || !bytes.Equal(st.cells[i].Value, ref.cells[j].Value):
			w.fail("%s has %s = %s of %v, its primary %s of %v at %v: %+v", l.sec.name, st.cells[i].Key, st.cells[i].Value, st.cells[i].Mod, ref.cells[j].Value, ref.cells[j].Mod, st.progress.Cursor, st.progress)
		}
		i, j = i+1, j+1
	}
}

// same reports whether a secondary has what its primary has, of the units in scope, and nothing else.
func (w *world) same(l *link) bool {
	st, ref := l.sec.at(), l.pri.at()
	scope := ref.scope(ref.peers[l.sec.name])
	i, j := 0, 0
	for {
		for i < len(st.cells) && st.cells[i].unit == "" {
			i++
		}
		for j < len(ref.cells) && !scope[ref.cells[j].unit] {
			j++
		}
		if i == len(st.cells) || j == len(ref.cells) {
			return i == len(st.cells) && j == len(ref.cells)
		}
		if st.cells[i].Key != ref.cells[j].Key || st.cells[i].Mod != ref.cells[j].Mod || !bytes.Equal(st.cells[i].Value, ref.cells[j].Value) {
			return false
		}
		i, j = i+1, j+1
	}
}

// arrived reports whether a secondary has nothing left to do.
func (w *world) arrived(l *link) bool {
	st := l.sec.at()
	if !w.alive(l) || st.progress == nil || st.torn || !exact(st.progress) || !w.same(l) {
		return false
	}
	s := l.follower.Status()
	return s.Exact && s.State == replication.Streaming
}

// checkArrived looks closely at a secondary that has.
func (w *world) checkArrived(l *link) {
	st, ref := l.sec.at(), l.pri.at()
	scope := ref.scope(ref.peers[l.sec.name])
	if have := sortedUnits(st.progress.Units); !slices.Equal(have, sortedUnits(scope)) {
		w.fail("%s has the units %v, its scope is %v", l.sec.name, have, sortedUnits(scope))
	}
	if s := l.follower.Status(); s.Cursor.Epoch != ref.role.lineage.Epoch() || s.Quarantined > 0 {
		w.fail("%s is at %v, with %d units in quarantine", l.sec.name, s.Cursor, s.Quarantined)
	}
	if !w.same(l) {
		w.fail("%s is no longer the same", l.sec.name)
	}
	r := &replica{w: w, l: l, c: l.sec, n: l.sec.nodes[l.sec.active], term: l.sec.term}
	src := &source{w: w, c: l.pri, n: l.pri.nodes[l.pri.active], peer: l.sec.name}
	mine, ok := r.Digests(context.Background())
	_, theirs, ok2 := src.Digests()
	for u := range scope {
		if ok && ok2 && src.n.tree.at == src.n.st.applied && mine[u] != theirs[u] {
			w.fail("%s: the digests of %s differ", l.sec.name, u)
		}
	}
	w.watchDivergence(l, st)
}

// checkNodes compares the nodes of each cluster with each other and with their log, and digests with what they describe.
func (w *world) checkNodes() {
	for _, c := range w.clusters {
		want := c.replay(nil, c.last())
		for i, n := range c.nodes {
			c.catchUp(n, c.last())
			if !slices.EqualFunc(n.st.cells, want.cells, func(a, b cell) bool {
				return a.Key == b.Key && a.version == b.version && a.Mod == b.Mod && bytes.Equal(a.Value, b.Value)
			}) {
				w.fail("node %d of %s has another state than its log says", i, c.name)
			}
			w.checkWAL(c, i)
		}
		n := c.nodes[c.active]
		kept := n.follow().roots()
		n.tree = nil
		for u, s := range n.follow().roots() {
			if kept[u] != s {
				w.fail("%s: the digest of %s was not kept up", c.name, u)
			}
			delete(kept, u)
		}
		if len(kept) > 0 {
			w.fail("%s: digests of units that have nothing: %v", c.name, kept)
		}
	}
}

// checkWAL compares a node's records with those of the active node, as far as both have them.
func (w *world) checkWAL(c *cluster, i int) {
	a, b := c.nodes[i].wal, c.nodes[c.active].wal
	from := max(a.base, b.base)
	after := func(l walLog) []record {
		at := slices.IndexFunc(l.records, func(r record) bool { return r.index > from })
		if at < 0 {
			return nil
		}
		return l.records[at:]
	}
	if !slices.EqualFunc(after(a), after(b), func(x, y record) bool {
		return x.index == y.index && slices.EqualFunc(x.ops, y.ops, func(o, p replication.Op) bool {
			return o.Key == p.Key && o.Mod == p.Mod && o.Delete == p.Delete && bytes.Equal(o.Value, p.Value)
		}) && slices.Equal(x.prior, y.prior)
	}) {
		w.fail("nodes %d and %d of %s have different WALs after %d", i, c.active, c.name, from)
	}
}
