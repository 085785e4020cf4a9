package replication_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// The tests of the two machines are transcripts: what is done to a machine, and what it says then. Positions are written
// as epoch:index, ops as +key@position and -key. In these, the unit of s/<x>/… is mount/<x>, its anchor
// s/sys/root/mounts/<x>; the rest of s/sys/root/ is ns/root; s/sys/set/ is global; s/namespace/<n> is the anchor of ns/<n>,
// to which s/sys/<n>/ belongs. s/index/… does not replicate.

type (
	unit = replication.Unit
	key  = storage.Key
	pos  = storage.Position
)

var transcriptLayout = replication.Layout{
	Unit: func(k key) (unit, bool) {
		switch area, path := k.Area(), k.Path(); {
		case k.Class() != storage.Shared || area == "" || area == "index":
			return "", false
		case area == "sys" && strings.HasPrefix(path, "set/"):
			return "global", true
		case area == "sys" && strings.Contains(path, "/mounts/"):
			return unit("mount/" + path[strings.LastIndexByte(path, '/')+1:]), true
		case area == "sys":
			ns, _, _ := strings.Cut(path, "/")
			return unit("ns/" + ns), true
		case area == "namespace":
			return unit("ns/" + path), true
		default:
			return unit("mount/" + area), true
		}
	},
	Anchor: func(k key) bool {
		return k.Class() == storage.Shared && (k.Area() == "namespace" || strings.Contains(string(k), "/mounts/"))
	},
}

// at reads "epoch:index".
func at(text string) (p pos) {
	if _, err := fmt.Sscanf(text, "%d:%d", &p.Epoch, &p.Index); err != nil {
		panic(err)
	}
	return p
}

// item reads "key@epoch:index"; its value says where it is from.
func item(text string) replication.Item {
	k, p, _ := strings.Cut(text, "@")
	return replication.Item{Key: key(k), Value: []byte("of " + text), Mod: at(p)}
}

func items(text string) (out []replication.Item) {
	for _, f := range strings.Fields(text) {
		out = append(out, item(f))
	}
	return out
}

// wrote reads "epoch:index +key -key ++key": puts and deletes at this position; ++ makes the key, *key@epoch:index puts
// what was written elsewhere.
func wrote(text string) replication.Entry {
	fields := strings.Fields(text)
	e := replication.Entry{At: at(fields[0]), TimeMS: int64(at(fields[0]).Index) * 10}
	for _, f := range fields[1:] {
		k := strings.TrimLeft(f, "+-*")
		op := replication.Op{Delete: f[0] == '-', Fresh: strings.HasPrefix(f, "++")}
		if f[0] == '*' {
			op.Item = item(k)
		} else {
			op.Item = item(k + "@" + fields[0])
		}
		if op.Delete {
			op.Value = nil
		}
		e.Ops = append(e.Ops, op)
	}
	return e
}

// batch reads "prev last | entry | entry".
func batch(text string) replication.Batch {
	parts := strings.Split(text, "|")
	ends := strings.Fields(parts[0])
	b := replication.Batch{Prev: at(ends[0]), Last: at(ends[1])}
	for _, p := range parts[1:] {
		b.Entries = append(b.Entries, wrote(p))
		b.Bytes += 100
	}
	return b
}

// lineage reads "cluster from base, cluster from base"; the epochs are 1, 2, …
func lineage(text string) (l storage.Lineage) {
	for i, part := range strings.Split(text, ",") {
		b := storage.Branch{Epoch: uint32(i + 1)}
		var from string
		if _, err := fmt.Sscanf(part, "%s %s %d", &b.ClusterID, &from, &b.Base); err != nil {
			panic(err)
		}
		b.From = at(from)
		l = append(l, b)
	}
	return l
}

// treeOf returns the digest of items.
func treeOf(list []replication.Item) *digest.Tree {
	t := digest.New()
	for _, i := range list {
		t.Add(i.Key, i.Mod)
	}
	return t
}

