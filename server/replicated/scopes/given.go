package scopes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/storage"
)

// GivenKey is where a secondary keeps the filter that its primary has for it, as it was last told.
const GivenKey storage.Key = "l/replication/given-filter"

// Given is what a secondary is told of its filter: what the operator has written, and which of that the primary has.
// What a filter excludes without naming it has no name on the secondary either.
type Given struct {
	Format     int         `json:"format"` // 1
	Mode       filter.Mode `json:"mode"`
	Paths      []string    `json:"paths"`
	Mounts     []string    `json:"mounts,omitempty"`     // of Paths, those that are excluded mounts now
	Namespaces []string    `json:"namespaces,omitempty"` // likewise
}

// handOver returns what the secondary may know.
func handOver(f *filter.Filter, scope *filter.Scope) *Given {
	named := func(paths []string) []string {
		return slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return !f.Lists(path) })
	}
	return &Given{Format: 1, Mode: f.Mode, Paths: f.Paths, Mounts: named(scope.Mounts), Namespaces: named(scope.Namespaces)}
}

// AskTimeout bounds a question to the primary that a request waits for.
const AskTimeout = 2 * time.Second

// Given returns the filter that the primary has for this secondary, nil if there is none: as the primary says, or as it
// said last if it cannot be asked.
func (s *Scopes) Given(ctx context.Context) (*Given, error) {
	asking, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	answer, _, err := s.o.Link.Call(asking, CallFilter, nil)
	if err != nil {
		return readGiven(ctx, s.o.Store)
	}
	var f *Given
	if err := json.Unmarshal(answer, &f); err != nil || f != nil && f.Format != 1 {
		return nil, fmt.Errorf("the primary's answer about the paths filter cannot be read: %w", err)
	}
	return f, s.keepGiven(ctx, f)
}

// readGiven returns what is stored of it.
func readGiven(ctx context.Context, from entry.Getter) (*Given, error) {
	var f Given
	found, err := entry.Read(ctx, from, GivenKey, &f)
	if err != nil || found.Key == "" {
		return nil, err
	}
	return &f, nil
}

// keepGiven stores what the primary has said, if it is news.
func (s *Scopes) keepGiven(ctx context.Context, f *Given) error {
	_, err := storage.Update(ctx, s.o.Store, func(tx *storage.Txn) error {
		r, err := roles.Read(ctx, tx)
		if err != nil || r.Mode != roles.Secondary {
			return err
		}
		old, err := tx.Get(ctx, GivenKey)
		switch {
		case err != nil && !errors.Is(err, storage.ErrNotFound):
			return err
		case f == nil && err == nil:
			tx.Delete(GivenKey)
		case f != nil && string(old.Value) != string(entry.Encode(f)):
			tx.Put(GivenKey, entry.Encode(f))
		}
		return nil
	})
	return err
}

// CallFilter is the kind of call by which a secondary asks its primary for its filter.
const CallFilter = "filter"

// Answer answers the calls of a secondary that this package knows.
func (s *Scopes) Answer(ctx context.Context, p roles.Peer, kind string, _ []byte) ([]byte, storage.Index, error) {
	if kind != CallFilter {
		return nil, 0, engines.Invalid("unknown kind of call")
	}
	found, err := filter.Read(ctx, s.o.Store, p.ID, p.ClusterID)
	if err != nil {
		return nil, 0, err
	}
	if len(found) == 0 {
		return entry.Encode(nil), 0, nil
	}
	scope, err := s.Resolve(ctx, found[0])
	if err != nil {
		return nil, 0, err
	}
	return entry.Encode(handOver(found[0], &scope)), 0, nil
}
