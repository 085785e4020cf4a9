// Package enginetest drives an engine in tests the way the server does: over a store in memory, with checked
// requests, and without a server. Hostile sends every route of an engine what no client should send.
package enginetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/openapi"
	"github.com/coffer-project/coffer/storage"
)

// Options describe the mount under test. Zero values are useful.
type Options struct {
	Type    string // "test"
	Path    string // "test/"
	Options map[string]string
	Local   bool
	Caller  engines.Caller // without special rights
	// DefaultLeaseTTL and MaxLeaseTTL are an hour and a day.
	DefaultLeaseTTL time.Duration
	MaxLeaseTTL     time.Duration
}

// Mount is one mounted engine. Change Caller between requests to act as another caller.
type Mount struct {
	Engine engines.Engine
	Mount  engines.Mount
	Memory *storage.Memory // what the mount's stores are views of
	Caller engines.Caller

	t       testing.TB
	factory engines.Factory
}

const mountUUID = "7c1e7d62-3a51-4c44-8d0a-5f1f4a1f9c11"

// New mounts the engine and initializes it. Applied changes reach the engine if it is an engines.Invalidator.
func New(t testing.TB, factory engines.Factory, opts Options) *Mount {
	t.Helper()
	memory := &storage.Memory{}
	local := storage.NewView(memory, storage.NewKey(storage.Local, mountUUID, ""))
	data := storage.NewView(memory, storage.NewKey(storage.Shared, mountUUID, ""))
	if opts.Local {
		data = local
	}
	m := &Mount{t: t, factory: factory, Memory: memory, Caller: opts.Caller, Mount: engines.Mount{
		UUID: mountUUID, Accessor: cmp.Or(opts.Type, "test") + "_0a1b2c3d", Type: cmp.Or(opts.Type, "test"),
		Path: cmp.Or(opts.Path, "test/"), Options: opts.Options, Local: opts.Local,
		DefaultLeaseTTL: cmp.Or(opts.DefaultLeaseTTL, time.Hour), MaxLeaseTTL: cmp.Or(opts.MaxLeaseTTL, 24*time.Hour),
		Storage: data, ClusterStorage: local,
	}}
	if m.Caller.Accessor == "" {
		m.Caller = engines.Caller{
			Accessor: "accessor-1", DisplayName: "caller", EntityID: "entity-1",
			Policies: []string{"default"}, TokenKey: "token-key-1", Token: "hvs.test",
		}
	}
	m.start()
	if i, ok := m.Engine.(engines.Initializer); ok {
		if err := i.Initialize(t.Context(), m.Mount); err != nil {
			t.Fatalf("Initialize: %v", err)
		}
	}
	return m
}

// Peer returns the same mount on another node: a second engine over the same state.
func (m *Mount) Peer() *Mount {
	m.t.Helper()
	peer := *m
	peer.start()
	return &peer
}

// start builds the engine and connects it to the feed.
func (m *Mount) start() {
	m.t.Helper()
	engine, err := m.factory(m.Mount)
	if err != nil {
		m.t.Fatalf("building the engine: %v", err)
	}
	m.Engine = engine
	if i, ok := engine.(engines.Invalidator); ok {
		m.t.Cleanup(m.Memory.OnChange(func(ch storage.Change) { invalidate(i, ch) }))
	}
}

// invalidate tells the engine about a change, each class on its own, with relative keys.
func invalidate(i engines.Invalidator, ch storage.Change) {
	changed := map[storage.Class][]storage.Key{}
	for _, e := range ch.Entries {
		changed[e.Key.Class()] = append(changed[e.Key.Class()], storage.Key(e.Key.Path()))
	}
	for class, keys := range changed {
		i.Changed(class, keys, ch.Reset)
	}
}

// Request builds a request by the mount's Caller. path may carry a query ("data/a?version=2"). body is nil,
// JSON text (string, []byte or json.RawMessage), or a value that is encoded as JSON.
func (m *Mount) Request(op engines.Operation, path string, body any) *engines.Request {
	m.t.Helper()
	path, query, _ := strings.Cut(path, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		m.t.Fatalf("query %q: %v", query, err)
	}
	req := &engines.Request{
		ID: "request-1", Op: op, Path: path, Mount: m.Mount, Caller: m.Caller, Query: values,
		RemoteIP: netip.MustParseAddr("127.0.0.1"),
	}
	switch b := body.(type) {
	case nil:
	case string:
		req.Body = json.RawMessage(b)
	case []byte:
		req.Body = b
	case json.RawMessage:
		req.Body = b
	default:
		if req.Body, err = json.Marshal(body); err != nil {
			m.t.Fatalf("encoding the body: %v", err)
		}
	}
	return req
}

