//go:build linux || darwin

package freespace

import "syscall"

// freeBytes returns what the server may still write to the file system of a directory.
func freeBytes(dir string) (int64, bool) {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true //nolint:gosec,unconvert // sizes differ between systems
}
