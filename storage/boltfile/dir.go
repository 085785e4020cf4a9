package boltfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Rename moves a file and makes that durable.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// Replace puts a new file in the place of the one at path, if there is one, once it is complete and durable. The new one is path.new until then; on
// error it is removed.
func Replace(path string, write func(*os.File) error) error {
	temporary := path + ".new"
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = Rename(temporary, path)
	}
	if err != nil {
		os.Remove(temporary) //nolint:errcheck // it takes room only
	}
	return err
}

// MkdirAll makes a directory, and those above it that are missing, and makes that durable.
func MkdirAll(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	above := filepath.Dir(dir)
	if above != dir {
		if err := MkdirAll(above); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return SyncDir(above)
}

// SyncDir makes what was created, renamed or removed in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
