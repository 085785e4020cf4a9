package secretsync

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// Options of a Service. Host and Types are required.
type Options struct {
	Host   engines.Host
	Types  []destination.Type
	Logger *slog.Logger
	// Operator is what the server's configuration says.
	Operator Operator
	// Getenv reads the server's environment; nil: os.Getenv.
	Getenv func(string) string
}

// Operator is what whoever runs the server has decided, and callers of the API cannot.
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

// Service is secret sync on one node. Give Changed every change of the feed. Safe for concurrent use.
type Service struct {
	host  engines.Host
	opts  Options
	log   *slog.Logger
	types map[string]destination.Type

	queue   workqueue.Queue[LinkID]
	clients pool
	counts  counts
	inbox   inbox
	gauges  Gauges

	capacity *Capacity

	resets        atomic.Int64 // how often the store was replaced as a whole
	handledResets int64        // how often it was when everything was looked at; Run's alone

	mu sync.Mutex
	// mounts are those with associations, by uuid.
	mounts map[string]*mountIndex
	// interest are the keys of mounts; the feed asks it.
	interest       atomic.Pointer[map[string]bool]
	concurrency    map[string]int                  // concurrent calls, by destination id
	waiting        map[storage.Key]map[LinkID]bool // who waits for a name, by the name's claim
	pendingRefresh map[string]bool                 // associations, by id: see owe
}

// New makes a Service that does nothing yet.
func New(o Options) *Service {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	s := &Service{host: o.Host, opts: o, log: o.Logger, types: map[string]destination.Type{}, capacity: NewCapacity(), inbox: inbox{wake: make(chan struct{}, 1)}}
	for _, t := range o.Types {
		s.types[t.Name] = t
	}
	s.queue.Do, s.queue.Partition, s.queue.Concurrency = s.syncJob, func(key LinkID) string { return key.Destination }, s.concurrencyOf
	return s
}

// rescan is how often everything is looked through for what has been missed. Nothing should be.
const rescanInterval = 10 * time.Minute

// settle is how long a change waits for the next one of the same secret.
const changeDelay = 100 * time.Millisecond

// Run syncs until ctx ends. The active node calls it; on a cluster that does not write what is shared it waits to become one
// that does.
func (s *Service) Run(ctx context.Context) {
	s.handledResets = s.resets.Load() // until now it may have been this node's alone that was behind
	s.capacity.Clear()
	s.inbox.start()
	defer s.inbox.stop()
	defer s.clients.close()
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
func (s *Service) RoleChanged() { s.inbox.addAll() }

// Changed takes every applied change, on every node. It neither blocks nor reads.
func (s *Service) Changed(ch storage.Change) {
	if ch.Reset {
		s.resets.Add(1)
		s.inbox.addAll()
		return
	}
	interest := s.interest.Load()
	add := func(key storage.Key) {
		switch {
		case key.Area() == "sys":
			if isSyncInput(key) || interest != nil && (*interest)[mountUUIDOf(key)] {
				s.inbox.add(key)
			}
		case interest != nil && (*interest)[key.Area()]:
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
func (s *Service) handleEvents(ctx context.Context) error {
	keys, all := s.inbox.take()
	if !s.host.Owner() {
		s.clearIndex()
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

func (s *Service) handleEvent(ctx context.Context, key storage.Key) error {
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
			s.clients.dropByKey(key)
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
			s.unwatch(id)
			return s.finishPurges(ctx, ns)
		}
		s.watch(&a)
		return s.scanAssociation(ctx, &a)
	}
	return nil
}

// secretChanged queues the links of a secret.
func (s *Service) secretChanged(ctx context.Context, key storage.Key) error {
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
	for _, a := range s.associationsOf(key.Area(), name) {
		s.queue.Push(LinkID{a.NS, a.Destination, a.ID, name}, time.Now().Add(changeDelay), false, nil)
	}
	return nil
}

// mountChanged looks at the associations of a mount, which may have another path.
func (s *Service) mountChanged(ctx context.Context, uuid string) error {
	s.mu.Lock()
	var all []*Association
	if w := s.mounts[uuid]; w != nil {
		all = slices.Collect(maps.Values(w.byID))
	}
	s.mu.Unlock()
	for _, a := range all {
		if err := s.scanAssociation(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) concurrencyOf(dest string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
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
