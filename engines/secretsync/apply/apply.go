// Package apply syncs one secret to one destination: a link. It takes five steps, and may be interrupted after each of them:
//
//  1. Work out the desired state (desiredState).
//  2. Read the destination, and decide (decideStep). Previews end here.
//  3. Store the intents, and claim the names (prepare).
//  4. Write and delete (applyStep).
//  5. Store the result (recordSteps).
//
// Desired names are written first, in batches; when every name that replaces an old one is there, the old ones are deleted.
//
// A name at a location belongs to at most one link, of all destinations that write there. Its claim is created in the transaction that
// stores the intent of the write, and deleted in the one that stores that the name is gone (claims.go).
//
// A panic of a destination, or of a vendor's library, fails one job and not the server. Start reading at Syncer.syncLink.
package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/index"
	"github.com/coffer-project/coffer/engines/secretsync/notify"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// Syncer syncs single links: the secrets of associations, each with one destination. Its queue runs the jobs. Safe for concurrent use.
type Syncer struct {
	Host engines.Host
	Log  *slog.Logger
	Pool *connection.Pool

	Queue        workqueue.Queue[state.LinkID]
	Redeploys    workqueue.Queue[storage.Key] // by key of the destination; package reconcile runs them
	Associations index.Associations
	Capacity     *index.Capacity
	Gauges       index.Gauges
	Counts       index.Counts
	Notices      notify.Batches

	PendingRefresh index.PendingRefresh
	waiting        index.Waiters
	commits        workqueue.Gatherer
}

// NewSyncer returns a Syncer whose queue is not running.
func NewSyncer(host engines.Host, pool *connection.Pool, log *slog.Logger) *Syncer {
	s := &Syncer{Host: host, Log: log, Pool: pool, Capacity: index.NewCapacity()}
	pool.OnCircuit = s.Notices.Circuit
	s.Queue.Do, s.Queue.Partition = s.syncJob, func(key state.LinkID) string { return key.Destination }
	return s
}

// Reset forgets what is kept in memory: this node does not sync any more.
func (s *Syncer) Reset() {
	s.Gauges.Clear()
	s.Capacity.Clear()
	s.Associations.Clear()
	s.waiting.Clear()
	s.PendingRefresh.Clear()
}

// ForgetAssociation forgets what is kept in memory of an association that was deleted.
func (s *Syncer) ForgetAssociation(id string) {
	s.Gauges.RemoveAssociation(id)
	s.PendingRefresh.Take(id)
	s.Associations.Remove(id)
}

func (s *Syncer) Config(ctx context.Context) (state.Config, error) {
	c := state.Config{QueueCapacity: state.DefaultQueueCapacity}
	_, err := engines.GetRecord(ctx, s.Host.Store(), state.ConfigKey, &c)
	return c, err
}

// UpdateCounters counts a link for capacity and metrics; nil: it was deleted.
func (s *Syncer) UpdateCounters(key state.LinkID, mount string, l *state.Link) {
	s.Gauges.SetLink(key, mount, l)
	if l != nil {
		s.Capacity.Add(key)
		return
	}
	if next, ok := s.Capacity.Remove(key); ok {
		s.Queue.Push(next, time.Now(), false, nil)
	}
}

// admits reports whether a link may be synced: it is stored already, or queue_capacity has room for it.
func (s *Syncer) admits(t *target) bool {
	return !t.link.UpdatedAt.IsZero() || t.assoc.IsEnding() || s.Capacity.Admit(t.key)
}

// SyncAndWait syncs a link, reading the destination in any case, and waits up to syncNowTimeout for it.
func (s *Syncer) SyncAndWait(ctx context.Context, key state.LinkID) {
	done := make(chan struct{})
	s.Queue.Push(key, time.Time{}, true, done)
	timer := time.NewTimer(syncNowTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// syncNowTimeout is how long a request waits for its sync.
const syncNowTimeout = 10 * time.Second

// ChangeDelay is how long a change waits for the next one of the same secret.
const ChangeDelay = 100 * time.Millisecond

// RecoverPanic calls do, and returns errPanic if it panics. The panic's value may hold a secret: only its type is logged.
func (s *Syncer) RecoverPanic(what string, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("secret sync panicked", "while", what, "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	return do()
}

// errPanic is the error of a panic.
var errPanic = errors.New("a panic, which the log describes")
