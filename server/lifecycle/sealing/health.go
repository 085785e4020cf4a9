package sealing

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"log/slog"
	"sync/atomic"

	"github.com/coffer-project/coffer/server/seal"
)

// Health is what the checks of an automatic seal have found.
type Health struct {
	checked, reachable atomic.Bool
	failures           atomic.Int64
}

// Check wraps and unwraps something with a seal that a service has a part in. A service that is away stops nothing
// that runs; it would keep nodes from starting.
func (h *Health) Check(ctx context.Context, w seal.Wrapper, log *slog.Logger) {
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
	before := h.reachable.Swap(err == nil)
	known := h.checked.Swap(true)
	switch {
	case err != nil:
		h.failures.Add(1)
		log.Error("the seal does not work at present: a node that stops now could not unseal", "seal", w.Type(), "err", err)
	case known && !before:
		log.Info("the seal works again", "seal", w.Type())
	}
}

// Numbers are gauges and counters by metric name.
func (h *Health) Numbers() map[string]float64 {
	out := map[string]float64{}
	if h.checked.Load() {
		out["seal_reachable"] = 0
		if h.reachable.Load() {
			out["seal_reachable"] = 1
		}
		out["seal_check_failures_total"] = float64(h.failures.Load())
	}
	return out
}
