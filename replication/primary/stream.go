package primary

import (
	"context"
	"fmt"
	"slices"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

const groups = digest.Groups

// opOverhead is what an op costs of the credit besides its key and value.
const opOverhead = 64

// batch returns the next entries, or a Scope that must come before the next one, or nil.
func (s *Session) batch(ctx context.Context, now int64) (replication.Message, error) {
	if s.p.InFlight >= s.o.WindowBytes {
		return nil, nil
	}
	var b replication.Batch
	fetches, drained := 0, false
	for b.Bytes < int64(s.o.BatchBytes) {
		if len(s.fetched) == 0 {
			if len(b.Entries) > 0 || fetches == maxFetches || s.holds(now) || s.demoted && s.through >= s.final {
				break
			}
			more, err := s.fetch(ctx)
			if err != nil {
				return nil, err
			}
			fetches++
			if drained = !more; drained {
				break
			}
		}
		e := s.fetched[0]
		if s.cut != nil && s.index(e) > s.cut.at {
			break // the checkpoint comes first
		}
		if s.demoted && s.index(e) > s.final {
			s.fetched, s.left = nil, true // of the time when this cluster follows another one
			break
		}
		if !s.examined && s.anchors(e) {
			if len(b.Entries) > 0 {
				break // what precedes it goes first
			}
			s.examined = true
			if m, err := s.examine(ctx, e, now); m != nil || err != nil {
				return m, err
			}
		}
		s.fetched, s.examined = s.fetched[1:], false
		if e.At.Before(s.from) {
			continue // Locate may begin a little early
		}
		if s.passed.Before(e.At) {
			s.passed = e.At
		}
		sent, bytes, err := s.filter(e)
		if err != nil {
			return nil, err
		}
		if len(sent.Ops) > 0 {
			b.Entries = append(b.Entries, sent)
			b.Bytes += bytes
		}
	}
	return s.move(b, now, fetches == maxFetches && !drained)
}

// move completes a batch by the positions. One without entries is sent now and then, and at once if the secondary waits
// for it.
func (s *Session) move(b replication.Batch, now int64, urgent bool) (replication.Message, error) {
	to := s.passed
	if reached := s.reached(); len(s.fetched) == 0 && to.Before(reached) {
		to = reached
	}
	if len(b.Entries) == 0 {
		awaited := s.at.Before(s.answered) && !to.Before(s.answered)
		if !s.at.Before(to) || !urgent && !awaited && !s.demoted && now-s.movedAt < moveMS {
			return nil, nil
		}
	}
	b.Prev, b.Last = s.at, to
	s.at, s.passed, s.movedAt = to, to, now
	s.p.Batches++
	s.p.Entries += uint64(len(b.Entries))
	s.p.Bytes += b.Bytes
	s.p.InFlight += b.Bytes
	return b, nil
}

// reached returns the position up to which nothing is left to send when fetched is empty; zero: it has no name, because
// it is of the time when this cluster was a secondary.
func (s *Session) reached() storage.Position {
	index := s.through
	if s.demoted && index > s.final && !s.own(s.final).Before(s.at) {
		index = s.final // the cursor is to end there exactly
	}
	if index < s.base {
		return storage.Position{}
	}
	return s.own(index)
}

// fetch gets more records, and reports whether there were any.
func (s *Session) fetch(ctx context.Context) (bool, error) {
	entries, through, err := s.src.Records(ctx, s.through, s.o.BatchBytes)
	if err != nil {
		return false, fmt.Errorf("reading records after %d: %w", s.through, err)
	}
	if through < s.through {
		return false, fmt.Errorf("records after %d end at %d", s.through, through)
	}
	s.fetched, s.through = entries, through
	if len(entries) == 0 {
		return false, nil
	}
	if s.shared = s.index(entries[len(entries)-1]); s.shared == 0 || s.shared > through {
		s.shared = through
	}
	return true, nil
}

// filter returns the entry with the ops that the secondary may have, and what they cost.
func (s *Session) filter(e replication.Entry) (replication.Entry, int64, error) {
	out := replication.Entry{At: e.At, TimeMS: e.TimeMS}
	var bytes int64
	for _, op := range e.Ops {
		unit, ok := s.layout.Unit(op.Key)
		if !ok || op.Key.Class() != storage.Shared {
			continue
		}
		if !s.scope[unit] {
			s.outside[unit] = true
			continue
		}
		if !s.written(op.Mod) {
			return replication.Entry{}, 0, fmt.Errorf("entry %s has an op of %s", e.At, op.Mod)
		}
		out.Ops = append(out.Ops, op)
		bytes += int64(len(op.Key)+len(op.Value)) + opOverhead
	}
	return out, bytes, nil
}

// written reports whether something may have been written at a position before the end of this cluster's epoch.
func (s *Session) written(at storage.Position) bool {
	return at.Epoch != 0 && at.Index != 0 && at.Epoch <= s.lineage.Epoch()
}

// anchors reports whether the entry makes or removes a unit.
func (s *Session) anchors(e replication.Entry) bool {
	for _, op := range e.Ops {
		if s.layout.Anchor(op.Key) {
			return true
		}
	}
	return false
}

// examine looks at the scope before an entry that touches an anchor. A unit that begins with this entry needs no
// fetching: its anchor did not exist, was not moved here from another key, and nothing of the unit was seen before.
func (s *Session) examine(ctx context.Context, e replication.Entry, now int64) (replication.Message, error) {
	if err := s.readScope(ctx, now); err != nil {
		return nil, err
	}
	fresh, moved := map[replication.Unit]bool{}, map[replication.Unit]bool{}
	for _, op := range e.Ops {
		unit, ok := s.layout.Unit(op.Key)
		switch {
		case !ok || !s.layout.Anchor(op.Key):
		case op.Delete:
			moved[unit] = true
		case op.Fresh && s.allowed[unit] && !s.scope[unit] && !s.outside[unit]:
			fresh[unit] = true
		}
	}
	m := replication.Scope{Drop: s.dropped()}
	for _, unit := range sorted(fresh) {
		if !moved[unit] {
			m.New = append(m.New, unit)
		}
	}
	return s.announce(m), nil
}

// rescope tells the secondary what changed in its scope: at once what it must drop; what it may have as soon as the
// stream is where the change was made, because the unit may turn out to begin in between.
func (s *Session) rescope(ctx context.Context, now int64) (replication.Message, error) {
	if s.scopeChanged.Swap(false) {
		if err := s.same(); err != nil {
			return nil, err
		}
		if err := s.readScope(ctx, now); err != nil {
			return nil, err
		}
	}
	m := replication.Scope{Drop: s.dropped()}
	if s.deferUntil != 0 && (now >= s.deferUntil || len(s.fetched) == 0 && s.through >= s.deferIndex) {
		s.deferUntil = 0
		for _, unit := range sorted(s.allowed) {
			if s.allowed[unit] && !s.scope[unit] {
				m.Add = append(m.Add, unit)
			}
		}
	}
	return s.announce(m), nil
}

func (s *Session) readScope(ctx context.Context, now int64) error {
	units, version, err := s.src.Scope(ctx)
	if err != nil {
		return err
	}
	s.allowed, s.version, s.reduced = units, version, true
	for unit, in := range units {
		if in && !s.scope[unit] {
			s.deferIndex = s.src.Head()
			if s.deferUntil == 0 {
				s.deferUntil = now + deferMS
			}
			break
		}
	}
	return nil
}

// dropped returns the units that the secondary has and may not have any more.
func (s *Session) dropped() []replication.Unit {
	if !s.reduced {
		return nil
	}
	s.reduced = false
	var out []replication.Unit
	for _, unit := range sorted(s.scope) {
		if !s.allowed[unit] {
			out = append(out, unit)
		}
	}
	return out
}

// announce makes a change of the scope take effect; nil if it is none.
func (s *Session) announce(m replication.Scope) replication.Message {
	if len(m.Add)+len(m.New)+len(m.Drop) == 0 {
		return nil
	}
	for _, unit := range m.Drop {
		delete(s.scope, unit)
		s.outside[unit] = true
	}
	for _, unit := range slices.Concat(m.Add, m.New) {
		s.scope[unit] = true
	}
	m.Version = s.version
	return m
}

// holds reports whether the stream stands still for a moment so that the digests catch up with it.
func (s *Session) holds(now int64) bool {
	return s.holdSince != 0 && (now-s.holdSince)/holdMS%2 == 0
}

func (s *Session) hold(now int64) {
	if s.holdSince == 0 {
		s.holdSince = max(now, 1)
	}
}

// checkpoint takes the roots when they are due and not behind the stream, and sends them when the stream has come to
// exactly where they are of.
func (s *Session) checkpoint(ctx context.Context, now int64) (replication.Message, error) {
	if s.cut == nil {
		if now-s.checkpointAt < s.o.CheckpointMS || s.demoted {
			return nil, nil
		}
		at, roots, ok := s.src.Digests()
		if !ok {
			s.checkpointAt, s.holdSince = now, 0
			return nil, nil
		}
		if at < s.shared {
			s.hold(now)
			return nil, nil
		}
		s.holdSince = 0
		s.cut = &checkpoint{at: at, roots: replication.Checkpoint{Roots: roots}}
	}
	if len(s.fetched) == 0 && s.through < s.cut.at {
		if _, err := s.fetch(ctx); err != nil {
			return nil, err
		}
	}
	if len(s.fetched) > 0 && s.index(s.fetched[0]) <= s.cut.at || len(s.fetched) == 0 && s.through < s.cut.at {
		return nil, nil
	}
	m := replication.Checkpoint{At: s.at, Roots: make(map[replication.Unit]digest.Sum, len(s.scope))}
	for unit, root := range s.cut.roots.Roots {
		if s.scope[unit] && root != (digest.Sum{}) {
			m.Roots[unit] = root
		}
	}
	s.cut, s.checkpointAt = nil, now
	return m, nil
}

// answer answers the first question, unless the digests are behind what was sent.
func (s *Session) answer(ctx context.Context, now int64) (replication.Message, error) {
	if len(s.asks) == 0 || s.left || s.demoted && !s.complete() {
		return nil, nil
	}
	var (
		m   replication.Message
		at  storage.Index
		err error
	)
	switch ask := s.asks[0].(type) {
	case replication.AskSums:
		if !s.scope[ask.Unit] {
			m = replication.Gone{Unit: ask.Unit}
			break
		}
		sums, index, ok := s.src.Sums(ask.Unit, ask.Group)
		if !ok {
			s.holdSince = 0
			return nil, nil
		}
		if index < s.shared {
			s.hold(now)
			return nil, nil
		}
		at = max(index, s.through) // nothing shared is between them
		m = replication.Sums{Unit: ask.Unit, Group: ask.Group, Sums: sums, At: s.own(at)}
		s.p.Bytes += int64(len(sums)) * 24
	case replication.AskPage:
		m, at, err = s.page(ctx, ask)
	case replication.AskItems:
		m, at, err = s.items(ctx, ask)
	}
	if err != nil {
		return nil, err
	}
	if final, demoted := s.src.Final(); demoted && !s.demoted { // since the session was told last
		s.Demoted(final)
	}
	if s.demoted && at > s.final {
		if !s.complete() {
			return nil, nil // everything up to there comes first
		}
		if m, err = s.settled(ctx, m, at); m == nil || err != nil {
			return nil, err
		}
	} else if at != 0 && s.answered.Before(s.own(at)) {
		s.answered = s.own(at)
	}
	s.asks, s.holdSince = s.asks[1:], 0
	s.p.Answers++
	return m, nil
}

// settled returns an answer that was read after the end as what it is, one of the end, or nil: something shared was written
// in between, so this cluster follows another one, or its history is not known yet.
func (s *Session) settled(ctx context.Context, m replication.Message, at storage.Index) (replication.Message, error) {
	if s.through < at {
		more, err := s.fetch(ctx)
		if err != nil {
			return nil, err
		}
		if more {
			s.fetched, s.left = nil, true
		}
	}
	if s.left || s.through < at {
		return nil, nil
	}
	switch a := m.(type) {
	case replication.Sums:
		a.At = s.own(s.final)
		m = a
	case replication.Page:
		a.At = s.own(s.final)
		m = a
	case replication.Items:
		a.At = s.own(s.final)
		m = a
	}
	return m, nil
}

func (s *Session) page(ctx context.Context, ask replication.AskPage) (replication.Message, storage.Index, error) {
	if !s.scope[ask.Unit] {
		return replication.Gone{Unit: ask.Unit}, 0, nil
	}
	items, last, done, at, err := s.src.Page(ctx, ask.Unit, ask.After, ask.Buckets, ask.Values, s.o.PageBytes)
	if err == nil {
		err = s.checkAnswer(ask.Unit, items, at)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading a page of %s: %w", ask.Unit, err)
	}
	return replication.Page{Unit: ask.Unit, After: ask.After, Items: items, Last: last, Done: done, At: s.own(at)}, at, nil
}

func (s *Session) items(ctx context.Context, ask replication.AskItems) (replication.Message, storage.Index, error) {
	if !s.scope[ask.Unit] {
		return replication.Gone{Unit: ask.Unit}, 0, nil
	}
	items, n, at, err := s.src.Items(ctx, ask.Unit, ask.Keys, s.o.PageBytes)
	if err == nil && (n <= 0 || n > len(ask.Keys)) {
		err = fmt.Errorf("%d of %d keys were answered", n, len(ask.Keys))
	}
	if err == nil {
		err = s.checkAnswer(ask.Unit, items, at)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading items of %s: %w", ask.Unit, err)
	}
	return replication.Items{Unit: ask.Unit, Items: items, N: n, At: s.own(at)}, at, nil
}

// checkAnswer is the last gate before data leaves: what was read must be of the unit, and not older than the stream.
func (s *Session) checkAnswer(unit replication.Unit, items []replication.Item, at storage.Index) error {
	if at < s.shared {
		return fmt.Errorf("it was read at %d, and %d was sent already", at, s.shared)
	}
	for i := range items {
		of, ok := s.layout.Unit(items[i].Key)
		if !ok || of != unit || items[i].Key.Class() != storage.Shared {
			return fmt.Errorf("it has a key that is not of the unit")
		}
		if !s.written(items[i].Mod) {
			return fmt.Errorf("it has an item of %s", items[i].Mod)
		}
		s.p.Bytes += int64(len(items[i].Key)+len(items[i].Value)) + opOverhead
	}
	return nil
}
