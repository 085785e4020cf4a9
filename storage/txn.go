package storage

import (
	"context"
	"errors"
	"sort"
)

// Txn collects the reads and writes of one optimistic transaction over a Store. It sees its own writes in
// Get, but not in List. Not safe for concurrent use.
type Txn struct {
	store  Reader
	reads  map[Key]Index
	writes map[Key]*[]byte // nil pointer: deleted
}

// Begin starts a transaction. Most callers want Update, which also retries.
func Begin(r Reader) *Txn {
	return &Txn{store: r, reads: map[Key]Index{}, writes: map[Key]*[]byte{}}
}

// Get returns the entry and makes its version (or its absence) a precondition of the commit.
func (t *Txn) Get(ctx context.Context, key Key) (Entry, error) {
	if w, ok := t.writes[key]; ok {
		if w == nil {
			return Entry{}, ErrNotFound
		}
		return Entry{Key: key, Value: *w}, nil
	}
	e, err := t.store.Get(ctx, key)
	switch {
	case err == nil:
		t.require(key, e.Version)
	case errors.Is(err, ErrNotFound):
		t.require(key, 0)
	}
	return e, err
}

// require keeps the first version seen: a later read of other data must not hide that the first is stale.
func (t *Txn) require(key Key, v Index) {
	if _, ok := t.reads[key]; !ok {
		t.reads[key] = v
	}
}

// List lists the store; it adds no precondition.
func (t *Txn) List(ctx context.Context, prefix Key, after string, limit int) ([]string, error) {
	return t.store.List(ctx, prefix, after, limit)
}

// Put stores value under key when the transaction commits. The slice must not change afterwards.
func (t *Txn) Put(key Key, value []byte) { t.writes[key] = &value }

// Delete removes key when the transaction commits.
func (t *Txn) Delete(key Key) { t.writes[key] = nil }

// Batch returns what was collected, in key order.
func (t *Txn) Batch() Batch {
	var b Batch
	for k, v := range t.reads {
		b.Reads = append(b.Reads, Read{Key: k, Version: v})
	}
	for k, w := range t.writes {
		if w == nil {
			b.Deletes = append(b.Deletes, k)
		} else {
			b.Puts = append(b.Puts, Put{Key: k, Value: *w})
		}
	}
	sort.Slice(b.Reads, func(i, j int) bool { return b.Reads[i].Key < b.Reads[j].Key })
	sort.Slice(b.Puts, func(i, j int) bool { return b.Puts[i].Key < b.Puts[j].Key })
	sort.Slice(b.Deletes, func(i, j int) bool { return b.Deletes[i] < b.Deletes[j] })
	return b
}

// maxAttempts bounds Update. Contention on one key that outlives it is reported to the caller as ErrConflict.
const maxAttempts = 32

// Update runs fn in a transaction and commits it, again from the start as long as the commit meets
// ErrConflict (at most 32 times). If fn returns an error, nothing is written and Update returns that error.
// A transaction without writes is not committed; its index is 0.
func Update(ctx context.Context, s Store, fn func(*Txn) error) (Index, error) {
	for attempt := 1; ; attempt++ {
		t := Begin(s)
		if err := fn(t); err != nil {
			return 0, err
		}
		b := t.Batch()
		if b.Empty() {
			return 0, nil
		}
		idx, err := s.Commit(ctx, b)
		if !errors.Is(err, ErrConflict) || attempt == maxAttempts {
			return idx, err
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
}

// DeletePrefix removes every key that begins with prefix, 512 in each batch. It is not atomic, and a key
// written below the prefix meanwhile may survive: first make the prefix unreachable for writers.
func DeletePrefix(ctx context.Context, s Store, prefix Key) error {
	for {
		entries, err := s.Scan(ctx, prefix, "", 512)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return nil
		}
		var b Batch
		for _, e := range entries {
			b.Deletes = append(b.Deletes, e.Key)
		}
		if _, err := s.Commit(ctx, b); err != nil {
			return err
		}
	}
}
