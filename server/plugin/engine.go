package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/openbao/openbao/sdk/v2/plugin/pb"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input/jsontext"
	"github.com/coffer-project/coffer/server/plugin/backend"
	"github.com/coffer-project/coffer/storage"
)

// Intervals at which an engine is started again after it failed, and at which it does what no request asks for.
const (
	minBackoff       = time.Second
	maxBackoff       = time.Minute
	periodicInterval = time.Minute
)

// maxInvalidations is how many changed keys wait for a plugin before it is told to forget everything.
const maxInvalidations = 1024

// engine is a mount whose engine is a plugin. Its process runs on the active node, from the first request on. It is an engines.Leaser,
// a Renewer, a Worker, an Invalidator and a Leaver.
type engine struct {
	host  *Host
	mount engines.Mount
	ref   Ref

	router *engines.Router
	known  [4]*engines.Router // by class
	closed *engines.Router    // while there is no plugin
	away   *engines.Router    // on other nodes than the active one
	form   formRouters        // at the path where browsers post forms of other sites

	lock    chan struct{} // capacity 1, held while the backend is opened or closed
	open    atomic.Pointer[opened]
	failure error // why it could not be opened
	backoff time.Duration
	retryAt time.Time

	periodic    time.Time // when it was last asked to do what is due; one goroutine
	invalidated chan string
}

// opened is a backend with the process that it is in.
type opened struct {
	*backend.Backend
	process   *shared
	secondary bool // what the plugin was told when it started, and may keep
}

// Classes of paths, by the flags of their routes.
var classes = [4]engines.Flags{0, engines.Unauthenticated, engines.Sudo, engines.Unauthenticated | engines.Sudo}

func newEngine(h *Host, m engines.Mount, ref Ref) *engine {
	e := &engine{host: h, mount: m, ref: ref, lock: make(chan struct{}, 1), invalidated: make(chan string, maxInvalidations)}
	for i, flags := range classes {
		e.known[i] = e.routes(flags, e.handle, e.exists)
	}
	e.closed = e.routes(engines.Unauthenticated, e.explain, nil) // the handler does nothing but say why
	e.away = e.routes(0, e.explain, nil)
	const posted = engines.Unauthenticated | engines.Form | engines.ForeignForm
	e.form = formRouters{known: e.routes(posted, e.posted, nil), explained: e.routes(posted, e.explain, nil)}
	e.router = engines.NewRouter()
	e.router.Delegate = e.delegate
	return e
}

// input takes everything: what it is only the plugin knows.
type input struct {
	Path string         `json:"path" help:"Path below the mount."`
	Data engines.Object `json:"data" body:"true" help:"What the plugin takes."`
}

type readInput struct {
	Path string `json:"path" help:"Path below the mount."`
}

func (e *engine) routes(flags engines.Flags, handle func(context.Context, *engines.Request) (*engines.Response, error),
	exists func(context.Context, *engines.Request) (bool, error),
) *engines.Router {
	flags |= engines.Active | engines.FreeForm | engines.TellsCreate
	r := engines.NewRouter()
	read := func(ctx context.Context, req *engines.Request, _ *readInput) (*engines.Response, error) {
		return handle(ctx, req)
	}
	write := func(ctx context.Context, req *engines.Request, _ *input) (*engines.Response, error) {
		return handle(ctx, req)
	}
	engines.On(r, engines.Read, "{path...?}", "Read, as the plugin understands it.", flags, read)
	engines.On(r, engines.List, "{path...?}", "List, as the plugin understands it.", flags, read)
	engines.On(r, engines.Delete, "{path...?}", "Delete, as the plugin understands it.", flags, read)
	engines.On(r, engines.Update, "{path...?}", "Write, as the plugin understands it.", flags, write).Exists = exists
	engines.On(r, engines.Patch, "{path...?}", "Change, as the plugin understands it.", flags, write)
	return r
}

// Router implements engines.Engine.
func (e *engine) Router() *engines.Router { return e.router }

// formRouters are the routes of a form's path: while the plugin runs, and while it does not run or is on another node.
type formRouters struct{ known, explained *engines.Router }

