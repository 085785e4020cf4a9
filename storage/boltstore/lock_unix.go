//go:build unix && !solaris && !aix

package boltstore

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// lockFile takes the lock that bbolt takes on the same descriptor right afterwards, so that the check of
// the file does not read while another process writes.
func lockFile(f *os.File, timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("it is in use by another process")
		}
	}
}
