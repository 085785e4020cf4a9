package api

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

func (s *API) configRoutes(r *engines.Router) {
	const rootOnly = flags | engines.RootNamespace
	route(r, engines.Read, "sync/config", "Read the configuration of secret sync.", rootOnly, s.ReadConfig)
	route(r, engines.Patch, "sync/config", "Change the configuration of secret sync; null goes back to the default.", rootOnly, s.writeConfig)
	route(r, engines.Update, "sync/config", "Change the configuration of secret sync.", rootOnly, s.writeConfig)
	route(r, engines.Delete, "sync/config", "Go back to the defaults.", rootOnly, s.ResetConfig)
}

type configIn struct {
	Disabled      bool             `json:"disabled" help:"Stop all syncing. What changes meanwhile is done when it goes on."`
	QueueCapacity int              `json:"queue_capacity" default:"1000000" help:"Most secrets that may be synced at once, counting each for each association. Below a prefix, more have to wait."`
	DriftInterval engines.Duration `json:"drift_interval" default:"1h" help:"How often destinations are checked for drift, a minute at least."`
}

const shortestDriftInterval = time.Minute

func configResponse(c *state.Config) *engines.Response {
	return &engines.Response{Data: map[string]any{
		"disabled": c.Disabled, "queue_capacity": c.QueueCapacity, "drift_interval": int(c.DriftIntervalOrDefault().Seconds()),
	}}
}

func (s *API) ReadConfig(ctx context.Context, _ *engines.Request, _ *emptyIn) (*engines.Response, error) {
	c, err := s.Config(ctx)
	return configResponse(&c), err
}

func (s *API) writeConfig(ctx context.Context, req *engines.Request, in *configIn) (*engines.Response, error) {
	if in.QueueCapacity < 1 {
		return nil, engines.Invalid(`field "queue_capacity": must be at least 1`)
	}
	if time.Duration(in.DriftInterval) < shortestDriftInterval {
		return nil, engines.Invalid(`field "drift_interval": must be at least %v`, shortestDriftInterval)
	}
	var c state.Config
	_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		c = state.Config{QueueCapacity: state.DefaultQueueCapacity}
		if _, err := engines.GetRecord(ctx, tx, state.ConfigKey, &c); err != nil {
			return err
		}
		if req.Given("disabled") || req.Null("disabled") {
			c.Disabled = in.Disabled
		}
		if req.Given("queue_capacity") || req.Null("queue_capacity") {
			c.QueueCapacity = in.QueueCapacity
		}
		switch {
		case req.Null("drift_interval"):
			c.DriftInterval = 0
		case req.Given("drift_interval"):
			c.DriftInterval = time.Duration(in.DriftInterval)
		}
		return engines.PutRecord(tx, state.ConfigKey, &c)
	})
	return configResponse(&c), err
}

func (s *API) ResetConfig(ctx context.Context, _ *engines.Request, _ *emptyIn) (*engines.Response, error) {
	if _, err := s.Host.Store().Commit(ctx, storage.Batch{Deletes: []storage.Key{state.ConfigKey}}); err != nil {
		return nil, err
	}
	c := state.Config{QueueCapacity: state.DefaultQueueCapacity}
	return configResponse(&c), nil
}
