// Package scopes is what each secondary gets: the filters that operators write on the primary, applied to the mounts and namespaces
// that there are now, and on a secondary what its primary says of its own.
//
// It promises that what any filter of a secondary excludes is excluded, by whichever of its ids the filter was written, and that a
// secondary is told no name that its filter hides. What a filter means is in package filter. Start reading at Scopes.Scope.
package scopes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// Options of Scopes. All are required.
type Options struct {
	Store       storage.Store // plaintext, without any fence
	Link        traffic.Caller
	Secondaries Secondaries
	Contents    Contents
}

// Secondaries are those of the registry.
type Secondaries interface {
	// Find returns a secondary by any of its ids; a zero one if there is none.
	Find(ctx context.Context, id string) (roles.Peer, error)
}

// Contents are the mounts and namespaces of the whole cluster, root included, as they are now.
type Contents interface {
	Mounts(ctx context.Context) ([]filter.Mount, error)
	Namespaces(ctx context.Context) ([]filter.Namespace, error)
}

// Scopes is what each secondary gets. Safe for concurrent use.
type Scopes struct{ o Options }

// New returns Scopes that read everything when they are asked.
func New(o Options) *Scopes { return &Scopes{o} }

// names returns what a filter for this id can be stored under, the one for new filters first: a secondary is called by its
// cluster id or by the id of its token, and an operator may write a filter before the secondary is known.
func (s *Scopes) names(ctx context.Context, id string) ([]string, error) {
	if id == "" || len(id) > enrol.MaxIDBytes || strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return nil, engines.Invalid("field \"id\": must be the cluster id of a secondary, or the id of its token: 1 to %d bytes that print", enrol.MaxIDBytes)
	}
	p, err := s.o.Secondaries.Find(ctx, id)
	if err != nil {
		return nil, err
	}
	names := []string{id}
	for _, name := range []string{p.ClusterID, p.ID} {
		if name != "" {
			names = append([]string{name}, slices.DeleteFunc(names, func(n string) bool { return n == name })...)
		}
	}
	return names, nil
}

// Filter returns the filter of a secondary, by its cluster id or the id of its token; a 404 if there is none.
func (s *Scopes) Filter(ctx context.Context, id string) (*filter.Filter, error) {
	found, err := s.filtersOf(ctx, id)
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

// filtersOf returns at least one filter, or a 404. There are several only if they were written under different ids before
// these were known to mean the same secondary.
func (s *Scopes) filtersOf(ctx context.Context, id string) ([]*filter.Filter, error) {
	names, err := s.names(ctx, id)
	if err != nil {
		return nil, err
	}
	found, err := filter.Read(ctx, s.o.Store, names...)
	if err == nil && len(found) == 0 {
		return nil, engines.NotFound("")
	}
	return found, err
}

// SetFilter replaces the filter of a secondary; nil removes it.
func (s *Scopes) SetFilter(ctx context.Context, id string, f *filter.Filter) error {
	names, err := s.names(ctx, id)
	if err != nil {
		return err
	}
	_, err = storage.Update(ctx, s.o.Store, func(tx *storage.Txn) error {
		if err := roles.WantPrimary(ctx, tx); err != nil {
			return err
		}
		for _, name := range names {
			tx.Delete(filter.Key(name))
		}
		if f != nil {
			tx.Put(filter.Key(names[0]), entry.Encode(f))
		}
		return nil
	})
	return err
}

// Excluded returns what a secondary does not get at present, sorted; a 404 if it has no filter.
func (s *Scopes) Excluded(ctx context.Context, id string) (filter.Scope, error) {
	found, err := s.filtersOf(ctx, id)
	if err != nil {
		return filter.Scope{}, err
	}
	return s.Resolve(ctx, found...)
}

// Resolve applies filters to what there is now: what any of them excludes is excluded.
func (s *Scopes) Resolve(ctx context.Context, found ...*filter.Filter) (filter.Scope, error) {
	mounts, err := s.o.Contents.Mounts(ctx)
	if err != nil {
		return filter.Scope{}, fmt.Errorf("listing the mounts: %w", err)
	}
	namespaces, err := s.o.Contents.Namespaces(ctx)
	if err != nil {
		return filter.Scope{}, fmt.Errorf("listing the namespaces: %w", err)
	}
	if len(found) == 0 {
		return filter.Resolve(nil, mounts, namespaces), nil
	}
	scope := filter.Resolve(found[0], mounts, namespaces)
	for _, f := range found[1:] {
		scope.Narrow(filter.Resolve(f, mounts, namespaces))
	}
	return scope, nil
}

// Scope returns the units that the secondary may have at present, and a number that changes with them.
func (s *Scopes) Scope(ctx context.Context, p roles.Peer) (units map[string]bool, version uint64, err error) {
	if p.ID == "" {
		return nil, 0, errors.New("a secondary without an id has no scope")
	}
	found, err := filter.Read(ctx, s.o.Store, p.ID, p.ClusterID)
	if err != nil {
		return nil, 0, fmt.Errorf("reading a paths filter: %w", err)
	}
	scope, err := s.Resolve(ctx, found...)
	if err != nil {
		return nil, 0, err
	}
	return scope.Units, scope.Version(), nil
}
