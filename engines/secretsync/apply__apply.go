package secretsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// Syncer syncs single links: the secrets of associations, each with one destination. Its queue runs the jobs. Safe for concurrent use.
type Syncer struct {
	host engines.Host
	log  *slog.Logger
	pool *Pool

	queue        workqueue.Queue[LinkID]
	associations Associations
	capacity     *Capacity
	gauges       Gauges
	counts       counts

	mu             sync.Mutex
	waiting        map[storage.Key]map[LinkID]bool // links that wait for a name, by the key of its claim
	pendingRefresh map[string]bool                 // associations, by id: see setPendingRefresh
}

// NewSyncer returns a Syncer whose queue is not running.
func NewSyncer(host engines.Host, pool *Pool, log *slog.Logger) *Syncer {
	s := &Syncer{host: host, log: log, pool: pool, capacity: NewCapacity()}
	s.queue.Do, s.queue.Partition = s.syncJob, func(key LinkID) string { return key.Destination }
	return s
}

// reset forgets what is kept in memory: this node does not sync any more.
func (s *Syncer) reset() {
	s.gauges.Clear()
	s.capacity.Clear()
	s.associations.Clear()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting, s.pendingRefresh = nil, nil
}

// forgetAssociation forgets what is kept in memory of an association that was deleted.
func (s *Syncer) forgetAssociation(id string) {
	s.gauges.RemoveAssociation(id)
	s.takePendingRefresh(id)
	s.associations.Remove(id)
}

// counts are what metrics tell.
type counts struct {
	written, deleted, failed, conflicts, drifted atomic.Int64
}

func (s *Syncer) config(ctx context.Context) (Config, error) {
	c := Config{QueueCapacity: DefaultQueueCapacity}
	_, err := engines.GetRecord(ctx, s.host.Store(), ConfigKey, &c)
	return c, err
}

// noteLink keeps account of a link: its status, "" if it is gone.
func (s *Syncer) updateCounters(key LinkID, mount, status string) {
	s.gauges.SetLink(key, mount, status)
	if status != "" {
		s.capacity.Add(key)
		return
	}
	if next, ok := s.capacity.Remove(key); ok {
		s.queue.Push(next, time.Now(), false, nil)
	}
}

// admits reports whether a link may be worked on: one that is stored, or that there is room for.
func (s *Syncer) admits(t *target) bool {
	return !t.link.UpdatedAt.IsZero() || t.assoc.IsEnding() || s.capacity.Admit(t.key)
}

// owe notes that the destination was to be looked at for an association while the work was stopped: after a restore the ledger alone
// does not tell what there is to do. owed takes that back.
func (s *Syncer) setPendingRefresh(association string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pendingRefresh == nil {
		s.pendingRefresh = map[string]bool{}
	}
	s.pendingRefresh[association] = true
}

func (s *Syncer) takePendingRefresh(association string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	owed := s.pendingRefresh[association]
	delete(s.pendingRefresh, association)
	return owed
}

// syncNow syncs a link, looking at the destination in any case, and waits a while for it.
func (s *Syncer) syncAndWait(ctx context.Context, key LinkID) {
	done := make(chan struct{})
	s.queue.Push(key, time.Time{}, true, done)
	timer := time.NewTimer(syncNowTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// patientFor is how long a request waits for a sync that it asked for.
const syncNowTimeout = 10 * time.Second

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// settle is how long a change waits for the next one of the same secret.
const changeDelay = 100 * time.Millisecond

// guarded calls do. A bug of ours, of a destination or of a vendor's library ends that, and not the server. What was panicked with may
// hold a value: only its type is logged.
func (s *Syncer) recoverPanic(what string, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("secret sync panicked", "while", what, "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	return do()
}

// errPanic is what guarded makes of a panic.
var errPanic = errors.New("a bug was met, which the log tells of")
