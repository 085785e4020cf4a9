// Package server composes the parts of a node's server, each a small package below this one, and joins what one needs of another. A
// request passes them in package pipeline; what runs beside requests, on the active node or on every one, is started here. It knows neither
// HTTP (package httpapi is the edge) nor Raft nor files (package lifecycle declares what it needs of them).
// Start reading at New.
package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit"
	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/server/fence"
	"github.com/coffer-project/coffer/server/freespace"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/server/identitytoken"
	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/login"
	"github.com/coffer-project/coffer/server/metrics"
	"github.com/coffer-project/coffer/server/mfa"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/pipeline"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/server/quota"
	"github.com/coffer-project/coffer/server/remote"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/server/replicated/api"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/server/rights"
	"github.com/coffer-project/coffer/server/setkeys"
	"github.com/coffer-project/coffer/server/snapshots"
	"github.com/coffer-project/coffer/server/statetoken"
	"github.com/coffer-project/coffer/server/system"
	"github.com/coffer-project/coffer/server/system/process"
	"github.com/coffer-project/coffer/server/system/web"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/server/wrapping"
	"github.com/coffer-project/coffer/storage"
)

// Options of a Server. All but Logger and the TTLs are required.
type Options struct {
	// Lifecycle describes the node; its Service and Logger are filled in here.
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
	Loggers *process.Loggers
	// Config returns the configuration without secrets, for sys/config/state/sanitized.
	Config func() map[string]any
	// DataDir is where the node keeps its files, for sys/host-info.
	DataDir string
	// Numbers returns further metrics, by name, of the engines; nil: there are none.
	Numbers func() map[string]float64
	// Sync makes what serves sys/sync; nil: nothing does.
	Sync func(engines.Host) SecretSync
	// Plugins makes what runs plugins; nil: nothing does.
	Plugins func(PluginHost) Plugins
	// Link is the traffic with other clusters; nil: there is none.
	Link traffic.Link
	// AuditFiles says where audit devices may write files; its DataDir is DataDir.
	AuditFiles device.Files
	// AuditDevices are those of the configuration.
	AuditDevices []device.Config
	// FreeSpace has the thresholds of the disks of data and audit files.
	FreeSpace FreeSpace
	// SnapshotRoot is the directory below which schedules of snapshots may keep files; "": they may not.
	SnapshotRoot string
}

// FreeSpace has fields of freespace.Options, with the same names.
type FreeSpace struct {
	WarnBelow, WarnPercent, Minimum, Ballast int64
	Pending                                  func() int64
}

