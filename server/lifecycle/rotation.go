package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// rotationKey is where the rule of rotation is, behind the barrier.
var rotationKey = storage.NewKey(storage.Local, "sys", "rotate/config")

// Limits of Rotation. With random nonces a key of AES-GCM is good for 2^32 encryptions; the most that can be set
// leaves a tenth of that for what was not counted because a node died.
const (
	MaxRotationOperations = 3_865_470_566
	MinRotationOperations = 1_000_000
	MinRotationInterval   = 24 * time.Hour
)

// Rotation says when the encryption key is replaced without anybody asking.
type Rotation struct {
	Format        int           `json:"format"` // 1
	Enabled       bool          `json:"enabled"`
	MaxOperations uint64        `json:"max_operations"`
	Interval      time.Duration `json:"interval"` // nanoseconds; 0: whatever its age
}

func defaultRotation() Rotation {
	return Rotation{Format: 1, Enabled: true, MaxOperations: MaxRotationOperations}
}

func (c Rotation) validate() error {
	switch {
	case c.MaxOperations < MinRotationOperations || c.MaxOperations > MaxRotationOperations:
		return engines.Invalid("field \"max_operations\" must be between %d and %d", MinRotationOperations, MaxRotationOperations)
	case c.Interval != 0 && c.Interval < MinRotationInterval:
		return engines.Invalid("field \"interval\" must be 0 or at least %v", MinRotationInterval)
	}
	return nil
}

// due reports whether the key has done enough.
func (c Rotation) due(k KeyInfo) bool {
	return c.Enabled && k.Term > 0 && (k.Encryptions >= c.MaxOperations || c.Interval > 0 && time.Since(k.InstalledAt) >= c.Interval)
}

// Rotation returns the rule of rotation.
func (n *Node) Rotation(ctx context.Context) (Rotation, error) {
	e, err := n.opts.Barrier.Get(ctx, rotationKey)
	if errors.Is(err, storage.ErrNotFound) {
		return defaultRotation(), nil
	}
	if err != nil {
		return Rotation{}, err
	}
	var c Rotation
	if err := json.Unmarshal(e.Value, &c); err != nil || c.Format != 1 {
		return Rotation{}, fmt.Errorf("decoding %s: it has an unknown format", rotationKey)
	}
	return c, nil
}

// SetRotation changes the rule of rotation: change gets the present one.
func (n *Node) SetRotation(ctx context.Context, change func(*Rotation)) error {
	c, err := n.Rotation(ctx)
	if err != nil {
		return err
	}
	change(&c)
	if err := c.validate(); err != nil {
		return err
	}
	_, err = n.opts.Barrier.Commit(ctx, storage.Batch{Puts: []storage.Put{put(rotationKey, c)}})
	return err
}

// saveOperations is how many encryptions at most are counted in memory only.
const saveOperations = 1_000_000

// tendRing keeps the count of encryptions and rotates the key when it has done enough.
func (n *Node) tendRing(ctx context.Context, save bool) error {
	info := n.opts.Barrier.KeyInfo()
	if save || info.Unsaved >= saveOperations {
		if err := n.opts.Barrier.SaveCount(ctx); err != nil {
			return err
		}
	}
	rule, err := n.Rotation(ctx)
	if err != nil || !rule.due(info) {
		return err
	}
	fresh, err := n.opts.Barrier.Rotate(ctx)
	if err != nil {
		return err
	}
	n.log.Info("encryption key rotated by rule", "key_term", fresh.Term, "encryptions", info.Encryptions, "installed", info.InstalledAt)
	return nil
}
