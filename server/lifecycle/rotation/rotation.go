// Package rotation replaces the encryption key of a cluster by a rule, before it has encrypted too much. The rule is an entry behind the
// barrier, and the active node looks at it now and then: see Keys.Tend.
package rotation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// KeyInfo describes the active encryption key.
type KeyInfo struct {
	Term        uint32
	InstalledAt time.Time
	Encryptions uint64 // of the cluster, as far as this node knows
	Unsaved     uint64 // those of them that only this node knows of
}

// Barrier is what replaces the key: see lifecycle.Barrier.
type Barrier interface {
	storage.Store
	Rotate(ctx context.Context) (KeyInfo, error)
	KeyInfo() KeyInfo
	SaveCount(ctx context.Context) error
}

// Keys are the encryption keys of a cluster. All fields are required.
type Keys struct {
	Barrier Barrier
	Logger  *slog.Logger
}

// ruleKey is where the rule of rotation is, behind the barrier.
var ruleKey = storage.NewKey(storage.Local, "sys", "rotate/config")

// Limits of a Rule. With random nonces a key of AES-GCM is good for 2^32 encryptions; the most that can be set
// leaves a tenth of that for what was not counted because a node died.
const (
	MaxOperations = 3_865_470_566
	MinOperations = 1_000_000
	MinInterval   = 24 * time.Hour
)

// Rule says when the encryption key is replaced without anybody asking.
type Rule struct {
	Format        int           `json:"format"` // 1
	Enabled       bool          `json:"enabled"`
	MaxOperations uint64        `json:"max_operations"`
	Interval      time.Duration `json:"interval"` // nanoseconds; 0: whatever its age
}

func standard() Rule {
	return Rule{Format: 1, Enabled: true, MaxOperations: MaxOperations}
}

func (c Rule) validate() error {
	switch {
	case c.MaxOperations < MinOperations || c.MaxOperations > MaxOperations:
		return engines.Invalid("field \"max_operations\" must be between %d and %d", MinOperations, MaxOperations)
	case c.Interval != 0 && c.Interval < MinInterval:
		return engines.Invalid("field \"interval\" must be 0 or at least %v", MinInterval)
	}
	return nil
}

// due reports whether the key has done enough.
func (c Rule) due(key KeyInfo) bool {
	return c.Enabled && key.Term > 0 && (key.Encryptions >= c.MaxOperations || c.Interval > 0 && time.Since(key.InstalledAt) >= c.Interval)
}

// Rule returns the rule of rotation.
func (k Keys) Rule(ctx context.Context) (Rule, error) {
	e, err := k.Barrier.Get(ctx, ruleKey)
	if errors.Is(err, storage.ErrNotFound) {
		return standard(), nil
	}
	if err != nil {
		return Rule{}, err
	}
	var c Rule
	if err := json.Unmarshal(e.Value, &c); err != nil || c.Format != 1 {
		return Rule{}, fmt.Errorf("decoding %s: it has an unknown format", ruleKey)
	}
	return c, nil
}

// SetRule changes the rule of rotation: change gets the present one.
func (k Keys) SetRule(ctx context.Context, change func(*Rule)) error {
	c, err := k.Rule(ctx)
	if err != nil {
		return err
	}
	change(&c)
	if err := c.validate(); err != nil {
		return err
	}
	value, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = k.Barrier.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: ruleKey, Value: value}}})
	return err
}

// saveOperations is how many encryptions at most are counted in memory only.
const saveOperations = 1_000_000

// Tend keeps the count of encryptions and rotates the key when it has done enough.
func (k Keys) Tend(ctx context.Context, save bool) error {
	info := k.Barrier.KeyInfo()
	if save || info.Unsaved >= saveOperations {
		if err := k.Barrier.SaveCount(ctx); err != nil {
			return err
		}
	}
	rule, err := k.Rule(ctx)
	if err != nil || !rule.due(info) {
		return err
	}
	fresh, err := k.Barrier.Rotate(ctx)
	if err != nil {
		return err
	}
	k.Logger.Info("encryption key rotated by rule", "key_term", fresh.Term, "encryptions", info.Encryptions, "installed", info.InstalledAt)
	return nil
}
