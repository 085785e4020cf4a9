package lifecycle

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/server/seal"
)

const (
	tendInterval  = 10 * time.Second // between two looks at the encryption key
	saveInterval  = 10 * time.Minute // longest time for which the count of encryptions is in memory only
	checkInterval = 10 * time.Minute // between two checks of the seal
)

// sealHealth is what the checks of an automatic seal have found.
type sealHealth struct {
	checked, reachable atomic.Bool
	failures           atomic.Int64
}

// tend does what the active node owes to its keys, until its turn ends: a change of seal that was decided, wrapping
// under the newest key, rotation, and a look now and then whether the seal would still open.
func (n *Node) tend(ctx context.Context, r *running) {
	tick := time.NewTicker(tendInterval)
	defer tick.Stop()
	wrapped, saved := false, time.Now()
	var checked time.Time
	for {
		if !wrapped {
			err := errors.Join(n.migrate(ctx, r), n.rewrap(ctx, r))
			wrapped = err == nil
			n.warn(ctx, "changing the wrapping of the root key, trying again", err)
		}
		if now := time.Now(); now.Sub(checked) >= checkInterval {
			n.checkSeal(ctx, r)
			checked = now
		}
		save := time.Since(saved) >= saveInterval
		n.warn(ctx, "looking after the encryption key", n.tendRing(ctx, save))
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

// checkSeal wraps and unwraps something with a seal that a service has a part in. A service that is away stops nothing
// that runs; it would keep nodes from starting.
func (n *Node) checkSeal(ctx context.Context, r *running) {
	w := r.seal.get()
	if w.Type() == seal.TypeShamir || w.Type() == seal.TypeStatic {
		return
	}
	probe := make([]byte, seal.KeyBytes)
	rand.Read(probe)
	const purpose = "check of the seal"
	blob, err := w.Wrap(ctx, probe, purpose)
	if err == nil {
		var back []byte
		if back, err = w.Unwrap(ctx, blob, purpose); err == nil && subtle.ConstantTimeCompare(back, probe) != 1 {
			err = seal.ErrWrongKey
		}
	}
	if ctx.Err() != nil {
		return
	}
	before := n.health.reachable.Swap(err == nil)
	known := n.health.checked.Swap(true)
	switch {
	case err != nil:
		n.health.failures.Add(1)
		n.log.Error("the seal does not work at present: a node that stops now could not unseal", "seal", w.Type(), "err", err)
	case known && !before:
		n.log.Info("the seal works again", "seal", w.Type())
	}
}

// Numbers are gauges and counters by metric name.
func (n *Node) Numbers() map[string]float64 {
	out := map[string]float64{}
	if n.health.checked.Load() {
		out["seal_reachable"] = 0
		if n.health.reachable.Load() {
			out["seal_reachable"] = 1
		}
		out["seal_check_failures_total"] = float64(n.health.failures.Load())
	}
	if info := n.opts.Barrier.KeyInfo(); info.Term > 0 {
		out["barrier_key_term"] = float64(info.Term)
		out["barrier_key_encryptions"] = float64(info.Encryptions)
	}
	return out
}
