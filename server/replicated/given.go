package replicated

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// givenKey is where a secondary keeps the filter that its primary has for it, as it was last told.
const givenKey storage.Key = "l/replication/given-filter"

// givenFilter is what a secondary is told of its filter: what the operator has written, and which of that the primary has.
// What a filter excludes without naming it has no name on the secondary either.
type givenFilter struct {
	Format     int        `json:"format"` // 1
	Mode       FilterMode `json:"mode"`
	Paths      []string   `json:"paths"`
	Mounts     []string   `json:"mounts,omitempty"`     // of Paths, those that are excluded mounts now
	Namespaces []string   `json:"namespaces,omitempty"` // likewise
}

// handOver returns what the secondary may know.
func handOver(f *Filter, scope *Scope) *givenFilter {
	named := func(paths []string) []string {
		return slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return !f.lists(path) })
	}
	return &givenFilter{Format: 1, Mode: f.Mode, Paths: f.Paths, Mounts: named(scope.Mounts), Namespaces: named(scope.Namespaces)}
}

// askTimeout bounds a question to the primary that somebody waits for.
const askTimeout = 2 * time.Second

// given returns the filter that the primary has for this secondary, nil if there is none: as the primary says, or as it
// said last if it cannot be asked.
func (s *Store) given(ctx context.Context) (*givenFilter, error) {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, _, err := s.link.Call(asking, CallFilter, nil)
	if err != nil {
		return readGiven(ctx, s.store)
	}
	var f *givenFilter
	if err := json.Unmarshal(answer, &f); err != nil || f != nil && f.Format != 1 {
		return nil, fmt.Errorf("the primary's answer about the paths filter cannot be read: %w", err)
	}
	return f, s.keepGiven(ctx, f)
}

func readGiven(ctx context.Context, from getter) (*givenFilter, error) {
	var f givenFilter
	found, err := read(ctx, from, givenKey, &f)
	if err != nil || found.Key == "" {
		return nil, err
	}
	return &f, nil
}

// keepGiven stores what the primary has said, if it is news.
func (s *Store) keepGiven(ctx context.Context, f *givenFilter) error {
	_, err := storage.Update(ctx, s.store, func(tx *storage.Txn) error {
		r, err := readRole(ctx, tx)
		if err != nil || r.Mode != Secondary {
			return err
		}
		old, err := tx.Get(ctx, givenKey)
		switch {
		case err != nil && !errors.Is(err, storage.ErrNotFound):
			return err
		case f == nil && err == nil:
			tx.Delete(givenKey)
		case f != nil && string(old.Value) != string(encoded(f)):
			tx.Put(givenKey, encoded(f))
		}
		return nil
	})
	return err
}
