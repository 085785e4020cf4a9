package state

import (
	"slices"
	"time"
)

// Writes counts the writes of a name by the clock hour, of the last 24 hours at least. The zero Writes has none.
type Writes struct {
	Last  time.Time `json:"last"`  // of the newest write
	Hours []int     `json:"hours"` // in the hour of Last, in the hour before it, and so on
}

// hoursKept is the hour that runs and the 24 before it.
const hoursKept = 25

// maxClockLead is how far ahead of now a write may be. Writes after that are of a clock that was wrong, and do not count.
const maxClockLead = 2 * time.Minute

func hourOf(at time.Time) int64 { return at.Unix() / 3600 }

// at returns the writes as of now: at most hoursKept hours, of which the first runs. The slice is the caller's.
func (w *Writes) at(now time.Time) []int {
	hours := make([]int, hoursKept)
	if w == nil || w.Last.After(now.Add(maxClockLead)) {
		return hours
	}
	if age := max(hourOf(now)-hourOf(w.Last), 0); age < hoursKept {
		copy(hours[age:], w.Hours)
	}
	return hours
}

// Add returns the writes with one more, at now. w is not changed.
func (w *Writes) Add(now time.Time) *Writes {
	hours := w.at(now)
	hours[0]++
	for len(hours) > 0 && hours[len(hours)-1] == 0 {
		hours = hours[:len(hours)-1]
	}
	return &Writes{Last: now, Hours: hours}
}

// Count returns how many writes there were in the last 24 hours, and those of a part of the hour before.
func (w *Writes) Count(now time.Time) (n int) {
	for _, in := range w.at(now) {
		n += in
	}
	return n
}

// Below returns when Count is less than n, if nothing is written until then.
func (w *Writes) Below(n int, now time.Time) time.Time {
	left, at := w.Count(now), now
	for age, in := range slices.Backward(w.at(now)) {
		if left < n {
			break
		}
		if left -= in; in > 0 {
			at = time.Unix((hourOf(now)+int64(hoursKept-age))*3600, 0)
		}
	}
	return at
}
