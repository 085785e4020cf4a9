package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Token files in the home directory, in the order they are looked for. Only the first is ever written.
var tokenFiles = []string{".coffer-token", ".vault-token"}

// currentToken returns the token requests carry: the environment's, else a token file's, else "".
func currentToken() (string, error) {
	if t := env("TOKEN"); t != "" {
		return strings.TrimSpace(t), nil
	}
	return storedToken()
}

// storedToken returns the token of the first token file that has one, else "".
func storedToken() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", nil // an account without a home has no token file either
	}
	for _, name := range tokenFiles {
		b, err := os.ReadFile(filepath.Join(home, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", usagef("reading the stored token: %v", err)
		}
		if t := strings.TrimSpace(string(b)); t != "" {
			return t, nil
		}
	}
	return "", nil
}

// storeToken replaces the token file. Readers see the old token or the new one, never half of it, and no other user sees either.
func storeToken(token string) error {
	home, err := os.UserHomeDir()
	if err != nil {
		return usagef("storing the token: %v", err)
	}
	return writePrivate(filepath.Join(home, tokenFiles[0]), func(f *os.File) error {
		_, err := f.WriteString(token)
		return err
	})
}

// removeStoredToken removes the token file that storeToken writes.
func removeStoredToken() error {
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	return os.Remove(filepath.Join(home, tokenFiles[0]))
}

// writePrivate creates or replaces the file at path, mode 0600, in one step once write has returned nil and the bytes are on disk.
func writePrivate(path string, write func(*os.File) error) (err error) {
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
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