// text renders a message.
func text(m replication.Message) string {
	list := func(items []replication.Item, values bool) string {
		var out []string
		for _, i := range items {
			s := fmt.Sprintf("%s@%s", i.Key, i.Mod)
			if values && i.Value == nil {
				s += "(no value)"
			}
			out = append(out, s)
		}
		return "[" + strings.Join(out, " ") + "]"
	}
	switch m := m.(type) {
	case replication.Hello:
		return fmt.Sprintf("hello %s epoch %d", m.Cursor, m.Lineage.Epoch())
	case replication.Ack:
		s := fmt.Sprintf("ack %s", m.Cursor)
		if m.Bytes > 0 {
			s += fmt.Sprintf(" +%d", m.Bytes)
		}
		if m.Exact {
			s += " exact"
		}
		if m.Repaired {
			s += " repaired"
		}
		return s
	case replication.AskSums:
		return fmt.Sprintf("sums? %s %d", m.Unit, m.Group)
	case replication.AskPage:
		s := fmt.Sprintf("page? %s after %q", m.Unit, m.After)
		if m.Buckets != nil {
			s += " in buckets"
		}
		if m.Values {
			s += " with values"
		}
		return s
	case replication.AskItems:
		return fmt.Sprintf("items? %s %v", m.Unit, m.Keys)
	case replication.Welcome:
		how := "compare"
		if m.Resume {
			how = "resume"
		}
		if m.Diverged {
			how += " diverged at " + m.Common.String()
		}
		return fmt.Sprintf("welcome %s %s %v", m.Start, how, m.Units)
	case replication.Scope:
		return fmt.Sprintf("scope %d add %v new %v drop %v", m.Version, m.Add, m.New, m.Drop)
	case replication.Batch:
		s := fmt.Sprintf("batch (%s,%s]", m.Prev, m.Last)
		for _, e := range m.Entries {
			s += " | " + e.At.String()
			for _, op := range e.Ops {
				switch {
				case op.Delete:
					s += " -" + string(op.Key)
				case op.Mod == e.At:
					s += " +" + string(op.Key)
				default:
					s += " +" + string(op.Key) + "@" + op.Mod.String()
				}
			}
		}
		return s
	case replication.Heartbeat:
		return fmt.Sprintf("heartbeat %s through %s", m.Head, m.Through)
	case replication.Checkpoint:
		return fmt.Sprintf("checkpoint %s %v", m.At, slices.Sorted(maps.Keys(m.Roots)))
	case replication.Sums:
		return fmt.Sprintf("sums %s %d at %s", m.Unit, m.Group, m.At)
	case replication.Page:
		s := fmt.Sprintf("page %s %s at %s", m.Unit, list(m.Items, false), m.At)
		if m.Done {
			s += " done"
		}
		return s
	case replication.Items:
		return fmt.Sprintf("items %s %d %s at %s", m.Unit, m.N, list(m.Items, true), m.At)
	case replication.Gone:
		return "gone " + string(m.Unit)
	case replication.Final:
		return "final " + m.At.String()
	case replication.Reject:
		return fmt.Sprintf("reject fenced=%v set=%v", m.Fenced, m.Set)
	}
	return fmt.Sprintf("%T", m)
}

// machine is a Session or a Follower.
type machine interface {
	Receive(context.Context, replication.Message) error
	Next(context.Context) (replication.Message, error)
}

// said returns everything a machine says now, and the error with which it ends, if it does.
func said(ctx context.Context, m machine) (out []string) {
	for range 1000 {
		next, err := m.Next(ctx)
		if err != nil {
			return append(out, "ends: "+err.Error())
		}
		if next == nil {
			if f, ok := m.(interface{ Busy() bool }); ok && f.Busy() {
				continue
			}
			return out
		}
		out = append(out, text(next))
	}
	return append(out, "never stops")
}

// expect compares what was said with what should have been.
func expect(t *testing.T, step string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: said\n\t%s\nwant\n\t%s", step, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// scripted is a Source whose answers a test sets.
type scripted struct {
	t       *testing.T
	id      string
	set     string
	lineage storage.Lineage
	entries []replication.Entry // with own indexes
	head    storage.Index
	oldest  storage.Index
	units   string // the scope, separated by spaces
	version uint64
	scopes  int // how often it was asked for
	located storage.Index
	digests storage.Index // 0: being built
	final   storage.Index // 0: it was not demoted
	lag     storage.Index // pages are that much older
	data    map[key]replication.Item
	now     int64
	err     error
}

func (s *scripted) Self() (string, string, storage.Lineage) { return s.set, s.id, s.lineage }

// Final implements replication.Source.
func (s *scripted) Final() (storage.Index, bool) { return s.final, s.final != 0 }

func (s *scripted) Records(_ context.Context, after storage.Index, maxBytes int) (out []replication.Entry, through storage.Index, err error) {
	if after < s.oldest {
		return nil, 0, replication.ErrTruncated
	}
	for _, e := range s.entries {
		if index := e.At.Index; index > after && index <= s.head {
			out = append(out, e)
			if maxBytes -= 100 * len(e.Ops); maxBytes <= 0 {
				return out, index, nil
			}
		}
	}
	return out, s.head, nil
}

func (s *scripted) Head() storage.Index   { return s.head }
func (s *scripted) Oldest() storage.Index { return s.oldest }
func (s *scripted) NowMS() int64          { return s.now }
func (s *scripted) Addrs() []string       { return nil }

func (s *scripted) Locate(context.Context, pos) (storage.Index, bool) {
	return s.located, s.located > 0
}

func (s *scripted) Scope(context.Context) (map[unit]bool, uint64, error) {
	s.scopes++
	units := map[unit]bool{}
	for _, u := range strings.Fields(s.units) {
		units[unit(u)] = true
	}
	return units, s.version, s.err
}

func (s *scripted) of(u unit, buckets *digest.Buckets) (out []replication.Item) {
	for _, i := range s.data {
		if of, ok := transcriptLayout.Unit(i.Key); ok && of == u && buckets.Has(i.Key) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b replication.Item) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

func (s *scripted) Page(_ context.Context, u unit, after key, buckets *digest.Buckets, values bool, _ int) (out []replication.Item, last key, done bool, at storage.Index, err error) {
	for _, i := range s.of(u, buckets) {
		if i.Key > after || transcriptLayout.Anchor(i.Key) {
			if !values {
				i.Value = nil
			}
			out, last = append(out, i), i.Key
		}
	}
	return out, last, true, s.head - s.lag, nil
}

func (s *scripted) Items(_ context.Context, _ unit, keys []key, _ int) (out []replication.Item, n int, at storage.Index, err error) {
	for _, k := range keys {
		if i, ok := s.data[k]; ok {
			out = append(out, i)
		}
	}
	return out, len(keys), s.head - s.lag, nil
}

func (s *scripted) Digests() (storage.Index, map[unit]digest.Sum, bool) {
	roots := map[unit]digest.Sum{}
	for _, i := range s.data {
		u, _ := transcriptLayout.Unit(i.Key)
		roots[u] = treeOf(s.of(u, nil)).Root()
	}
	return s.digests, roots, s.digests > 0
}

func (s *scripted) Sums(u unit, group int) ([]digest.Sum, storage.Index, bool) {
	return treeOf(s.of(u, nil)).Sums(group), s.digests, s.digests > 0
}

// held is a Replica in memory.
type held struct {
	state   replication.State
	data    map[key]replication.Item
	lost    []replication.Conflict
	commits int
	absent  bool // the digests are being built
	failing error
	dropped []unit
}

func newHeld(cursor string, units string, data string) *held {
	h := &held{data: map[key]replication.Item{}, state: replication.State{Units: map[unit]replication.UnitState{}}}
	if cursor != "" {
		h.state.Cursor, h.state.Lineage = at(cursor), lineage("P 0:0 1")
	}
	for _, u := range strings.Fields(units) {
		h.state.Units[unit(u)] = replication.UnitState{Phase: replication.Whole}
	}
	for _, i := range items(data) {
		h.data[i.Key] = i
	}
	return h
}

// holds renders the keys.
func (h *held) holds() string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(h.data)) {
		out = append(out, fmt.Sprintf("%s@%s", k, h.data[k].Mod))
	}
	return strings.Join(out, " ")
}

