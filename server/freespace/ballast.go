package freespace

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// BallastFile is the name of the ballast in the data directory.
const BallastFile = "ballast"

// ballast is a file without content that keeps room on a disk. It is removed when the disk is full, so that deletes and
// revocations can be committed, and made again once there is room.
type ballast struct {
	path string
	size int64 // what it is to have; 0: there is none
}

// held returns the size of the file that is there.
func (b ballast) held() int64 {
	info, err := os.Lstat(b.path)
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return info.Size()
}

func (b ballast) release() error {
	if err := os.Remove(b.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the ballast: %w", err)
	}
	return nil
}

// make creates the file under another name first: a file of that name has all its room.
func (b ballast) make() (err error) {
	temporary := b.path + ".new"
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("making the ballast: %w", err)
	}
	if err := errors.Join(allocate(f, b.size), f.Close()); err != nil {
		return fmt.Errorf("making the ballast: %w", errors.Join(err, os.Remove(temporary)))
	}
	return os.Rename(temporary, b.path)
}

// fill writes what no file system compresses.
func fill(f *os.File, size int64) error {
	for part := make([]byte, 1<<20); size > 0; {
		part = part[:min(size, int64(len(part)))]
		rand.Read(part) //nolint:errcheck // never fails
		n, err := f.Write(part)
		if err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}

// IsFull reports whether an error means that there is no room on a disk.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func newBallast(dir string, size int64) ballast {
	return ballast{filepath.Join(dir, BallastFile), size}
}
