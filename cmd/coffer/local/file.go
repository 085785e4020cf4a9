package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteNew is WritePrivate for a file that the user names: what is there already is replaced only if replace is set.
func WriteNew(path string, replace bool, write func(*os.File) error) error {
	if err := Free(path, replace); err != nil {
		return err
	}
	return writePrivate(path, replace, write)
}

// Free is an error if WriteNew would replace something without leave, or what no file can replace.
func Free(path string, replace bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory: name a file in it", path)
	case !replace:
		return taken(path)
	}
	return nil
}

func taken(path string) error {
	return fmt.Errorf("%s is there already and was left as it is: name another file, or replace it with -force", path)
}

// WritePrivate creates or replaces the file at path, mode 0600, in one step once write has returned nil and the bytes are on disk.
func WritePrivate(path string, write func(*os.File) error) error {
	return writePrivate(path, true, write)
}

func writePrivate(path string, replace bool, write func(*os.File) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(0o600), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if !replace { // a link fails where a rename would replace what has come meanwhile
		switch err := os.Link(f.Name(), path); {
		case err == nil:
			return os.Remove(f.Name())
		case errors.Is(err, fs.ErrExist):
			return taken(path)
		}
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
