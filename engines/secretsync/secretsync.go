// Package secretsync keeps secrets of KV version 2 mounts right in the places that use them.
//
// What is to be is written down: destinations, and associations of secrets with them. What was done is written down, too:
// for each associated secret a link, with every name that it owns at its destination. The work is what differs between the
// two and what the secrets are now, so that nothing of it is lost when a node stops: a new active node looks at all links
// once and knows what is due. Changes of secrets are heard from the feed.
//
// Start reading at Service, then records.go (what is stored), then sync.go (one secret to one destination). Package work has the queue.
package secretsync

import (
	"log/slog"
	"os"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Service is secret sync on one node. Give Changed every change of the feed. Safe for concurrent use.
type Service struct{ *API }

// Options of a Service. Host and Types are required.
type Options struct {
	Host   engines.Host
	Types  []destination.Type
	Logger *slog.Logger // nil: discard
	// Operator is the part of the server's configuration that callers of the API cannot change.
	Operator Operator
	// Getenv reads the server's environment; nil: os.Getenv.
	Getenv func(string) string
}

// New returns a Service that is not running.
func New(o Options) *Service {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	types := map[string]destination.Type{}
	for _, t := range o.Types {
		types[t.Name] = t
	}
	pool := NewPool(PoolOptions{Types: types, Operator: o.Operator, Getenv: o.Getenv})
	return &Service{&API{Reporter{NewReconciler(NewSyncer(o.Host, pool, o.Logger))}}}
}
