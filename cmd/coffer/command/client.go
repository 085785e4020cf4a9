package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

const (
	connectionCategory = "connection"
	defaultAddress     = "https://127.0.0.1:8200"

	AuthPrefix = "auth/" // of the paths of auth methods
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
		&cli.BoolFlag{Name: "output-policy", Usage: "print the rule of a policy that the request needs and do not send it", Category: connectionCategory},
		&cli.BoolFlag{Name: "output-curl-string", Usage: "print the request as a curl command and do not send it", Category: connectionCategory},
	}
}

// WrapTTLVariables are what -wrap-ttl is without the flag, the first that is set.
var WrapTTLVariables = cli.EnvVars("COFFER_WRAP_TTL", "VAULT_WRAP_TTL", "BAO_WRAP_TTL")

// setting is a flag or its variable, else the context's. With -address the context does not count.
func (c *Call) setting(flag, variable string) string {
	if v := c.String(flag); v != "" {
		return v
	}
	if c.String("address") != "" {
		return local.Env(variable)
	}
	v, _ := local.Setting(variable) // identify reports a context that cannot be read
	return v
}

// SendingClient is connect for a command that sends its request itself, which it cannot print.
func (c *Call) SendingClient() (*api.Client, error) {
	for _, flag := range []string{"output-curl-string", "output-policy"} {
		if c.Bool(flag) {
			return nil, Usagef("-%s is not for %s", flag, c.FullName())
		}
	}
	return c.Connect()
}

// Connect returns the client for this call, made at the first use. It reads no environment behind our back: the library
// prefers BAO_ to VAULT_, we do not.
func (c *Call) Connect() (*api.Client, error) {
	if c.API != nil {
		return c.API, nil
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
	if v := local.Env("MAX_RETRIES"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return nil, Usagef("COFFER_MAX_RETRIES is %q, want a number from 0", v)
		}
		config.MaxRetries = n
	}
	if v := local.Env("CLIENT_TIMEOUT"); v != "" {
		d, err := ParseDuration(v)
		if err != nil || d < 0 {
			return nil, Usagef("COFFER_CLIENT_TIMEOUT is %q, want a duration such as 30s", v)
		}
		config.Timeout = d
	}
	if err := c.configureTLS(config); err != nil {
		return nil, err
	}
	client, err := api.NewClient(config)
	if err != nil {
		return nil, Usagef("the address %q is not usable: %v", config.Address, err)
	}
	if err := c.identify(client); err != nil {
		return nil, err
	}
	c.API = client
	return client, nil
}

func (c *Call) configureTLS(config *api.Config) error {
	skip := c.Bool("tls-skip-verify")
	if v := local.Env("SKIP_VERIFY"); v != "" && !c.IsSet("tls-skip-verify") {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return Usagef("COFFER_SKIP_VERIFY is %q, want true or false", v)
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
		return Usagef("TLS settings: %v", err)
	}
	return nil
}

// token is the one in use. A context's is not for the server that -address names.
func (c *Call) token() (string, error) {
	if c.String("address") == "" {
		return local.CurrentToken()
	}
	if t := local.Env("TOKEN"); t != "" {
		return strings.TrimSpace(t), nil
	}
	return local.StoredToken()
}

// KeepToken stores the token of a login and returns where: in the context in use, unless -address names another server.
func (c *Call) KeepToken(token string) (string, error) {
	if c.String("address") == "" {
		return local.KeepToken(token)
	}
	return "~/" + local.TokenFiles[0], local.StoreToken(token)
}

// identify adds the token, the namespace and the headers asked for.
func (c *Call) identify(client *api.Client) error {
	token, err := c.token()
	if err != nil {
		return err
	}
	client.SetToken(token)
	if ns := CleanPath(c.setting("namespace", "NAMESPACE")); ns != "" && ns != "root" {
		client.SetNamespace(ns)
	}
	for _, h := range c.StringSlice("header") {
		name, value, ok := strings.Cut(h, "=")
		if !ok || name == "" {
			return Usagef("-header takes NAME=VALUE")
		}
		client.AddHeader(name, value)
	}
	return nil
}

