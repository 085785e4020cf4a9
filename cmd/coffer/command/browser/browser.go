// Package browser opens a web page in the browser of the user, and says why that is not worth trying where it is not.
package browser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/cli/browser"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/cmd/coffer/local"
)

// What a browser says of itself belongs neither into the output nor between our lines.
func init() { browser.Stdout, browser.Stderr = io.Discard, io.Discard }

// namedBrowser is the command of the user's browser, as BROWSER has it: several to try, between colons, and in each %s for
// the URL, which otherwise follows.
func namedBrowser() string {
	if v := local.Env("BROWSER"); v != "" {
		return v
	}
	return os.Getenv("BROWSER")
}

// Unusable says why opening a browser is not worth trying, "" if it is. Who names a browser knows what they do: editors
// set BROWSER to one that opens it at the other end of an SSH connection.
func Unusable() string {
	named := namedBrowser()
	switch {
	case named == "none":
		return "BROWSER is none"
	case named != "":
		return ""
	case os.Getenv("SSH_CONNECTION") != "":
		return "this is an SSH session, and a browser would open on the other machine"
	case runtime.GOOS == "linux" && os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" && os.Getenv("WSL_DISTRO_NAME") == "":
		return "there is no display (neither DISPLAY nor WAYLAND_DISPLAY is set)"
	}
	return ""
}

// Open opens a web page, and sends how that went. Some browsers only return when they are closed, so the caller does not wait.
func Open(page string) <-chan error {
	opened := make(chan error, 1) // never blocks, whether anybody still listens or not
	go func() {
		if named := namedBrowser(); named != "" {
			opened <- openNamed(named, page)
			return
		}
		opened <- browser.OpenURL(page)
	}()
	return opened
}

// openNamed tries the commands of a BROWSER variable until one succeeds.
func openNamed(named, page string) error {
	var failures []error
	for _, command := range filepath.SplitList(named) {
		words := browserWords(command, page)
		if len(words) == 0 {
			continue
		}
		err := exec.Command(words[0], words[1:]...).Run()
		if err == nil {
			return nil
		}
		failures = append(failures, fmt.Errorf("%s: %w", words[0], err))
	}
	if failures == nil {
		return errors.New("BROWSER names no command")
	}
	return errors.Join(failures...)
}

// browserWords are the words of a command, with the URL put in. No shell sees them.
func browserWords(command, page string) []string {
	words, placed := strings.Fields(command), false
	for i := range words {
		if strings.Contains(words[i], "%s") {
			words[i], placed = strings.ReplaceAll(words[i], "%s", page), true
		}
	}
	if len(words) > 0 && !placed {
		words = append(words, page)
	}
	return words
}

// IsLoopback reports whether a URL leads to the machine itself.
func IsLoopback(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

func IsWebURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil && !strings.ContainsFunc(text, isControlOrBlank)
}

func isControlOrBlank(r rune) bool { return r <= ' ' || table.IsControl(r) }
