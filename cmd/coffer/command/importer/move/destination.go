package move

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
)

// Destination is the cluster that is imported to. Safe for concurrent use.
type Destination struct{ Call *command.Call }

// patience is how long requests are repeated that the destination cannot serve, for instance while it elects a leader.
const patience = 2 * time.Minute

// Send sends a request for a namespace, relative to the one of the command.
func (d *Destination) Send(ctx context.Context, method, namespace, path string, body any) (*command.Response, error) {
	return d.request(ctx, namespace, command.Request{Method: method, Path: path, Body: body})
}

func (d *Destination) request(ctx context.Context, namespace string, r command.Request) (*command.Response, error) {
	if namespace != "" {
		r.Path = namespace + "/" + r.Path
	}
	if err := CheckPath(r.Path); err != nil {
		return nil, err
	}
	r.Plain = true
	begun, pause := time.Now(), 200*time.Millisecond
	for {
		a, err := d.Call.Send(ctx, r)
		if err == nil || !command.Passing(err) || full(err) || time.Since(begun) > patience {
			return a, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// full reports whether the quota of what may be stored is reached, which waiting does not change.
func full(err error) bool {
	return command.StatusOf(err) == http.StatusTooManyRequests && strings.Contains(command.Shortly(err), "bytes are used")
}

// Fields reads a path, nil if there is nothing.
func (d *Destination) Fields(ctx context.Context, namespace, path string) (map[string]any, error) {
	return d.fields(d.Send(ctx, http.MethodGet, namespace, path, nil))
}

// Ask is Fields for a question with a body.
func (d *Destination) Ask(ctx context.Context, namespace, path string, body any) (map[string]any, error) {
	return d.fields(d.Send(ctx, http.MethodPost, namespace, path, body))
}

func (d *Destination) fields(a *command.Response, err error) (map[string]any, error) {
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return a.Data(), nil
}

// absent reports whether there is nothing, not even a mount or a namespace.
func absent(err error) bool {
	if err == nil {
		return false
	}
	status := command.StatusOf(err)
	return status == http.StatusNotFound || status == http.StatusBadRequest && noMount(err)
}

// CheckPath rejects paths that would be another one once they are part of a URL: names come from elsewhere.
func CheckPath(path string) error {
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." {
			return command.Usagef(`%q is no path of the destination: it has an empty part, ".", or ".."`, path)
		}
	}
	return nil
}

// Read is Fields with a query.
func (d *Destination) Read(ctx context.Context, namespace, path string, query url.Values) (map[string]any, error) {
	return d.fields(d.request(ctx, namespace, command.Request{Method: http.MethodGet, Path: path, Query: query}))
}
