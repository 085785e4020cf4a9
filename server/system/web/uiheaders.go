package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

var uiHeadersKey = storage.NewKey(storage.Shared, "sys", "root/config/ui-headers")

const maxUIHeaders = 64

// UIHeaders are response headers of the web UI that operators have set. Give Changed every change of the feed.
type UIHeaders struct {
	store storage.Store
	cache *storage.Cache[map[string][]string]
}

// NewUIHeaders returns the headers kept in the decrypted store.
func NewUIHeaders(s storage.Store) *UIHeaders {
	return &UIHeaders{store: s, cache: storage.NewCache[map[string][]string](1)}
}

// Changed forgets what a change made stale.
func (u *UIHeaders) Changed(ch storage.Change) { u.cache.Apply(ch) }

// Clear forgets everything.
func (u *UIHeaders) Clear() { u.cache.Clear() }

// uiHeadersRecord is what is stored.
type uiHeadersRecord struct {
	Format  int                 `json:"format"` // 1
	Headers map[string][]string `json:"headers"`
}

func decodeUIHeaders(value []byte) (map[string][]string, error) {
	var r uiHeadersRecord
	if err := json.Unmarshal(value, &r); err != nil {
		return nil, fmt.Errorf("decoding the headers of the UI: %w", err)
	}
	if r.Format != 1 {
		return nil, fmt.Errorf("the headers of the UI have format %d, this build knows 1", r.Format)
	}
	return r.Headers, nil
}

func (u *UIHeaders) all(ctx context.Context) (map[string][]string, error) {
	return u.cache.Get(ctx, uiHeadersKey, func(ctx context.Context) (map[string][]string, error) {
		e, err := u.store.Get(ctx, uiHeadersKey)
		if errors.Is(err, storage.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return decodeUIHeaders(e.Value)
	})
}

// Wrap returns ui with the headers in its answers. While the node is sealed there are none.
func (u *UIHeaders) Wrap(ui http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers, err := u.all(r.Context())
		if err != nil || len(headers) == 0 {
			ui.ServeHTTP(w, r)
			return
		}
		ui.ServeHTTP(&headerWriter{ResponseWriter: w, headers: headers}, r)
	})
}

// headerWriter sets headers last, so that they win.
type headerWriter struct {
	http.ResponseWriter
	headers map[string][]string
	done    bool
}

func (w *headerWriter) WriteHeader(status int) {
	if !w.done {
		w.done = true
		maps.Copy(w.Header(), w.headers)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *headerWriter) Write(b []byte) (int, error) {
	if !w.done {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *headerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Routes declares sys/config/ui/headers.
func (u *UIHeaders) Routes(r *engines.Router) {
	const flags = engines.Sudo | engines.RootNamespace
	engines.On(r, engines.List, "config/ui/headers", "List the response headers of the web UI that have been set.", flags, u.list).
		Returns("keys: [string]")
	engines.On(r, engines.Read, "config/ui/headers/{name}", "Read one response header of the web UI.", flags, u.read).
		Returns("value, values: [string]")
	engines.On(r, engines.Update, "config/ui/headers/{name}", "Set a response header of the web UI, in place of the built-in one if there is one.", flags, u.write)
	engines.On(r, engines.Delete, "config/ui/headers/{name}", "Set a response header of the web UI back.", flags, u.delete)
}

type uiHeaderInput struct {
	Name       string `json:"name" max:"128" help:"Name of the header."`
	Multivalue bool   `json:"multivalue" query:"true" help:"Answer a list of values."`
}

type uiHeaderWrite struct {
	Name   string          `json:"name" max:"128" help:"Name of the header."`
	Values json.RawMessage `json:"values" required:"true" max:"65536" help:"Values of the header: a list, or one text, in which a comma is a comma."`
}

func (u *UIHeaders) list(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	all, err := u.all(ctx)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{"keys": slices.Sorted(maps.Keys(all))}}, nil
}

func (u *UIHeaders) read(ctx context.Context, _ *engines.Request, in *uiHeaderInput) (*engines.Response, error) {
	all, err := u.all(ctx)
	if err != nil {
		return nil, err
	}
	values := all[textproto.CanonicalMIMEHeaderKey(in.Name)]
	switch {
	case len(values) == 0:
		return nil, engines.NotFound("")
	case in.Multivalue:
		return &engines.Response{Data: map[string]any{"values": values}}, nil
	}
	return &engines.Response{Data: map[string]any{"value": values[0]}}, nil
}

// refusedHeaders would break the answers, or give away what only the server may give.
var refusedHeaders = []string{
	"Access-Control-", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Date", "Etag", "Location", "Set-Cookie",
	"Trailer", "Transfer-Encoding", "Upgrade", "Vary", "X-Content-Type-Options", "X-Vault-", "X-Coffer-",
}

func headerName(name string) (string, error) {
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	for _, c := range []byte(name) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return "", engines.Invalid("field \"name\" is not the name of a header: use letters, digits and \"-\"")
		}
	}
	for _, refused := range refusedHeaders {
		if canonical == refused || strings.HasSuffix(refused, "-") && strings.HasPrefix(canonical, refused) {
			return "", engines.Invalid("header %q cannot be set: the server sets it itself", canonical)
		}
	}
	return canonical, nil
}

