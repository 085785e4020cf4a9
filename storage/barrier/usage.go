package barrier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/storage"
)

// usageKey is where the count of encryptions is, behind the barrier.
const usageKey storage.Key = "l/sys/rotate/usage"

// usage is how often one term's key has been used, by all nodes together.
type usage struct {
	Format      int    `json:"format"` // 1
	Term        uint32 `json:"term"`
	Encryptions uint64 `json:"encryptions"`
}

// usageOf reads the stored count for a term: 0 if what is stored is about another.
func usageOf(ctx context.Context, get func(context.Context, storage.Key) (storage.Entry, error), term uint32) (usage, error) {
	fresh := usage{Format: 1, Term: term}
	e, err := get(ctx, usageKey)
	if errors.Is(err, storage.ErrNotFound) {
		return fresh, nil
	}
	if err != nil {
		return fresh, err
	}
	var u usage
	if err := json.Unmarshal(e.Value, &u); err != nil || u.Format != 1 {
		return fresh, fmt.Errorf("decoding %s: it has an unknown format", usageKey)
	}
	if u.Term != term {
		return fresh, nil
	}
	return u, nil
}

func (k *termKey) unsaved() uint64 { return k.encryptions.Load() - k.saved.Load() }

// KeyInfo describes the active key. It is zero while the barrier is sealed. It reads the store.
func (b *Barrier) KeyInfo() KeyInfo {
	ctx := context.Background()
	k, err := b.current(ctx)
	if err != nil {
		return KeyInfo{}
	}
	info := KeyInfo{Term: k.active.term, InstalledAt: k.active.installedAt, Unsaved: k.active.unsaved()}
	info.Encryptions = info.Unsaved
	if u, err := usageOf(ctx, b.Get, info.Term); err == nil { // else a lower bound, as it is anyway
		info.Encryptions += u.Encryptions
	}
	return info
}

// SaveCount adds what this node has sealed under the active key since the last time to the stored count, so that it
// outlives the node. What a node that dies had not saved is not counted. It needs a store that takes writes, and
// returns its errors. If the outcome is unknown the next call may count twice.
func (b *Barrier) SaveCount(ctx context.Context) error {
	k, err := b.current(ctx)
	if err != nil {
		return err
	}
	n := k.active.unsaved()
	if n < 2 { // saving is an encryption itself: an idle cluster must come to rest
		return nil
	}
	_, err = storage.Update(ctx, b, func(txn *storage.Txn) error {
		u, err := usageOf(ctx, txn.Get, k.active.term)
		if err != nil {
			return err
		}
		u.Encryptions += n
		value, err := json.Marshal(u)
		txn.Put(usageKey, value)
		return err
	})
	if err != nil {
		return fmt.Errorf("saving the count of encryptions: %w", err)
	}
	k.active.saved.Add(n)
	return nil
}
