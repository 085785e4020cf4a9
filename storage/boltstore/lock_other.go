//go:build !unix || solaris || aix

package boltstore

import (
	"os"
	"time"
)

// lockFile does nothing here: bbolt takes its own lock after the check.
func lockFile(*os.File, time.Duration) error { return nil }
