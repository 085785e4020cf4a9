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
