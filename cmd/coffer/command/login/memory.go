package login

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/coffer-project/coffer/cmd/coffer/local"
)

// loginsFile, in the home directory, remembers what browser logins were made with. It holds nothing secret.
const loginsFile = ".coffer-logins"

// lastLogin is what the last login to a server was made with.
type lastLogin struct {
	Mount string `json:"mount"`
	Role  string `json:"role,omitempty"` // "": the method's default
}

// logins is the form of the file.
type logins struct {
	Format  int                  `json:"format"` // 1
	Servers map[string]lastLogin `json:"servers"`
}

// readLogins returns what is remembered. A file that is not readable, or of a later version, counts as none: it only saves typing.
func readLogins() (path string, known logins, err error) {
	known = logins{Format: 1, Servers: map[string]lastLogin{}}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", known, err
	}
	path = filepath.Join(home, loginsFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return path, known, nil
	}
	var read logins
	if json.Unmarshal(text, &read) == nil && read.Format == 1 && read.Servers != nil {
		known = read
	}
	return path, known, nil
}

// recallLogin returns what the last login to a server was made with, and whether there was one.
func recallLogin(server string) (lastLogin, bool) {
	_, known, err := readLogins()
	last, ok := known.Servers[server]
	return last, err == nil && ok && last.Mount != ""
}

// rememberLogin notes what a login was made with.
func rememberLogin(server string, l lastLogin) error {
	path, known, err := readLogins()
	if err != nil || known.Servers[server] == l {
		return err
	}
	known.Servers[server] = l
	text, err := json.MarshalIndent(known, "", "  ")
	if err != nil {
		return err
	}
	return local.WritePrivate(path, func(f *os.File) error {
		_, err := f.Write(append(text, '\n'))
		return err
	})
}
