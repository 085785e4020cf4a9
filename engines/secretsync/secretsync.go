// Package secretsync keeps secrets of KV version 2 mounts in sync with external destinations.
//
// The desired state is stored as destinations and associations of secrets with them, the last applied state as a link for each
// associated secret, with every name that it owns at its destination. The difference between the two is the work, so nothing is lost
// when a node stops: a new active node scans all links once and queues those that are due. Changes of secrets come from the feed.
//
// This package joins the parts, each of which embeds the one below:
//
//	api         the paths below sys/sync/
//	status      the sync state as readers see it
//	reconcile   which links are due: changes, scans, drift, purges
//	apply       one secret to one destination
//	plan        the decision about one name; pure
//	template    the names and values that a secret should have at a destination; pure
//	workqueue   when links are synced, and how often a destination is called
//	connection  open destinations, and the addresses that they may connect to
//	index       what the active node keeps in memory
//	notify      notifications of failures
//	githubapp   GitHub Apps that destinations sign in as
//	state       the stored records
//
// Package destination is the contract of the types of destinations, each of which is a package of its own (cloud1sm, repohost, …).
// Start reading at Service, then in state, then in apply.
package secretsync

import (
	"context"
	"log/slog"
	"net/http"
	"sync"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/api"
	"github.com/coffer-project/coffer/engines/secretsync/api/adoptions"
	"github.com/coffer-project/coffer/engines/secretsync/api/config"
	"github.com/coffer-project/coffer/engines/secretsync/api/githubapps"
	"github.com/coffer-project/coffer/engines/secretsync/apply"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/notify"
	"github.com/coffer-project/coffer/engines/secretsync/reconcile"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/status"
	"github.com/coffer-project/coffer/storage"
)

// Service is secret sync on one node. Give Changed every change of the feed. Safe for concurrent use.
type Service struct {
	*api.API
	notices notify.Sender
}

// Run syncs, and sends notifications, until ctx ends: see reconcile.Reconciler.Run.
func (s *Service) Run(ctx context.Context) {
	var sending sync.WaitGroup
	defer sending.Wait()
	send := s.notices.Start() // before the first scan, which may have something to report
	sending.Go(func() { send(ctx) })
	s.API.Run(ctx)
}

// Options of a Service. Host and Types are required.
type Options struct {
	Host   engines.Host
	Types  []destination.Type
	Logger *slog.Logger // nil: discard
	// Operator is the part of the server's configuration that callers of the API cannot change.
	Operator connection.Operator
}

// Routes declares the paths below sys/.
func (s *Service) Routes(r *engines.Router) {
	s.API.Routes(r)
	(&adoptions.API{API: s.API}).Routes(r)
	(&config.API{Store: storeOf(s.Host)}).Routes(r)
	(&githubapps.API{Store: storeOf(s.Host), Pool: s.Pool}).Routes(r)
}

// storeOf returns the Store of a host, which may be none while nothing but paths is declared.
func storeOf(h engines.Host) func() storage.Store {
	return func() storage.Store { return h.Store() }
}

// New returns a Service that is not running.
func New(o Options) *Service {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	types := map[string]destination.Type{}
	for _, t := range o.Types {
		types[t.Name] = t
	}
	pool := connection.NewPool(connection.Options{Types: types, Operator: o.Operator, Store: storeOf(o.Host), Tokens: o.Host, Log: o.Logger})
	syncer := apply.NewSyncer(o.Host, pool, o.Logger)
	return &Service{
		API: &api.API{Reporter: status.Reporter{Reconciler: reconcile.NewReconciler(syncer)}},
		notices: notify.Sender{
			Batches: &syncer.Notices, Host: o.Host, Config: syncer.Config, Log: o.Logger,
			Client: func(n *state.Network) (*http.Client, error) { return pool.Client("webhook", n) },
		},
	}
}
