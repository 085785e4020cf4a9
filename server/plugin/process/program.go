package process

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Program is a file that was opened and checked. What is executed is what was checked, whatever becomes of its name.
type Program struct{ file *os.File }

// Open opens a program in a directory, by its name there. Both must belong to root or to the user of the server, and no other user
// may write to them. sum is its SHA-256 in hexadecimal.
func Open(directory, name, sum string) (*Program, error) {
	if name == "" || filepath.Base(name) != name || name == "." || name == ".." {
		return nil, fmt.Errorf("the command %q must be the name of a file in plugin_directory", name)
	}
	info, err := os.Stat(directory)
	if err != nil {
		return nil, fmt.Errorf("plugin_directory: %w", err)
	}
	if err := checkOwner(directory, info); err != nil {
		return nil, err
	}
	file, err := os.Open(filepath.Join(directory, name))
	if err != nil {
		return nil, err
	}
	if err := check(file, sum); err != nil {
		file.Close()
		return nil, err
	}
	return &Program{file}, nil
}

// Close releases the file. Processes that run go on.
func (p *Program) Close() error { return p.file.Close() }

func check(file *os.File, sum string) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file", file.Name())
	}
	if err := checkOwner(file.Name(), info); err != nil {
		return err
	}
	digest := sha256.New()
	if _, err := io.Copy(digest, file); err != nil {
		return err
	}
	if got := hex.EncodeToString(digest.Sum(nil)); subtle.ConstantTimeCompare([]byte(got), []byte(strings.ToLower(sum))) != 1 {
		return fmt.Errorf("%s has the SHA-256 %s, and is registered with another: register it again if you replaced it", file.Name(), got)
	}
	return nil
}

// inside reports whether a path lies in a directory.
func inside(path, directory string) bool {
	rel, err := filepath.Rel(directory, path)
	return err == nil && filepath.IsLocal(rel)
}