// formPaths are where identity providers have browsers post to, by plugin (oidc_response_mode=form_post).
var formPaths = map[Ref]string{{Auth: true, Name: "jwt"}: "oidc/callback", {Auth: true, Name: "oidc"}: "oidc/callback"}

// posted handles what an identity provider has a browser post. The plugin keeps it, and the browser goes on to the web UI, which asks for the
// token: the plugin's own page expects another UI. Without a UI, or for clients that are no browsers and send no Origin, the plugin answers.
func (e *engine) posted(ctx context.Context, req *engines.Request) (*engines.Response, error) {
	resp, err := e.handle(ctx, req)
	var form struct {
		State       string `json:"state"`
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	kind, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil || !e.host.opts.UI || req.Header.Get("Origin") == "" || kind != "application/x-www-form-urlencoded" || json.Unmarshal(req.Body, &form) != nil || form.State == "" {
		return resp, err
	}
	query := url.Values{"state": {form.State}}
	if form.Error != "" {
		query.Set("error", form.Error)
		query.Set("error_description", form.Description)
	}
	to := url.URL{Path: "/ui/vault/" + e.mount.Path + "oidc/callback", RawQuery: query.Encode()}
	return &engines.Response{Status: http.StatusSeeOther, Raw: &engines.Raw{Header: http.Header{"Location": {to.String()}}}}, nil
}

// delegate returns the routes of a path.
func (e *engine) delegate(path string) *engines.Router {
	form := path != "" && path == formPaths[Ref{Auth: e.ref.Auth, Name: e.ref.Name}]
	if !e.host.active() {
		if form {
			return e.form.explained
		}
		return e.away
	}
	b := e.open.Load()
	if b == nil || !b.Alive() {
		ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
		defer cancel()
		var err error
		if b, err = e.backend(ctx); err != nil {
			if form {
				return e.form.explained
			}
			return e.closed
		}
	}
	class := 0
	if fits(b.Unauthenticated, path) {
		class |= 1
	}
	if fits(b.Sudo, path) {
		class |= 2
	}
	if form && class == 1 {
		return e.form.known
	}
	return e.known[class]
}

// fits reports whether a path is one of those that a plugin calls special.
func fits(patterns []string, path string) bool {
	for _, pattern := range patterns {
		if fit(strings.TrimPrefix(pattern, "/"), path) {
			return true
		}
	}
	return false
}

func fit(pattern, path string) bool {
	pattern, prefix := strings.CutSuffix(pattern, "*")
	if !strings.Contains(pattern, "+") {
		return path == pattern || prefix && strings.HasPrefix(path, pattern)
	}
	want, got := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(got) < len(want) || !prefix && len(got) != len(want) {
		return false
	}
	for i, segment := range want {
		last := prefix && i == len(want)-1
		if segment != "+" && segment != got[i] && !(last && strings.HasPrefix(got[i], segment)) {
			return false
		}
	}
	return true
}

// explain is the response while there is no plugin.
func (e *engine) explain(ctx context.Context, _ *engines.Request) (*engines.Response, error) {
	if _, err := e.backend(ctx); err != nil {
		return nil, err
	}
	return nil, &engines.Error{Kind: engines.KindUnavailable, Detail: "the plugin has just been started: try again"}
}

// backend returns the mount in its process, which it starts if need be.
func (e *engine) backend(ctx context.Context) (*opened, error) {
	if b := e.open.Load(); b != nil && b.Alive() {
		return b, nil
	}
	select {
	case e.lock <- struct{}{}:
		defer func() { <-e.lock }()
	case <-ctx.Done():
		return nil, &engines.Error{Kind: engines.KindUnavailable, Detail: "the plugin is being started: try again"}
	}
	if b := e.open.Load(); b != nil {
		if b.Alive() {
			return b, nil
		}
		e.close(b)
	}
	if time.Now().Before(e.retryAt) {
		return nil, e.failure
	}
	b, err := e.start(ctx)
	if err != nil {
		e.host.numbers.add(e.ref, func(c *counts) { c.failures++ })
		e.backoff = min(max(minBackoff, 2*e.backoff), maxBackoff)
		e.retryAt = time.Now().Add(e.backoff)
		e.failure = &engines.Error{
			Kind: engines.KindUnavailable, Err: err,
			Detail: "the plugin of this mount does not run, the log of the server says why; next attempt at " + e.retryAt.UTC().Format(time.TimeOnly) + " UTC",
		}
		e.host.log.Error("a plugin cannot be started", "mount", e.mount.Namespace+e.mount.Path, "plugin", e.ref.String(), "retry_in", e.backoff, "err", err)
		return nil, e.failure
	}
	e.backoff, e.retryAt = 0, time.Time{}
	e.open.Store(b)
	return b, nil
}

func (e *engine) start(ctx context.Context) (*opened, error) {
	secondary := e.host.secondary()
	p, err := e.host.process(ctx, e.ref)
	if err != nil {
		return nil, err
	}
	b, err := backend.Open(ctx, p.Process, backend.Setup{
		UUID: e.mount.UUID, Options: e.mount.Options, Storage: e.mount.Storage, System: e.host.system(e.mount), Version: e.host.opts.Version,
	})
	if err != nil {
		e.host.release(p)
		return nil, err
	}
	o := &opened{b, p, secondary}
	if want := map[bool]int{true: backend.Auth, false: backend.Secret}[e.ref.Auth]; b.Type != want {
		e.close(o)
		return nil, errors.New("the plugin is of the other kind: secrets engines are enabled at sys/mounts, auth methods at sys/auth")
	}
	if err := b.Initialize(ctx); err != nil && !errors.Is(err, storage.ErrPrimaryOnly) { // a secondary has what the primary has initialised
		e.close(o)
		return nil, err
	}
	return o, nil
}

// Running returns the version and the SHA-256 of the program that runs for the mount, or would run if a request came.
func (e *engine) Running() (version, sha256 string) {
	if b := e.open.Load(); b != nil {
		return b.process.plugin.Version, b.process.plugin.SHA256
	}
	p, err := e.host.Find(context.Background(), e.ref)
	if err != nil {
		return "", ""
	}
	return p.Version, p.SHA256
}

// close ends the mount's part in the process.
func (e *engine) close(b *opened) {
	e.open.CompareAndSwap(b, nil)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	b.Close(ctx)
	e.host.release(b.process)
}

// closeTimeout is how long a plugin has to clean up.
const closeTimeout = 5 * time.Second

// stop closes the backend, if it is open.
func (e *engine) stop() {
	e.lock <- struct{}{}
	defer func() { <-e.lock }()
	if b := e.open.Load(); b != nil {
		e.close(b)
	}
	e.backoff, e.retryAt = 0, time.Time{}
}

// request translates a request.
func (e *engine) request(ctx context.Context, req *engines.Request) (*pb.Request, error) {
	data := string(req.Body)
	if req.Op == engines.Read || req.Op.Lists() || req.Op == engines.Delete {
		fields := map[string]any{}
		for name, values := range req.Query {
			if name == "list" || name == "scan" || name == "help" { // they have become the operation
				continue
			}
			if fields[name] = any(values); len(values) == 1 {
				fields[name] = values[0]
			}
		}
		text, err := json.Marshal(fields)
		if err != nil {
			return nil, err
		}
		data = string(text)
	}
	out := &pb.Request{
		ID: req.ID, Operation: string(req.Op), Path: req.Path, Data: data,
		ClientToken: e.borrower(req.Caller.Accessor), ClientTokenAccessor: req.Caller.Accessor, DisplayName: req.Caller.DisplayName, EntityID: req.Caller.EntityID,
		MountPoint: e.mount.Path, MountType: e.mount.Type, MountAccessor: e.mount.Accessor,
		Unauthenticated: req.Caller.Accessor == "",
		Headers:         requestHeaders(req.Header, e.mount.RequestHeaders),
		Connection:      connection(ctx, req.RemoteIP.String()),
	}
	if req.WrapTTL > 0 {
		out.WrapInfo = &pb.RequestWrapInfo{TTL: int64(req.WrapTTL)}
	}
	return out, nil
}

// connection is what a plugin learns of the client: its address, and the certificates that it has shown in its TLS handshake, in the
// fields of both families' plugins. nil: neither is known.
func connection(ctx context.Context, addr string) *pb.Connection {
	shown := engines.CertificatesOf(ctx)
	if addr == "" && shown == nil {
		return nil
	}
	out := &pb.Connection{RemoteAddr: addr}
	if shown != nil {
		out.ConnectionState = &pb.ConnectionState{HandshakeComplete: true, PeerCertificates: &pb.CertificateChain{}}
	}
	for _, c := range shown {
		out.PeerCertificatesRaw = append(out.PeerCertificatesRaw, c.Raw)
		out.ConnectionState.PeerCertificates.Certificates = append(out.ConnectionState.PeerCertificates.Certificates, &pb.Certificate{Asn1Data: c.Raw})
	}
	return out
}

// borrower is what a plugin knows a token by, to tell whether two requests are of the same one; it is no token. "": there is none.
func (e *engine) borrower(accessor string) string {
	if accessor == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(e.mount.UUID + "\x00" + accessor))
	return hex.EncodeToString(sum[:])
}

