package plan

import (
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/state"
)

// NextWrite returns when a name may be written again that takes perDay writes in any 24 hours; not after now: at once. perDay 0 is no
// limit. The first tenth of the day's writes goes at once, the second a minute apart, the third five minutes apart, and what is left is
// spread over the day, so that a name that changes all day is never stuck. A write that was requested waits only if all are used up.
func NextWrite(perDay int, w *state.Writes, now time.Time, requested bool) time.Time {
	n := w.Count(now)
	switch {
	case perDay == 0 || n == 0:
		return now
	case n >= perDay:
		return w.Below(perDay, now)
	case requested:
		return now
	}
	return w.Last.Add(writeInterval(perDay, n))
}

// countedWithin is the longest time that state.Writes.Count goes back.
const countedWithin = 25 * time.Hour

// writeInterval is the shortest time between the nth write of the day and the next one.
func writeInterval(perDay, n int) time.Duration {
	tenth := max(perDay/10, 1)
	switch {
	case n < tenth:
		return 0
	case n < 2*tenth:
		return time.Minute
	case n < 3*tenth:
		return 5 * time.Minute
	}
	return countedWithin / time.Duration(max(perDay-3*tenth, 1))
}