// Server is the server of one node. Safe for concurrent use.
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
	store    *fence.Store // behind barrier
	metrics  *metrics.Metrics
	keys     *setkeys.Store
	states   *statetoken.Tokens

	namespaces *namespace.Store
	identity   *identity.Store
	issuer     *identitytoken.Issuer
	leases     *lease.Manager
	wraps      *wrapping.Store
	quotas     *quota.Quotas
	mfa        *mfa.Store
	rights     *rights.Rights
	logins     *login.Logins
	primary    remote.Primary
	flights    process.InFlight
	cors       *web.CORS
	uiHeaders  *web.UIHeaders
	snapshots  *snapshots.Scheduler
	versions   process.VersionHistory
	tokenPaths engines.Engine
	replicated *replicated.Store
	link       traffic.Link
	sync       SecretSync    // nil: there is none
	plugins    Plugins       // nil: there are none
	roles      chan struct{} // capacity 1, level-triggered: the role may have changed; never closed

	pipeline   *pipeline.Pipeline
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
		o.Link = traffic.Offline{}
	}
	s := &Server{opts: o, log: o.Logger, raw: o.Lifecycle.Raw, link: o.Link, roles: make(chan struct{}, 1)}
	s.replicated = s.newReplicated()
	s.space = freespace.New(freespace.Options{
		Data: o.DataDir, Disks: disks{s}, WarnBelow: o.FreeSpace.WarnBelow, WarnPercent: o.FreeSpace.WarnPercent,
		Minimum: o.FreeSpace.Minimum, Ballast: o.FreeSpace.Ballast, Pending: o.FreeSpace.Pending, Logger: o.Logger,
	})
	store := fence.New(fence.Options{Barrier: o.Lifecycle.Barrier, Cluster: s.replicated, Node: s, Space: s.space})
	s.barrier, s.store = store, store
	s.keys = &setkeys.Store{Barrier: store, Cluster: s}
	s.states = statetoken.New(statetoken.Options{Raw: s.raw, Cluster: s.replicated, Link: s.link, Keys: s.keys})
	s.policies = policy.NewStore(store)
	o.AuditFiles.DataDir = o.DataDir
	s.audit = audit.NewTable(store, o.AuditFiles, o.Logger)
	s.audit.Declare(o.AuditDevices, func() bool { return s.node.Active() })
	s.cors, s.uiHeaders = web.NewCORS(store), web.NewUIHeaders(store)
	s.versions = process.VersionHistory{Store: store, Version: o.Version.Product, Built: o.Version.Built}
	s.rights, s.logins = new(rights.Rights), new(login.Logins) // filled below: they are of parts that need them
	s.namespaces = namespace.NewStore(namespace.Options{
		Store: store, Contents: dependents{s}, Requests: &s.flights, Cluster: s, Access: s.rights, Steps: dependents{s}.steps(), Logger: o.Logger,
	})
	s.quotas = quota.New(quota.Options{Store: store, Raw: s.raw, Namespaces: s.namespaces, Usage: usage{s}, Logger: o.Logger})
	s.issuer = identitytoken.New(identitytoken.Options{Store: store, Namespaces: s.namespaces, Cluster: s, APIAddr: o.Lifecycle.APIAddr, Logger: o.Logger})
	if o.Plugins != nil {
		s.plugins = o.Plugins(PluginHost{s})
	}
	s.mounts = s.newMounts()
	s.identity = identity.NewStore(identity.Options{Store: store, Mounts: s.mounts, Namespaces: s.namespaces})
	s.tokens = token.New(token.Options{
		Store: store, Dependents: dependents{s}, Logins: s.logins, BatchKeys: s.keys, BatchKeyEntry: setkeys.Entry,
		Namespaces: s.namespaces, Identity: s.rights, Quotas: s.quotas, Background: &s.background, Members: host{s},
		DefaultTTL: o.DefaultLeaseTTL, MaxTTL: o.MaxLeaseTTL, Logger: o.Logger,
	})
	s.wraps = wrapping.NewStore(store, s.tokens)
	s.leases = lease.New(lease.Options{
		Store: store, Mounts: s.mounts, Namespaces: s.namespaces, Quotas: s.quotas, Tokens: s.tokens, Logger: o.Logger,
	})
	s.mfa = mfa.New(mfa.Options{Store: store, Identity: s.identity, Mounts: s.mounts, Namespaces: s.namespaces})
	*s.rights = rights.Rights{Policies: s.policies, Identity: s.identity, Namespaces: s.namespaces, Tokens: s.tokens}
	s.primary = remote.Primary{Link: s.link}
	*s.logins = login.Logins{Mounts: s.mounts, Tokens: s.tokens, Identity: s.identity, MFA: s.mfa, Primary: s.primary}
	o.Lifecycle.Logger = o.Logger
	o.Lifecycle.Service = service{s}
	// Caches must drop what changed before anybody can wait for the change: subscribe them before the node.
	if o.Sync != nil {
		s.sync = o.Sync(host{s})
	}
	for _, w := range s.watchers() {
		s.raw.OnChange(w.changed, w.areas...)
	}
	s.node = lifecycle.New(o.Lifecycle)
	s.metrics = metrics.New(s.numbers)
	s.system = system.New(system.Options{
		Node: s.node, Mounts: s.mounts, Barrier: s.barrier, Raw: s.raw,
		Metrics: s.metrics, TempDir: o.TempDir, Version: o.Version, Logger: o.Logger,
		UnauthenticatedMetrics: o.UnauthenticatedMetrics, Replication: s.replicated, Disk: disks{s},
	})
	s.snapshots = snapshots.New(snapshots.Options{
		Store: s.barrier, Source: s.system, LocalRoot: o.SnapshotRoot, TempDir: o.TempDir, Logger: o.Logger,
	})
	s.raw.OnChange(s.snapshots.Changed, "sys")
	s.snapshots.Routes(s.system.Router())
	api.New(s.replicated).Routes(s.system.Router())
	s.declareShared()
	s.pipeline = pipeline.New(pipeline.Parts{
		Node: s.node, System: s.system.Router(), Namespaces: s.namespaces, Mounts: s.mounts, Quotas: s.quotas, Tokens: s.tokens,
		Identity: s.identity, Rights: s.rights, Logins: s.logins, Leases: s.leases, Wraps: s.wraps, Audit: s.audit.Broker(), Flights: &s.flights,
		Replicated: s.replicated, Link: s.link, Primary: s.primary, Store: s.store, NoRoom: s.noRoom, Logger: o.Logger,
	})
	return s
}

