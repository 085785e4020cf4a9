// Package server is the one pipeline that every request passes, whatever it asks for:
//
//	namespace, mount, route → quota → authenticate → authorise → audit → engine → token, lease, wrapping → audit → answer
//
// and the composition of the parts that it is made of, each a small package below this one. It knows neither
// HTTP (package httpapi is the edge) nor Raft nor files (package lifecycle declares what it needs of them).
// Start reading at Handle.
package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit"
	"github.com/coffer-project/coffer/server/freespace"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/metrics"
	"github.com/coffer-project/coffer/server/mfa"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/server/quota"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/server/snapshots"
	"github.com/coffer-project/coffer/server/system"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/server/wrapping"
	"github.com/coffer-project/coffer/storage"
)

// Options of a Server. All but Logger and the TTLs are required.
type Options struct {
	// Lifecycle describes the node; its Hooks and Logger are filled in here.
	Lifecycle lifecycle.Options
	// Factories are the engines that can be mounted, by type; the built-in ones are added here.
	Factories map[string]engines.Factory
	Version   system.Version
	TempDir   string // for snapshots being verified
	Logger    *slog.Logger
	// DefaultLeaseTTL and MaxLeaseTTL are the system's; zero means 768h.
	DefaultLeaseTTL time.Duration
	MaxLeaseTTL     time.Duration
	// Lockout is what locks users of auth methods out, where their mounts do not say.
	Lockout engines.LockoutDefaults
	// RootTokenID is the root token of a new development server; "" makes a random one.
	RootTokenID string
	// UnauthenticatedMetrics lets sys/metrics be read without a token.
	UnauthenticatedMetrics bool
	// Loggers lets the levels of logs be changed; nil: they cannot.
	Loggers *system.Loggers
	// Config is the configuration without secrets, for sys/config/state/sanitized.
	Config map[string]any
	// DataDir is where the node keeps its files, for sys/host-info.
	DataDir string
	// Numbers returns further metrics, by name, of the engines; nil: there are none.
	Numbers func() map[string]float64
	// Sync makes what serves sys/sync; nil: nothing does.
	Sync func(engines.Host) SecretSync
	// Link is the traffic with other clusters; nil: there is none.
	Link replicated.Link
	// AuditFiles says where audit devices may write files; its DataDir is DataDir.
	AuditFiles audit.Files
	// FreeSpace has the thresholds of the disks of data and audit files.
	FreeSpace FreeSpace
	// SnapshotRoot is the directory below which schedules of snapshots may keep files; "": they may not.
	SnapshotRoot string
}

// FreeSpace has the thresholds of freespace.Options, with the same names.
type FreeSpace struct{ WarnBelow, WarnPercent, Minimum, Ballast int64 }

// Server is the request pipeline of one node. Safe for concurrent use.
type Server struct {
	opts     Options
	log      *slog.Logger
	node     *lifecycle.Node
	barrier  lifecycle.Barrier // behind the fence that keeps shared data to the primary
	raw      lifecycle.Raw
	mounts   *mount.Table
	policies *policy.Store
	tokens   *token.Store
	audit    *audit.Table
	system   *system.System
	space    *freespace.Watch
	store    *fenced // behind barrier
	metrics  *metrics.Metrics
	states   stateTokens

	namespaces *namespace.Store
	identity   *identity.Store
	leases     *lease.Manager
	wraps      *wrapping.Store
	quotas     *quota.Quotas
	mfa        *mfa.Store
	flights    system.InFlight
	cors       *system.CORS
	uiHeaders  *system.UIHeaders
	snapshots  *snapshots.Scheduler
	versions   system.VersionHistory
	tokenPaths engines.Engine
	replicated *replicated.Store
	link       replicated.Link
	sync       SecretSync    // nil: there is none
	roles      chan struct{} // capacity 1, level-triggered: the role may have changed; never closed

	background background
}

