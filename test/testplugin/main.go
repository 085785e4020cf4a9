// Command testplugin is a plugin for tests: a secrets engine, or with the argument "auth" an auth method, that does what it is asked to,
// also what a plugin must not do. Other arguments make it misbehave at its start.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/openbao/openbao/sdk/v2/framework"
	"github.com/openbao/openbao/sdk/v2/helper/consts"
	"github.com/openbao/openbao/sdk/v2/logical"
	"github.com/openbao/openbao/sdk/v2/plugin"
)

// stdout and stderr are the pipes to the server. Once a plugin serves, its package os has others.
var stdout, stderr = os.NewFile(1, "stdout"), os.NewFile(2, "stderr")

func main() {
	switch {
	case slices.Contains(os.Args, "garbage"):
		fmt.Println(strings.Repeat("nothing that a plugin says ", 10_000))
		time.Sleep(time.Hour)
	case slices.Contains(os.Args, "silent"):
		time.Sleep(time.Hour)
	case slices.Contains(os.Args, "exit"):
		os.Exit(3)
	case slices.Contains(os.Args, "elsewhere"):
		fmt.Println("1|5|tcp|127.0.0.1:1|grpc|")
		time.Sleep(time.Hour)
	}
	kind := logical.TypeLogical
	if slices.Contains(os.Args, "auth") {
		kind = logical.TypeCredential
	}
	err := plugin.ServeMultiplex(&plugin.ServeOpts{
		BackendFactoryFunc: func(ctx context.Context, c *logical.BackendConfig) (logical.Backend, error) {
			b := newBackend(kind)
			return b, b.Setup(ctx, c)
		},
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: os.Stderr, JSONFormat: true}),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type backend struct {
	*framework.Backend
	mu     sync.Mutex
	cached map[string]string // what was read, until it is invalidated

	posted map[string]string // codes of forms, by state

	secondary bool // when it started, as plugins keep it that leave to the primary what is due
}

func newBackend(kind logical.BackendType) *backend {
	b := &backend{cached: map[string]string{}, posted: map[string]string{}}
	text := func(name string) map[string]*framework.FieldSchema {
		return map[string]*framework.FieldSchema{name: {Type: framework.TypeString}, "path": {Type: framework.TypeString}}
	}
	at := func(pattern string, fields map[string]*framework.FieldSchema, ops map[logical.Operation]framework.OperationFunc) *framework.Path {
		p := &framework.Path{Pattern: pattern, Fields: fields, Operations: map[logical.Operation]framework.OperationHandler{}}
		for op, f := range ops {
			p.Operations[op] = &framework.PathOperation{Callback: f}
		}
		return p
	}
	data := at("data/"+framework.MatchAllRegex("path"), text("value"), map[logical.Operation]framework.OperationFunc{
		logical.ReadOperation: b.read, logical.CreateOperation: b.write, logical.UpdateOperation: b.write,
		logical.DeleteOperation: b.remove, logical.ListOperation: b.list,
	})
	data.ExistenceCheck = func(ctx context.Context, req *logical.Request, _ *framework.FieldData) (bool, error) {
		e, err := req.Storage.Get(ctx, req.Path)
		return e != nil, err
	}
	b.Backend = &framework.Backend{
		BackendType: kind, Help: "A plugin for tests.",
		PathsSpecial: &logical.Paths{Unauthenticated: []string{"login", "oidc/*", "open/+/door", "public/*"}, Root: []string{"guarded/*"}},
		Paths: []*framework.Path{
			data,
			at("cached/"+framework.MatchAllRegex("path"), text("path"), map[logical.Operation]framework.OperationFunc{logical.ReadOperation: b.readCached}),
			at("creds", text("ttl"), map[logical.Operation]framework.OperationFunc{logical.ReadOperation: b.creds}),
			at("login", text("user"), map[logical.Operation]framework.OperationFunc{logical.UpdateOperation: b.login}),
			at("oidc/auth_url", text("redirect_uri"), map[logical.Operation]framework.OperationFunc{logical.UpdateOperation: b.authURL}),
			{Pattern: "oidc/callback", Fields: map[string]*framework.FieldSchema{"state": {Type: framework.TypeString}, "code": {Type: framework.TypeString}, "id_token": {Type: framework.TypeString}},
				Operations: map[logical.Operation]framework.OperationHandler{
					logical.ReadOperation: &framework.PathOperation{Callback: b.callback}, logical.UpdateOperation: &framework.PathOperation{Callback: b.callbackPost},
				}},
			at("open/[a-z]+/door", nil, map[logical.Operation]framework.OperationFunc{logical.ReadOperation: b.say}),
			at("public/.*", nil, map[logical.Operation]framework.OperationFunc{logical.ReadOperation: b.say}),
			at("guarded/.*", nil, map[logical.Operation]framework.OperationFunc{logical.ReadOperation: b.say}),
			at("system", nil, map[logical.Operation]framework.OperationFunc{logical.ReadOperation: b.system}),
			at("misbehave/"+framework.GenericNameRegex("path"), text("path"), map[logical.Operation]framework.OperationFunc{logical.ReadOperation: b.misbehave}),
			at("transfer", text("value"), map[logical.Operation]framework.OperationFunc{logical.UpdateOperation: b.transfer}),
		},
		Secrets: []*framework.Secret{{
			Type: "thing", Revoke: b.revoke,
			Renew: func(ctx context.Context, req *logical.Request, _ *framework.FieldData) (*logical.Response, error) {
				resp := &logical.Response{Secret: req.Secret}
				resp.Secret.TTL = 2 * time.Hour
				return resp, put(ctx, req.Storage, "data/things/"+req.Secret.InternalData["id"].(string), "renewed")
			},
		}},
		AuthRenew: func(_ context.Context, req *logical.Request, _ *framework.FieldData) (*logical.Response, error) {
			if req.Auth.InternalData["user"] == "gone" {
				return nil, errors.New("the user is gone")
			}
			return &logical.Response{Auth: req.Auth}, nil
		},
		Invalidate: func(_ context.Context, key string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			delete(b.cached, key)
		},
		InitializeFunc: func(context.Context, *logical.InitializationRequest) error {
			b.secondary = b.System().ReplicationState().HasState(consts.ReplicationPerformanceSecondary)
			return nil
		},
		PeriodicFunc: func(ctx context.Context, req *logical.Request) error {
			return put(ctx, req.Storage, "periodic", "done")
		},
	}
	return b
}

// HandleRequest implements logical.Backend. With the argument "odd-help" what the plugin says about itself is nothing that can be used.
func (b *backend) HandleRequest(ctx context.Context, req *logical.Request) (*logical.Response, error) {
	if req.Operation != logical.HelpOperation || !slices.Contains(os.Args, "odd-help") {
		return b.Backend.HandleRequest(ctx, req)
	}
	switch req.Path {
	case "hang":
		time.Sleep(time.Hour)
	case "crash":
		os.Exit(7)
	case "large":
		return logical.HelpResponse(strings.Repeat("x", 8<<20), nil, nil), nil
	case "number":
		return &logical.Response{Data: map[string]any{"help": 5}}, nil
	case "nothing":
		return nil, nil
	}
	return logical.HelpResponse("odd", nil, map[string]any{"paths": map[string]any{"/../sys/seal": map[string]any{"post": map[string]any{}}, "/fine": 5}}), nil
}

func put(ctx context.Context, s logical.Storage, key, value string) error {
	return s.Put(ctx, &logical.StorageEntry{Key: key, Value: []byte(value)})
}

func (b *backend) read(ctx context.Context, req *logical.Request, _ *framework.FieldData) (*logical.Response, error) {
	e, err := req.Storage.Get(ctx, req.Path)
	if err != nil || e == nil {
		return nil, err
	}
	return &logical.Response{Data: map[string]any{"value": string(e.Value)}}, nil
}

// readCached reads what is below data/, once.
func (b *backend) readCached(ctx context.Context, req *logical.Request, d *framework.FieldData) (*logical.Response, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := "data/" + d.Get("path").(string)
	if _, ok := b.cached[key]; !ok {
		e, err := req.Storage.Get(ctx, key)
		if err != nil || e == nil {
			return nil, err
		}
		b.cached[key] = string(e.Value)
	}
	return &logical.Response{Data: map[string]any{"value": b.cached[key]}}, nil
}

func (b *backend) write(ctx context.Context, req *logical.Request, d *framework.FieldData) (*logical.Response, error) {
	if d.Get("value") == "" {
		return logical.ErrorResponse("a value is needed"), nil
	}
	return &logical.Response{Data: map[string]any{"operation": string(req.Operation)}}, put(ctx, req.Storage, req.Path, d.Get("value").(string))
}

func (b *backend) remove(ctx context.Context, req *logical.Request, _ *framework.FieldData) (*logical.Response, error) {
	return nil, req.Storage.Delete(ctx, req.Path)
}

func (b *backend) list(ctx context.Context, req *logical.Request, _ *framework.FieldData) (*logical.Response, error) {
	names, err := req.Storage.List(ctx, req.Path)
	return logical.ListResponse(names), err
}

func (b *backend) say(_ context.Context, req *logical.Request, _ *framework.FieldData) (*logical.Response, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return nil, err
	}
	return &logical.Response{Data: map[string]any{"path": req.Path, "env": os.Environ(), "uid": os.Getuid(), "gid": os.Getgid(), "groups": groups, "entity": req.EntityID, "headers": req.Headers},
		Headers: map[string][]string{"X-Allowed": {"yes"}, "X-Other": {"no"}, "X-Vault-Index": {"no"}, "Set-Cookie": {"no=no"}}}, nil
}

