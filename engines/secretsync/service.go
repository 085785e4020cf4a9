package secretsync

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// Operator is the part of the server's configuration that callers of the API cannot change.
type Operator struct {
	// AllowPrivate lets destinations be at private, link-local and loopback addresses.
	AllowPrivate bool
	// EnvironmentCredentials says which destinations that have no credentials of their own may use those of the server's environment:
	// EnvironmentAll, of any namespace, also if it is ""; EnvironmentRoot, of the root namespace; EnvironmentNone.
	EnvironmentCredentials string
	// Endpoints replace the vendors' own addresses, by type.
	Endpoints map[string]Endpoint
}

// The values of Operator.EnvironmentCredentials.
const (
	EnvironmentAll  = "all"
	EnvironmentRoot = "root"
	EnvironmentNone = "none"
)

// Endpoint is where a type of destination is, instead of at the vendor's.
type Endpoint struct {
	URL          string
	AuthorityURL string
	TokenURL     string
	CAFile       string
	// WritesPerSecond and ReadsPerSecond are the budget of each destination of the type; 0: what the type says.
	WritesPerSecond float64
	ReadsPerSecond  float64
}

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

// Reconciler finds the links that are due, and queues them: after changes of the feed, at the start, and periodically. Safe for
// concurrent use.
type Reconciler struct {
	*Syncer
	inbox inbox

	resets        atomic.Int64 // how often a snapshot has replaced the store
	handledResets int64        // resets at the last full scan; Run's alone

	concurrencyMu sync.Mutex
	concurrency   map[string]int // concurrent calls, by destination id
}

// NewReconciler returns a Reconciler that is not running.
func NewReconciler(s *Syncer) *Reconciler {
	r := &Reconciler{Syncer: s, inbox: inbox{wake: make(chan struct{}, 1)}}
	s.queue.Concurrency = r.concurrencyOf
	return r
}

// Reporter reports the sync state of secrets.
type Reporter struct{ *Reconciler }

// API serves the paths below sys/sync/.
type API struct{ Reporter }

// rescan is how often everything is looked through for what has been missed. Nothing should be.
const rescanInterval = 10 * time.Minute

// settle is how long a change waits for the next one of the same secret.
const changeDelay = 100 * time.Millisecond

