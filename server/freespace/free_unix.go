//go:build linux || darwin

package freespace

import "syscall"

// freeBytes returns what the server may still write to the file system of a directory, and the size of that.
func freeBytes(dir string) (free, total int64, ok bool) {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0, 0, false
	}
	size := int64(s.Bsize)                                      //nolint:gosec,unconvert // sizes differ between systems
	return int64(s.Bavail) * size, int64(s.Blocks) * size, true //nolint:gosec,unconvert // likewise
}
