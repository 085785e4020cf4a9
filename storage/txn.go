package storage

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// Txn collects the reads and writes of one optimistic transaction over a Store. It sees its own writes in
// Get, but not in List. Not safe for concurrent use.
type Txn struct {
	store    Reader
	reads    map[Key]Entry   // as first seen; Version 0: was absent
	expected []Read          // without having been read
	writes   map[Key]*[]byte // nil pointer: deleted
}

// Begin starts a transaction. Most callers want Update, which also retries.
func Begin(r Reader) *Txn {
	return &Txn{store: r, reads: map[Key]Entry{}, writes: map[Key]*[]byte{}}
}

// Get returns the entry and makes its version (or its absence) a precondition of the commit. A key that was
// read before answers the same again, whatever happened to it since. What the transaction itself wrote has
// Version 0.
func (t *Txn) Get(ctx context.Context, key Key) (Entry, error) {
	if w, ok := t.writes[key]; ok {
		if w == nil {
			return Entry{}, ErrNotFound
		}
		return Entry{Key: key, Value: *w}, nil
	}
	e, ok := t.reads[key]
	if !ok {
		var err error
		switch e, err = t.store.Get(ctx, key); {
		case errors.Is(err, ErrNotFound):
			e = Entry{}
		case err != nil:
			return Entry{}, err
		}
		t.reads[key] = e
	}
	if e.Version == 0 {
		return Entry{}, ErrNotFound
	}
	return e, nil
}

// Expect makes a version that is known from before a precondition of the commit, without a read; 0: the key is absent. When the commit
// meets ErrConflict it may be that one.
func (t *Txn) Expect(key Key, version Index) {
	t.expected = append(t.expected, Read{Key: key, Version: version})
}

// List lists the store; it adds no precondition.
func (t *Txn) List(ctx context.Context, prefix Key, after string, limit int) ([]string, error) {
	return t.store.List(ctx, prefix, after, limit)
}

// Put stores value under key when the transaction commits. The slice must not change afterwards.
func (t *Txn) Put(key Key, value []byte) { t.writes[key] = &value }

// Delete removes key when the transaction commits.
func (t *Txn) Delete(key Key) { t.writes[key] = nil }

// Batch returns what was collected, in key order, and what was expected.
func (t *Txn) Batch() Batch {
	b := Batch{Reads: slices.Grow([]Read(nil), len(t.reads)+len(t.expected))}
	for k, r := range t.reads {
		b.Reads = append(b.Reads, Read{Key: k, Version: r.Version})
	}
	slices.SortFunc(b.Reads, func(x, y Read) int { return cmp.Compare(x.Key, y.Key) })
	b.Reads = append(b.Reads, t.expected...)
	for k, w := range t.writes {
		if w == nil {
			b.Deletes = append(b.Deletes, k)
		} else {
			b.Puts = append(b.Puts, Put{Key: k, Value: *w})
		}
	}
	slices.Sort(b.Deletes)
	slices.SortFunc(b.Puts, func(x, y Put) int { return cmp.Compare(x.Key, y.Key) })
	return b
}

// maxAttempts bounds Update. Contention on one key that outlives it is reported to the caller as ErrConflict.
const maxAttempts = 64

// Update runs fn in a transaction and commits it, again from the start as long as the commit meets
// ErrConflict (at most 64 times, after a growing random pause). If fn returns an error, nothing is written
// and Update returns that error. A transaction without writes is not committed; its index is 0.
func Update(ctx context.Context, s Store, fn func(*Txn) error) (Index, error) {
	for attempt := 1; ; attempt++ {
		t := Begin(s)
		if err := fn(t); err != nil {
			return 0, err
		}
		if len(t.writes) == 0 {
			return 0, nil
		}
		idx, err := s.Commit(ctx, t.Batch())
		if !errors.Is(err, ErrConflict) || attempt == maxAttempts {
			return idx, err
		}
		if err := pause(ctx, attempt); err != nil {
			return 0, err
		}
	}
}

// pause spreads writers that collide on one key. Without it, n of them each fail n-1 times out of n, and the
// unlucky ones run out of attempts.
func pause(ctx context.Context, attempt int) error {
	limit := time.Millisecond << min(attempt, 7)
	timer := time.NewTimer(rand.N(limit)) //nolint:gosec // jitter, not a secret
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// DeletePrefix removes every key that begins with prefix, up to 512 in each batch. It is not atomic, and a
// key written below the prefix meanwhile may survive: first make the prefix unreachable for writers.
func DeletePrefix(ctx context.Context, s Store, prefix Key) error {
	const most, mostBytes = 512, 8 << 20
	limit := 32
	for after := Key(""); ; {
		entries, err := s.Scan(ctx, prefix, after, limit)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return nil
		}
		var b Batch
		size := 0
		for _, e := range entries {
			b.Deletes = append(b.Deletes, e.Key)
			size += len(e.Value)
		}
		if _, err := s.Commit(ctx, b); err != nil {
			return err
		}
		after = b.Deletes[len(b.Deletes)-1]
		// A scan brings the values too: take as many keys as their size allows.
		if size < mostBytes/2 {
			limit = min(2*limit, most)
		} else if size > mostBytes {
			limit = max(limit/2, 8)
		}
	}
}