// creds hands out a lease. What was not revoked is listed below things/.
func (b *backend) creds(ctx context.Context, req *logical.Request, d *framework.FieldData) (*logical.Response, error) {
	id := req.ID
	if err := put(ctx, req.Storage, "data/things/"+id, "out"); err != nil {
		return nil, err
	}
	resp := b.Secret("thing").Response(map[string]any{"id": id}, map[string]any{"id": id})
	resp.Secret.TTL, resp.Secret.MaxTTL = time.Hour, 3*time.Hour
	resp.Secret.Renewable = true
	return resp, nil
}

func (b *backend) revoke(ctx context.Context, req *logical.Request, _ *framework.FieldData) (*logical.Response, error) {
	return nil, req.Storage.Delete(ctx, "data/things/"+req.Secret.InternalData["id"].(string))
}

func (b *backend) login(_ context.Context, _ *logical.Request, d *framework.FieldData) (*logical.Response, error) {
	user := d.Get("user").(string)
	if user == "" || user == "nobody" {
		return nil, logical.ErrPermissionDenied
	}
	return loggedIn(user), nil
}

func loggedIn(user string) *logical.Response {
	return &logical.Response{Auth: &logical.Auth{
		DisplayName: user, Policies: []string{"tester"}, Metadata: map[string]string{"user": user},
		InternalData: map[string]any{"user": user}, Alias: &logical.Alias{Name: user},
		GroupAliases: []*logical.Alias{{Name: "team"}},
		LeaseOptions: logical.LeaseOptions{TTL: time.Hour, Renewable: true},
	}}
}

