package admission

import "time"

// How fast a body must arrive: after the grace, at minRate bytes a second on average.
const (
	Grace   = 10 * time.Second
	minRate = 8 << 10
)

// Pace is the time that a request's body has.
type Pace struct {
	begun time.Time
	most  time.Duration
}

// NewPace returns the pace of a body that begins now and may take at most so long, however fast it arrives.
func NewPace(most time.Duration) Pace { return Pace{begun: time.Now(), most: most} }

// Deadline returns when the next byte must be there after so many bytes have arrived.
func (p Pace) Deadline(arrived int64) time.Time {
	return p.begun.Add(min(p.most, Grace+time.Duration(arrived/minRate)*time.Second))
}