// Do sends a request as the server does: match, tell create from update, serve.
func (m *Mount) Do(op engines.Operation, path string, body any) (*engines.Response, error) {
	m.t.Helper()
	return m.Handle(m.t.Context(), m.Request(op, path, body))
}

// Handle is Do for a request made by Request and changed since.
func (m *Mount) Handle(ctx context.Context, req *engines.Request) (*engines.Response, error) {
	m.t.Helper()
	route, params, err := m.Engine.Router().Match(req.Op, req.Path)
	if err != nil {
		return nil, err
	}
	if req.Op == engines.Update || req.Op == engines.Create {
		exists, err := route.CheckExists(ctx, req, params)
		if err != nil {
			return nil, err
		}
		if req.Op = engines.Create; exists {
			req.Op = engines.Update
		}
	}
	return route.Serve(ctx, req, params)
}

// Must is Do that fails the test on an error.
func (m *Mount) Must(op engines.Operation, path string, body any) *engines.Response {
	m.t.Helper()
	resp, err := m.Do(op, path, body)
	if err != nil {
		m.t.Fatalf("%s %s: %v", op, path, err)
	}
	return resp
}

// Fails is Do that fails the test unless the error has this kind, and that checks that nothing was written.
// It returns the error's text.
func (m *Mount) Fails(kind engines.Kind, op engines.Operation, path string, body any) string {
	m.t.Helper()
	before := m.Snapshot()
	resp, err := m.Do(op, path, body)
	var e *engines.Error
	if !errors.As(err, &e) || e.Kind != kind {
		m.t.Fatalf("%s %s: %+v, error %v, want an error of kind %v", op, path, resp, err, kind)
	}
	if !maps.Equal(before, m.Snapshot()) {
		m.t.Fatalf("%s %s failed, yet it wrote", op, path)
	}
	return e.Detail
}

// Data returns the response's data as a client decodes it, nil when there is none. Numbers are json.Number.
func (m *Mount) Data(resp *engines.Response) map[string]any {
	m.t.Helper()
	if resp == nil || resp.Data == nil {
		return nil
	}
	text, err := json.Marshal(resp.Data)
	if err != nil {
		m.t.Fatalf("encoding the response: %v", err)
	}
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber()
	var data map[string]any
	if err := dec.Decode(&data); err != nil {
		m.t.Fatalf("decoding the response: %v", err)
	}
	return data
}

// Exists returns what the server learns before it authorises a write to path.
func (m *Mount) Exists(path string) bool {
	m.t.Helper()
	route, params, err := m.Engine.Router().Match(engines.Update, path)
	if err != nil {
		m.t.Fatalf("%s: %v", path, err)
	}
	exists, err := route.CheckExists(m.t.Context(), m.Request(engines.Update, path, nil), params)
	if err != nil {
		m.t.Fatalf("%s: %v", path, err)
	}
	return exists
}

// Documented checks that every route and field has a help text that is a sentence, and that path help and
// the OpenAPI document can be made of them.
func Documented(t testing.TB, m *Mount) {
	t.Helper()
	for _, route := range m.Engine.Router().Routes() {
		if !strings.HasSuffix(route.Help, ".") {
			t.Errorf("%s %s: the help %q is not a sentence", route.Op, route.Pattern, route.Help)
		}
		for _, f := range route.Fields {
			if !strings.HasSuffix(f.Help, ".") {
				t.Errorf("%s %s: the help %q of field %s is not a sentence", route.Op, route.Pattern, f.Help, f.Name)
			}
		}
	}
	if _, err := openapi.Document("test", "1.0.0", []openapi.Mount{{Path: m.Mount.Path, Router: m.Engine.Router()}}); err != nil {
		t.Errorf("OpenAPI: %v", err)
	}
}

// Snapshot returns everything stored, by whole key.
func (m *Mount) Snapshot() map[storage.Key]string {
	m.t.Helper()
	entries, err := m.Memory.Scan(m.t.Context(), "", "", 0)
	if err != nil {
		m.t.Fatal(err)
	}
	all := make(map[storage.Key]string, len(entries))
	for _, e := range entries {
		all[e.Key] = string(e.Value)
	}
	return all
}
