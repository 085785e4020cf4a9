// Package clock is the time that leases expire by: the wall clock, except that it never goes back behind a time that was reached for
// sure, and whether the wall clock has jumped. Start reading at Clock.
package clock

import (
	"sync"
	"time"
)

// Clock is the wall clock, except that it never goes back behind its floor. Safe for concurrent use.
type Clock struct {
	Read func() time.Time // the wall clock

	mu    sync.Mutex
	floor time.Time
}

// Wall returns what the wall clock says, without monotonic part.
func (c *Clock) Wall() time.Time { return c.Read().Round(0) }

// Now returns the later of wall clock and floor, without monotonic part.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wall := c.Wall(); wall.After(c.floor) {
		return wall
	}
	return c.floor
}

// Raise makes at the floor, unless it is higher.
func (c *Clock) Raise(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.After(c.floor) {
		c.floor = at
	}
}

// Reset forgets the floor.
func (c *Clock) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.floor = time.Time{}
}

// Ticks watches the wall clock against the monotonic one.
type Ticks struct {
	wall time.Time // without monotonic part
	mono time.Time
}

// Jumped reports by how much the wall clock got ahead since the last call.
func (t *Ticks) Jumped(wall time.Time) time.Duration {
	mono := time.Now()
	ahead := wall.Sub(t.wall) - mono.Sub(t.mono)
	if t.wall.IsZero() {
		ahead = 0
	}
	t.wall, t.mono = wall, mono
	return ahead
}

// Again has the next call of Jumped report a jump that was just seen, beside what comes after it.
func (t *Ticks) Again(jump time.Duration) { t.wall = t.wall.Add(-jump) }
