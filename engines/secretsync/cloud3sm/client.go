package cloud3sm

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	secretmanager "cloud.google.com/go/secretmanager/apiv1"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/access"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	serviceAddress = "secretmanager.googleapis.com:443"
	callTimeout    = 30 * time.Second // of a call without a deadline
	maxMessage     = 32 << 20         // a page of the list
)

// dest is a destination.Destination: one project. Safe for concurrent use.
type dest struct {
	project     string
	replication replication
	tokens      *access.Tokens
	conn        *grpc.ClientConn
	api         *secretmanager.Client
	dialled     *dialler
	made        sync.Map // name to destination.Held: the newest versions that this process has made

	mu     sync.Mutex
	users  int
	closed bool
}

func open(c *Config, env destination.Env) (*dest, error) {
	source, project, err := c.source(env)
	if err != nil {
		return nil, err
	}
	p := &dest{project: c.ProjectID, replication: c.replication(), dialled: &dialler{dial: env.Dial}}
	if p.project == "" {
		p.project = project
	}
	client := env.Client
	if client == nil {
		client = http.DefaultClient
	}
	p.tokens = access.New(client, source)
	if p.conn, err = p.dialled.connect(env); err != nil {
		return nil, err
	}
	// The library's own log, which the environment could turn on, has the values in it.
	p.api, err = secretmanager.NewClient(context.Background(), option.WithGRPCConn(p.conn), option.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, errors.Join(misconfigured("the client of Secret Manager cannot be made"), p.conn.Close())
	}
	p.api.CallOptions = new(secretmanager.CallOptions) // it repeats nothing, and sets no time of its own
	return p, nil
}

// Close implements destination.Destination. What is under way ends first: the last call closes the connection.
func (p *dest) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.tokens.Close()
	if p.users > 0 {
		return nil
	}
	return p.api.Close()
}

// enter says that the connection is used until leave is called.
func (p *dest) enter() (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.users--; p.users == 0 && p.closed {
			_ = p.api.Close() // nothing is lost with it
		}
	}
}

// source returns who calls, and its project if that is known: of the configuration, or what the operator's environment names.
func (c *Config) source(env destination.Env) (s access.Source, project string, err error) {
	if c.IdentityAudience != "" {
		return &access.Federated{
			Provider: c.IdentityAudience.Reveal(), Email: c.ServiceAccount, URL: env.TokenURL,
			Subject: func(ctx context.Context) (string, error) { return env.Identity(ctx, c.IdentityAudience, c.IdentityTTL) },
		}, "", nil
	}
	text := c.Credentials.Reveal()
	if text == "" {
		const variable = "GOOGLE_APPLICATION_CREDENTIALS"
		var file string
		if env.Getenv != nil {
			file = env.Getenv(variable)
		}
		if file == "" {
			return nil, "", misconfigured(`field "credentials": must be given, the server's ` + variable + ` names no file`)
		}
		raw, err := readFile(file)
		if err != nil {
			return nil, "", misconfigured("the file that the server's " + variable + " names cannot be read")
		}
		text = strings.TrimSpace(string(raw))
		if f, problem := access.ParseExternal(text, readFile); f != nil || problem != "" {
			if problem != "" {
				return nil, "", misconfigured("the file that the server's " + variable + " names: " + problem)
			}
			f.URL = env.TokenURL
			return f, "", nil
		}
	}
	a, problems := access.Parse(text)
	if len(problems) > 0 {
		return nil, "", misconfigured("the credentials: " + strings.Join(problems, "; "))
	}
	return &access.ServiceAccount{Account: a, URL: env.TokenURL}, a.Project, nil
}

const maxFile = 64 << 10

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name) // #nosec G304 -- the operator names it
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
}

func misconfigured(text string) *destination.Error {
	return &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: text}
}

// dialler connects, and remembers why it could not, which the library would turn into a text.
type dialler struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	last atomic.Pointer[error]
}

func (d *dialler) connect(env destination.Env) (*grpc.ClientConn, error) {
	address, transport := serviceAddress, credentials.NewTLS(trust(env.TLS))
	if env.URL != "" {
		u, err := url.Parse(env.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			return nil, misconfigured("the address that the server's configuration gives for Secret Manager must be https://host:port")
		}
		port := u.Port()
		if u.Scheme == "http" {
			transport = insecure.NewCredentials()
		}
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
		}
		address = net.JoinHostPort(u.Hostname(), port)
	}
	// "passthrough" leaves names to the dialler, which decides what they may be.
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(transport),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return d.open(ctx, address) }),
		grpc.WithStatsHandler(watcher{}),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		// A connection whose far end has vanished is given up, and not used for as long as the system goes on trying: while a
		// call waits for so long, a keepalive is sent.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
		// The breaker above says how long a destination is left alone; what was broken must not stay so here for minutes.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
			MinConnectTimeout: 10 * time.Second,
		}),
	)
	if err != nil {
		return nil, misconfigured("the address of Secret Manager is not one")
	}
	return conn, nil
}

func trust(c *tls.Config) *tls.Config {
	if c == nil {
		return &tls.Config{MinVersion: tls.VersionTLS12}
	}
	c = c.Clone()
	c.NextProtos, c.ServerName = nil, "" // gRPC has its own
	return c
}

func (d *dialler) open(ctx context.Context, address string) (net.Conn, error) {
	dial := d.dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		d.last.Store(&err)
		return nil, err
	}
	d.last.Store(nil)
	return conn, nil
}

// trace is how far a call came.
type trace struct {
	sent     atomic.Bool // the request, so that it may have been carried out
	answered atomic.Bool // by the service itself
}

type traceKey struct{}

// watcher keeps the trace in a call's context.
type watcher struct{}

func (watcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (watcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (watcher) HandleConn(context.Context, stats.ConnStats)                       {}

func (watcher) HandleRPC(ctx context.Context, event stats.RPCStats) {
	t, ok := ctx.Value(traceKey{}).(*trace)
	if !ok {
		return
	}
	switch event.(type) {
	case *stats.OutPayload:
		t.sent.Store(true)
	case *stats.InHeader, *stats.InTrailer:
		t.answered.Store(true)
	}
}

// op is a kind of call.
type op struct {
	name   string // as permissions are named
	writes bool   // it is part of a change: where its outcome is not known, the change may have been made
	value  bool   // the request holds a value, and so the response's text might
}

func (o op) change() op { o.writes = true; return o }

// call makes one call, with a token and a deadline, and turns its error into an *Error.
func call[R any](ctx context.Context, p *dest, o op, do func(context.Context) (R, error)) (R, error) {
	var none R
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	token, fresh, err := p.tokens.Get(ctx)
	if err != nil {
		return none, err
	}
	t := new(trace)
	ctx = context.WithValue(ctx, traceKey{}, t)
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	r, err := do(ctx)
	if err == nil {
		return r, nil
	}
	// The service may notice the end of the time a moment before the context does.
	if end, _ := ctx.Deadline(); status.Code(err) == codes.DeadlineExceeded && !time.Now().Before(end) {
		<-ctx.Done()
	}
	f := failure{op: o, err: err, sent: t.sent.Load(), answered: t.answered.Load(), token: token, dial: p.dialled.last.Load()}
	if f.answered && f.code() == codes.Unauthenticated {
		p.tokens.Drop(token)
		f.stale = !fresh
	}
	return none, f.explain(ctx)
}
