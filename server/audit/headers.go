package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// headersPrefix is where the headers are stored that an operator said something about, one entry each.
const headersPrefix storage.Key = "s/sys/root/audit-headers/"

// maxHeaderBytes limits the name of a recorded header, maxHeaders their number: each is looked for in each request.
const (
	maxHeaderBytes = 128
	maxHeaders     = 128
)

// defaultHeaders are recorded unless an operator says otherwise: what tells clients apart and is no secret. The
// names are in lower case; the value says whether the header's values are hashed.
var defaultHeaders = map[string]bool{"user-agent": false, "x-correlation-id": false, "x-forwarded-for": false}

// secretHeaders carry credentials: they are never recorded in the clear.
var secretHeaders = []string{"authorization", "cookie", "proxy-authorization", "x-vault-mfa", "x-vault-token"}

// storedHeader is what is stored of one header.
type storedHeader struct {
	Format int    `json:"format"` // 1
	Name   string `json:"name"`   // in lower case
	HMAC   bool   `json:"hmac"`
	Off    bool   `json:"off,omitempty"` // a default header that is not to be recorded
}

// notInHeaders reports whether a rune cannot be in the name of a header. HTTP allows a few more signs, which
// are not in use.
func notInHeaders(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// loadHeaders returns the headers to record: the default ones and what is stored.
func (t *Table) loadHeaders(ctx context.Context) (map[string]bool, error) {
	entries, err := t.store.Scan(ctx, headersPrefix, "", 0)
	if err != nil {
		return nil, fmt.Errorf("reading the audited headers: %w", err)
	}
	m := maps.Clone(defaultHeaders)
	for _, e := range entries {
		var h storedHeader
		if err := json.Unmarshal(e.Value, &h); err != nil || h.Format != 1 {
			return nil, fmt.Errorf("reading %s: unknown format", e.Key)
		}
		if h.Off {
			delete(m, h.Name)
		} else {
			m[h.Name] = h.HMAC
		}
	}
	return m, nil
}

// SetHeader records a request header from now on, its values hashed if hmac is set. Errors of
// engines.KindInvalid say what to change.
func (t *Table) SetHeader(ctx context.Context, name string, hmac bool) error {
	name = strings.ToLower(strings.TrimSpace(name))
	switch {
	case name == "" || len(name) > maxHeaderBytes || strings.ContainsFunc(name, notInHeaders):
		return engines.Invalid("field \"header\": must be the name of an HTTP header: letters, digits, \"-\" and \"_\", at most %d bytes", maxHeaderBytes)
	case !hmac && slices.Contains(secretHeaders, name):
		return engines.Invalid("field \"hmac\": the header %s carries credentials and is only recorded with hmac=true", name)
	}
	now, err := t.loadHeaders(ctx)
	if err != nil {
		return err
	}
	if _, ok := now[name]; !ok && len(now) >= maxHeaders {
		return engines.Invalid("there are %d audited headers already: delete one first", len(now))
	}
	return t.putHeader(ctx, storedHeader{Format: 1, Name: name, HMAC: hmac})
}

// DeleteHeader stops the recording of a request header. One that is not recorded is fine.
func (t *Table) DeleteHeader(ctx context.Context, name string) error {
	name = strings.ToLower(strings.TrimSpace(name))
	if _, ok := defaultHeaders[name]; ok {
		return t.putHeader(ctx, storedHeader{Format: 1, Name: name, Off: true})
	}
	_, err := storage.Update(ctx, t.store, func(tx *storage.Txn) error {
		key := storageKey(headersPrefix, name)
		_, err := tx.Get(ctx, key)
		if errors.Is(err, storage.ErrNotFound) {
			return nil
		}
		tx.Delete(key)
		return err
	})
	t.changes.Add(1)
	return err
}

func (t *Table) putHeader(ctx context.Context, h storedHeader) error {
	value, err := json.Marshal(h)
	if err != nil {
		return err
	}
	_, err = storage.Update(ctx, t.store, func(tx *storage.Txn) error {
		tx.Put(storageKey(headersPrefix, h.Name), value)
		return nil
	})
	t.changes.Add(1)
	return err
}

// headerRoutes declares the paths that say which request headers are recorded.
func (t *Table) headerRoutes(r *engines.Router) {
	const (
		all   = "config/auditing/request-headers"
		flags = engines.Sudo | engines.RootNamespace
	)
	engines.On(r, engines.Read, all, "List the request headers that are recorded.", flags, t.serveHeaders).Returns(mountShape)
	engines.On(r, engines.List, all, "List the request headers that are recorded.", flags, t.serveHeaders).Returns(mountShape)
	engines.On(r, engines.Read, all+"/{header}", "Tell how a request header is recorded.", flags, t.serveHeader).
		Returns("*: {hmac: boolean}")
	engines.On(r, engines.Update, all+"/{header}", "Record a request header from now on.", flags, t.serveSetHeader)
	engines.On(r, engines.Delete, all+"/{header}", "Stop recording a request header.", flags, t.serveDeleteHeader)
}

type headerInput struct {
	Header string `json:"header" help:"Name of the header. Case does not matter."`
}

type setHeaderInput struct {
	headerInput
	HMAC bool `json:"hmac" help:"Record hashes of the header's values instead of the values."`
}

// headerInfo is how clients see a recorded header.
type headerInfo struct {
	HMAC bool `json:"hmac"`
}

func (t *Table) serveHeaders(ctx context.Context, _ *engines.Request, _ *noInput) (*engines.Response, error) {
	m, err := t.loadHeaders(ctx)
	if err != nil {
		return nil, err
	}
	all := make(map[string]headerInfo, len(m))
	for name, hmac := range m {
		all[name] = headerInfo{hmac}
	}
	data := map[string]any{"headers": all, "keys": slices.Sorted(maps.Keys(m))}
	return &engines.Response{Data: data, Top: map[string]any{"headers": all}}, nil
}

func (t *Table) serveHeader(ctx context.Context, _ *engines.Request, in *headerInput) (*engines.Response, error) {
	m, err := t.loadHeaders(ctx)
	if err != nil {
		return nil, err
	}
	hmac, ok := m[strings.ToLower(in.Header)]
	if !ok {
		return nil, engines.Invalid("Could not find header in config") // the words and the status that clients look for
	}
	return &engines.Response{Data: map[string]headerInfo{in.Header: {hmac}}}, nil
}

func (t *Table) serveSetHeader(ctx context.Context, _ *engines.Request, in *setHeaderInput) (*engines.Response, error) {
	return nil, t.SetHeader(ctx, in.Header, in.HMAC)
}

func (t *Table) serveDeleteHeader(ctx context.Context, _ *engines.Request, in *headerInput) (*engines.Response, error) {
	return nil, t.DeleteHeader(ctx, in.Header)
}

// The shapes of responses that several routes have: see engines.Route.Returns.
const (
	mountShape = "top; headers: {*: {hmac: boolean}}, keys: [string]"
)
