package lease

import "time"

// SetManyLeases lowers the number of leases that is worth a warning, until the returned function is called.
func SetManyLeases(n int) (restore func()) {
	before := manyLeases
	manyLeases = n
	return func() { manyLeases = before }
}

// SetWallClock has a manager that does not run yet read another clock.
func SetWallClock(m *Manager, now func() time.Time) { m.clock.Read = now }

// SetNamesPage sets how many names are read at a time.
func SetNamesPage(n int) (restore func()) {
	before := namesPage
	namesPage = n
	return func() { namesPage = before }
}
