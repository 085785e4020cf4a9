package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/zalando/go-keyring"
)

// keyringService is what the keyring's own programs show our entries as.
const keyringService = "coffer"

// keyringTimeout is how long the keyring may take: it may ask the user to unlock it, and a bus that is half there never responds.
var keyringTimeout = 15 * time.Second

// hasKeyring reports whether a keyring may be asked at all: not with COFFER_KEYRING=off, and of Linux and its like only in the session of a
// desktop, as the library would start a bus of its own.
func hasKeyring() bool {
	if os.Getenv("COFFER_KEYRING") == "off" {
		return false
	}
	if runtime.GOOS == "darwin" || runtime.GOOS == "windows" || os.Getenv("DBUS_SESSION_BUS_ADDRESS") != "" {
		return true
	}
	_, err := os.Stat(filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "bus"))
	return err == nil && os.Getenv("XDG_RUNTIME_DIR") != ""
}

// inKeyring runs something with the keyring, for as long as that may take. What is late goes on alone: the process is a command, and ends soon.
func inKeyring(do func() error) error {
	if !hasKeyring() {
		return errors.New("there is no keyring in this session, or COFFER_KEYRING turns it off")
	}
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-time.After(keyringTimeout):
		return fmt.Errorf("the keyring did not respond within %v", keyringTimeout)
	}
}

// entry names the token of a context in the keyring. The address is in it, so that a token is never sent to another server.
func (c Context) entry(name string) string { return name + " " + c.Address }

// ContextToken returns the token of a context: the file's, or the keyring's. It is "" if there is none.
func ContextToken(name string, c Context) (string, error) {
	if !c.InKeyring || os.Getenv("COFFER_KEYRING") == "off" {
		return c.Token, nil
	}
	found := make(chan string, 1)
	err := inKeyring(func() error {
		t, err := keyring.Get(keyringService, c.entry(name))
		found <- t
		return err
	})
	switch {
	case errors.Is(err, keyring.ErrNotFound):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("the token of the context %s is in the keyring: %w; unlock it, or log in with COFFER_KEYRING=off", name, err)
	}
	return <-found, nil
}

// keep puts a token into the keyring if there is one and the context may use it, else into the context itself. It returns where it is.
func (c *Context) keep(name, token string) string {
	old := *c
	if !c.NoKeyring && inKeyring(func() error { return keyring.Set(keyringService, old.entry(name), token) }) == nil {
		c.Token, c.InKeyring = "", true
		return "the keyring, for the context " + name
	}
	c.Token, c.InKeyring = token, false
	return fmt.Sprintf("~/%s, for the context %s", contextsFile, name)
}

// ForgetToken removes the token of a context from the keyring, if it is there.
func ForgetToken(name string, c Context) error {
	if !c.InKeyring {
		return nil
	}
	err := inKeyring(func() error { return keyring.Delete(keyringService, c.entry(name)) })
	if errors.Is(err, keyring.ErrNotFound) {
		return nil
	}
	return err
}