func (e *engine) exists(ctx context.Context, req *engines.Request) (bool, error) {
	if _, err := jsontext.Scan(req.Body); err != nil && len(req.Body) > 0 {
		return true, nil //nolint:nilerr // the route rejects the body
	}
	b, err := e.backend(ctx)
	if err != nil {
		return false, err
	}
	out, err := e.request(ctx, req)
	if err != nil {
		return false, err
	}
	return b.Exists(ctx, out)
}

func (e *engine) handle(ctx context.Context, req *engines.Request) (*engines.Response, error) {
	b, err := e.backend(ctx)
	if err != nil {
		return nil, err
	}
	out, err := e.request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp, err := e.send(ctx, b, out)
	if err != nil {
		return nil, err
	}
	return e.response(req, resp)
}

// Work implements engines.Worker: what the plugin does by its clock.
func (e *engine) Work(ctx context.Context, _ engines.Mount, _ bool) error {
	if time.Since(e.periodic) < periodicInterval {
		return nil
	}
	e.periodic = time.Now()
	b, err := e.backend(ctx)
	if err != nil {
		return nil // it is in the log
	}
	_, err = e.send(ctx, b, &pb.Request{
		Operation: "rollback", MountPoint: e.mount.Path, MountType: e.mount.Type, MountAccessor: e.mount.Accessor,
		Data: `{"immediate":false}`,
	})
	if failed, ok := errors.AsType[*engines.Error](err); ok && failed.Kind == engines.KindUnsupported {
		return nil
	}
	return err
}

