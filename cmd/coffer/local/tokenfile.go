package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// TokenFiles are the token files in the home directory, in the order in which they are read. Only the first is ever written.
var TokenFiles = []string{".coffer-token", ".vault-token"}

// CurrentToken returns the token requests carry: the environment's, else the context's, else a token file's, else "".
func CurrentToken() (string, error) {
	if t := Env("TOKEN"); t != "" {
		return strings.TrimSpace(t), nil
	}
	name, context, err := ActiveContext()
	if err != nil || name != "" {
		if err != nil {
			return "", err
		}
		return ContextToken(name, context) // a token file may be of another server
	}
	return StoredToken()
}

// KeepToken stores the token of a login: for the context that counts, in the keyring or the file of contexts, else in the token file. It returns
// where that is.
func KeepToken(token string) (string, error) {
	name, context, err := ActiveContext()
	if err != nil {
		return "", err
	}
	if name == "" {
		return "~/" + TokenFiles[0], StoreToken(token)
	}
	all, err := ReadContexts()
	if err != nil {
		return "", err
	}
	where := context.keep(name, token)
	all.Clusters[name] = context
	return where, all.Write()
}

// StoredToken returns the token of the first token file that has one, else "".
func StoredToken() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", nil // an account without a home has no token file either
	}
	for _, name := range TokenFiles {
		b, err := os.ReadFile(filepath.Join(home, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("reading the stored token: %w", err)
		}
		if t := strings.TrimSpace(string(b)); t != "" {
			return t, nil
		}
	}
	return "", nil
}

// StoreToken replaces the token file. Readers see the old token or the new one, never half of it, and no other user sees either.
func StoreToken(token string) error {
	home, err := os.UserHomeDir()
	if err != nil {
		return fmt.Errorf("storing the token: %w", err)
	}
	return WritePrivate(filepath.Join(home, TokenFiles[0]), func(f *os.File) error {
		_, err := f.WriteString(token)
		return err
	})
}

// RemoveStoredToken removes the token file that StoreToken writes.
func RemoveStoredToken() error {
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	return os.Remove(filepath.Join(home, TokenFiles[0]))
}