// New composes a server around a sealed node. Run brings it to life.
func New(o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	const day = 24 * time.Hour
	if o.MaxLeaseTTL == 0 {
		o.MaxLeaseTTL = 32 * day
	}
	if o.DefaultLeaseTTL == 0 {
		o.DefaultLeaseTTL = min(32*day, o.MaxLeaseTTL)
	}
	if o.Link == nil {
		o.Link = replicated.Offline{}
	}
	s := &Server{opts: o, log: o.Logger, raw: o.Lifecycle.Raw, link: o.Link, roles: make(chan struct{}, 1)}
	s.replicated = s.newReplicated()
	store := &fenced{Barrier: o.Lifecycle.Barrier, role: s.replicated.Current, active: func() bool { return s.node.Active() }, wrote: func(n int) { s.space.Wrote(n) }}
	s.barrier, s.store = store, store
	s.policies = policy.NewStore(store)
	o.AuditFiles.DataDir = o.DataDir
	s.audit = audit.NewTable(store, o.AuditFiles, o.Logger)
	s.space = freespace.New(freespace.Options{
		Data: o.DataDir, Dirs: s.disks, WarnBelow: o.FreeSpace.WarnBelow, WarnPercent: o.FreeSpace.WarnPercent,
		Minimum: o.FreeSpace.Minimum, Ballast: o.FreeSpace.Ballast, Fault: s.diskFault, Logger: o.Logger,
	})
	s.cors, s.uiHeaders = system.NewCORS(store), system.NewUIHeaders(store)
	s.versions = system.VersionHistory{Store: store, Version: o.Version.Product, Built: o.Version.Built}
	s.namespaces = s.newNamespaces()
	s.tokens = s.newTokens()
	s.wraps = wrapping.NewStore(store, s.tokens)
	s.identity = s.newIdentity()
	s.leases = s.newLeases()
	s.mounts = s.newMounts()
	s.quotas = s.newQuotas()
	s.mfa = s.newMFA()
	o.Lifecycle.Logger = o.Logger
	o.Lifecycle.Hooks = lifecycle.Hooks{
		FirstPuts: s.firstPuts, RootToken: s.rootToken, GenerateRoot: s.generateRoot,
		Load: s.load, Unload: s.unload, Active: s.active,
	}
	// Caches must drop what changed before anybody can wait for the change: subscribe them before the node.
	if o.Sync != nil {
		s.sync = o.Sync(host{s})
	}
	s.raw.OnChange(s.changed)
	s.node = lifecycle.New(o.Lifecycle)
	s.metrics = metrics.New(s.numbers)
	s.system = system.New(system.Options{
		Node: s.node, Mounts: s.mounts, Barrier: s.barrier, Raw: s.raw, ResolveFrom: s.namespaces.ResolveFrom, Below: s.namespaces.Below,
		Metrics: s.metrics.Render, TempDir: o.TempDir, Version: o.Version, Logger: o.Logger,
		UnauthenticatedMetrics: o.UnauthenticatedMetrics,
		Replication:            s.healthOfReplication,
		RoleSince:              func() storage.Index { r := s.replicated.Role(); return r.Version },
		Disk:                   s.disk,
	})
	s.snapshots = snapshots.New(snapshots.Options{
		Store: s.barrier, Snapshot: s.system.WriteSnapshot, LocalRoot: o.SnapshotRoot, TempDir: o.TempDir, Logger: o.Logger,
	})
	s.raw.OnChange(s.snapshots.Changed)
	s.snapshots.Routes(s.system.Router())
	s.replicated.Routes(s.system.Router())
	s.declareShared()
	return s
}

// CORS tells browsers which pages of other origins may use the API.
func (s *Server) CORS() *system.CORS { return s.cors }

// UIHeaders are the headers that operators have set for the web UI.
func (s *Server) UIHeaders() *system.UIHeaders { return s.uiHeaders }

// Run lives until ctx ends; then the node leaves its cluster and seals.
func (s *Server) Run(ctx context.Context) error {
	var following sync.WaitGroup
	following.Go(func() { s.followRole(ctx) })
	following.Go(func() { s.space.Run(ctx) })
	defer following.Wait()
	return s.node.Run(ctx)
}

// disks are the directories on whose disks the node depends.
func (s *Server) disks() map[string][]string {
	return map[string][]string{"data": {s.opts.DataDir}, "audit": s.audit.Dirs()}
}

// Space returns how much room there is for the node's data.
func (s *Server) Space() freespace.State { return s.space.State() }

// noRoom reports whether the writes of clients have to be rejected: the disk has no room, and no other node can take over.
func (s *Server) noRoom() bool {
	if s.space.State() != freespace.Full {
		return false
	}
	c := s.node.Cluster()
	return c == nil || !c.Roomier()
}

func (s *Server) diskFault() error {
	if c := s.node.Cluster(); c != nil {
		return c.DiskFault()
	}
	return nil
}

// disk says how the disk of the data is.
func (s *Server) disk() string {
	if s.diskFault() != nil {
		return "failing"
	}
	return s.space.State().String()
}

// Replicated is this cluster's place in replication.
func (s *Server) Replicated() *replicated.Store { return s.replicated }

// Node is the node's life.
func (s *Server) Node() *lifecycle.Node { return s.node }

// ReloadAudit reopens audit files, after they were rotated.
func (s *Server) ReloadAudit() error { return s.audit.Reload() }

// Observe counts a finished request.
func (s *Server) Observe(op engines.Operation, mountType string, status int, took time.Duration) {
	s.metrics.Observe(string(op), mountType, status, took)
}

// firstPuts is what a new cluster begins with.
func (s *Server) firstPuts() ([]storage.Put, error) {
	return append(append(namespacePuts(namespace.RootID), token.InitPuts()...), newSetKeys().put()), nil
}

