//go:build !linux

package boltfile

import "os"

// SyncData makes what was written within a file durable.
func SyncData(f *os.File) error { return f.Sync() }