// Run syncs until ctx ends. The active node calls it; on a cluster that does not write what is shared it waits to become one
// that does.
func (s *Reconciler) Run(ctx context.Context) {
	s.handledResets = s.resets.Load() // until now it may have been this node's alone that was behind
	s.capacity.Clear()
	s.inbox.start()
	defer s.inbox.stop()
	defer s.pool.Close()
	var running sync.WaitGroup
	defer running.Wait()
	began := make(chan struct{}) // closed when the queue takes jobs
	running.Go(func() { s.queue.Run(ctx, began) })
	running.Go(func() { s.runDriftScans(ctx) })
	<-began
	again := time.NewTicker(rescanInterval)
	defer again.Stop()
	for {
		if err := s.recoverPanic("looking for what is due", func() error { return s.handleEvents(ctx) }); err != nil && ctx.Err() == nil {
			s.log.Warn("secret sync cannot see what is due", "err", err)
			s.inbox.addAll() // and try again
			if !sleep(ctx, time.Second) {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-s.inbox.wake:
		case <-again.C:
			s.inbox.addAll()
		}
	}
}

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

// RoleChanged tells that the host's Owner may answer otherwise now.
func (s *Reconciler) RoleChanged() { s.inbox.addAll() }

// Changed takes every applied change, on every node. It neither blocks nor reads.
func (s *Reconciler) Changed(ch storage.Change) {
	if ch.Reset {
		s.resets.Add(1)
		s.inbox.addAll()
		return
	}
	add := func(key storage.Key) {
		switch {
		case key.Area() == "sys":
			if isSyncInput(key) || s.associations.Concerns(mountUUIDOf(key)) {
				s.inbox.add(key)
			}
		case s.associations.Concerns(key.Area()):
			s.inbox.add(key)
		}
	}
	for _, e := range ch.Puts {
		add(e.Key)
	}
	for _, key := range ch.Deletes {
		add(key)
	}
}

// heed looks at what has changed since the last time.
func (s *Reconciler) handleEvents(ctx context.Context) error {
	keys, all := s.inbox.take()
	if !s.host.Owner() {
		s.reset()
		s.concurrencyMu.Lock()
		defer s.concurrencyMu.Unlock()
		s.concurrency = nil
		return nil
	}
	if all {
		return s.scanAll(ctx)
	}
	for _, key := range keys {
		if err := s.handleEvent(ctx, key); err != nil && !s.unreadable(err) {
			return err
		}
	}
	return nil
}

func (s *Reconciler) handleEvent(ctx context.Context, key storage.Key) error {
	if key.Area() != "sys" {
		return s.secretChanged(ctx, key)
	}
	if uuid := mountUUIDOf(key); uuid != "" {
		return s.mountChanged(ctx, uuid)
	}
	switch ns, kind, rest := SplitKey(key); kind {
	case "config":
		return s.scanAll(ctx)
	case "d":
		var d Destination
		found, err := engines.GetRecord(ctx, s.host.Store(), key, &d)
		if err != nil {
			return err
		}
		if !found {
			s.pool.DropByKey(key)
			s.gauges.RemoveDestination(key)
			return nil
		}
		if err := s.scanDestination(ctx, &d, false, func(*Association) {}); err != nil {
			return err
		}
		return s.finishPurge(ctx, &d)
	case "a":
		var a Association
		found, err := engines.GetRecord(ctx, s.host.Store(), key, &a)
		if err != nil {
			return err
		}
		if !found {
			_, id, _ := strings.Cut(rest, "/")
			s.forgetAssociation(id)
			return s.finishPurges(ctx, ns)
		}
		s.associations.Put(&a)
		return s.scanAssociation(ctx, &a)
	}
	return nil
}

// secretChanged queues the links of a secret.
func (s *Reconciler) secretChanged(ctx context.Context, key storage.Key) error {
	m, err := s.host.MountOf(ctx, key.Area())
	if err != nil || m == nil {
		return err
	}
	source, ok := m.Engine.(engines.SecretSource)
	if !ok {
		return nil
	}
	name, ok := source.SecretOf(storage.Key(key.Path()))
	if !ok {
		return nil
	}
	for _, a := range s.associations.OfSecret(key.Area(), name) {
		s.queue.Push(LinkID{a.NS, a.Destination, a.ID, name}, time.Now().Add(changeDelay), false, nil)
	}
	return nil
}

// mountChanged looks at the associations of a mount, which may have another path.
func (s *Reconciler) mountChanged(ctx context.Context, uuid string) error {
	for _, a := range s.associations.OfMount(uuid) {
		if err := s.scanAssociation(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

func (s *Reconciler) concurrencyOf(dest string) int {
	s.concurrencyMu.Lock()
	defer s.concurrencyMu.Unlock()
	return s.concurrency[dest]
}

const codeInternal = "internal"

// failure turns an error into an outcome.
func outcomeOf(err error) Outcome {
	var e *destination.Error
	if !errors.As(err, &e) {
		return Outcome{Status: InternalError, Code: codeInternal, Cause: "the server could not do its part; its log says why"}
	}
	o := Outcome{Status: ExternalError, Code: e.Code, Cause: truncateCause(e.Text)}
	switch {
	case e.Code == destination.Exists || e.Code == destination.Changed: // it is looked at again
	case e.Class == destination.Client:
		o.Status = ClientError
	case e.Class == destination.Internal:
		o.Status = InternalError
	}
	return o
}

// shortened keeps causes to what can be stored once for each name.
func truncateCause(text string) string {
	const most = 400
	if len(text) > most {
		return truncate(text, most) + "…"
	}
	return text
}
