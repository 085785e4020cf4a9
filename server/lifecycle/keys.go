package lifecycle

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/server/lifecycle/rotation"
	"github.com/coffer-project/coffer/server/lifecycle/sealing"
)

const (
	keepInterval  = 10 * time.Second // between two looks at the encryption key
	saveInterval  = 10 * time.Minute // longest time for which the count of encryptions is in memory only
	checkInterval = 10 * time.Minute // between two checks of the seal
)

// keepKeys does what the active node has to do for its keys, until its turn ends: a change of seal that was decided, wrapping
// under the newest key, rotation, and a look now and then whether the seal would still open.
func (n *Node) keepKeys(ctx context.Context, r *running) {
	tick := time.NewTicker(keepInterval)
	defer tick.Stop()
	wrapped, saved := false, time.Now()
	var checked time.Time
	for {
		if !wrapped {
			err := errors.Join(n.migrate(ctx, r), sealing.Rewrap(ctx, n.opts.Router, r.seal.Get(), n.log))
			wrapped = err == nil
			n.warn(ctx, "changing the wrapping of the root key, trying again", err)
		}
		if now := time.Now(); now.Sub(checked) >= checkInterval {
			n.health.Check(ctx, r.seal.Get(), n.log)
			checked = now
		}
		save := time.Since(saved) >= saveInterval
		n.warn(ctx, "looking after the encryption key", n.rotation.Tend(ctx, save))
		if save {
			saved = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// warn logs a failure that is not the end of the turn.
func (n *Node) warn(ctx context.Context, text string, err error) {
	if err != nil && ctx.Err() == nil {
		n.log.Warn(text, "err", err)
	}
}

// Numbers are gauges and counters by metric name.
func (n *Node) Numbers() map[string]float64 {
	out := n.health.Numbers()
	if info := n.opts.Barrier.KeyInfo(); info.Term > 0 {
		out["barrier_key_term"] = float64(info.Term)
		out["barrier_key_encryptions"] = float64(info.Encryptions)
	}
	return out
}

// Rotation returns the rule by which the encryption key is replaced.
func (n *Node) Rotation(ctx context.Context) (rotation.Rule, error) { return n.rotation.Rule(ctx) }

// SetRotation changes it: change gets the present one.
func (n *Node) SetRotation(ctx context.Context, change func(*rotation.Rule)) error {
	return n.rotation.SetRule(ctx, change)
}
