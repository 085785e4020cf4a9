//go:build !unix || solaris || aix

package boltfile

import (
	"os"
	"time"
)

// Lock does nothing here: bbolt takes its own lock after the check.
func Lock(*os.File, time.Duration) error { return nil }
