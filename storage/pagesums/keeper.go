package pagesums

import (
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// The newest state is written after saveEvery at the earliest, or when so many pages have changed; after a failure, later.
const (
	saveEvery  = time.Second
	saveAtOnce = 1 << 14
	retryAfter = time.Minute
	// spare is how much longer than its first record a file may become, beside that record's length.
	spare = 1 << 20
)

// Keeper keeps the file of one open file up to date. Safe for concurrent use. The zero Keeper keeps none.
type Keeper struct {
	mu      sync.Mutex
	path    string // "": none
	log     *slog.Logger
	file    *file // nil: all pages are to be written
	changed map[uint64]struct{}
	due     time.Time
}

// Begin has the keeper write to path from now on. What is there stays until the first Save.
func (k *Keeper) Begin(path string, log *slog.Logger) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.path, k.log, k.changed, k.due = path, log, map[uint64]struct{}{}, time.Time{}
}

// Changed notes that n pages from id on are in use now, or are not any more.
func (k *Keeper) Changed(id, n uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == nil {
		return
	}
	for i := range n {
		k.changed[id+i] = struct{}{}
	}
}

// Source tells a Keeper about the file.
type Source struct {
	State State
	Page  func(id uint64) Page
	// Trusted reports whether the file is still to be used at the next start without a check of all of it.
	Trusted func() bool
}

// Save makes the checksums of a state durable if that is due, or now is true. It reports whether the state that was saved before is not needed any
// more, whose pages may then be written: because this one is saved, or because that failed. Then the file of checksums is removed, and the
// next start checks everything.
func (k *Keeper) Save(now bool, from Source) (saved, failed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.path == "" || !now && time.Now().Before(k.due) && len(k.changed) < saveAtOnce || !from.Trusted() {
		return false, false
	}
	if err := k.save(from); err != nil {
		k.log.Warn("the checksums of the state file cannot be kept: until they can, a start checks all of it", "err", err)
		k.drop()
		k.due = time.Now().Add(retryAfter)
		return false, true
	}
	clear(k.changed)
	k.due = time.Now().Add(saveEvery)
	return true, false
}

func (k *Keeper) save(from Source) error {
	if k.file != nil && k.file.since <= k.file.first+spare {
		ids := slices.Sorted(maps.Keys(k.changed))
		record, err := encode(recordChanges, from.State, pagesOf(slices.Values(ids), from, false))
		if err != nil {
			return err
		}
		return k.file.add(record)
	}
	all := func(yield func(uint64) bool) {
		for id := uint64(0); id < from.State.High && yield(id); id++ {
		}
	}
	record, err := encode(recordAll, from.State, pagesOf(all, from, true))
	if err != nil {
		return err
	}
	next, err := create(k.path, record)
	if err != nil {
		return err
	}
	if k.file != nil {
		_ = k.file.f.Close() // it is synced, and has no name any more
	}
	k.file = next
	return nil
}

// pagesOf returns the pages with these numbers, or those of them that are in use.
func pagesOf(ids iter.Seq[uint64], from Source, used bool) func(yield func(Page) bool) {
	return func(yield func(Page) bool) {
		for id := range ids {
			if p := from.Page(id); (p.Used || !used) && !yield(p) {
				return
			}
		}
	}
}

// Drop removes the file, for good if the file that it is about is damaged or replaced: the next start checks everything.
func (k *Keeper) Drop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop()
	k.path = ""
}

func (k *Keeper) drop() {
	if k.path == "" {
		return
	}
	k.close()
	if err := remove(k.path); err != nil {
		k.log.Error("removing the checksums of the state file", "err", err)
	}
}

// Close ends keeping the file, which stays.
func (k *Keeper) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.close()
	k.path = ""
}

func (k *Keeper) close() {
	if k.file != nil {
		_ = k.file.f.Close() // what was written is synced
		k.file = nil
	}
	clear(k.changed)
}
