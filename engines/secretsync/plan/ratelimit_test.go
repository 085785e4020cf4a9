package plan

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/state"
)

// TestNextWriteKeepsTheLimit writes as often as it may for three days, with requests among it that wait for nothing but the limit.
func TestNextWriteKeepsTheLimit(t *testing.T) {
	for _, perDay := range []int{1, 7, 20, 90, 100} {
		for _, requests := range []float64{0, 0.01, 0.5} {
			rng := rand.New(rand.NewPCG(uint64(perDay), 1)) //nolint:gosec // to be repeated
			began := time.Date(2030, 1, 1, 12, 34, 56, 0, time.UTC)
			var w *state.Writes
			var all []time.Time
			var longest time.Duration
			for now := began; now.Before(began.Add(72 * time.Hour)); now = now.Add(10 * time.Second) {
				at := NextWrite(perDay, w, now, rng.Float64() < requests)
				if at.After(now.Add(25 * time.Hour)) {
					t.Fatalf("%d a day: has to wait until %v at %v", perDay, at, now)
				}
				if at.After(now) {
					continue
				}
				if len(all) > 0 {
					longest = max(longest, now.Sub(all[len(all)-1]))
				}
				w, all = w.Add(now), append(all, now)
				if i := len(all) - 1 - perDay; i >= 0 && now.Sub(all[i]) < 24*time.Hour {
					t.Fatalf("%d a day: %d writes within %v", perDay, perDay+1, now.Sub(all[i]))
				}
			}
			if spread := writeInterval(perDay, perDay); requests == 0 && longest > spread+time.Minute && perDay > 10 {
				t.Errorf("%d a day: waited for %v, want no more than %v", perDay, longest, spread)
			}
			if raw, err := json.Marshal(w); err != nil || len(raw) > 150 {
				t.Errorf("the count is %s, %v", raw, err)
			}
		}
	}
}

func TestNextWriteGrows(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	after := func(n int) (w *state.Writes) {
		for range n {
			w = w.Add(now)
		}
		return w
	}
	for _, c := range []struct {
		perDay, n int
		requested bool
		want      time.Duration
	}{
		{0, 1000, false, 0}, {100, 0, false, 0}, {100, 9, false, 0}, {100, 10, false, time.Minute}, {100, 20, false, 5 * time.Minute},
		{100, 30, false, 25 * time.Hour / 70}, {100, 99, true, 0}, {100, 100, true, 25 * time.Hour}, {100, 100, false, 25 * time.Hour},
	} {
		if got := NextWrite(c.perDay, after(c.n), now, c.requested).Sub(now); got != c.want {
			t.Errorf("%d of %d, requested %v: %v, want %v", c.n, c.perDay, c.requested, got, c.want)
		}
	}
	if got := NextWrite(100, after(100), now.Add(-time.Hour), false); got.After(now.Add(-time.Hour)) {
		t.Error("writes of a clock that was ahead count")
	}
	if got := NextWrite(100, after(100), now.Add(25*time.Hour), false); got.After(now.Add(25 * time.Hour)) {
		t.Error("writes of yesterday count")
	}
}