// CORS tells browsers which pages of other origins may use the API.
func (s *Server) CORS() *web.CORS { return s.cors }

// UIHeaders are the headers that operators have set for the web UI.
func (s *Server) UIHeaders() *web.UIHeaders { return s.uiHeaders }

// Run lives until ctx ends; then the node leaves its cluster and seals.
func (s *Server) Run(ctx context.Context) error {
	var following sync.WaitGroup
	following.Go(func() { s.followRole(ctx) })
	following.Go(func() { s.space.Run(ctx) })
	defer following.Wait()
	return s.node.Run(ctx)
}

// Space returns how much room there is for the node's data.
func (s *Server) Space() freespace.State { return s.space.State() }

// Wrote counts bytes that were written to the node's data beside the server's own writes.
func (s *Server) Wrote(bytes int) { s.space.Wrote(bytes) }

// noRoom reports whether the writes of clients have to be rejected: the disk has no room, and no other node can take over.
func (s *Server) noRoom() bool {
	if s.space.State() != freespace.Full {
		return false
	}
	c := s.node.Cluster()
	return c == nil || !c.Roomier()
}

// disks are those on which the node depends.
type disks struct{ s *Server }

// Dirs implements freespace.Disks.
func (d disks) Dirs() map[string][]string {
	return map[string][]string{"data": {d.s.opts.DataDir}, "audit": d.s.audit.Dirs()}
}

// Fault implements freespace.Disks.
func (d disks) Fault() error {
	if c := d.s.node.Cluster(); c != nil {
		return c.DiskFault()
	}
	return nil
}

// Health implements system.Disk: of the data.
func (d disks) Health() string {
	if d.Fault() != nil {
		return "failing"
	}
	return d.s.space.State().String()
}

// Replicated is this cluster's place in replication.
func (s *Server) Replicated() *replicated.Store { return s.replicated }

// Node is the node's life.
func (s *Server) Node() *lifecycle.Node { return s.node }

// ReloadAudit reopens audit files, after they were rotated.
func (s *Server) ReloadAudit() error { return s.audit.Reload() }

// SetLockout takes the lockouts of a configuration that was read again.
func (s *Server) SetLockout(d engines.LockoutDefaults) { s.mounts.SetLockout(d) }

// DeclareAudit takes the audit devices of a configuration that was read again. The active node changes them at once.
func (s *Server) DeclareAudit(ctx context.Context, devices []device.Config) error {
	s.audit.Declare(devices, nil)
	if !s.node.Active() {
		return nil
	}
	return s.audit.Apply(ctx)
}

// Metrics counts finished requests.
func (s *Server) Metrics() *metrics.Metrics { return s.metrics }

// service implements lifecycle.Service.
type service struct{ s *Server }

// FirstPuts is what a new cluster begins with.
func (service) FirstPuts() ([]storage.Put, error) {
	return append(append(namespacePuts(namespace.RootID), token.InitPuts()...), setkeys.FirstPut()), nil
}

// namespacePuts is what a new namespace begins with.
func namespacePuts(ns string) []storage.Put {
	return append(mount.Defaults(ns), policy.Defaults(ns)...)
}

// watcher takes the applied changes of some areas of keys, on every node; without areas those of all.
type watcher struct {
	changed func(storage.Change)
	areas   []string
}

// watchers returns those of the server's parts, in the order in which they hear of a change.
func (s *Server) watchers() []watcher {
	all := []watcher{
		{s.replicated.Changed, []string{"replication", "sys", "namespace"}}, // first: it says whose data this is
		{s.namespaces.Changed, []string{"namespace"}},                       // before those who ask it for paths
		{s.mounts.Changed, nil},
		{s.policies.Changed, []string{"sys"}},
		{s.tokens.Changed, []string{"token", "sys"}},
		{s.leases.Changed, []string{"lease"}},
		{s.identity.Changed, []string{"identity"}},
		{s.audit.Changed, []string{"sys"}},
		{s.quotas.Changed, []string{"sys"}},
		{s.cors.Changed, []string{"sys"}},
		{s.uiHeaders.Changed, []string{"sys"}},
		{s.changed, []string{"replication", "sys"}},
	}
	if s.sync != nil {
		all = append(all, watcher{s.sync.Changed, nil})
	}
	return all
}

