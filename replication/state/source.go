package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// Source is the replication.Source of one session: what this node's log, state and digests say.
type source struct {
	l     *Local
	trees *Trees
	peer  replication.Peer

	cursor storage.Position // of this cluster while it was a secondary, after the last of its records that was read

	version uint64 // of units
	units   map[replication.Unit]bool
	scopes  uint64 // Local.scopes as of when they were asked for
	moved   func() // tells the session that it has to ask again; nil: there is none
}

var _ replication.Source = (*source)(nil)

// NewSource returns the Source of a session with a secondary.
func NewSource(l *Local, t *Trees, p replication.Peer) *source {
	return &source{l: l, trees: t, peer: p}
}

// OnScopeMoved sets what tells the session that it has to ask for the scope again. It belongs before the first use.
func (s *source) OnScopeMoved(moved func()) { s.moved = moved }

// Self implements Source.
func (s *source) Self() (setID, clusterID string, lineage storage.Lineage) {
	self := s.l.o.Cluster.Self()
	return self.SetID, self.ClusterID, self.Lineage
}

// Final implements Source.
func (s *source) Final() (storage.Index, bool) {
	self := s.l.o.Cluster.Self()
	return self.Since, self.Demoted
}

// Records implements Source.
func (s *source) Records(ctx context.Context, after storage.Index, maxBytes int) (entries []replication.Entry, through storage.Index, err error) {
	records, through, err := s.l.records(after, maxBytes)
	if err != nil {
		return nil, 0, err
	}
	if s.stale() {
		return nil, after, nil // not until the session knows what of it may be sent
	}
	as := s.l.resolver()
	for i := range records {
		e, err := s.l.cache.entry(records[i].Index, func() (*cached, error) { return s.l.decode(ctx, &records[i], as) })
		if err != nil {
			return nil, 0, err
		}
		if !e.cursor.IsZero() {
			s.cursor = e.cursor
		}
		if len(e.Ops) == 0 {
			continue
		}
		entry := e.Entry
		if n := len(as.lineage); n > 0 && records[i].Index < as.lineage[n-1].Base && !s.cursor.IsZero() {
			entry.At = s.cursor // the cluster was a secondary then
		}
		entries = append(entries, entry)
	}
	return entries, through, nil
}

// decode opens a record.
func (l *Local) decode(ctx context.Context, r *storage.Record, as resolver) (*cached, error) {
	e := &cached{Entry: replication.Entry{At: as.index(r.Index), TimeMS: r.TimeMS}}
	for i := range r.Ops {
		op := &r.Ops[i]
		if op.Key == replication.CursorKey && !op.Deleted {
			c, err := l.openCursor(ctx, op.Value)
			if err != nil {
				return nil, err
			}
			if !c.Part {
				e.cursor = c.Cursor
			}
		}
		if _, ok := l.o.Layout.Unit(op.Key); !ok || op.Key.Class() != storage.Shared {
			continue
		}
		out := replication.Op{Item: replication.Item{Key: op.Key, Mod: as.mod(op.Origin, r.Index)}, Delete: op.Deleted, Fresh: op.Prior.IsZero()}
		if !op.Deleted {
			var err error
			if out.Value, err = l.o.Store.OpenValue(ctx, op.Key, op.Value); err != nil {
				return nil, fmt.Errorf("opening a value of entry %d: %w", r.Index, err)
			}
		}
		e.bytes += itemBytes(&out.Item)
		e.Ops = append(e.Ops, out)
	}
	return e, nil
}

// openCursor opens the entry that says where a secondary was.
func (l *Local) openCursor(ctx context.Context, sealed []byte) (storedCursor, error) {
	value, err := l.o.Store.OpenValue(ctx, replication.CursorKey, sealed)
	if err != nil {
		return storedCursor{}, fmt.Errorf("opening a cursor: %w", err)
	}
	var c storedCursor
	if err := json.Unmarshal(value, &c); err != nil || c.Format != cursorFormat {
		return storedCursor{}, errors.New("a cursor in the log of changes is of an unknown format")
	}
	return c, nil
}

// Head implements Source.
func (s *source) Head() storage.Index { return s.l.o.State.AppliedIndex() }

// Oldest implements Source.
func (s *source) Oldest() storage.Index { return s.l.o.Log.Base() }

// Locate implements Source. From the record it answers on, the cluster must have been exact: what it fetched or found equal
// while it compared is not in its log.
func (s *source) Locate(ctx context.Context, p storage.Position) (storage.Index, bool) {
	as := s.l.resolver()
	mine := as.wrote(p.Epoch) // then p.Index is one of this log
	n := 0
	for r, err := range s.l.o.Log.Backward() {
		if n++; err != nil || n%1024 == 0 && ctx.Err() != nil {
			return 0, false
		}
		if mine && r.Index <= p.Index {
			break
		}
		i := slices.IndexFunc(r.Ops, func(op storage.RecordOp) bool { return op.Key == replication.CursorKey })
		if i < 0 {
			continue
		}
		if r.Ops[i].Deleted {
			if as.began(r.Index) || r.Ops[i].Prior.IsZero() {
				continue // a promotion takes the cursor away; or there was none
			}
			return 0, false // what is older is of another life
		}
		c, err := s.l.openCursor(ctx, r.Ops[i].Value)
		if err != nil {
			return 0, false
		}
		if !c.Exact {
			return 0, false
		}
		if !mine && !p.Before(c.Cursor) {
			s.cursor = c.Cursor
			return r.Index, true
		}
	}
	if !mine {
		return 0, false
	}
	s.cursor = storage.Position{}
	return p.Index, p.Index >= s.Oldest()
}

