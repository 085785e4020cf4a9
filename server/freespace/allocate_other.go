//go:build !linux

package freespace

import "os"

// allocate makes a file take its room on the disk.
func allocate(f *os.File, size int64) error { return fill(f, size) }
