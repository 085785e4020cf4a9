package storage

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
)

// Memory is a Store in memory with the exact semantics of the replicated one, and a Feed. It is for tests
// and small tools. The zero value is ready.
type Memory struct {
	Subscribers

	mu      sync.RWMutex
	index   Index
	entries map[Key]Entry
	keys    []Key // of entries, in order
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
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	var names []string
	for i := m.from(prefix + Key(after)); i < len(m.keys) && strings.HasPrefix(string(m.keys[i]), string(prefix)); {
		name := string(m.keys[i][len(prefix):])
		if folder, _, ok := strings.Cut(name, "/"); ok {
			name = folder + "/"
			i = m.from(prefix + Key(folder) + "0") // the first key after the folder, as "0" follows "/"
		} else {
			i++
		}
		if name <= after {
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
	for _, k := range m.keys[m.from(max(prefix, after)):] {
		if !strings.HasPrefix(string(k), string(prefix)) || limit > 0 && len(out) == limit {
			break
		}
		if k > after {
			out = append(out, m.entries[k])
		}
	}
	return out, nil
}

// from returns the place of the first key that is not before k.
func (m *Memory) from(k Key) int {
	i, _ := slices.BinarySearch(m.keys, k)
	return i
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
		if _, ok := m.entries[p.Key]; !ok {
			m.keys = slices.Insert(m.keys, m.from(p.Key), p.Key)
		}
		m.entries[p.Key] = e
		ch.Entries = append(ch.Entries, e)
	}
	for _, k := range b.Deletes {
		if i, ok := slices.BinarySearch(m.keys, k); ok {
			m.keys = slices.Delete(m.keys, i, i+1)
		}
		delete(m.entries, k)
		ch.Entries = append(ch.Entries, Entry{Key: k})
	}
	m.Announce(ch)
	return m.index, nil
}
