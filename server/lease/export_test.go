package lease

// SetManyLeases lowers the number of leases that is worth a warning, until the returned function is called.
func SetManyLeases(n int) (restore func()) {
	before := manyLeases
	manyLeases = n
	return func() { manyLeases = before }
}
