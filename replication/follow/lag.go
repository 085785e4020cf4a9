package follow

import "time"

// freshFor is how old the last sign of life of the other side may be while what it said then holds.
const freshFor = 3 * time.Second

// LagSince returns how long ago both sides were known to be equal, 0 if they are now.
func LagSince(now, equal, heard time.Time, equalNow bool) float64 {
	if equalNow && now.Sub(heard) <= freshFor || equal.IsZero() {
		return 0
	}
	return max(0, now.Sub(equal).Seconds())
}

// Meter measures how fast a counter grows, as a moving average over some seconds.
type Meter struct {
	at   time.Time
	last float64
	Rate float64 // each second
}

const meterPace = time.Second

func (m *Meter) Count(now time.Time, n float64) {
	took := now.Sub(m.at)
	switch {
	case m.at.IsZero() || n < m.last:
		m.Rate = 0
	case took < meterPace:
		return
	default:
		const weight = 0.3
		m.Rate += weight * ((n-m.last)/took.Seconds() - m.Rate)
	}
	m.at, m.last = now, n
}