// namespacePuts is what a new namespace begins with.
func namespacePuts(ns string) []storage.Put {
	return append(mount.Defaults(ns), policy.Defaults(ns)...)
}

// changed takes every applied change, on every node.
func (s *Server) changed(ch storage.Change) {
	s.replicated.Changed(ch) // first: it says whose data this is
	s.namespaces.Changed(ch) // before those who ask it for paths
	s.mounts.Changed(ch)
	s.policies.Changed(ch)
	s.tokens.Changed(ch)
	s.leases.Changed(ch)
	s.identity.Changed(ch)
	s.audit.Changed(ch)
	s.quotas.Changed(ch)
	s.cors.Changed(ch)
	s.uiHeaders.Changed(ch)
	if s.sync != nil {
		s.sync.Changed(ch)
	}
	if ch.Touches(setKeysKey) {
		s.states.forgetSet()
	}
	if ch.Touches(replicated.RoleKey) {
		s.roleChanged()
	}
}

// load makes the node ready to serve from what storage holds.
func (s *Server) load(ctx context.Context) error {
	key, err := s.barrier.DeriveKey("coffer state token v1")
	if err != nil {
		return err
	}
	s.states.setKey(key)
	if err := s.replicated.Load(ctx); err != nil {
		return err
	}
	if err := s.namespaces.Load(ctx); err != nil {
		return err
	}
	if err := s.mounts.Load(ctx); err != nil {
		return err
	}
	s.roleChanged()
	return s.audit.Load(ctx)
}

// unload forgets everything that came from storage.
func (s *Server) unload() {
	s.mounts.Clear()
	s.policies.Clear()
	s.tokens.Clear()
	s.identity.Clear()
	s.namespaces.Clear()
	s.leases.Clear()
	s.quotas.Clear()
	s.cors.Clear()
	s.uiHeaders.Clear()
	s.states.setKey(nil)
	s.replicated.Clear()
	if err := s.audit.Unload(); err != nil {
		s.log.Error("closing audit devices", "err", err)
	}
}

// sweepInterval is the longest time between two looks for expired tokens: tokens made since the last look may
// expire before those it saw.
const sweepInterval = time.Second

// active runs while this node is the active one.
func (s *Server) active(ctx context.Context) {
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"loading the autopilot configuration", s.system.LoadAutopilot},
		{"recording the version", s.versions.Record},
	} {
		if err := step.do(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn(step.what, "err", err)
		}
	}
	s.tokens.Activated()
	s.background.run(ctx, s.upgrade, s.sweeper, s.forgetHeldLogins, s.leases.Run, s.namespaces.Run, s.mounts.Run, s.work, s.snapshots.Run, s.replicated.Run, s.link.Active, s.syncSecrets)
}

// upgradeInterval is the time between two checks for members of an older version.
const upgradeInterval = 3 * time.Second

