package system

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle/rotation"
)

func (s *System) keyPaths() {
	r := s.router
	engines.On(r, engines.Read, "key-status", "Describe the active encryption key.", engines.RootNamespace, s.keyStatus).
		Returns("top; encryptions: integer, install_time, term: integer")
	for _, pattern := range []string{"rotate", "rotate/keyring"} {
		engines.On(r, engines.Update, pattern, "Add an encryption key and use it from now on. What older keys encrypted stays readable.", engines.Sudo|engines.RootNamespace, s.rotate)
	}
	for _, pattern := range []string{"rotate/config", "rotate/keyring/config"} {
		engines.On(r, engines.Read, pattern, "Read the rule by which the encryption key is replaced.", engines.Sudo|engines.RootNamespace, s.readRotation).
			Returns("top; enabled: boolean, interval: integer|string, max_operations: integer")
		engines.On(r, engines.Update, pattern, "Change the rule by which the encryption key is replaced.", engines.Sudo|engines.RootNamespace, s.writeRotation)
	}
}

func (s *System) keyStatus(context.Context, *engines.Request, *none) (*engines.Response, error) {
	info := s.opts.Barrier.KeyInfo()
	return both(map[string]any{
		"term": info.Term, "install_time": rfc3339(info.InstalledAt), "encryptions": info.Encryptions,
	}), nil
}

func (s *System) rotate(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	info, err := s.opts.Barrier.Rotate(ctx)
	if err != nil {
		return nil, err
	}
	s.opts.Logger.Info("encryption key rotated", "key_term", info.Term)
	return nil, nil
}

func (s *System) readRotation(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	c, err := s.opts.Node.Rotation(ctx)
	if err != nil {
		return nil, err
	}
	data := map[string]any{"max_operations": c.MaxOperations, "enabled": c.Enabled, "interval": any(0)}
	if c.Interval > 0 {
		data["interval"] = c.Interval.String()
	}
	return both(data), nil
}

type rotationInput struct {
	MaxOperations int64            `json:"max_operations" help:"Encryptions after which the key is replaced, from 1000000 to 3865470566."`
	Interval      engines.Duration `json:"interval" help:"Age at which the key is replaced, at least 24h; 0: at no age."`
	Enabled       bool             `json:"enabled" help:"Whether the key is replaced by rule at all."`
}

func (s *System) writeRotation(ctx context.Context, req *engines.Request, in *rotationInput) (*engines.Response, error) {
	return nil, s.opts.Node.SetRotation(ctx, func(c *rotation.Rule) {
		if req.Given("max_operations") {
			c.MaxOperations = uint64(max(0, in.MaxOperations))
		}
		if req.Given("interval") {
			c.Interval = time.Duration(in.Interval)
		}
		if req.Given("enabled") {
			c.Enabled = in.Enabled
		}
	})
}
