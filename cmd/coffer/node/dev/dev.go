// Package dev is what sets a development server (-dev) apart: its configuration, the certificate of -dev-tls, the root token that the
// other commands use, and what it says on the terminal. How it is initialised is the node's. Start reading at Options.
package dev

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/local"
)

// Options are the -dev flags.
type Options struct {
	On        bool
	Three     bool // three nodes, by RunThree
	RootToken string
	Listen    string
	Dir       string
	KeepToken bool
	NoKV, KV1 bool // secret/ is not mounted, or of version 1
	TLS       bool
	TLSDir    string   // with the certificates; Apply makes one if it is ""
	TLSNames  []string // of the certificate, besides those of this machine's loopback
	caFile    string   // what clients must trust, with TLS
	// savedToken is the root token that Announce has stored in the home directory, "" if it has stored none.
	savedToken string
}

// Dirs are the directories that a server has in use, which the one that follows it after a seal goes on with.
type Dirs struct {
	Data string `json:"data,omitempty"`
	TLS  string `json:"tls,omitempty"`
}

// Apply turns the configuration into that of a development server, in the directories that are in use. cleanup, never nil, removes those
// that are temporary.
func (d *Options) Apply(c *config.Config, used Dirs) (cleanup func(), err error) {
	var made []string
	cleanup = func() {
		for _, dir := range made {
			os.RemoveAll(dir)
		}
	}
	temporary := func(dir *string, before string) error {
		if *dir != "" {
			return nil
		}
		if *dir = before; before == "" {
			if *dir, err = os.MkdirTemp("", "coffer-dev-"); err != nil {
				return err
			}
		}
		made = append(made, *dir)
		return nil
	}
	if len(c.Initialize) > 0 {
		return cleanup, errors.New("initialize is for servers that last: leave it out, or -dev, which shows its root token")
	}
	c.Storage.Path = d.Dir
	if err := temporary(&c.Storage.Path, used.Data); err != nil {
		return cleanup, err
	}
	configured := len(c.Listeners) > 0
	if !configured {
		c.Listeners = []config.Listener{{Address: d.Listen, TLSDisable: true}}
	}
	switch {
	case d.TLS && configured:
		return cleanup, errors.New("the listener in the configuration says whether it has TLS: leave out -dev-tls, or that listener")
	case !d.TLS && (d.TLSDir != "" || len(d.TLSNames) > 0):
		return cleanup, errors.New("-dev-tls-cert-dir and -dev-tls-san need -dev-tls")
	case d.TLS:
		if err := temporary(&d.TLSDir, used.TLS); err != nil {
			return cleanup, err
		}
		if err := d.useTLS(&c.Listeners[0]); err != nil {
			return cleanup, err
		}
	}
	c.Listeners[0].ClusterAddress = "127.0.0.1:0"
	c.ClusterAddr = "127.0.0.1:0"
	if c.Audit.FileRoots == nil { // for those who try audit devices out
		c.Audit.FileRoots = []string{os.TempDir(), "/tmp"}
	}
	c.Storage.RetryJoin, c.Seal = nil, config.Seal{}
	return cleanup, nil
}

// Dirs returns those in use after Apply.
func (d *Options) Dirs(c *config.Config) Dirs { return Dirs{Data: c.Storage.Path, TLS: d.TLSDir} }

// useTLS gives the listener a certificate for its own host, this machine's loopback and TLSNames.
func (d *Options) useTLS(l *config.Listener) error {
	hosts := append([]string{"localhost", "127.0.0.1", "::1"}, d.TLSNames...)
	if host, _, err := net.SplitHostPort(l.Address); err == nil && host != "" && !net.ParseIP(host).IsUnspecified() {
		hosts = append(hosts, host)
	}
	files, err := prepare(d.TLSDir, hosts)
	if err != nil {
		return err
	}
	l.TLSDisable, l.TLSCertFile, l.TLSKeyFile, d.caFile = false, files.Cert, files.Key, files.CA
	return nil
}

// Announce says how to use the server at url, with its root token and its unseal key, and saves the token for the other commands.
func (d *Options) Announce(url, token, key string, stderr io.Writer) {
	if d.KeepToken {
		d.storeToken(token, stderr)
	}
	kind, trust := "without TLS", ""
	if d.TLS {
		kind, trust = "with a CA of its own", "\n  export COFFER_CACERT="+d.caFile
	}
	fmt.Fprintf(stderr, `
This is a development server: one node, unsealed, %s. Its data is gone when it stops.

  Address      %s
  UI           %s/ui/
  Root token   %s
  Unseal key   %s

In another terminal:

  export COFFER_ADDR=%s%s
  export COFFER_TOKEN=%s

coffer: ready at %s
`, kind, url, url, token, key, url, trust, token, url)
}

// storeToken saves the root token for the other commands, unless there is a stored token, which belongs to another server.
func (d *Options) storeToken(token string, stderr io.Writer) {
	switch stored, err := local.StoredToken(); {
	case err != nil:
		fmt.Fprintf(stderr, "The root token could not be saved for the other commands: %v\n", err)
		return
	case stored != "":
		fmt.Fprintln(stderr, "The stored token in the home directory was kept. Commands use this server's root token if it is in COFFER_TOKEN.")
		return
	}
	if err := local.StoreToken(token); err != nil {
		fmt.Fprintf(stderr, "The root token could not be saved for the other commands: %v\n", err)
		return
	}
	d.savedToken = token
	fmt.Fprintf(stderr, "The root token is in ~/%s for the other commands until this server stops.\n", local.TokenFiles[0])
}

// RemoveToken removes the stored token if it is still the one that storeToken saved.
func (d *Options) RemoveToken() {
	if stored, err := local.StoredToken(); err == nil && d.savedToken != "" && stored == d.savedToken {
		_ = local.RemoveStoredToken()
	}
}
