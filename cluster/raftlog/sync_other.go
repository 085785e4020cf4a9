//go:build !linux

package raftlog

import "os"

// syncData makes what was written within a file durable.
func syncData(f *os.File) error { return f.Sync() }