// Changed implements engines.Invalidator: a plugin on a secondary learns what the primary has written.
func (e *engine) Changed(_ storage.Class, keys []storage.Key, reset bool) {
	if e.open.Load() == nil {
		return
	}
	if reset {
		go e.stop()
		return
	}
	if e.mount.Local || !e.host.secondary() {
		return // what it has written itself
	}
	for _, key := range keys {
		select {
		case e.invalidated <- string(key):
		default:
			go e.stop()
			return
		}
	}
	go e.invalidate()
}

// invalidate passes on the keys that wait.
func (e *engine) invalidate() {
	for {
		select {
		case key := <-e.invalidated:
			if b := e.open.Load(); b != nil {
				b.Invalidate(context.Background(), key)
			}
		default:
			return
		}
	}
}

// Leave implements engines.Leaver.
func (e *engine) Leave(context.Context, engines.Mount) error {
	e.stop()
	e.host.forget(e)
	return nil
}

// Initialize implements engines.Initializer: a mount whose plugin does not start is not enabled. The process is for the engine that
// the mount gets then.
func (e *engine) Initialize(ctx context.Context, _ engines.Mount) error {
	_, err := e.backend(ctx)
	if failed, ok := errors.AsType[*engines.Error](err); ok && failed.Err != nil {
		return engines.Invalid("the plugin does not start: %v", failed.Err)
	}
	e.stop()
	return err
}
