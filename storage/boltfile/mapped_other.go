//go:build !linux

package boltfile

// Unmap does nothing here.
func Unmap([]byte) error { return nil }
