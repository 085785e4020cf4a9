package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

const (
	connectionCategory = "connection"
	defaultAddress     = "https://127.0.0.1:8200"
)

// connectionFlags are on every command which talks to a server. Credentials are not among them: command lines are public.
func connectionFlags() []cli.Flag {
	str := func(name, usage string, aliases ...string) cli.Flag {
		return &cli.StringFlag{Name: name, Aliases: aliases, Usage: usage, Category: connectionCategory}
	}
	return []cli.Flag{
		str("address", "`URL` of the server"),
		str("namespace", "namespace `PATH` of the request", "ns"),
		str("ca-cert", "`FILE` with the CA certificates to trust"),
		str("ca-path", "`DIR` of such files"),
		str("client-cert", "`FILE` with the certificate to present"),
		str("client-key", "`FILE` with its private key"),
		str("tls-server-name", "`NAME` to expect in the server's certificate"),
		&cli.BoolFlag{Name: "tls-skip-verify", Usage: "do not check the server's certificate", Category: connectionCategory},
		&cli.StringSliceFlag{Name: "header", Usage: "send `NAME=VALUE` as a header; repeatable", Category: connectionCategory},
		str("format", "print answers as `table|json|yaml`"),
		&cli.BoolFlag{Name: "output-curl-string", Usage: "print the request as a curl command and do not send it", Category: connectionCategory},
	}
}

// env returns a variable of ours, or else of the family's clients that scripts already set. Empty counts as absent.
func env(name string) string {
	for _, prefix := range []string{"COFFER_", "VAULT_", "BAO_"} {
		if v := os.Getenv(prefix + name); v != "" {
			return v
		}
	}
	return ""
}

// wrapTTLVariables are what -wrap-ttl is without the flag, the first that is set.
var wrapTTLVariables = cli.EnvVars("COFFER_WRAP_TTL", "VAULT_WRAP_TTL", "BAO_WRAP_TTL")

// setting is a flag or its variable.
func (c *call) setting(flag, variable string) string {
	if v := c.String(flag); v != "" {
		return v
	}
	return env(variable)
}

// client is connect for a command that sends its request itself, which it cannot print.
func (c *call) client() (*api.Client, error) {
	if c.Bool("output-curl-string") {
		return nil, usagef("-output-curl-string is not for %s", c.FullName())
	}
	return c.connect()
}

// connect returns the client for this call, made at the first use. It reads no environment behind our back: the library
// prefers BAO_ to VAULT_, we do not.
func (c *call) connect() (*api.Client, error) {
	if c.api != nil {
		return c.api, nil
	}
	config := api.NewConfig()
	if config.Error != nil {
		return nil, config.Error
	}
	config.Address = defaultAddress
	if v := c.setting("address", "ADDR"); v != "" {
		config.Address = v
	}
	config.MaxRetries = 0
	if v := env("MAX_RETRIES"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return nil, usagef("COFFER_MAX_RETRIES is %q, want a number from 0", v)
		}
		config.MaxRetries = n
	}
	if v := env("CLIENT_TIMEOUT"); v != "" {
		d, err := parseDuration(v)
		if err != nil || d < 0 {
			return nil, usagef("COFFER_CLIENT_TIMEOUT is %q, want a duration such as 30s", v)
		}
		config.Timeout = d
	}
	if err := c.configureTLS(config); err != nil {
		return nil, err
	}
	client, err := api.NewClient(config)
	if err != nil {
		return nil, usagef("the address %q is not usable: %v", config.Address, err)
	}
	if err := c.identify(client); err != nil {
		return nil, err
	}
	c.api = client
	return client, nil
}

func (c *call) configureTLS(config *api.Config) error {
	skip := c.Bool("tls-skip-verify")
	if v := env("SKIP_VERIFY"); v != "" && !c.IsSet("tls-skip-verify") {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return usagef("COFFER_SKIP_VERIFY is %q, want true or false", v)
		}
		skip = b
	}
	err := config.ConfigureTLS(&api.TLSConfig{
		CACert:        c.setting("ca-cert", "CACERT"),
		CAPath:        c.setting("ca-path", "CAPATH"),
		ClientCert:    c.setting("client-cert", "CLIENT_CERT"),
		ClientKey:     c.setting("client-key", "CLIENT_KEY"),
		TLSServerName: c.setting("tls-server-name", "TLS_SERVER_NAME"),
		Insecure:      skip,
	})
	if err != nil {
		return usagef("TLS settings: %v", err)
	}
	return nil
}

