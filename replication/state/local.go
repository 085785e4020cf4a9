// Package state is what a node has of the data that clusters share: its log, its state and its digests, read for secondaries
// (Source) and written for a primary (Replica), and how far its cluster is.
//
// It promises that what a Source gives was read at one index, that a Replica's Commit is atomic, and that digests say what a scan of
// the state would. Start reading at Local, then source.go and replica.go; stored.go has the stored formats. Its tests are those of
// package link, on clusters of nodes.
package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/wal"
)

// Options of New. All are required.
type Options struct {
	State   replication.StateMachine
	Log     *wal.Log          // what the State appends to
	Store   replication.Store // over the State
	Layout  replication.Layout
	Cluster Cluster
	Logger  *slog.Logger
}

// Cluster is what is asked about this node's own cluster.
type Cluster interface {
	// Self describes the cluster, as of everything that is applied.
	Self() replication.Self
	// Scope returns the units that the secondary may have at present, and a number that changes with them. ErrRevoked.
	Scope(ctx context.Context, p replication.Peer) (units map[string]bool, version uint64, err error)
	// Addrs are the cluster addresses to give to secondaries.
	Addrs() []string
}

// Local is what this node has of the shared data, and of its cluster's progress. Safe for concurrent use.
type Local struct {
	o    Options
	log  *slog.Logger
	stop func() // the subscription to State

	progress progress      // a secondary's cursor
	head     atomic.Uint64 // index of the last shared change that was announced
	cache    entryCache    // of what sessions read
	scoped   Signal        // role, registry or filters may have changed, or mounts
	scopedAt atomic.Uint64 // the last entry that changed them
	scopes   atomic.Uint64 // how often they did
}

// New returns a Local. Close ends it.
func New(o Options) *Local {
	l := &Local{o: o, log: o.Logger}
	l.stop = o.State.OnChange(l.changed)
	return l
}

// Close ends the subscription to the state.
func (l *Local) Close() { l.stop() }

// changed runs on the apply path.
func (l *Local) changed(ch storage.Change) {
	shared, scope, cursor := ch.Touches(sharedPrefix), ch.Reset, ch.Reset
	for i := range ch.Entries {
		switch key := ch.Entries[i].Key; {
		case shared && l.o.Layout.Anchor(key):
			scope = true // it may have been moved to where a filter says otherwise
		case key == replication.CursorKey || key == ownKey:
			cursor = true
		case isBelow(key, replicationPrefix) && !isBelow(key, progressPrefix):
			scope = true
		}
	}
	if shared {
		l.head.Store(uint64(ch.Index))
	}
	if cursor {
		l.progress.outdated()
	}
	if scope {
		l.scopedAt.Store(uint64(ch.Index))
		l.scopes.Add(1)
		l.scoped.Raise()
	}
}

// Head returns the index of the last change to shared data on this node.
func (l *Local) Head() storage.Index {
	if head := l.head.Load(); head != 0 {
		return storage.Index(head)
	}
	return l.o.Log.Head() // nothing was announced since the process began
}

// Oldest returns the index after which this node keeps changes for other clusters.
func (l *Local) Oldest() storage.Index { return l.o.Log.Base() }

// Keep makes this node keep a log of shared changes for other clusters, or remove it.
func (l *Local) Keep(_ context.Context, on bool) error {
	switch {
	case on == l.o.Log.Active():
		return nil
	case !on:
		return l.o.State.BeginLog(func(storage.Index) error { return l.o.Log.End() })
	}
	return l.o.State.BeginLog(func(applied storage.Index) error {
		if l.o.Log.Active() {
			return nil
		}
		return l.o.Log.Begin(applied)
	})
}

// Refresh tells the sessions that registry, filters or mounts may have changed. Sessions of revoked secondaries end.
func (l *Local) Refresh() {
	l.scopes.Add(1)
	l.scoped.Raise()
}

// ScopeMoved returns what is closed when role, registry, filters or mounts may have changed again.
func (l *Local) ScopeMoved() <-chan struct{} { return l.scoped.Wait() }

// AwaitScope waits until the node shows what has changed them last, and returns a number that is another one after each change.
func (l *Local) AwaitScope(ctx context.Context) (uint64, error) {
	if err := l.o.State.WaitApplied(ctx, storage.Index(l.scopedAt.Load())); err != nil {
		return 0, err
	}
	return l.scopes.Load(), nil
}

// ClearCache forgets the records that were opened for sessions.
func (l *Local) ClearCache() { l.cache.clear() }

// records returns what the log has after an index, and the index through which that is complete. It is never ahead of
// what the state shows, so that what was announced with an entry (a role, a lineage) is known when the entry is read.
func (l *Local) records(after storage.Index, maxBytes int) (records []storage.Record, through storage.Index, err error) {
	applied := l.o.State.AppliedIndex()
	head := l.o.Log.Head() // has everything up to applied: records are appended first
	if applied <= after && after >= l.o.Log.Base() && l.o.Log.Active() {
		return nil, after, nil
	}
	records, through, err = l.o.Log.Since(after, maxBytes)
	if errors.Is(err, wal.ErrTruncated) {
		return nil, 0, replication.ErrTruncated
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading the log of changes: %w", err)
	}
	for i := range records {
		if records[i].Index > applied {
			return records[:i], applied, nil
		}
	}
	if through >= head {
		through = max(applied, after)
	}
	return records, through, nil
}

// freeze returns the state of now, and how positions in it are to be understood.
func (l *Local) freeze(ctx context.Context) (replication.Frozen, resolver, error) {
	z, err := l.o.State.Freeze(ctx)
	if err != nil {
		return nil, resolver{}, err
	}
	if err := l.o.State.WaitApplied(ctx, z.Index()); err != nil { // what came with it is announced
		z.Close()
		return nil, resolver{}, err
	}
	return z, l.resolver(), nil
}
