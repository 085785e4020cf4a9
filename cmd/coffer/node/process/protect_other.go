//go:build !linux

package process

// Protect keeps the memory of a server from core dumps.
func Protect() error { return noCoreDumps() }
