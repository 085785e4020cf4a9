package replication_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// The layout of the simulation is the one of the server, with short names: s/m7/… is a mount with its entry
// s/sys/<ns>/mounts/m7; s/namespace/n1 is the record of a namespace, s/namespace/<parent>/<name> an index that does not
// replicate; s/junk/… is an unknown area.
var simLayout = replication.Layout{Unit: simUnit, Anchor: simAnchor, Prefixes: simPrefixes}

func simUnit(k storage.Key) (replication.Unit, bool) {
	if k.Class() != storage.Shared {
		return "", false
	}
	area, path, _ := strings.Cut(string(k[2:]), "/")
	switch {
	case area == "sys" || area == "identity":
		ns, rest, _ := strings.Cut(path, "/")
		if area == "sys" && (ns == "audit" || ns == "set") {
			return "global", true
		}
		if mount, ok := strings.CutPrefix(rest, "mounts/"); ok && area == "sys" {
			return replication.Unit("mount/" + mount), true
		}
		return replication.Unit("ns/" + ns), true
	case area == "namespace":
		if strings.Contains(path, "/") {
			return "", false
		}
		return replication.Unit("ns/" + path), true
	case area[0] == 'm':
		return replication.Unit("mount/" + area), true
	}
	return "", false
}

func simAnchor(k storage.Key) bool {
	if rest, ok := strings.CutPrefix(string(k), "s/namespace/"); ok {
		return !strings.Contains(rest, "/")
	}
	rest, ok := strings.CutPrefix(string(k), "s/sys/")
	return ok && strings.Contains(rest, "/mounts/")
}

func simPrefixes(u replication.Unit) []storage.Key {
	kind, id, _ := strings.Cut(string(u), "/")
	switch kind {
	case "mount":
		return []storage.Key{storage.Key("s/" + id + "/")}
	case "ns":
		return []storage.Key{storage.Key("s/identity/" + id + "/"), storage.Key("s/sys/" + id + "/")}
	}
	return []storage.Key{"s/sys/audit/", "s/sys/set/"}
}

// anchors returns the unit's anchors: of a mount one in each namespace at most, as a rule one in all.
func (s *state) anchors(u replication.Unit) []cell {
	kind, id, _ := strings.Cut(string(u), "/")
	switch kind {
	case "ns":
		if i, ok := s.find(storage.Key("s/namespace/" + id)); ok {
			return s.cells[i : i+1]
		}
	case "mount":
		var found []cell
		for _, c := range s.below("s/sys/") {
			if simAnchor(c.Key) && strings.HasSuffix(string(c.Key), "/mounts/"+id) {
				found = append(found, c)
			}
		}
		return found
	}
	return nil
}

// keys calls f for the unit's keys after a key, in order, without its anchor.
func (s *state) keys(u replication.Unit, after storage.Key, b *digest.Buckets, f func(cell) bool) {
	for _, p := range simPrefixes(u) {
		for _, c := range s.below(p) {
			if c.unit == u && c.Key > after && !simAnchor(c.Key) && b.Has(c.Key) && !f(c) {
				return
			}
		}
	}
}

// scope returns the units that a secondary may have now.
func (s *state) scope(p peer) map[replication.Unit]bool {
	listed := func(u string) bool { return strings.Contains(p.units, " "+u+" ") }
	all := !p.deny && p.units == ""
	units := map[replication.Unit]bool{"global": true, "ns/root": true}
	known := func(ns string) bool {
		if ns == "root" {
			return true
		}
		_, ok := s.find(storage.Key("s/namespace/" + ns))
		return ok
	}
	for _, c := range s.below("s/namespace/") {
		if u, ok := simUnit(c.Key); ok && (all || p.deny != listed(string(u))) {
			units[u] = true
		}
	}
	for _, c := range s.below("s/sys/") {
		if !simAnchor(c.Key) {
			continue
		}
		u, _ := simUnit(c.Key)
		ns, _, _ := strings.Cut(string(c.Key[len("s/sys/"):]), "/")
		if !known(ns) {
			continue
		}
		in := ns != "root" && listed("ns/"+ns) || listed(string(u))
		if all || p.deny != in {
			units[u] = true
			units[replication.Unit("ns/"+ns)] = true
		}
	}
	return units
}

