package boltfile

import (
	"os"
	"syscall"
)

// SyncData makes what was written within a file durable.
func SyncData(f *os.File) error {
	for {
		if err := syscall.Fdatasync(int(f.Fd())); err == nil {
			return nil
		} else if err != syscall.EINTR {
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
	}
}