// stale reports whether the scope may have changed since the session asked for it, and tells it so. What changes the scope
// is announced before anything written later can be read: to ask after reading is safe.
func (s *source) stale() bool {
	if s.moved == nil || s.scopes == s.l.scopes.Load() {
		return false
	}
	s.moved()
	return true
}

// inScope returns an error if the unit has left the scope since the session asked for that.
func (s *source) inScope(ctx context.Context, unit replication.Unit) error {
	if !s.stale() {
		return nil
	}
	units, _, err := s.ask(ctx)
	if err == nil && !units[string(unit)] {
		err = ErrScopeMoved
	}
	return err
}

// ask asks for the scope, when everybody has heard of what was announced to have changed it.
func (s *source) ask(ctx context.Context) (map[string]bool, uint64, error) {
	if err := s.l.o.State.WaitApplied(ctx, storage.Index(s.l.scopedAt.Load())); err != nil {
		return nil, 0, err
	}
	return s.l.o.Cluster.Scope(ctx, s.peer)
}

// Scope implements Source.
func (s *source) Scope(ctx context.Context) (map[replication.Unit]bool, uint64, error) {
	s.scopes = s.l.scopes.Load()
	units, version, err := s.ask(ctx)
	if err != nil {
		return nil, 0, err
	}
	if s.units == nil || s.version != version || len(s.units) != len(units) {
		s.units = make(map[replication.Unit]bool, len(units))
		for unit, in := range units {
			if in {
				s.units[replication.Unit(unit)] = true
			}
		}
		s.version = version
	}
	return s.units, version, nil
}

// Page implements Source.
func (s *source) Page(ctx context.Context, unit replication.Unit, after storage.Key, buckets *digest.Buckets, values bool, maxBytes int) ([]replication.Item, storage.Key, bool, storage.Index, error) {
	items, last, done, at, err := s.l.page(ctx, s.trees, unit, after, buckets, values, maxBytes)
	if err == nil {
		err = s.inScope(ctx, unit)
	}
	if err != nil {
		return nil, "", false, 0, err
	}
	return items, last, done, at, nil
}

// Items implements Source. Keys of other units are answered as if they did not exist.
func (s *source) Items(ctx context.Context, unit replication.Unit, keys []storage.Key, maxBytes int) (items []replication.Item, n int, at storage.Index, err error) {
	z, as, err := s.l.freeze(ctx)
	if err != nil {
		return nil, 0, 0, err
	}
	defer z.Close()
	for _, key := range keys {
		if maxBytes <= 0 {
			break
		}
		n++
		if of, ok := s.l.o.Layout.Unit(key); !ok || of != unit {
			continue
		}
		e, err := z.Get(key)
		if errors.Is(err, storage.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, 0, 0, err
		}
		item := replication.Item{Key: key, Mod: as.modOf(e)}
		if item.Value, err = s.l.o.Store.OpenValue(ctx, key, e.Value); err != nil {
			return nil, 0, 0, fmt.Errorf("opening a value: %w", err)
		}
		maxBytes -= itemBytes(&item)
		items = append(items, item)
	}
	if err := s.inScope(ctx, unit); err != nil {
		return nil, 0, 0, err
	}
	return items, n, z.Index(), nil
}

// Digests implements Source.
func (s *source) Digests() (storage.Index, map[replication.Unit]digest.Sum, bool) {
	return s.trees.Roots()
}

// Sums implements Source.
func (s *source) Sums(unit replication.Unit, group int) ([]digest.Sum, storage.Index, bool) {
	return s.trees.sums(unit, group)
}

// NowMS implements Source.
func (s *source) NowMS() int64 { return time.Now().UnixMilli() }

// Addrs implements Source.
func (s *source) Addrs() []string { return s.l.o.Cluster.Addrs() }

// ErrScopeMoved says that a unit left the scope while it was read for an answer.
var ErrScopeMoved = errors.New("the scope changed meanwhile")

// cached is a record, opened.
type cached struct {
	replication.Entry
	cursor storage.Position // of this cluster, if the record says where it is
	bytes  int
}

// entryCache has the newest records opened, so that several sessions at the same place do it once.
type entryCache struct {
	mu      sync.Mutex
	entries map[storage.Index]*cached
	order   []storage.Index // as they came
	bytes   int
}

const maxCacheBytes = 16 << 20

// entry returns the record at an index, opened by open if it is not there. What is returned is shared.
func (c *entryCache) entry(index storage.Index, open func() (*cached, error)) (*cached, error) {
	c.mu.Lock()
	e := c.entries[index]
	c.mu.Unlock()
	if e != nil {
		return e, nil
	}
	e, err := open()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[storage.Index]*cached{}
	}
	if c.entries[index] == nil {
		c.entries[index] = e
		c.order = append(c.order, index)
		c.bytes += e.bytes + 64
	}
	for c.bytes > maxCacheBytes && len(c.order) > 1 {
		c.bytes -= c.entries[c.order[0]].bytes + 64
		delete(c.entries, c.order[0])
		c.order = c.order[1:]
	}
	return e, nil
}

// clear forgets everything.
func (c *entryCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries, c.order, c.bytes = nil, nil, 0
}
