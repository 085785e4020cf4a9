package token

import "time"

// SetClock has a store that is not used yet read another clock.
func SetClock(s *Store, now func() time.Time) { s.now = now }