// changed takes what concerns the server itself.
func (s *Server) changed(ch storage.Change) {
	if ch.Touches(setkeys.Entry) {
		s.states.ForgetSet()
	}
	if ch.Touches(roles.RoleKey) {
		s.roleChanged()
	}
}

// Load makes the node ready to serve from what storage holds.
func (v service) Load(ctx context.Context, id lifecycle.Identity) error {
	s := v.s
	key, err := s.barrier.DeriveKey("coffer state token v1")
	if err != nil {
		return err
	}
	s.states.SetKey(id.ID, key)
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

// Unload forgets everything that came from storage.
func (v service) Unload() {
	s := v.s
	s.mounts.Clear()
	s.policies.Clear()
	s.tokens.Clear()
	s.identity.Clear()
	s.namespaces.Clear()
	s.leases.Clear()
	s.quotas.Clear()
	s.cors.Clear()
	s.uiHeaders.Clear()
	s.states.Clear()
	s.replicated.Clear()
	if err := s.audit.Unload(); err != nil {
		s.log.Error("closing audit devices", "err", err)
	}
}

// sweepInterval is the longest time between two looks for expired tokens: tokens made since the last look may
// expire before those it saw.
const sweepInterval = time.Second

// Active runs what runs beside requests on the active node.
func (v service) Active(ctx context.Context) {
	s := v.s
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"applying the audit devices of the configuration", s.audit.Apply},
		{"loading the autopilot configuration", s.system.LoadAutopilot},
		{"recording the version", s.versions.Record},
	} {
		if err := step.do(ctx); err != nil && ctx.Err() == nil {
			s.log.Error(step.what, "err", err)
		}
	}
	s.tokens.Activated()
	s.background.run(ctx, s.upgrade, s.sweeper, s.forgetHeldLogins, s.leases.Run, s.namespaces.Run, s.mounts.Run, s.work, s.snapshots.Run, s.replicated.Run, s.link.Active, s.issuer.Run, s.syncSecrets)
	if s.plugins != nil {
		s.plugins.Stop()
	}
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
		case s.Secondary():
			err = errSecondary
		case !c.FormatsAgreed():
			err = errors.New("waiting for members of an earlier version, or that are away: see sys/storage/raft/autopilot/state")
		}
		for _, ensure := range []func(context.Context) error{s.mounts.EnsureDefaults, s.namespaces.EnsureNames, s.keys.Ensure} {
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

// Requests is what requests pass.
func (s *Server) Requests() *pipeline.Pipeline { return s.pipeline }

// ServeSecondary does what a secondary asks of this primary. The index covers what was written.
func (s *Server) ServeSecondary(ctx context.Context, peer roles.Peer, kind string, payload []byte) (answer []byte, at storage.Index, err error) {
	return s.pipeline.ServeSecondary(ctx, peer, kind, payload)
}

// Secondary reports whether this cluster follows a primary.
func (s *Server) Secondary() bool { return s.replicated.Role().Mode == roles.Secondary }

// State returns the token of the state on this node, as the one value of a header, nil while sealed.
func (s *Server) State() []string { return s.states.State() }

// AwaitState waits until this node has the state a token stands for.
func (s *Server) AwaitState(ctx context.Context, text string) error { return s.states.Await(ctx, text) }

// Active reports whether this node is the active one.
func (s *Server) Active() bool { return s.node.Active() }

// Behind returns how old what this node holds may be; negative if that is not known.
func (s *Server) Behind() time.Duration { return s.node.Behind() }

// AwaitActive waits, for a moment, until a node that has become the leader serves as the active one.
func (s *Server) AwaitActive(ctx context.Context) bool { return s.node.AwaitActive(ctx) }

// Sealed reports whether the node is sealed.
func (s *Server) Sealed() bool { return s.node.Sealed() }

// WantsCertificates reports whether an auth method here needs the certificates of clients.
func (s *Server) WantsCertificates(ctx context.Context) bool {
	if s.node.Sealed() {
		return false
	}
	wants, err := s.mounts.HasType(ctx, "cert")
	return wants && err == nil
}

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
	if s.plugins != nil {
		sources = append(sources, s.plugins.Numbers())
	}
	if s.opts.Numbers != nil {
		sources = append(sources, s.opts.Numbers())
	}
	for _, numbers := range sources {
		maps.Copy(out, numbers)
	}
	out["disk_writes_rejected_total"] = float64(s.store.Rejected())
	out["requests_in_flight"] = float64(s.flights.Count())
	return out
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
