package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
)

// local is a directory below the operator's root. Everything is done through os.Root: a symbolic link that leads
// out of it is refused.
type local struct {
	root   string
	dir    string // relative to root
	own    *regexp.Regexp
	retain int
	space  int64 // bytes; 0: no limit
}

func newLocal(root string, c *config) (*local, error) {
	if root == "" {
		return nil, errors.New("this node's configuration names no directory for snapshots: snapshots { local_root = \"…\" }")
	}
	return &local{root: root, dir: c.PathPrefix, own: c.own(), retain: c.Retain, space: c.LocalMaxSpace}, nil
}

// open opens the directory, and makes it if it is not there. The root itself must be.
func (l *local) open() (*os.Root, error) {
	root, err := os.OpenRoot(l.root)
	if err != nil {
		return nil, fmt.Errorf("opening the directory for snapshots: %w", err)
	}
	defer root.Close()
	if err := root.MkdirAll(l.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory for snapshots: %w", err)
	}
	dir, err := root.OpenRoot(l.dir)
	if err != nil {
		return nil, fmt.Errorf("opening the directory for snapshots: %w", err)
	}
	return dir, nil
}

// Put implements place. The file gets its name once it is complete, verified and on the disk.
func (l *local) Put(_ context.Context, name string, write func(io.Writer) error) (_ file, err error) {
	dir, err := l.open()
	if err != nil {
		return file{}, err
	}
	defer dir.Close()
	if err := l.removeLeftovers(dir); err != nil {
		return file{}, err
	}
	temporary := name + ".tmp"
	f, err := dir.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return file{}, fmt.Errorf("creating the snapshot: %w", err)
	}
	bytes, err := verified(f, write)
	if err == nil && l.space > 0 && bytes > l.space {
		err = fmt.Errorf("the snapshot has %d bytes, and local_max_space allows %d for all", bytes, l.space)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = dir.Rename(temporary, name)
	}
	if err != nil {
		return file{}, errors.Join(err, dir.Remove(temporary))
	}
	return file{url: "file://" + filepath.Join(l.root, l.dir, name), bytes: bytes}, l.sync()
}

// sync makes the names in the directory durable, and its own name, up to the root.
func (l *local) sync() error {
	root, err := os.OpenRoot(l.root)
	if err != nil {
		return err
	}
	defer root.Close()
	for dir := path.Clean(l.dir); ; dir = path.Dir(dir) {
		f, err := root.Open(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil || dir == "." {
			return err
		}
	}
}

// removeLeftovers removes what an interrupted snapshot of this schedule left.
func (l *local) removeLeftovers(dir *os.Root) error {
	entries, err := fs.ReadDir(dir.FS(), ".")
	for _, e := range entries {
		if name := e.Name(); path.Ext(name) == ".tmp" && l.own.MatchString(name[:len(name)-len(".tmp")]) {
			err = errors.Join(err, dir.Remove(name))
		}
	}
	return err
}

// Prune implements place.
func (l *local) Prune(_ context.Context, taken string) error {
	dir, err := l.open()
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && l.own.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	kept, space := 0, int64(0)
	for _, name := range newestFirst(names, taken) {
		info, err := dir.Lstat(name)
		if err != nil {
			return err
		}
		if name != taken && (kept >= l.retain || l.space > 0 && space+info.Size() > l.space) {
			if err := dir.Remove(name); err != nil {
				return err
			}
			continue
		}
		kept++
		space += info.Size()
	}
	return nil
}