// Response is what the server sent: the bytes, for -format=json, and the same decoded.
type Response struct {
	Raw    []byte
	Secret *api.Secret // nil if there was no body
}

// Data returns the response's data, or nil.
func (a *Response) Data() map[string]any {
	if a.Secret == nil {
		return nil
	}
	return a.Secret.Data
}

// Warnings are those of the response, or nil.
func (a *Response) Warnings() []string {
	if a.Secret == nil {
		return nil
	}
	return a.Secret.Warnings
}

// Request is one call of the API. Body is sent as JSON unless nil.
type Request struct {
	Method, Path string
	Query        url.Values
	Body         any
	Plain        bool // it prepares the request proper, which the flags on requests are for
	Unwrapped    bool // this side needs the response itself
	Raw          bool // the response need not be JSON
}

// Send performs r. A response that is not found, yet carries data or warnings, is a response: a deleted version has metadata.
func (c *Call) Send(ctx context.Context, r Request) (*Response, error) {
	client, err := c.Connect()
	if err != nil {
		return nil, err
	}
	method := r.Method
	if method == "LIST" {
		method = http.MethodGet
		if r.Query == nil {
			r.Query = url.Values{}
		}
		r.Query.Set("list", "true")
	}
	req := client.NewRequest(method, "/v1/"+r.Path)
	if r.Query != nil {
		req.Params = r.Query
	}
	if ttl := c.String("wrap-ttl"); ttl != "" && !r.Plain && !r.Unwrapped {
		req.WrapTTL = ttl
	}
	if method == http.MethodPatch {
		req.Headers.Set("Content-Type", "application/merge-patch+json")
	}
	if r.Body != nil {
		if req.BodyBytes, err = json.Marshal(r.Body); err != nil {
			return nil, err
		}
	}
	if c.Bool("output-policy") && !r.Plain {
		return nil, c.printPolicy(r)
	}
	if c.Bool("output-curl-string") && !r.Plain {
		return nil, c.printCurl(req)
	}
	resp, err := client.RawRequestWithContext(ctx, req)
	if resp != nil {
		defer resp.Body.Close()
	}
	if err != nil && StatusOf(err) != http.StatusNotFound {
		return nil, c.Failed(r.Method, r.Path, err)
	}
	if r.Raw && err == nil {
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, c.Failed(r.Method, r.Path, err)
		}
		return &Response{Raw: raw}, nil
	}
	a, readErr := readResponse(resp)
	if err != nil && (readErr != nil || a.Secret == nil || len(a.Secret.Data) == 0 && len(a.Secret.Warnings) == 0) {
		return nil, c.Failed(r.Method, r.Path, err)
	}
	if readErr != nil {
		return nil, c.Failed(r.Method, r.Path, readErr)
	}
	return a, nil
}

func readResponse(resp *api.Response) (*Response, error) {
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	a := &Response{Raw: bytes.TrimSpace(raw)}
	if len(a.Raw) == 0 {
		return a, nil
	}
	a.Secret, err = api.ParseSecret(bytes.NewReader(a.Raw))
	if err != nil {
		return nil, fmt.Errorf("the answer is not JSON; is the address that of a coffer server? %w", err)
	}
	return a, nil
}

// Failed wraps the error of a request with what a hint to the user needs.
func (c *Call) Failed(method, path string, err error) error {
	e := &RequestError{method: method, path: path, Err: err, address: defaultAddress}
	if c.API != nil {
		e.address, e.hasToken = c.API.Address(), c.API.Token() != ""
	}
	return e
}

func (c *Call) Get(ctx context.Context, path string) (*Response, error) {
	return c.Send(ctx, Request{Method: http.MethodGet, Path: path})
}

func (c *Call) Put(ctx context.Context, path string, body any) (*Response, error) {
	return c.Send(ctx, Request{Method: http.MethodPut, Path: path, Body: body})
}

func (c *Call) Remove(ctx context.Context, path string) (*Response, error) {
	return c.Send(ctx, Request{Method: http.MethodDelete, Path: path})
}

// ParseDuration reads a duration, or a bare number of seconds.
func ParseDuration(s string) (time.Duration, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	return time.ParseDuration(s)
}
