package syncsim

import (
	"bytes"
	"context"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/coffer-project/coffer/storage"
)

// Store is a storage.Store and a storage.Feed like storage.Memory whose scans cost what they return. The zero value is ready.
type Store struct {
	storage.Subscribers

	mu      sync.RWMutex
	index   storage.Index
	entries map[storage.Key]storage.Entry
	keys    []storage.Key // sorted
}

// Get implements storage.Reader.
func (s *Store) Get(ctx context.Context, key storage.Key) (storage.Entry, error) {
	if err := ctx.Err(); err != nil {
		return storage.Entry{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	e, ok := s.entries[key]
	if !ok {
		return storage.Entry{}, storage.ErrNotFound
	}
	return e, nil
}

// Scan implements storage.Reader.
func (s *Store) Scan(ctx context.Context, prefix, after storage.Key, limit int) ([]storage.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	from := sort.Search(len(s.keys), func(i int) bool { return s.keys[i] >= prefix && s.keys[i] > after })
	var out []storage.Entry
	for _, k := range s.keys[from:] {
		if !strings.HasPrefix(string(k), string(prefix)) || limit > 0 && len(out) == limit {
			break
		}
		out = append(out, s.entries[k])
	}
	return out, nil
}

// List implements storage.Reader.
func (s *Store) List(ctx context.Context, prefix storage.Key, after string, limit int) ([]string, error) {
	entries, err := s.Scan(ctx, prefix, "", 0)
	var names []string
	for _, e := range entries {
		name := string(e.Key[len(prefix):])
		if folder, _, deeper := strings.Cut(name, "/"); deeper {
			name = folder + "/"
		}
		if name <= after || len(names) > 0 && names[len(names)-1] == name {
			continue
		}
		if names = append(names, name); limit > 0 && len(names) == limit {
			break
		}
	}
	return names, err
}

// Commit implements storage.Committer.
func (s *Store) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := b.Validate(64); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range b.Reads {
		if s.entries[r.Key].Version != r.Version {
			return 0, storage.ErrConflict
		}
	}
	if b.Empty() {
		return s.index, nil
	}
	s.index++
	if s.entries == nil {
		s.entries = map[storage.Key]storage.Entry{}
	}
	ch := storage.Change{Index: s.index}
	for _, p := range b.Puts {
		e := storage.Entry{Key: p.Key, Value: bytes.Clone(p.Value), Version: s.index}
		if i, found := slices.BinarySearch(s.keys, p.Key); !found {
			s.keys = slices.Insert(s.keys, i, p.Key)
		}
		s.entries[p.Key] = e
		ch.Entries = append(ch.Entries, e)
	}
	for _, k := range b.Deletes {
		if i, found := slices.BinarySearch(s.keys, k); found {
			s.keys = slices.Delete(s.keys, i, i+1)
		}
		delete(s.entries, k)
		ch.Entries = append(ch.Entries, storage.Entry{Key: k})
	}
	s.Announce(ch)
	return s.index, nil
}