// identify adds the token, the namespace and the headers asked for.
func (c *call) identify(client *api.Client) error {
	token, err := currentToken()
	if err != nil {
		return err
	}
	client.SetToken(token)
	if ns := cleanPath(c.setting("namespace", "NAMESPACE")); ns != "" && ns != "root" {
		client.SetNamespace(ns)
	}
	for _, h := range c.StringSlice("header") {
		name, value, ok := strings.Cut(h, "=")
		if !ok || name == "" {
			return usagef("-header takes NAME=VALUE")
		}
		client.AddHeader(name, value)
	}
	return nil
}

// answer is what the server sent: the bytes, for -format=json, and the same decoded.
type answer struct {
	raw    []byte
	secret *api.Secret // nil if there was no body
}

// data returns the answer's data, or nil.
func (a *answer) data() map[string]any {
	if a.secret == nil {
		return nil
	}
	return a.secret.Data
}

// warnings are those of the answer, or nil.
func (a *answer) warnings() []string {
	if a.secret == nil {
		return nil
	}
	return a.secret.Warnings
}

// request is one call of the API. Body is sent as JSON unless nil.
type request struct {
	method, path string
	query        url.Values
	body         any
	plain        bool // it prepares the request proper, which the flags on requests are for
	unwrapped    bool // this side needs the answer itself
	raw          bool // the answer need not be JSON
}

// send performs r. An answer that is not found, yet carries data or warnings, is an answer: a deleted version has metadata.
func (c *call) send(ctx context.Context, r request) (*answer, error) {
	client, err := c.connect()
	if err != nil {
		return nil, err
	}
	method := r.method
	if method == "LIST" {
		method = http.MethodGet
		if r.query == nil {
			r.query = url.Values{}
		}
		r.query.Set("list", "true")
	}
	req := client.NewRequest(method, "/v1/"+r.path)
	if r.query != nil {
		req.Params = r.query
	}
	if ttl := c.String("wrap-ttl"); ttl != "" && !r.plain && !r.unwrapped {
		req.WrapTTL = ttl
	}
	if method == http.MethodPatch {
		req.Headers.Set("Content-Type", "application/merge-patch+json")
	}
	if r.body != nil {
		if req.BodyBytes, err = json.Marshal(r.body); err != nil {
			return nil, err
		}
	}
	if c.Bool("output-curl-string") && !r.plain {
		return nil, c.printCurl(req)
	}
	resp, err := client.RawRequestWithContext(ctx, req)
	if resp != nil {
		defer resp.Body.Close()
	}
	if err != nil && statusOf(err) != http.StatusNotFound {
		return nil, c.failed(r.method, r.path, err)
	}
	if r.raw && err == nil {
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, c.failed(r.method, r.path, err)
		}
		return &answer{raw: raw}, nil
	}
	a, readErr := readAnswer(resp)
	if err != nil && (readErr != nil || a.secret == nil || len(a.secret.Data) == 0 && len(a.secret.Warnings) == 0) {
		return nil, c.failed(r.method, r.path, err)
	}
	if readErr != nil {
		return nil, c.failed(r.method, r.path, readErr)
	}
	return a, nil
}

func readAnswer(resp *api.Response) (*answer, error) {
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	a := &answer{raw: bytes.TrimSpace(raw)}
	if len(a.raw) == 0 {
		return a, nil
	}
	a.secret, err = api.ParseSecret(bytes.NewReader(a.raw))
	if err != nil {
		return nil, fmt.Errorf("the answer is not JSON; is the address that of a coffer server? %w", err)
	}
	return a, nil
}

// failed wraps the error of a request with what a hint to the user needs.
func (c *call) failed(method, path string, err error) error {
	e := &requestError{method: method, path: path, err: err, address: defaultAddress}
	if c.api != nil {
		e.address, e.hasToken = c.api.Address(), c.api.Token() != ""
	}
	return e
}

func (c *call) get(ctx context.Context, path string) (*answer, error) {
	return c.send(ctx, request{method: http.MethodGet, path: path})
}

func (c *call) put(ctx context.Context, path string, body any) (*answer, error) {
	return c.send(ctx, request{method: http.MethodPut, path: path, body: body})
}

func (c *call) remove(ctx context.Context, path string) (*answer, error) {
	return c.send(ctx, request{method: http.MethodDelete, path: path})
}

// parseDuration reads a duration, or a bare number of seconds.
func parseDuration(s string) (time.Duration, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	return time.ParseDuration(s)
}
