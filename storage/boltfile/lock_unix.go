//go:build unix && !solaris && !aix

package boltfile

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// Lock takes the lock that bbolt takes on the same descriptor right afterwards, so that the check of
// the file does not read while another process writes.
func Lock(f *os.File, timeout time.Duration) error {
	deadline, again := time.After(timeout), time.NewTicker(20*time.Millisecond)
	defer again.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-deadline:
			return errors.New("it is in use by another process")
		case <-again.C:
		}
	}
}