// authURL sends a browser to a provider that is not there.
func (b *backend) authURL(_ context.Context, _ *logical.Request, d *framework.FieldData) (*logical.Response, error) {
	return &logical.Response{Data: map[string]any{"auth_url": "http://127.0.0.1:1/auth?" + url.Values{"redirect_uri": {d.Get("redirect_uri").(string)}}.Encode()}}, nil
}

// callbackPost takes a provider's form.
func (b *backend) callbackPost(_ context.Context, _ *logical.Request, d *framework.FieldData) (*logical.Response, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.posted[d.Get("state").(string)] = d.Get("code").(string)
	status := 200
	if d.Get("id_token") != "" { // real ones return this after they have taken the form of a command line, to which no page leads
		status = 400
	}
	return &logical.Response{Data: map[string]any{
		logical.HTTPContentType: "text/html", logical.HTTPStatusCode: status, logical.HTTPRawBody: []byte("<p>go on"),
	}}, nil
}

// callback logs in who has the code that came with a form.
func (b *backend) callback(_ context.Context, _ *logical.Request, d *framework.FieldData) (*logical.Response, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	user := b.posted[d.Get("state").(string)]
	if user == "" {
		return nil, logical.ErrPermissionDenied
	}
	return loggedIn(user), nil
}

// system tells what the plugin is told.
func (b *backend) system(ctx context.Context, req *logical.Request, _ *framework.FieldData) (*logical.Response, error) {
	s := b.System()
	out := map[string]any{"default_ttl": s.DefaultLeaseTTL().String(), "max_ttl": s.MaxLeaseTTL().String(), "local": s.LocalMount(), "secondary": b.secondary}
	if req.EntityID != "" {
		e, err := s.EntityInfo(req.EntityID)
		if err != nil {
			return nil, err
		}
		out["entity"] = e.GetName()
		groups, err := s.GroupsForEntity(req.EntityID)
		if err != nil {
			return nil, err
		}
		for _, g := range groups {
			out["group"] = g.GetName()
		}
	}
	password, err := s.GeneratePasswordFromPolicy(ctx, "short")
	if err != nil {
		out["password_error"] = err.Error()
	}
	out["password"] = password
	return &logical.Response{Data: out}, nil
}

