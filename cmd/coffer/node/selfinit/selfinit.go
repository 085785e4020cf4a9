// Package selfinit founds a cluster as the initialize stanzas of the configuration say: it initialises the node without recovery keys,
// runs the requests with the root token, and revokes that. No one sees the token. Start reading at Run.
package selfinit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config/initialize"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/join"
)

// Node is the part of a node that is initialised.
type Node interface {
	Initialized(context.Context) bool
	Init(ctx context.Context, shares, threshold int) (lifecycle.InitResult, error)
	Active() bool
}

// Options say what is done.
type Options struct {
	Requests []initialize.Request
	Others   []join.Target // the other nodes of the cluster: none of them may have one
	Node     Node
	API      http.Handler
	// Marker is a file that is there from the beginning to the success.
	Marker string
	Logger *slog.Logger
}

// patience is how long an initialised node may take to serve.
const patience = time.Minute

// Run returns when the node is initialised, as the stanzas say or by joining others. An attempt that did not reach the end is an error,
// also at the next start: what it has left is not what the configuration says.
func Run(ctx context.Context, o Options) error {
	_, err := os.Stat(o.Marker)
	begun := err == nil
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case begun && o.Node.Initialized(ctx):
		return fmt.Errorf("the requests of initialize were not all made when the cluster was founded: stop the node, remove its data directory and start it again, "+
			"or remove %s to go on with what there is", o.Marker)
	case o.Node.Initialized(ctx):
		return nil
	}
	prepared, err := initialize.Prepare(o.Requests)
	if err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	for {
		again, err := o.found(ctx, prepared)
		if !again {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// found initialises the node, unless the others are not there yet or this node has joined them.
func (o Options) found(ctx context.Context, prepared []initialize.Request) (again bool, err error) {
	for _, other := range o.Others {
		status, err := other.Status(ctx)
		switch {
		case err != nil:
			o.Logger.Info("waiting for the other nodes before this one founds a cluster", "node", other.LeaderAPIAddr, "err", err)
			return true, nil
		case status.Initialized:
			return false, nil // this node joins it
		}
	}
	if o.Node.Initialized(ctx) {
		return false, nil
	}
	if err := os.WriteFile(o.Marker, nil, 0o600); err != nil {
		return false, err
	}
	result, err := o.Node.Init(ctx, 0, 0)
	if err != nil {
		err = errors.Join(err, os.Remove(o.Marker)) // nothing was founded
		if refused, ok := errors.AsType[*engines.Error](err); ok && refused.Kind == engines.KindUnavailable {
			o.Logger.Info("another node founds a cluster, too", "err", err)
			return true, nil
		}
		return false, fmt.Errorf("initialize: %w", err)
	}
	if err := o.awaitActive(ctx); err != nil {
		return false, err
	}
	call := func(ctx context.Context, c initialize.Call) (map[string]any, error) {
		if c.Token == "" {
			c.Token = result.RootToken
		}
		return o.call(ctx, c)
	}
	err = initialize.Run(ctx, prepared, call, func(_ initialize.Request, err error) {
		o.Logger.Warn("a request of initialize failed, as it may", "err", err)
	})
	_, revoked := call(context.WithoutCancel(ctx), initialize.Call{Operation: "update", Path: "auth/token/revoke-self"})
	if err = errors.Join(err, revoked); err != nil {
		return false, fmt.Errorf("initialize: the cluster is founded, but not as the configuration says; correct it, remove the data directory and start again: %w", err)
	}
	o.Logger.Info("the cluster is founded as the configuration says; its root token is revoked", "requests", len(prepared))
	return false, os.Remove(o.Marker)
}

func (o Options) awaitActive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !o.Node.Active() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("initialize: the node does not become active: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

var methods = map[string]string{
	"read": http.MethodGet, "list": "LIST", "create": http.MethodPost, "update": http.MethodPost, "patch": http.MethodPatch, "delete": http.MethodDelete,
}

// call makes a request of the API. The error has the API's own words, which show no values.
func (o Options) call(ctx context.Context, c initialize.Call) (map[string]any, error) {
	u := url.URL{Scheme: "http", Host: "localhost", Path: "/v1/" + strings.TrimPrefix(c.Path, "/")}
	var body io.Reader = http.NoBody
	switch c.Operation {
	case "create", "update", "patch":
		text, err := json.Marshal(c.Data)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	default:
		query := url.Values{}
		for key, v := range c.Data {
			query.Set(key, fmt.Sprint(v))
		}
		u.RawQuery = query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, methods[c.Operation], u.String(), body)
	if err != nil {
		return nil, errors.New("path is not valid")
	}
	r.RemoteAddr = "127.0.0.1:0"
	r.Header.Set("X-Vault-Token", c.Token)
	r.Header.Set("X-Vault-Request", "true")
	if c.Operation == "patch" {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	a := &answer{header: http.Header{}, status: http.StatusOK}
	o.API.ServeHTTP(a, r)
	var response map[string]any
	if a.body.Len() > 0 {
		if err := json.Unmarshal(a.body.Bytes(), &response); err != nil && a.status < 300 {
			return nil, errors.New("the response is no JSON")
		}
	}
	if a.status >= 300 {
		return response, fmt.Errorf("status %d: %v", a.status, response["errors"])
	}
	return response, nil
}

// answer is an http.ResponseWriter that keeps the response.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