// source is what the active node of a primary gives to one session.
type source struct {
	w    *world
	c    *cluster
	n    *node
	peer string
	seen storage.Index // the largest index that Records have answered
}

func (s *source) Self() (string, string, storage.Lineage) {
	return "set", s.n.st.id, s.n.st.role.lineage
}

// Final implements replication.Source. The session is told as soon as it happens.
func (s *source) Final() (storage.Index, bool) { return 0, false }

func (s *source) position(i storage.Index) storage.Position {
	return storage.Position{Epoch: s.n.st.role.lineage.Epoch(), Index: i}
}

func (s *source) Records(_ context.Context, after storage.Index, maxBytes int) ([]replication.Entry, storage.Index, error) {
	if after < s.n.wal.base {
		return nil, 0, replication.ErrTruncated
	}
	recs := s.n.wal.records
	from := sort.Search(len(recs), func(i int) bool { return recs[i].index > after })
	var out []replication.Entry
	size, as := 0, s.n.st.role.lineage
	var was, before storage.Position
	for i, r := range recs {
		if was = r.cursor; was.IsZero() && !r.primary {
			was = before
		}
		before = was
		if i < from {
			continue
		}
		e := replication.Entry{At: s.position(r.index), TimeMS: r.timeMS}
		if n := len(as); n > 0 && r.index < as[n-1].Base { // the cluster was a secondary then, or a primary before
			if e.At = was; was.IsZero() {
				e.At = s.n.st.own.Resolve(s.n.st.id, storage.Position{Index: r.index})
			}
		}
		for _, op := range r.ops {
			if _, ok := simUnit(op.Key); !ok {
				continue
			}
			if op.Delete {
				op.Mod = s.n.st.own.Resolve(s.n.st.id, storage.Position{Index: r.index})
			}
			e.Ops = append(e.Ops, op)
			size += len(op.Key) + len(op.Value)
		}
		if len(e.Ops) == 0 {
			continue
		}
		out = append(out, e)
		if size >= maxBytes {
			s.seen = max(s.seen, r.index)
			return out, r.index, nil
		}
	}
	s.seen = max(s.seen, s.n.st.applied)
	return out, max(after, s.n.st.applied), nil
}

func (s *source) Oldest() storage.Index { return s.n.wal.base }

func (s *source) Locate(_ context.Context, p storage.Position) (storage.Index, bool) {
	var at storage.Index
	own := slices.ContainsFunc(s.n.st.role.lineage, func(b storage.Branch) bool { return b.Epoch == p.Epoch && b.ClusterID == s.n.st.id })
	if own {
		at = p.Index
	}
	ok := own && at >= s.n.wal.base
	for _, r := range s.n.wal.records {
		switch {
		case r.cursor.IsZero() || own && r.index <= p.Index:
		case !r.exact && !s.w.bug.locateAny: // what came before cannot be continued here: more, or less, than the cursor says was there
			ok = false
		case !p.Before(r.cursor):
			at, ok = r.index, true
		}
	}
	return at, ok
}

func (s *source) Scope(context.Context) (map[replication.Unit]bool, uint64, error) {
	p, ok := s.n.st.peers[s.peer]
	if !ok || p.revoked {
		return nil, 0, replication.ErrRevoked
	}
	if s.w.bug.oldScope && s.n.st.applied > 4 {
		old := s.c.replay(nil, s.n.st.applied-4)
		return old.scope(old.peers[s.peer]), uint64(s.n.st.scopeAt), nil
	}
	return s.n.st.scope(p), uint64(s.n.st.scopeAt), nil
}

// past is the state that answers are read from: the present one, unless the canary says otherwise.
func (s *source) past() *state {
	if s.w.bug.stalePages && s.n.st.applied > 6 {
		return s.c.replay(nil, s.n.st.applied-6)
	}
	return s.n.st
}

func (s *source) Page(_ context.Context, u replication.Unit, after storage.Key, b *digest.Buckets, values bool, maxBytes int) (items []replication.Item, last storage.Key, done bool, at storage.Index, err error) {
	st, size := s.past(), 0
	last, done = after, true
	st.keys(u, after, b, func(c cell) bool {
		if size >= maxBytes {
			done = false
			return false
		}
		it := c.Item
		if !values {
			it.Value = nil
		}
		items, last = append(items, it), c.Key
		size += len(it.Key) + len(it.Value) + 16
		return true
	})
	if done {
		for _, c := range st.anchors(u) {
			it := c.Item
			if !values {
				it.Value = nil
			}
			items = append(items, it)
		}
	}
	return items, last, done, s.n.st.applied, nil
}

