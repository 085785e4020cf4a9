package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coffer-project/coffer/storage"
	"golang.org/x/time/rate"
)

// clock is the wall clock, except that it never goes back behind a time that was reached for sure.
type clock struct {
	wall func() time.Time

	mu    sync.Mutex
	floor time.Time
}

// now returns the later of wall clock and floor, without monotonic part.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wall := c.wall().Round(0); wall.After(c.floor) {
		return wall
	}
	return c.floor
}

// raise makes at the floor, unless it is higher.
func (c *clock) raise(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.After(c.floor) {
		c.floor = at
	}
}

func (c *clock) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.floor = time.Time{}
}

// reached is the stored form of the floor.
type reached struct {
	Format int       `json:"format"` // 1
	At     time.Time `json:"at"`
}

func (m *Manager) loadClock(ctx context.Context) (time.Time, error) {
	e, err := m.store.Get(ctx, clockKey)
	if errors.Is(err, storage.ErrNotFound) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	var r reached
	if err := json.Unmarshal(e.Value, &r); err != nil || r.Format != 1 {
		return time.Time{}, errors.New("the stored time has an unknown format")
	}
	m.clock.raise(r.At)
	return r.At, nil
}

func (m *Manager) storeClock(ctx context.Context, at time.Time) error {
	value, err := json.Marshal(reached{Format: 1, At: at})
	if err != nil {
		return err
	}
	_, err = m.store.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: clockKey, Value: value}}})
	return err
}

const (
	clockInterval = time.Minute      // between two times that are stored
	maxJump       = time.Minute      // a clock that gets ahead by more is suspect
	maxGap        = 10 * time.Minute // the same, after a time without an active node
	brakeLeases   = 1000             // the brake is for more than this, and more than a tenth of all
	brakeRate     = 100              // leases a second
)

// ticks watches the wall clock against the monotonic one.
type ticks struct {
	wall time.Time // without monotonic part
	mono time.Time
}

// jumped reports by how much the wall clock got ahead since the last call.
func (t *ticks) jumped(wall time.Time) time.Duration {
	mono := time.Now()
	ahead := wall.Sub(t.wall) - mono.Sub(t.mono)
	if t.wall.IsZero() {
		ahead = 0
	}
	t.wall, t.mono = wall, mono
	return ahead
}

// brake slows expiry down after the clock jumped.
type brake struct {
	limiter *rate.Limiter
}

// braking reports whether the brake is on.
func (m *Manager) braking() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.work != nil && m.work.brake != nil
}

// suspect decides whether so much fell due at once, after the clock got ahead by jump, that it is time to brake.
func (m *Manager) suspect(ctx context.Context, w *work, jump time.Duration) error {
	due, total, err := m.countDue(ctx, m.clock.now())
	if err != nil {
		return fmt.Errorf("counting what is due: %w", err)
	}
	if due <= brakeLeases || due*10 <= total {
		return nil
	}
	m.log.Error("the clock got ahead and very many leases expired at once: they are revoked slowly. "+
		"If the clock is wrong, correct it now; if it is right, lift the brake with sys/leases/tidy",
		"ahead", jump.Round(time.Second), "due", due, "leases", total)
	m.mu.Lock()
	defer m.mu.Unlock()
	w.brake = &brake{limiter: rate.NewLimiter(brakeRate, brakeRate)}
	return nil
}

// countDue reads the names of the whole index.
func (m *Manager) countDue(ctx context.Context, now time.Time) (due, total int, err error) {
	limit := timeName(now)
	for name, err := range m.names(ctx, expPrefix, "") {
		if err != nil {
			return 0, 0, err
		}
		if total++; name < limit {
			due++
		}
	}
	return due, total, nil
}
