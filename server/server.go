// Package server is the one pipeline that every request passes, whatever it asks for:
//
//	resolve the mount and route → authenticate → authorise → audit → engine → audit → answer
//
// and the composition of the parts that it is made of, each a small package below this one. It knows neither
// HTTP (package httpapi is the edge) nor Raft nor files (package lifecycle declares what it needs of them).
// Start reading at Handle.
package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/metrics"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/server/system"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

// rootNS is the id of the only namespace so far.
const rootNS = "root"

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
	// RootTokenID is the root token of a new development server; "" makes a random one.
	RootTokenID string
	// UnauthenticatedMetrics lets sys/metrics be read without a token.
	UnauthenticatedMetrics bool
}

// Server is the request pipeline of one node. Safe for concurrent use.
type Server struct {
	opts     Options
	log      *slog.Logger
	node     *lifecycle.Node
	barrier  lifecycle.Barrier
	raw      lifecycle.Raw
	mounts   *mount.Table
	policies *policy.Store
	tokens   *token.Store
	audit    *audit.Table
	system   *system.System
	metrics  *metrics.Metrics
	states   stateTokens

	tokenPaths engines.Engine
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
	s := &Server{
		opts: o, log: o.Logger, barrier: o.Lifecycle.Barrier, raw: o.Lifecycle.Raw,
		policies: policy.NewStore(o.Lifecycle.Barrier),
		audit:    audit.NewTable(o.Lifecycle.Barrier, o.Logger),
	}
	s.tokens = s.newTokens()
	factories := map[string]engines.Factory{
		"system": func(engines.Mount) (engines.Engine, error) { return s.system, nil },
		"token":  func(engines.Mount) (engines.Engine, error) { return s.tokenPaths, nil },
	}
	for kind, f := range o.Factories {
		factories[kind] = f
	}
	s.mounts = mount.NewTable(mount.Options{
		Store: s.barrier, Factories: factories, Logger: o.Logger,
		DefaultLeaseTTL: o.DefaultLeaseTTL, MaxLeaseTTL: o.MaxLeaseTTL,
	})
	o.Lifecycle.Logger = o.Logger
	o.Lifecycle.Hooks = lifecycle.Hooks{
		FirstPuts: s.firstPuts, RootToken: s.rootToken, Load: s.load, Unload: s.unload, Active: s.active,
	}
	// Caches must drop what changed before anybody can wait for the change: subscribe them before the node.
	s.raw.OnChange(s.changed)
	s.node = lifecycle.New(o.Lifecycle)
	s.metrics = metrics.New(s.numbers)
	s.system = system.New(system.Options{
		Node: s.node, Mounts: s.mounts, Barrier: s.barrier, Raw: s.raw, AnyUnder: s.anyUnder,
		Metrics: s.metrics.Render, TempDir: o.TempDir, Version: o.Version, Logger: o.Logger,
		UnauthenticatedMetrics: o.UnauthenticatedMetrics,
	})
	s.declareShared()
	return s
}

// Run lives until ctx ends; then the node leaves its cluster and seals.
func (s *Server) Run(ctx context.Context) error { return s.node.Run(ctx) }

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
	puts := mount.Defaults(rootNS)
	puts = append(puts, policy.Defaults(rootNS)...)
	return append(puts, token.InitPuts()...), nil
}

// changed takes every applied change, on every node.
func (s *Server) changed(ch storage.Change) {
	s.mounts.Changed(ch)
	s.policies.Changed(ch)
	s.tokens.Changed(ch)
	s.audit.Changed(ch)
}

// load makes the node ready to serve from what storage holds.
func (s *Server) load(ctx context.Context) error {
	key, err := s.barrier.DeriveKey("coffer state token v1")
	if err != nil {
		return err
	}
	s.states.setKey(key)
	if err := s.mounts.Load(ctx); err != nil {
		return err
	}
	return s.audit.Load(ctx)
}

// unload forgets everything that came from storage.
func (s *Server) unload() {
	s.mounts.Clear()
	s.policies.Clear()
	s.tokens.Clear()
	s.states.setKey(nil)
	if err := s.audit.Unload(); err != nil {
		s.log.Error("closing audit devices", "err", err)
	}
}

// sweepInterval is the longest time between two looks for expired tokens: tokens made since the last look may
// expire before those it saw.
const sweepInterval = time.Second

// active runs while this node is the active one.
func (s *Server) active(ctx context.Context) {
	if err := s.system.LoadAutopilot(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("loading the autopilot configuration", "err", err)
	}
	if err := s.mounts.Resume(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("finishing interrupted disables", "err", err)
	}
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

// flags returns the flags of the request's route.
func (s *Server) flags(ctx context.Context, req *Request) (engines.Flags, bool) {
	if rest, ok := strings.CutPrefix(req.Path, sysPrefix); ok {
		route, _, err := s.system.Router().Match(req.Op, rest)
		if err != nil {
			return 0, false
		}
		return route.Flags, true
	}
	if s.node.Sealed() {
		return 0, false
	}
	m, rest, err := s.mounts.Resolve(ctx, rootNS, req.Path)
	if err != nil || m == nil {
		return 0, false
	}
	route, _, err := m.Engine.Router().Match(req.Op, rest)
	if err != nil {
		return 0, false
	}
	return route.Flags, true
}

// Active reports whether this node is the active one.
func (s *Server) Active() bool { return s.node.Active() }

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
	stats := s.audit.Broker().Stats()
	out["audit_request_records_total"] = float64(stats.Requests)
	out["audit_response_records_total"] = float64(stats.Responses)
	out["audit_failures_total"] = float64(stats.Failures)
	out["audit_device_errors_total"] = float64(stats.Errors)
	out["audit_devices"] = float64(stats.Devices)
	if c := s.node.Cluster(); c != nil {
		for name, v := range c.Numbers() {
			out[name] = v
		}
	}
	return out
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// wipeCubbyhole deletes what a revoked token kept for itself.
func (s *Server) wipeCubbyhole(ctx context.Context, tokenKey string) error {
	m, err := s.mounts.Get(ctx, rootNS, "cubbyhole/")
	if err != nil || m == nil || tokenKey == "" {
		return err
	}
	if err := storage.DeletePrefix(ctx, m.Mount.ClusterStorage, storage.Key(tokenKey+"/")); err != nil {
		return fmt.Errorf("wiping the cubbyhole of a revoked token: %w", err)
	}
	return nil
}
