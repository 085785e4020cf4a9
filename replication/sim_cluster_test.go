package replication_test

import (
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// A cluster of the simulation: what Raft, the state machine and storage/wal are for a real one, reduced to what
// replication can notice of them. The log is there once and never lost; each of three nodes has applied a part of it, and
// has a state and a WAL of its own, of which a crash takes what was not synced.

// cell is one stored value. Mod is its origin, or its version as a position of the set: in this model it is made when the
// value is written, from the branches that the cluster ever had itself.
type cell struct {
	replication.Item
	version storage.Index
	unit    replication.Unit // "": none
}

type mode byte

const (
	disabled mode = iota
	asPrimary
	asSecondary
)

// role is the entry that every shared write has as a precondition.
type role struct {
	mode    mode
	lineage storage.Lineage
	fenced  bool
}

// peer is a secondary in the registry of its primary, with its filter.
type peer struct {
	revoked bool
	deny    bool
	units   string // " mount/m1 ns/n1 …": denied or allowed ones; with deny false and nothing listed everything is allowed
}

// state is what the log has made of a cluster, up to an index.
type state struct {
	applied    storage.Index
	id         string // new each time that the cluster is made a secondary
	cells      []cell // in the order of keys; class s and l
	role       role
	roleAt     storage.Index
	own        storage.Lineage // every epoch in which it was the primary
	progress   *replication.State
	progressAt storage.Index
	scopeAt    storage.Index // of the last entry that touched an anchor, the registry or a filter
	peers      map[string]peer
	lost       []replication.Conflict
	torn       bool // between the writes of one Change
}

// entry is one of the log. Fields that are zero change nothing.
type entry struct {
	index        storage.Index
	timeMS       int64
	needRole     storage.Index // precondition on roleAt, unless zero
	needProgress *storage.Index
	puts         []replication.Item // without Mod: written here
	deletes      []storage.Key
	role         *role
	progress     *replication.State
	torn         bool
	peerID       string
	peer         peer
	lost         []replication.Conflict
	wipe         string // everything shared goes, and this is the new id
	restore      *state // a backup takes the state's place
	newWAL       bool   // the WAL begins from the start
	quiet        bool   // a canary
}

// record is what one entry did to shared keys, and the cursor if it wrote one.
type record struct {
	index   storage.Index
	timeMS  int64
	ops     []replication.Op
	prior   []storage.Position
	cursor  storage.Position
	exact   bool // all units were exact at the cursor
	primary bool // it was written by a primary
}

// find returns where the key is, or would be.
func (s *state) find(k storage.Key) (int, bool) {
	i := sort.Search(len(s.cells), func(i int) bool { return s.cells[i].Key >= k })
	return i, i < len(s.cells) && s.cells[i].Key == k
}

// below returns the cells whose key begins with a prefix.
func (s *state) below(prefix storage.Key) []cell {
	lo, _ := s.find(prefix)
	hi := lo
	for hi < len(s.cells) && strings.HasPrefix(string(s.cells[hi].Key), string(prefix)) {
		hi++
	}
	return s.cells[lo:hi]
}

func (s *state) clone() *state {
	c := *s
	c.cells = slices.Clone(s.cells)
	return &c
}

// apply is the state machine. Every node comes to the same result. ok is false if a precondition failed.
func (s *state) apply(e *entry) (r record, ok bool) {
	s.applied = e.index
	if e.needRole != 0 && s.roleAt != e.needRole || e.needProgress != nil && s.progressAt != *e.needProgress {
		return r, false
	}
	r.index, r.timeMS = e.index, e.timeMS
	if e.restore != nil {
		old := e.restore.clone()
		old.applied = e.index
		*s = *old
		s.scopeAt = e.index
		return r, true
	}
	if e.wipe != "" {
		s.id, s.own, s.progress, s.progressAt, s.lost, s.peers = e.wipe, nil, nil, 0, nil, nil
		s.cells = slices.DeleteFunc(s.cells, func(c cell) bool { return c.Key.Class() == storage.Shared })
	}
	if e.role != nil {
		if e.role.mode == asPrimary {
			s.progress, s.progressAt = nil, e.index
		}
		s.role, s.roleAt, s.scopeAt = *e.role, e.index, e.index
		if n := len(s.role.lineage); n > 0 && s.role.lineage[n-1].Base == 0 {
			s.role.lineage = slices.Clone(s.role.lineage)
			s.role.lineage[n-1].Base = e.index
			s.own = append(slices.Clip(s.own), s.role.lineage[n-1])
			s.peers = nil
		}
	}
	if e.progress != nil {
		s.progress, s.progressAt = e.progress, e.index
		r.cursor, r.exact = e.progress.Cursor, exact(e.progress) && !e.torn
	}
	s.torn = e.torn
	r.primary = s.role.mode == asPrimary
	if e.peerID != "" {
		s.peers = maps.Clone(s.peers)
		if s.peers == nil {
			s.peers = map[string]peer{}
		}
		s.peers[e.peerID] = e.peer
		s.scopeAt = e.index
	}
	s.lost = append(slices.Clip(s.lost), e.lost...)
	for _, k := range e.deletes {
		i, there := s.find(k)
		op := replication.Op{Item: replication.Item{Key: k, Mod: storage.Position{Index: e.index}}, Delete: true}
		if !there { // it is noted all the same: a secondary that is elsewhere within the same batch may have the key
			if !e.quiet {
				r.note(op, storage.Position{})
			}
			continue
		}
		r.note(op, s.cells[i].Mod)
		s.cells = slices.Delete(s.cells, i, i+1)
		s.noteAnchor(k, e.index)
	}
	for _, it := range e.puts {
		if it.Mod.IsZero() {
			it.Mod = s.own.Resolve(s.id, storage.Position{Index: e.index})
		}
		i, there := s.find(it.Key)
		var prior storage.Position
		if there {
			prior = s.cells[i].Mod
			s.cells[i].Item, s.cells[i].version = it, e.index
		} else {
			u, _ := simUnit(it.Key)
			s.cells = slices.Insert(s.cells, i, cell{it, e.index, u})
		}
		r.note(replication.Op{Item: it, Fresh: !there}, prior)
		s.noteAnchor(it.Key, e.index)
	}
	return r, true
}

// exact reports whether every unit is whole, and the cursor where it is exact.
func exact(p *replication.State) bool {
	for _, u := range p.Units {
		if u.Phase != replication.Whole || p.Cursor.Before(u.Until) {
			return false
		}
	}
	return p.Diverged.IsZero() && !p.Cursor.IsZero()
}

func (s *state) noteAnchor(k storage.Key, at storage.Index) {
	if simAnchor(k) {
		s.scopeAt = at
	}
}

func (r *record) note(op replication.Op, prior storage.Position) {
	if op.Key.Class() == storage.Shared {
		r.ops, r.prior = append(r.ops, op), append(r.prior, prior)
	}
}

// walLog is a node's WAL: complete from base on.
type walLog struct {
	base    storage.Index
	records []record
	synced  int // so many are durable
}

func (l *walLog) head() storage.Index {
	if n := len(l.records); n > 0 {
		return l.records[n-1].index
	}
	return l.base
}

func (l *walLog) append(r record) {
	if r.index > l.head() && (len(r.ops) > 0 || !r.cursor.IsZero()) {
		l.records = append(l.records, r)
	}
}

func (l *walLog) reset(base storage.Index) { *l = walLog{base: base} }

// drop forgets the n oldest records.
func (l *walLog) drop(n int) {
	if n = min(n, len(l.records)); n > 0 {
		l.base = l.records[n-1].index
		l.records = slices.Clone(l.records[n:])
		l.synced = max(0, l.synced-n)
	}
}

type node struct {
	st   *state
	wal  walLog
	fold *state // durable; nil: nothing yet
	up   bool
	tree *trees // on the active one
}

type cluster struct {
	w      *world
	name   string
	log    []entry
	limbo  []entry // proposed, with an unknown outcome
	nodes  [3]*node
	active int // -1: none
	term   int // grows with every change of the active node
}

func newCluster(w *world, name string) *cluster {
	c := &cluster{w: w, name: name, active: 0}
	for i := range c.nodes {
		c.nodes[i] = &node{st: &state{id: name}, up: true}
	}
	return c
}

// at returns the active node's state, or nil.
func (c *cluster) at() *state {
	if c.active < 0 {
		return nil
	}
	return c.nodes[c.active].st
}

func (c *cluster) last() storage.Index {
	if len(c.log) == 0 {
		return 0
	}
	return c.log[len(c.log)-1].index
}

// commit is Raft's: the entry is in the log, or refused, or its outcome is unknown.
func (c *cluster) commit(e entry) (storage.Index, error) {
	if c.active < 0 {
		return 0, storage.ErrReadOnly
	}
	e.timeMS, e.quiet = c.w.now, c.w.bug.quietDeletes
	if c.w.faults && c.w.chance(2) {
		c.limbo = append(c.limbo, e)
		c.w.count("commits with an open outcome")
		if c.w.chance(50) {
			c.stepDown()
		}
		return 0, storage.ErrOutcomeUnknown
	}
	c.settle(len(c.limbo))
	return c.append(e)
}

func (c *cluster) append(e entry) (storage.Index, error) {
	e.index = c.last() + 1
	if e.restore != nil {
		e.index += storage.Index(1 + c.w.n(20))
	}
	c.log = append(c.log, e)
	if c.active < 0 {
		return e.index, nil
	}
	if !c.catchUp(c.nodes[c.active], e.index) {
		return 0, storage.ErrConflict
	}
	return e.index, nil
}

// settle lets the first n of the open entries into the log, and forgets the others.
func (c *cluster) settle(n int) {
	open := c.limbo
	c.limbo = nil
	for _, e := range open[:n] {
		c.append(e)
	}
}

// catchUp applies the log up to an index, and reports whether the last entry's preconditions held.
func (c *cluster) catchUp(n *node, to storage.Index) bool {
	ok := true
	from := sort.Search(len(c.log), func(i int) bool { return c.log[i].index > n.st.applied })
	for i := from; i < len(c.log) && c.log[i].index <= to; i++ {
		var r record
		e := &c.log[i]
		if r, ok = n.st.apply(e); !ok {
			continue
		}
		if e.newWAL {
			if e.index > n.wal.head() {
				n.wal.reset(e.index)
			}
			continue
		}
		n.wal.append(r)
	}
	return ok
}

// stepDown ends the active node's time.
func (c *cluster) stepDown() {
	if c.active >= 0 {
		c.nodes[c.active].tree = nil
		c.active = -1
		c.term++
	}
}

// elect makes a node the active one. Of what was open, some first entries turn out to be in the log.
func (c *cluster) elect(i int) {
	c.stepDown()
	c.settle(c.w.n(len(c.limbo) + 1))
	n := c.nodes[i]
	if !n.up {
		c.restart(n)
	}
	c.catchUp(n, c.last())
	c.active = i
	c.term++
}

// foldNow makes the state durable, and the WAL before it.
func (c *cluster) foldNow(n *node) {
	if !c.w.bug.foldWithoutSync {
		n.wal.synced = len(n.wal.records)
	}
	n.fold = n.st.clone()
}

// crash takes what is not durable.
func (c *cluster) crash(i int) {
	n := c.nodes[i]
	if c.active == i {
		c.stepDown()
	}
	n.up = false
	n.wal.records = n.wal.records[:n.wal.synced]
	if n.fold == nil { // nothing was ever durable: the WAL begins with the state
		n.st = &state{id: c.name}
		return
	}
	n.st = n.fold.clone()
}

func (c *cluster) restart(n *node) {
	n.up = true
}

// snapshot replaces a node's state by another's.
func (c *cluster) snapshot(n, from *node) {
	n.st = from.st.clone()
	n.fold = n.st.clone()
	n.wal.reset(n.st.applied)
}

// replay returns the state at an index, from the log alone.
func (c *cluster) replay(st *state, to storage.Index) *state {
	if st == nil || st.applied > to {
		st = &state{id: c.name}
	}
	from := sort.Search(len(c.log), func(i int) bool { return c.log[i].index > st.applied })
	for i := from; i < len(c.log) && c.log[i].index <= to; i++ {
		st.apply(&c.log[i])
	}
	return st
}

// trees are the digests of an active node, up to an index.
type trees struct {
	at    storage.Index
	units map[replication.Unit]*digest.Tree
}

func (t *trees) of(u replication.Unit) *digest.Tree {
	if t.units[u] == nil {
		t.units[u] = digest.New()
	}
	return t.units[u]
}

// follow brings the trees to where the node is: from the records if they are kept, else from the state.
func (n *node) follow() *trees {
	t := n.tree
	if t == nil || t.at < n.wal.base {
		t = &trees{at: n.st.applied, units: map[replication.Unit]*digest.Tree{}}
		for i := range n.st.cells {
			if u := n.st.cells[i].unit; u != "" {
				t.of(u).Add(n.st.cells[i].Key, n.st.cells[i].Mod)
			}
		}
		n.tree = t
		return t
	}
	from := sort.Search(len(n.wal.records), func(i int) bool { return n.wal.records[i].index > t.at })
	for _, r := range n.wal.records[from:] {
		for i, op := range r.ops {
			u, ok := simUnit(op.Key)
			if !ok {
				continue
			}
			if !r.prior[i].IsZero() {
				t.of(u).Remove(op.Key, r.prior[i])
			}
			if !op.Delete {
				t.of(u).Add(op.Key, op.Mod)
			}
		}
	}
	t.at = n.st.applied
	return t
}

func (t *trees) roots() map[replication.Unit]digest.Sum {
	m := make(map[replication.Unit]digest.Sum, len(t.units))
	for u, tree := range t.units {
		if s := tree.Root(); s.Count > 0 {
			m[u] = s
		}
	}
	return m
}