// upgrade gives a data directory of an older version what new ones begin with, once no member of the cluster is of a version that
// may not know what is added.
func (s *Server) upgrade(ctx context.Context) {
	tick := time.NewTicker(upgradeInterval)
	defer tick.Stop()
	for told, looks := "", 0; ; looks++ {
		var err error
		switch c := s.node.Cluster(); {
		case c == nil:
			err = storage.ErrSealed
		case s.secondary():
			err = errSecondary
		case !c.FormatsAgreed():
			err = errors.New("waiting for members of an earlier version, or that are away: see sys/storage/raft/autopilot/state")
		}
		for _, ensure := range []func(context.Context) error{s.mounts.EnsureDefaults, s.namespaces.EnsureNames, s.ensureSetKeys} {
			if err == nil {
				err = ensure(ctx)
			}
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		// A new leader has to hear of the others first.
		if text := err.Error(); looks > 0 && text != told && !errors.Is(err, errSecondary) {
			s.log.Warn("what older versions did not have is not added yet", "err", err)
			told = text
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// errSecondary keeps what is missing in shared data until this cluster is a primary: then an index may be missing that does
// not replicate.
var errSecondary = errors.New("this cluster is a secondary")

// sweeper revokes expired tokens until ctx ends.
func (s *Server) sweeper(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(s.sweep(ctx))
	}
}

// forgetHeldLogins removes logins whose second factor never came, until ctx ends.
func (s *Server) forgetHeldLogins(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := s.mfa.Sweep(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("removing logins that were never finished", "err", err)
			}
		}
	}
}

// sweep revokes expired tokens and returns how long to wait before the next look.
func (s *Server) sweep(ctx context.Context) time.Duration {
	const batch = 1000
	n, next, err := s.tokens.Sweep(ctx, batch)
	switch {
	case err != nil:
		if ctx.Err() == nil {
			s.log.Warn("revoking expired tokens", "err", err)
		}
		return 5 * time.Second
	case n == batch:
		return 0
	case next.IsZero():
		return sweepInterval
	}
	return min(max(time.Until(next), 100*time.Millisecond), sweepInterval)
}

// Place says where a request must run: reads run where they arrive, what writes runs on the active node, and
// some paths say so themselves.
func (s *Server) Place(ctx context.Context, req *Request) (Place, error) {
	if s.node.Sealed() || s.node.Active() {
		return Here, nil
	}
	flags, known := s.flags(ctx, req)
	switch {
	case known && flags.Has(engines.AnyNode):
		return Only, nil
	case req.wraps():
		return Active, nil // the answer is stored
	case known && flags.Has(engines.Active):
		return Active, nil
	case (req.Op == engines.Read || req.Op == engines.List || req.Help) && s.node.Current():
		return Here, nil
	}
	return Active, nil
}

// WantsRawBody reports whether the route streams its body.
func (s *Server) WantsRawBody(ctx context.Context, req *Request) bool {
	if req.Op != engines.Update || !strings.HasPrefix(req.Path, sysPrefix) {
		return false
	}
	flags, _ := s.flags(ctx, req)
	return flags.Has(engines.RawBody)
}

// BodyRule returns what the body of the request may be, as far as this node knows.
func (s *Server) BodyRule(ctx context.Context, req *Request) BodyRule {
	flags, _ := s.flags(ctx, req)
	return bodyRule(req.Op, flags)
}

// WantsForeignForm reports whether the route takes forms that pages of other sites send. While the node is sealed only its
// own paths are known; the others are answered without being run.
func (s *Server) WantsForeignForm(ctx context.Context, req *Request) bool {
	if s.node.Sealed() {
		return !strings.HasPrefix(req.Path, sysPrefix)
	}
	flags, _ := s.flags(ctx, req)
	return req.Op == engines.Update && flags.Has(engines.ForeignForm)
}

// flags returns the flags of the request's route.
func (s *Server) flags(ctx context.Context, req *Request) (engines.Flags, bool) {
	if rest, ok := strings.CutPrefix(req.Path, sysPrefix); ok {
		if route, _, err := s.system.Router().Match(req.Op, rest); err == nil {
			return route.Flags, true
		}
	}
	if s.node.Sealed() {
		return 0, false
	}
	p, err := s.find(ctx, req)
	if err != nil || p.mount == nil {
		return 0, false
	}
	route, _, err := p.mount.Engine.Router().Match(req.Op, p.rest)
	if err != nil {
		return 0, false
	}
	return route.Flags, true
}

// Active reports whether this node is the active one.
func (s *Server) Active() bool { return s.node.Active() }

// Behind returns how old what this node holds may be; negative if that is not known.
func (s *Server) Behind() time.Duration { return s.node.Behind() }

// AwaitActive waits, for a moment, until a node that has become the leader serves as the active one.
func (s *Server) AwaitActive(ctx context.Context) bool { return s.node.AwaitActive(ctx) }

// Sealed reports whether the node is sealed.
func (s *Server) Sealed() bool { return s.node.Sealed() }

// NodeID returns the node's id.
func (s *Server) NodeID() string { return s.node.ID() }

// Forward relays a request to the active node.
func (s *Server) Forward(w http.ResponseWriter, r *http.Request) error {
	c := s.node.Cluster()
	if c == nil {
		return storage.ErrSealed
	}
	return c.Forward(w, r)
}

// ActiveAddr returns the API address of the active node, or "".
func (s *Server) ActiveAddr() string {
	if c := s.node.Cluster(); c != nil {
		if p, ok := c.Leader(); ok {
			return p.APIAddr
		}
	}
	return ""
}

// numbers are the gauges and counters of everything below the pipeline.
func (s *Server) numbers() map[string]float64 {
	out := map[string]float64{
		"unsealed": bit(!s.node.Sealed()), "active": bit(s.node.Active()),
		"fsm_applied_index": float64(s.raw.AppliedIndex()),
	}
	sources := []map[string]float64{
		s.node.Numbers(), s.audit.Numbers(), s.tokens.Numbers(), s.leases.Numbers(), s.namespaces.Numbers(),
		s.mounts.Numbers(), s.quotas.Numbers(), s.snapshots.Numbers(), s.replicated.Numbers(), s.space.Numbers(),
	}
	if c := s.node.Cluster(); c != nil {
		sources = append(sources, c.Numbers())
	}
	if s.sync != nil {
		sources = append(sources, s.sync.Numbers())
	}
	if s.opts.Numbers != nil {
		sources = append(sources, s.opts.Numbers())
	}
	for _, numbers := range sources {
		maps.Copy(out, numbers)
	}
	out["disk_writes_rejected_total"] = float64(s.store.rejected.Load())
	out["requests_in_flight"] = float64(s.flights.Count())
	return out
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
