package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// contextsFile is in the home directory, with mode 0600: it has the tokens that are in no keyring.
const contextsFile = ".coffer-contexts"

// Context is a cluster that commands can be pointed at: how it is reached, and the token there.
type Context struct {
	Address       string `json:"address"`
	Namespace     string `json:"namespace,omitempty"`
	CACert        string `json:"ca_cert,omitempty"`
	ClientCert    string `json:"client_cert,omitempty"`
	ClientKey     string `json:"client_key,omitempty"`
	TLSServerName string `json:"tls_server_name,omitempty"`
	Token         string `json:"token,omitempty"`
	InKeyring     bool   `json:"in_keyring,omitempty"` // the token is in the keyring of the system
	NoKeyring     bool   `json:"no_keyring,omitempty"` // and shall not be there
}

// setting returns the part that the variable of a name has, "" for others.
func (c Context) setting(variable string) string {
	return map[string]string{
		"ADDR": c.Address, "NAMESPACE": c.Namespace, "CACERT": c.CACert, "CLIENT_CERT": c.ClientCert, "CLIENT_KEY": c.ClientKey, "TLS_SERVER_NAME": c.TLSServerName,
	}[variable]
}

// Contexts is the file of all clusters.
type Contexts struct {
	Current  string             `json:"current,omitempty"` // "" if none is in use
	Clusters map[string]Context `json:"clusters"`
}

// ReadContexts reads the file; without one there are no contexts.
func ReadContexts() (Contexts, error) {
	none := Contexts{Clusters: map[string]Context{}}
	home, err := os.UserHomeDir()
	if err != nil {
		return none, nil // an account without a home has no file either
	}
	raw, err := os.ReadFile(filepath.Join(home, contextsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("reading the contexts: %w", err)
	}
	all := none
	if err := json.Unmarshal(raw, &all); err != nil || all.Clusters == nil {
		return none, fmt.Errorf("~/%s is not a file of contexts: mend or remove it", contextsFile)
	}
	return all, nil
}

// Write replaces the file.
func (c Contexts) Write() error {
	home, err := os.UserHomeDir()
	if err != nil {
		return fmt.Errorf("storing the contexts: %w", err)
	}
	return WritePrivate(filepath.Join(home, contextsFile), func(f *os.File) error {
		e := json.NewEncoder(f)
		e.SetIndent("", "  ")
		return e.Encode(c)
	})
}

// ActiveContext returns the context that counts, and its name: the one that COFFER_CONTEXT names, else the current one. It is "" if there is
// none, or if COFFER_ADDR names a server: a context's token is not for other servers.
func ActiveContext() (string, Context, error) {
	named := os.Getenv("COFFER_CONTEXT")
	if named == "" && Env("ADDR") != "" {
		return "", Context{}, nil
	}
	all, err := ReadContexts()
	if err != nil {
		return "", Context{}, err
	}
	if named == "" {
		named = all.Current
	}
	if named == "" {
		return "", Context{}, nil
	}
	context, ok := all.Clusters[named]
	if !ok {
		return "", Context{}, fmt.Errorf("there is no context %q: coffer context list shows those there are", named)
	}
	return named, context, nil
}

// Setting returns a variable of ours, of OpenBao or Vault, else what the context says. A context that COFFER_CONTEXT names goes first.
func Setting(variable string) (string, error) {
	name, context, err := ActiveContext()
	if err != nil {
		return "", err
	}
	value := Env(variable)
	if fromContext := context.setting(variable); name != "" && fromContext != "" && (value == "" || os.Getenv("COFFER_CONTEXT") != "") {
		value = fromContext
	}
	return value, nil
}
