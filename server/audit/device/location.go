package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/coffer-project/coffer/engines"
)

// Files says where on this node audit devices may write: a token that enables devices must not be one that writes any
// file of the service's user.
type Files struct {
	// Roots are the directories, absolute, below which files may be. A relative file_path is below the first.
	Roots []string
	// MakeRoot makes the first root when it is needed.
	MakeRoot bool
	// DataDir is the server's own directory, in which no file may be; "": there is none.
	DataDir string
}

// location is where the file of a device is.
type location struct {
	root    string // "": anywhere, for devices of before there were roots
	file    string // below the root, or absolute
	make    bool   // the root, if it is missing
	dataDir string
}

func (l location) String() string {
	if l.root == "" {
		return l.file
	}
	return filepath.Join(l.root, l.file)
}

// locate finds a file_path below the roots.
func (f Files) locate(path string) (location, error) {
	for i, root := range f.Roots {
		file := path
		if filepath.IsAbs(path) {
			var err error
			if file, err = filepath.Rel(root, path); err != nil {
				continue
			}
		}
		if file = filepath.Clean(file); filepath.IsLocal(file) && file != "." {
			return location{root: root, file: file, make: f.MakeRoot && i == 0, dataDir: f.DataDir}, nil
		}
	}
	if len(f.Roots) == 0 {
		return location{}, engines.Invalid(`option "file_path": the server's configuration names no directory for audit files: audit { file_roots = ["…"] }`)
	}
	return location{}, engines.Invalid(`option "file_path": %s is not below a directory that the server's configuration names for audit files, audit { file_roots = ["%s"] }: choose a path there, or have the operator add a directory on every node`, path, strings.Join(f.Roots, `", "`))
}

// directory is what a file is opened in.
type directory interface {
	Stat(name string) (fs.FileInfo, error)
	OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error)
	Close() error
}

// anywhere opens absolute paths.
type anywhere struct{}

func (anywhere) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }
func (anywhere) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}
func (anywhere) Close() error { return nil }

// open returns the directory that the file is to be opened in, by the name it has there. No symbolic link leads out of it.
func (l location) open() (directory, string, error) {
	if l.make {
		if err := os.Mkdir(l.root, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, "", err
		}
	}
	dir := filepath.Dir(l.String())
	if info, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("the directory %s does not exist", dir)
	} else if err == nil && !info.IsDir() {
		return nil, "", fmt.Errorf("%s is not a directory", dir)
	}
	if l.dataDir != "" && within(l.dataDir, l.String()) {
		return nil, "", fmt.Errorf("%s is in the server's data directory: audit files are not written there", l)
	}
	if l.root == "" {
		return anywhere{}, l.file, nil
	}
	root, err := os.OpenRoot(l.root)
	if err != nil {
		return nil, "", err
	}
	return root, l.file, nil
}

// within reports whether a file is in a directory, wherever symbolic links lead.
func within(dir, file string) bool {
	rel, err := filepath.Rel(followed(dir), followed(file))
	return err == nil && (rel == "." || filepath.IsLocal(rel))
}

// followed returns a path without symbolic links, as far as it exists.
func followed(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(followed(parent), filepath.Base(path))
	}
	return path
}
