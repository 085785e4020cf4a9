package freespace

import (
	"errors"
	"os"
	"syscall"
)

// allocate makes a file take its room on the disk.
func allocate(f *os.File, size int64) error {
	err := syscall.Fallocate(int(f.Fd()), 0, 0, size) //nolint:gosec // a descriptor
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return fill(f, size)
	}
	return err
}