// phases renders the units.
func (h *held) phases() string {
	var out []string
	for _, u := range slices.Sorted(maps.Keys(h.state.Units)) {
		out = append(out, fmt.Sprintf("%s=%s", u, h.state.Units[u].Phase))
	}
	return strings.Join(out, " ")
}

func (h *held) Load(context.Context) (replication.State, error) {
	state := h.state
	state.Units = maps.Clone(h.state.Units)
	return state, nil
}

func (h *held) Commit(_ context.Context, c replication.Change) error {
	if h.failing != nil {
		return h.failing
	}
	h.commits++
	if c.Cursor != nil {
		h.state.Cursor = *c.Cursor
	}
	if c.Lineage != nil {
		h.state.Lineage = c.Lineage
	}
	if c.Diverged != nil {
		h.state.Diverged = *c.Diverged
	}
	if c.Scope != nil {
		h.state.Scope = *c.Scope
	}
	for _, i := range c.Puts {
		h.data[i.Key] = i
	}
	for _, k := range c.Deletes {
		delete(h.data, k)
	}
	for u, st := range c.Units {
		if st == nil {
			delete(h.state.Units, u)
		} else {
			h.state.Units[u] = *st
		}
	}
	h.lost = append(h.lost, c.Lost...)
	return nil
}

func (h *held) of(u unit) (out []replication.Item) {
	return (&scripted{data: h.data}).of(u, nil)
}

func (h *held) Keys(_ context.Context, u unit, after, until key, buckets *digest.Buckets) (out []replication.KeyMod, err error) {
	for _, i := range h.of(u) {
		in := i.Key > after && (until == "" || i.Key <= until)
		if transcriptLayout.Anchor(i.Key) {
			in = until == ""
		}
		if in && buckets.Has(i.Key) {
			out = append(out, replication.KeyMod{Key: i.Key, Mod: i.Mod})
		}
	}
	return out, nil
}

func (h *held) Get(_ context.Context, k key) (replication.Item, error) {
	i, ok := h.data[k]
	if !ok {
		return i, storage.ErrNotFound
	}
	return i, nil
}

func (h *held) Drop(_ context.Context, u unit) (bool, error) {
	list := h.of(u)
	for _, i := range list[:min(1, len(list))] { // one at a time
		delete(h.data, i.Key)
	}
	if len(list) <= 1 {
		h.dropped = append(h.dropped, u)
		return true, nil
	}
	return false, nil
}

func (h *held) Digests(context.Context) (map[unit]digest.Sum, bool) {
	_, roots, _ := (&scripted{data: h.data}).Digests()
	return roots, !h.absent
}

func (h *held) Sums(_ context.Context, u unit, group int) ([]digest.Sum, bool) {
	return treeOf(h.of(u)).Sums(group), !h.absent
}
