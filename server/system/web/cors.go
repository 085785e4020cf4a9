// Package web keeps the settings that face browsers: which pages of other origins may use the API, and which headers the web UI is
// served with. Both are declared below sys/config/ and can only be changed with sudo in the root namespace. The server in front of
// the API asks CORS before each request and wraps the UI in UIHeaders.
package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

var corsKey = storage.NewKey(storage.Shared, "sys", "root/config/cors")

// corsMethods and corsHeaders are what a page of an allowed origin may use.
const corsMethods = "DELETE,GET,LIST,OPTIONS,PATCH,POST,PUT,SCAN"

// corsHeaders are those that clients know and take from the list when they read it; corsOwn are allowed without being listed.
var (
	corsHeaders = []string{
		"Content-Type", "X-Requested-With", "X-Vault-AWS-IAM-Server-ID", "X-Vault-MFA", "X-Vault-No-Request-Forwarding",
		"X-Vault-Wrap-Format", "X-Vault-Wrap-TTL", "X-Vault-Policy-Override", "Authorization", "X-Vault-Token",
	}
	corsOwn = []string{
		"X-Vault-Consistency", "X-Vault-Forward", "X-Vault-Inconsistent", "X-Vault-Index", "X-Vault-Namespace", "X-Vault-Request",
	}
)

// CORS says which web pages of other origins may use the API from a browser: none, until it is configured. Give
// Changed every change of the feed.
type CORS struct {
	store storage.Store
	cache *storage.Cache[*corsRecord]
}

// NewCORS returns the configuration kept in the decrypted store.
func NewCORS(s storage.Store) *CORS {
	return &CORS{store: s, cache: storage.NewCache[*corsRecord](1)}
}

// corsRecord is what is stored.
type corsRecord struct {
	Format      int      `json:"format"` // 1
	Origins     []string `json:"origins"`
	Headers     []string `json:"headers,omitempty"` // besides corsHeaders
	Credentials bool     `json:"credentials,omitempty"`
}

func (c *corsRecord) enabled() bool { return len(c.Origins) > 0 }

// Changed forgets what a change made stale.
func (c *CORS) Changed(ch storage.Change) { c.cache.Apply(ch) }

// Clear forgets everything.
func (c *CORS) Clear() { c.cache.Clear() }

func (c *CORS) current(ctx context.Context) (*corsRecord, error) {
	return c.cache.Get(ctx, corsKey, func(ctx context.Context) (*corsRecord, error) {
		e, err := c.store.Get(ctx, corsKey)
		if errors.Is(err, storage.ErrNotFound) {
			return &corsRecord{}, nil
		}
		if err != nil {
			return nil, err
		}
		r := &corsRecord{}
		if err := json.Unmarshal(e.Value, r); err != nil {
			return nil, fmt.Errorf("decoding the CORS configuration: %w", err)
		}
		if r.Format != 1 {
			return nil, fmt.Errorf("the CORS configuration has format %d, this build knows 1", r.Format)
		}
		return r, nil
	})
}