func (s *source) Items(_ context.Context, u replication.Unit, keys []storage.Key, maxBytes int) (items []replication.Item, n int, at storage.Index, err error) {
	st, size := s.past(), 0
	for _, k := range keys {
		if n > 0 && size >= maxBytes {
			break
		}
		n++
		if i, ok := st.find(k); ok {
			if got, known := simUnit(k); !known || got != u {
				return nil, 0, 0, errors.New("a key of another unit was asked for")
			}
			items = append(items, st.cells[i].Item)
			size += len(k) + len(st.cells[i].Value)
		}
	}
	slices.SortFunc(items, func(a, b replication.Item) int { return strings.Compare(string(a.Key), string(b.Key)) })
	return items, n, s.n.st.applied, nil
}

// trees returns the digests, which may be a little behind, or not there yet.
func (s *source) trees() *trees {
	if s.n.tree == nil && s.w.chance(30) {
		return nil
	}
	if t := s.n.tree; t != nil && s.w.chance(20) {
		return t
	}
	return s.n.follow()
}

func (s *source) Digests() (storage.Index, map[replication.Unit]digest.Sum, bool) {
	t := s.trees()
	if t == nil {
		return 0, nil, false
	}
	roots := t.roots()
	if s.w.bug.wrongDigest {
		sum := roots["global"]
		sum.A++
		roots["global"] = sum
	}
	return t.at, roots, true
}

func (s *source) Sums(u replication.Unit, group int) ([]digest.Sum, storage.Index, bool) {
	t := s.trees()
	if t == nil {
		return nil, 0, false
	}
	sums := t.of(u).Sums(group)
	if s.w.bug.wrongDigest && u == "global" {
		sums[7].A++
	}
	return sums, t.at, true
}

func (s *source) Head() storage.Index { return s.n.st.applied }

func (s *source) NowMS() int64    { return s.w.now }
func (s *source) Addrs() []string { return []string{s.c.name} }

// replica is the state of the active node of a secondary.
type replica struct {
	w    *world
	l    *link
	c    *cluster
	n    *node
	term int
	base storage.Index // version of the progress that the next commit builds upon
}

func (r *replica) NowMS() int64 { return r.w.now }

// Ended implements secondary.Handouts.
func (r *replica) Ended(replication.Unit) bool { return !r.w.faults || r.w.chance(70) }

func (r *replica) Load(context.Context) (replication.State, error) {
	if r.c.term != r.term {
		return replication.State{}, storage.ErrReadOnly
	}
	r.base = r.n.st.progressAt
	if r.n.st.progress == nil {
		return replication.State{}, nil
	}
	s := *r.n.st.progress
	s.Units = maps.Clone(s.Units)
	for u, us := range s.Units { // what is read is the caller's own
		if us.Anchor != nil {
			a := *us.Anchor
			us.Anchor = &a
			s.Units[u] = us
		}
	}
	return s, nil
}

func (r *replica) Commit(_ context.Context, c replication.Change) error {
	if r.c.term != r.term {
		return storage.ErrReadOnly
	}
	next := merge(r.n.st.progress, c)
	base := r.base // an entry of the log is never changed
	e := entry{needProgress: &base, puts: c.Puts, deletes: c.Deletes, progress: next, lost: c.Lost}
	if r.w.bug.blindCommit {
		e.needProgress = nil
	}
	if r.w.bug.dropCopies {
		e.lost = nil
	}
	r.w.checkChange(r, c)
	if tooLarge := len(c.Puts)+len(c.Deletes) > 3 && r.w.chance(10) || r.w.bug.partsExact && len(c.Puts) > 1; tooLarge || r.w.bug.tornCursor {
		r.w.count("changes in parts")
		first, rest := e, e
		first.deletes, first.progress, first.torn = nil, r.w.ahead(r.n.st.progress, c), true
		rest.puts, rest.lost = nil, nil // copies are there before what they are of is replaced
		if r.w.bug.tornCursor {         // the canary: first the cursor, then the data
			first.puts, first.lost, first.progress, first.torn, rest.puts = nil, nil, next, false, c.Puts
		}
		at, err := r.c.commit(first)
		if err != nil {
			return err
		}
		if rest.needProgress != nil {
			rest.needProgress = &at
		}
		r.base = at
		e = rest
	}
	at, err := r.c.commit(e)
	if err != nil {
		return err
	}
	r.base = at
	r.w.counts["values kept"] += len(c.Lost)
	r.w.checkSecondary(r.l)
	return nil
}

