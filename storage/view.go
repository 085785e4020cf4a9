package storage

import (
	"context"
	"strings"
)

// View is a Store confined to the keys below one prefix. Its keys are relative to that prefix; there is no
// relative key that reaches outside it, because keys are joined, never resolved.
type View struct {
	store  Store
	prefix Key
}

// NewView confines s to prefix, which must end in "/".
func NewView(s Store, prefix Key) View {
	if !strings.HasSuffix(string(prefix), "/") {
		panic("storage: a view's prefix must end in a slash")
	}
	return View{store: s, prefix: prefix}
}

// Get implements Reader.
func (v View) Get(ctx context.Context, key Key) (Entry, error) {
	e, err := v.store.Get(ctx, v.prefix+key)
	if err != nil {
		return Entry{}, err
	}
	e.Key = key
	return e, nil
}

// List implements Reader.
func (v View) List(ctx context.Context, prefix Key, after string, limit int) ([]string, error) {
	return v.store.List(ctx, v.prefix+prefix, after, limit)
}

// Scan implements Reader.
func (v View) Scan(ctx context.Context, prefix, after Key, limit int) ([]Entry, error) {
	if after != "" {
		after = v.prefix + after
	}
	entries, err := v.store.Scan(ctx, v.prefix+prefix, after, limit)
	for i := range entries {
		entries[i].Key = entries[i].Key[len(v.prefix):]
	}
	return entries, err
}

// Commit implements Committer.
func (v View) Commit(ctx context.Context, b Batch) (Index, error) {
	abs := Batch{
		Reads:   make([]Read, len(b.Reads)),
		Puts:    make([]Put, len(b.Puts)),
		Deletes: make([]Key, len(b.Deletes)),
	}
	for i, r := range b.Reads {
		abs.Reads[i] = Read{Key: v.prefix + r.Key, Version: r.Version}
	}
	for i, p := range b.Puts {
		abs.Puts[i] = Put{Key: v.prefix + p.Key, Value: p.Value, Origin: p.Origin}
	}
	for i, k := range b.Deletes {
		abs.Deletes[i] = v.prefix + k
	}
	return v.store.Commit(ctx, abs)
}
