package fsm

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/storage/record"
)

// Frozen is the state as it was at one index. It holds no lock and delays no writer, but old pages of the file stay in use
// and Close of the FSM waits: close it, and soon. Safe for concurrent use.
type Frozen struct {
	f     *FSM
	view  boltstore.View
	close sync.Once
}

// Freeze returns the state as of now. What a Log was given by then may be ahead of it: wait for an index of the log
// (WaitApplied) before freezing what is to include it.
func (f *FSM) Freeze(ctx context.Context) (*Frozen, error) {
	v, err := f.view(ctx)
	if err != nil {
		return nil, err
	}
	return &Frozen{f: f, view: v}, nil
}

// Index returns the index of the last entry that the state includes.
func (z *Frozen) Index() storage.Index { return storage.Index(z.view.Position().Index) }

// Get returns an entry, or storage.ErrNotFound. Do not modify the value.
func (z *Frozen) Get(key storage.Key) (storage.Entry, error) {
	rec, err := z.view.Get(string(key))
	if err != nil {
		return storage.Entry{}, err
	}
	return z.f.entry(key, rec)
}

// Walk calls fn, in byte order, for each key that begins with prefix and is greater than after, until fn returns false. mod
// is where the value was first written: its origin, or {0, version} if that was in this cluster. The value is valid during
// the call and must not be modified. Once the FSM is closed, Walk ends with storage.ErrUnavailable.
func (z *Frozen) Walk(ctx context.Context, prefix, after storage.Key, fn func(key storage.Key, mod storage.Position, value []byte) bool) error {
	var bad error
	n := 0
	err := z.view.Scan(ctx, string(max(prefix, after)), "", func(key string, rec []byte) bool {
		if n++; n%checkEvery == 0 && z.f.isClosed() {
			bad = fmt.Errorf("the state is closed: %w", storage.ErrUnavailable)
			return false
		}
		if !strings.HasPrefix(key, string(prefix)) {
			return false
		}
		if key == string(after) {
			return true
		}
		h, value, err := record.Parse(rec)
		if err != nil {
			bad = &storage.CorruptError{File: z.f.path(), Detail: err.Error()}
			return false
		}
		return fn(storage.Key(key), h.Mod(), value)
	})
	if err == nil {
		err = bad
	}
	return err
}

// Close releases the state. Nothing else may be under way or come after it. Twice is fine.
func (z *Frozen) Close() { z.close.Do(z.view.Close) }