// ahead returns the progress between the writes of a change: the units that it touches are exact only after it.
func (w *world) ahead(old *replication.State, c replication.Change) *replication.State {
	s := merge(old, replication.Change{})
	if c.Cursor == nil || w.bug.partsExact {
		return s
	}
	for _, it := range c.Puts {
		u, _ := simUnit(it.Key)
		if us, ok := s.Units[u]; ok && us.Until.Before(*c.Cursor) {
			us.Until = *c.Cursor
			s.Units[u] = us
		}
	}
	return s
}

// merge returns the progress after a change.
func merge(old *replication.State, c replication.Change) *replication.State {
	s := &replication.State{}
	if old != nil {
		*s = *old
	}
	if c.Cursor != nil {
		s.Cursor = *c.Cursor
	}
	if c.Lineage != nil {
		s.Lineage = c.Lineage
	}
	if c.Diverged != nil {
		s.Diverged = *c.Diverged
	}
	if c.Scope != nil {
		s.Scope = *c.Scope
	}
	s.Units = maps.Clone(s.Units)
	if s.Units == nil {
		s.Units = map[replication.Unit]replication.UnitState{}
	}
	for u, us := range c.Units {
		if us == nil {
			delete(s.Units, u)
			continue
		}
		kept := *us
		if us.Anchor != nil {
			a := *us.Anchor
			kept.Anchor = &a
		}
		s.Units[u] = kept
	}
	return s
}

func (r *replica) Keys(_ context.Context, u replication.Unit, after, until storage.Key, b *digest.Buckets) (out []replication.KeyMod, err error) {
	r.n.st.keys(u, after, b, func(c cell) bool {
		if until != "" && c.Key > until {
			return false
		}
		out = append(out, replication.KeyMod{Key: c.Key, Mod: c.Mod})
		return true
	})
	if until == "" {
		for _, c := range r.n.st.anchors(u) {
			if b.Has(c.Key) {
				out = append(out, replication.KeyMod{Key: c.Key, Mod: c.Mod})
			}
		}
	}
	slices.SortFunc(out, func(a, b replication.KeyMod) int { return strings.Compare(string(a.Key), string(b.Key)) })
	return out, nil
}

func (r *replica) Get(_ context.Context, k storage.Key) (replication.Item, error) {
	if i, ok := r.n.st.find(k); ok {
		return r.n.st.cells[i].Item, nil
	}
	return replication.Item{}, storage.ErrNotFound
}

func (r *replica) Drop(_ context.Context, u replication.Unit) (bool, error) {
	if r.c.term != r.term {
		return false, storage.ErrReadOnly
	}
	var keys []storage.Key
	for _, c := range r.n.st.anchors(u) {
		keys = append(keys, c.Key)
	}
	done := true
	if len(keys) == 0 {
		r.n.st.keys(u, "", nil, func(c cell) bool {
			if len(keys) == 5 {
				done = false
				return false
			}
			keys = append(keys, c.Key)
			return true
		})
		if len(keys) == 0 {
			return true, nil
		}
	} else {
		done = false
	}
	if _, err := r.c.commit(entry{deletes: keys}); err != nil {
		return false, err
	}
	return done, nil
}

func (r *replica) Digests(context.Context) (map[replication.Unit]digest.Sum, bool) {
	if r.n.tree == nil && r.w.chance(30) {
		return nil, false
	}
	return r.n.follow().roots(), true
}

func (r *replica) Sums(_ context.Context, u replication.Unit, group int) ([]digest.Sum, bool) {
	if r.n.tree == nil && r.w.chance(30) || r.w.faults && r.w.chance(2) {
		return nil, false
	}
	return r.n.follow().of(u).Sums(group), true
}