// transfer writes two entries in one transaction, and fails half-way if it is asked to.
func (b *backend) transfer(ctx context.Context, req *logical.Request, d *framework.FieldData) (*logical.Response, error) {
	value := d.Get("value").(string)
	err := logical.WithTransaction(ctx, req.Storage, func(s logical.Storage) error {
		if err := put(ctx, s, "data/one", value); err != nil {
			return err
		}
		if value == "fail" {
			return errors.New("it fails half-way")
		}
		return put(ctx, s, "data/two", value)
	})
	return nil, err
}

// misbehave does what a plugin must not.
func (b *backend) misbehave(ctx context.Context, req *logical.Request, d *framework.FieldData) (*logical.Response, error) {
	switch d.Get("path").(string) {
	case "crash":
		os.Exit(7)
	case "hang":
		<-ctx.Done()
		time.Sleep(time.Hour)
	case "large":
		return &logical.Response{Data: map[string]any{"x": strings.Repeat("x", 64<<20)}}, nil
	case "memory":
		var all [][]byte
		for range 4 << 10 {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			all = append(all, b)
		}
		return &logical.Response{Data: map[string]any{"bytes": len(all) << 20}}, nil
	case "log":
		line := strings.Repeat("flood ", 1000)
		for range 20_000 {
			b.Logger().Info(line, "secret", "hush-hush")
		}
	case "child":
		c := exec.Command("/bin/sleep", "3600")
		if err := c.Start(); err != nil {
			return nil, err
		}
		apart := exec.Command("/bin/sleep", "3600") // in a session of its own
		apart.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return nil, apart.Start()
	case "odd-log": // entries that are none
		for _, line := range []string{`{"@message":1,"@level":[],"@timestamp":{}}`, `{"@message":null}`, `[]`, `{`, strings.Repeat("x", 1<<20), "\x00\xff"} {
			fmt.Fprintln(stderr, line)
		}
	case "orphan": // what it leaves behind has its pipes
		c := exec.Command("/bin/sleep", "60")
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		c.Stdout, c.Stderr = stdout, stderr
		if err := c.Start(); err != nil {
			return nil, err
		}
		os.Exit(7)
	case "put":
		return nil, put(ctx, req.Storage, "data/large", strings.Repeat("x", 64<<20))
	case "escape":
		for _, key := range []string{"/x", "", "a/../../sys/x"} {
			if err := put(ctx, req.Storage, key, "x"); err != nil {
				return nil, err
			}
		}
	case "descriptors":
		entries, err := os.ReadDir("/proc/self/fd")
		var open []string
		for _, e := range entries {
			to, _ := os.Readlink("/proc/self/fd/" + e.Name())
			open = append(open, e.Name()+" "+to)
		}
		return &logical.Response{Data: map[string]any{"open": open}}, err
	}
	return nil, nil
}