// Apply sets the response headers that a browser wants to see before it lets a page use the answer. It reports
// whether it has answered the request itself: preflights, and requests of origins that are not allowed. Requests
// without an Origin, or of the server's own pages, are left alone; so are all while the node is sealed, and the forms that
// another site sends the browser here with: that site cannot read the answer, nor send a token with it.
func (c *CORS) Apply(w http.ResponseWriter, r *http.Request) (answered bool) {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	if u, err := url.Parse(origin); err == nil && u.Host == r.Host {
		return false
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); r.Method == http.MethodPost && kind == "application/x-www-form-urlencoded" {
		return false
	}
	config, err := c.current(r.Context())
	if err != nil || !config.enabled() {
		return false // the browser refuses the answer by itself
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	anyOrigin := config.Origins[0] == "*"
	if !anyOrigin && !slices.Contains(config.Origins, origin) {
		h.Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		w.Write([]byte(`{"errors":["origin not allowed"]}` + "\n"))
		return true
	}
	h.Set("Access-Control-Allow-Origin", origin)
	if anyOrigin {
		h.Set("Access-Control-Allow-Origin", "*")
	}
	if config.Credentials && !anyOrigin {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		h.Set("Access-Control-Expose-Headers", "X-Vault-Index, Retry-After")
		return false
	}
	h.Set("Access-Control-Allow-Methods", corsMethods)
	h.Set("Access-Control-Allow-Headers", strings.Join(slices.Concat(corsHeaders, corsOwn, config.Headers), ","))
	h.Set("Access-Control-Max-Age", "300")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// Routes declares sys/config/cors.
func (c *CORS) Routes(r *engines.Router) {
	const flags = engines.Sudo | engines.RootNamespace
	engines.On(r, engines.Read, "config/cors", "Read which web pages of other origins may use the API.", flags, c.read).
		Returns("top; allow_credentials: boolean, allowed_headers: [string], allowed_origins: [string], enabled: boolean")
	engines.On(r, engines.Update, "config/cors", "Let web pages of other origins use the API.", flags, c.write)
	engines.On(r, engines.Delete, "config/cors", "Let no web page of another origin use the API.", flags, c.delete)
}

type corsInput struct {
	AllowedOrigins   engines.StringList `json:"allowed_origins" required:"true" max:"256" help:"Origins such as https://app.example.com, or \"*\" alone for every one."`
	AllowedHeaders   engines.StringList `json:"allowed_headers" max:"64" help:"Request headers that pages may send besides those the API knows."`
	AllowCredentials bool               `json:"allow_credentials" help:"Let browsers send client certificates and cookies; not with \"*\"."`
	Enabled          bool               `json:"enabled" default:"true" help:"Accepted for compatibility: writing enables."`
}

func (c *CORS) read(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	config, err := c.current(ctx)
	if err != nil {
		return nil, err
	}
	if !config.enabled() {
		return both(map[string]any{"enabled": false}), nil
	}
	return both(map[string]any{
		"enabled": true, "allowed_origins": config.Origins, "allow_credentials": config.Credentials,
		"allowed_headers": slices.Concat(corsHeaders, config.Headers),
	}), nil
}

func (c *CORS) write(ctx context.Context, _ *engines.Request, in *corsInput) (*engines.Response, error) {
	record := corsRecord{Format: 1, Credentials: in.AllowCredentials}
	for _, origin := range in.AllowedOrigins {
		switch u, err := url.Parse(origin); {
		case origin == "*" && len(in.AllowedOrigins) > 1:
			return nil, engines.Invalid("field \"allowed_origins\": \"*\" must stand alone")
		case origin == "*" && in.AllowCredentials:
			return nil, engines.Invalid("field \"allow_credentials\" must not be set when every origin is allowed")
		case origin == "*":
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || origin != u.Scheme+"://"+u.Host:
			return nil, engines.Invalid("field \"allowed_origins\" must hold origins such as https://app.example.com, without a path")
		}
		record.Origins = append(record.Origins, origin)
	}
	for _, name := range in.AllowedHeaders {
		if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("(),/:;<=>?@[]{}\"\\", r) }) || len(name) > 128 {
			return nil, engines.Invalid("field \"allowed_headers\" must hold names of headers")
		}
		if !slices.ContainsFunc(corsHeaders, func(known string) bool { return strings.EqualFold(known, name) }) {
			record.Headers = append(record.Headers, name)
		}
	}
	value, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	_, err = c.store.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: corsKey, Value: value}}})
	return nil, err
}

func (c *CORS) delete(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	_, err := c.store.Commit(ctx, storage.Batch{Deletes: []storage.Key{corsKey}})
	return nil, err
}

// none is the input of paths without fields.
type none struct{}

// both answers data, and the same again at the top level, where older clients read it.
func both(data map[string]any) *engines.Response {
	return &engines.Response{Data: data, Top: data}
}
