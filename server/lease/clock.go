package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/server/lease/record"
	"github.com/coffer-project/coffer/storage"
	"golang.org/x/time/rate"
)

// reached is the stored form of the floor.
type reached struct {
	Format int       `json:"format"` // 1
	At     time.Time `json:"at"`
}

func (m *Manager) loadClock(ctx context.Context) (time.Time, error) {
	e, err := m.store.Get(ctx, record.ClockKey)
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
	m.clock.Raise(r.At)
	return r.At, nil
}

func (m *Manager) storeClock(ctx context.Context, at time.Time) error {
	value, err := json.Marshal(reached{Format: 1, At: at})
	if err != nil {
		return err
	}
	_, err = m.store.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: record.ClockKey, Value: value}}})
	return err
}

const (
	clockInterval = time.Minute      // between two times that are stored
	maxJump       = time.Minute      // a clock that gets ahead by more is suspect
	maxGap        = 10 * time.Minute // the same, after a time without an active node
	brakeLeases   = 1000             // the brake is for more than this, and more than a tenth of all
	brakeRate     = 100              // leases a second
)

// braking reports whether the brake is on.
func (m *Manager) braking() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.work != nil && m.work.brake != nil
}

// checkJump decides whether so much fell due at once, after the clock got ahead by jump, that it is time to brake.
func (m *Manager) checkJump(ctx context.Context, w *work, jump time.Duration) error {
	due, total, err := m.countDue(ctx, m.clock.Now())
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
	w.brake = rate.NewLimiter(brakeRate, brakeRate)
	return nil
}

// countDue reads the names of the whole index.
func (m *Manager) countDue(ctx context.Context, now time.Time) (due, total int, err error) {
	limit := index.TimeName(now)
	for name, err := range m.names(ctx, index.ExpPrefix, "") {
		if err != nil {
			return 0, 0, err
		}
		if total++; name < limit {
			due++
		}
	}
	return due, total, nil
}
