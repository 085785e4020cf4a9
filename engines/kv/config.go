package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const configKey storage.Key = "config"

// config holds a mount's settings; each secret can have its own as well.
type config struct {
	maxVersions uint32 // 0: defaultMaxVersions
	casRequired bool
	deleteAfter time.Duration // 0: never
	upgraded    instant       // when the mount was upgraded from version 1, until nothing is left to convert; else 0
}

// storedConfig is the stored form, as JSON.
type storedConfig struct {
	Format      int           `json:"format"` // 1
	MaxVersions uint32        `json:"max_versions"`
	CASRequired bool          `json:"cas_required"`
	DeleteAfter time.Duration `json:"delete_version_after"` // nanoseconds
	Upgraded    instant       `json:"upgraded_at,omitempty"`
}

// getConfig returns the mount's settings, the zero ones if none are stored.
func getConfig(ctx context.Context, s engines.Getter) (*config, error) {
	e, err := s.Get(ctx, configKey)
	if errors.Is(err, storage.ErrNotFound) {
		return &config{}, nil
	}
	if err != nil {
		return nil, err
	}
	var c storedConfig
	if err := json.Unmarshal(e.Value, &c); err != nil {
		return nil, fmt.Errorf("decoding kv settings: %w", err)
	}
	if c.Format != 1 {
		return nil, fmt.Errorf("kv settings have format %d, this version knows 1", c.Format)
	}
	return &config{c.MaxVersions, c.CASRequired, c.DeleteAfter, c.Upgraded}, nil
}

func (c *config) put(t *storage.Txn) error {
	value, err := json.Marshal(storedConfig{1, c.maxVersions, c.casRequired, c.deleteAfter, c.upgraded})
	if err == nil {
		t.Put(configKey, value)
	}
	return err
}

// settings are the fields that a mount and a secret have in common.
type settings struct {
	MaxVersions int              `json:"max_versions" help:"How many versions to keep; 0 is the default."`
	CASRequired bool             `json:"cas_required" help:"Whether writes must use check-and-set."`
	DeleteAfter engines.Duration `json:"delete_version_after" help:"Soft-delete each version this long after it is written; 0 is never."`
}

// check refuses numbers that cannot be stored and returns warnings about ones that have less effect than
// they seem.
func (s *settings) check() (warnings []string, err error) {
	if s.MaxVersions < 0 || s.MaxVersions > math.MaxUint32 {
		return nil, engines.Invalid("field \"max_versions\": must be a number of versions, 0 or more")
	}
	if s.MaxVersions > maxRetained {
		warnings = append(warnings, fmt.Sprintf("max_versions is above %d: only the newest %[1]d versions are kept", maxRetained))
	}
	return warnings, nil
}

// apply sets what the request gave. A null, which only a patch can mean, sets the default.
func (s *settings) apply(req *engines.Request, maxVersions *uint32, casRequired *bool, deleteAfter *time.Duration) {
	given := func(field string) bool {
		return req.Given(field) || req.Op == engines.Patch && req.Null(field)
	}
	if given("max_versions") {
		*maxVersions = uint32(s.MaxVersions)
	}
	if given("cas_required") {
		*casRequired = s.CASRequired
	}
	if given("delete_version_after") {
		*deleteAfter = time.Duration(s.DeleteAfter)
	}
}

// noInput is the input of routes without any.
type noInput struct{}

func readConfig(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	c, err := getConfig(ctx, req.Mount.Storage)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{
		"max_versions":         c.maxVersions,
		"cas_required":         c.casRequired,
		"delete_version_after": c.deleteAfter.String(),
	}}, nil
}

func writeConfig(ctx context.Context, req *engines.Request, in *settings) (*engines.Response, error) {
	warnings, err := in.check()
	if err != nil {
		return nil, err
	}
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		c, err := getConfig(ctx, t)
		if err != nil {
			return err
		}
		in.apply(req, &c.maxVersions, &c.casRequired, &c.deleteAfter)
		return c.put(t)
	})
	return warned(warnings), err
}

// warned returns an answer that has nothing to say but warnings.
func warned(warnings []string) *engines.Response {
	if warnings == nil {
		return nil
	}
	return &engines.Response{Warnings: warnings}
}
