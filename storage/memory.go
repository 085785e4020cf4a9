package storage

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
)

// Memory is a Store in memory with the exact semantics of the replicated one, and a Feed. It is for tests
// and small tools: List and Scan cost as much as everything stored. The zero value is ready.
type Memory struct {
	Subscribers

	mu      sync.RWMutex
	index   Index
	entries map[Key]Entry
}

// Get implements Reader.
func (m *Memory) Get(ctx context.Context, key Key) (Entry, error) {
	if err := ctx.Err(); err != nil {
		return Entry{}, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	e, ok := m.entries[key]
	if !ok {
		return Entry{}, ErrNotFound
	}
	return e, nil
}

// List implements Reader.
func (m *Memory) List(ctx context.Context, prefix Key, after string, limit int) ([]string, error) {
	entries, err := m.Scan(ctx, prefix, "", 0)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		name := string(e.Key[len(prefix):])
		if i := strings.IndexByte(name, '/'); i >= 0 {
			name = name[:i+1]
		}
		if name <= after || len(names) > 0 && names[len(names)-1] == name {
			continue
		}
		if names = append(names, name); limit > 0 && len(names) == limit {
			break
		}
	}
	return names, nil
}

// Scan implements Reader.
func (m *Memory) Scan(ctx context.Context, prefix, after Key, limit int) ([]Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	var out []Entry
	for k, e := range m.entries {
		if strings.HasPrefix(string(k), string(prefix)) && k > after {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(string(a.Key), string(b.Key)) })
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	return out, nil
}

// memorySlack leaves room for what a barrier above adds to each value.
const memorySlack = 64

// Commit implements Committer.
func (m *Memory) Commit(ctx context.Context, b Batch) (Index, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := b.Validate(memorySlack); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range b.Reads {
		if m.entries[r.Key].Version != r.Version {
			return 0, ErrConflict
		}
	}
	if b.Empty() {
		return m.index, nil
	}
	m.index++
	if m.entries == nil {
		m.entries = map[Key]Entry{}
	}
	ch := Change{Index: m.index}
	for _, p := range b.Puts {
		e := Entry{Key: p.Key, Value: bytes.Clone(p.Value), Version: m.index, Origin: p.Origin}
		m.entries[p.Key] = e
		ch.Entries = append(ch.Entries, e)
	}
	for _, k := range b.Deletes {
		delete(m.entries, k)
		ch.Entries = append(ch.Entries, Entry{Key: k})
	}
	m.Announce(ch)
	return m.index, nil
}