// headerValues reads the values: a list of texts or one text.
func headerValues(raw json.RawMessage) ([]string, error) {
	var values []string
	var one string
	switch {
	case json.Unmarshal(raw, &one) == nil:
		values = []string{one}
	case json.Unmarshal(raw, &values) != nil:
		return nil, engines.Invalid("field \"values\" must be a text or a list of texts")
	}
	if len(values) == 0 || len(values) > 16 {
		return nil, engines.Invalid("field \"values\" must hold 1 to 16 values")
	}
	for _, v := range values {
		if v == "" || len(v) > 4096 || strings.ContainsFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r >= 0x7f }) {
			return nil, engines.Invalid("field \"values\" must hold printable ASCII texts of 1 to 4096 bytes")
		}
	}
	return values, nil
}

func (u *UIHeaders) write(ctx context.Context, _ *engines.Request, in *uiHeaderWrite) (*engines.Response, error) {
	name, err := headerName(in.Name)
	if err != nil {
		return nil, err
	}
	values, err := headerValues(in.Values)
	if err != nil {
		return nil, err
	}
	err = u.change(ctx, func(all map[string][]string) error {
		all[name] = values
		if len(all) > maxUIHeaders {
			return engines.Invalid("there are %d headers already: delete one first", maxUIHeaders)
		}
		return nil
	})
	if err != nil || name != "Content-Security-Policy" {
		return nil, err
	}
	return &engines.Response{Warnings: []string{"This replaces the web UI's own Content-Security-Policy, which keeps foreign scripts out. Delete the header to have it back."}}, nil
}

func (u *UIHeaders) delete(ctx context.Context, _ *engines.Request, in *uiHeaderInput) (*engines.Response, error) {
	return nil, u.change(ctx, func(all map[string][]string) error {
		delete(all, textproto.CanonicalMIMEHeaderKey(in.Name))
		return nil
	})
}

// change rewrites the entry in a transaction.
func (u *UIHeaders) change(ctx context.Context, fn func(map[string][]string) error) error {
	_, err := storage.Update(ctx, u.store, func(t *storage.Txn) error {
		all := map[string][]string{}
		e, err := t.Get(ctx, uiHeadersKey)
		switch {
		case errors.Is(err, storage.ErrNotFound):
		case err != nil:
			return err
		default:
			if all, err = decodeUIHeaders(e.Value); err != nil {
				return err
			}
		}
		if err := fn(all); err != nil {
			return err
		}
		value, err := json.Marshal(uiHeadersRecord{Format: 1, Headers: all})
		if err != nil {
			return err
		}
		t.Put(uiHeadersKey, value)
		return nil
	})
	return err
}
