package node

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/pipeline"
)

// Dev are the -dev flags.
type Dev struct {
	On        bool
	RootToken string
	Listen    string
	Dir       string
	KeepToken bool
	// savedToken is the root token that start has stored in the home directory, "" if it has stored none.
	savedToken string
}

// apply turns the configuration into that of a development server. cleanup removes what was made for it.
func (d *Dev) apply(c *config.Config, from *handover) (cleanup func(), err error) {
	cleanup = func() {}
	c.Storage.Path = d.Dir
	if d.Dir == "" {
		if from != nil {
			c.Storage.Path = from.DevDir
		} else if c.Storage.Path, err = os.MkdirTemp("", "coffer-dev-"); err != nil {
			return cleanup, err
		}
		cleanup = func() { os.RemoveAll(c.Storage.Path) }
	}
	if len(c.Listeners) == 0 {
		c.Listeners = []config.Listener{{Address: d.Listen, TLSDisable: true}}
	}
	c.Listeners[0].ClusterAddress = "127.0.0.1:0"
	c.ClusterAddr = "127.0.0.1:0"
	if c.Audit.FileRoots == nil { // for those who try audit devices out
		c.Audit.FileRoots = []string{os.TempDir(), "/tmp"}
	}
	c.Storage.RetryJoin, c.Seal = nil, config.Seal{}
	return cleanup, nil
}

// start initialises the node if it is new, unseals it, mounts kv at secret/ and says how to use it.
func (d *Dev) start(ctx context.Context, n *node, url string, stderr io.Writer) error {
	life := n.server.Node()
	if life.Initialized(ctx) {
		return errors.New("-dev-data-dir holds an initialized server: start it with -config, or choose an empty directory")
	}
	result, err := life.Init(ctx, 1, 1)
	if err != nil {
		return fmt.Errorf("initializing the development server: %w", err)
	}
	key := base64.StdEncoding.EncodeToString(result.KeyShares[0])
	if _, err := life.Unseal(ctx, key, false); err != nil {
		return fmt.Errorf("unsealing the development server: %w", err)
	}
	if err := awaitActive(ctx, n); err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{
		"type": "kv", "options": map[string]string{"version": "2"}, "description": "key/value secret storage",
	})
	if err != nil {
		return err
	}
	_, err = n.server.Requests().Handle(ctx, &pipeline.Request{
		ID: "dev", Op: engines.Update, Path: "sys/mounts/secret", Token: engines.Sensitive(result.RootToken), Body: body,
	})
	if err != nil {
		return fmt.Errorf("mounting secret/: %w", err)
	}
	if d.KeepToken {
		d.storeToken(result.RootToken, stderr)
	}
	fmt.Fprintf(stderr, `
This is a development server: one node, unsealed, without TLS. Its data is gone when it stops.

  Address      %s
  UI           %s/ui/
  Root token   %s
  Unseal key   %s

In another terminal:

  export COFFER_ADDR=%s
  export COFFER_TOKEN=%s

coffer: ready at %s
`, url, url, result.RootToken, key, url, result.RootToken, url)
	return nil
}

// storeToken saves the root token for the other commands, unless there is a stored token, which belongs to another server.
func (d *Dev) storeToken(token string, stderr io.Writer) {
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
}

// removeToken removes the stored token if it is still the one that storeToken saved.
func (d *Dev) removeToken() {
	if stored, err := local.StoredToken(); err == nil && d.savedToken != "" && stored == d.savedToken {
		_ = local.RemoveStoredToken()
	}
}

// awaitActive waits until the node serves writes.
func awaitActive(ctx context.Context, n *node) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for !n.server.Active() {
		select {
		case <-ctx.Done():
			return errors.New("the development server did not become active in time")
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}
