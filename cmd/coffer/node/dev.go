package node

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/node/dev"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/pipeline"
)

// startDev initialises the node of a development server if it is new, unseals it, mounts kv at secret/ and says how to use it.
func startDev(ctx context.Context, n *node, d *dev.Options, url string, stderr io.Writer) error {
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
	if !d.NoKV {
		if err := mountKV(ctx, n, d.KV1, result.RootToken); err != nil {
			return fmt.Errorf("mounting secret/: %w", err)
		}
	}
	d.Announce(url, result.RootToken, key, stderr)
	return nil
}

func mountKV(ctx context.Context, n *node, kv1 bool, token string) error {
	version := "2"
	if kv1 {
		version = "1"
	}
	body, err := json.Marshal(map[string]any{
		"type": "kv", "options": map[string]string{"version": version}, "description": "key/value secret storage",
	})
	if err != nil {
		return err
	}
	_, err = n.server.Requests().Handle(ctx, &pipeline.Request{
		ID: "dev", Op: engines.Update, Path: "sys/mounts/secret", Token: engines.Sensitive(token), Body: body,
	})
	return err
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
