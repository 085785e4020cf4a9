//go:build linux || darwin

package wal

import "syscall"

// fileSystemBytes returns the size of the file system that a directory is on, 0 if that is not known.
func fileSystemBytes(dir string) int64 {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0
	}
	return int64(s.Blocks) * int64(s.Bsize) //nolint:gosec,unconvert // sizes differ between systems
}
