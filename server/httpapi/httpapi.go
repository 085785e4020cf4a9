// Package httpapi is the HTTP edge: it turns HTTP requests into server.Requests, decides whether they run
// here or on the active node, and writes answers and errors in the family's envelope. It knows nothing of
// engines, tokens or Raft. Start reading at ServeHTTP, then serve.
package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server"
	"github.com/coffer-project/coffer/storage"
	"github.com/google/uuid"
	"github.com/gorilla/mux"
)

// Backend is the server behind the edge.
type Backend interface {
	// Place says where the request must run.
	Place(ctx context.Context, req *server.Request) (server.Place, error)
	Handle(ctx context.Context, req *server.Request) (*server.Reply, error)
	// WantsRawBody reports whether the request's route takes its body as a stream.
	WantsRawBody(ctx context.Context, req *server.Request) bool
	// Active reports whether this node is the active one.
	Active() bool
	// AwaitActive waits, for a moment, until a node that has become the leader serves as the active one, and
	// reports whether it does.
	AwaitActive(ctx context.Context) bool
	// Forward relays the request to the active node.
	Forward(w http.ResponseWriter, r *http.Request) error
	// ActiveAddr returns the active node's API address, "" if there is none.
	ActiveAddr() string
	// State returns the consistency token of the state on this node, "" if there is none.
	State() string
	// AwaitState waits until this node has the state that the token stands for, at most as long as ctx.
	AwaitState(ctx context.Context, token string) error
	NodeID() string
	Sealed() bool
}

// Options of an API. Backend is required.
type Options struct {
	Backend Backend
	Logger  *slog.Logger
	// UI serves below /ui/; nil: there is none.
	UI http.Handler
	// MaxBodyBytes limits request bodies; 0 means 32 MiB.
	MaxBodyBytes int64
	// Timeout limits a request, from its header to the beginning of its answer; 0 means 90 s. Routes that take
	// their body as a stream are not limited.
	Timeout time.Duration
	// Observe is called after each request.
	Observe func(op engines.Operation, mountType string, status int, took time.Duration)
	Version string
}

// API is an http.Handler.
type API struct {
	opts   Options
	log    *slog.Logger
	router *mux.Router
}

// New returns the API.
func New(o Options) *API {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxBodyBytes == 0 {
		o.MaxBodyBytes = 32 << 20
	}
	if o.Timeout == 0 {
		o.Timeout = 90 * time.Second
	}
	if o.Observe == nil {
		o.Observe = func(engines.Operation, string, int, time.Duration) {}
	}
	uuid.EnableRandPool()
	a := &API{opts: o, log: o.Logger}
	// SkipClean: a cleaned path would be answered with a redirect that turns a POST into a GET.
	a.router = mux.NewRouter().SkipClean(true).UseEncodedPath()
	a.router.PathPrefix("/v1/").Handler(a.handler("/v1/", false))
	if o.UI != nil {
		a.router.PathPrefix("/ui/").Handler(o.UI)
		a.router.Path("/ui").Handler(http.RedirectHandler("/ui/", http.StatusTemporaryRedirect))
		a.router.Path("/").Methods(http.MethodGet, http.MethodHead).Handler(http.RedirectHandler("/ui/", http.StatusTemporaryRedirect))
	}
	a.router.PathPrefix("/").Handler(a.handler("/", false))
	return a
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.router.ServeHTTP(w, r) }

// Forwarded returns the handler for requests that another node forwarded to this one: they run here or fail,
// and never travel on.
func (a *API) Forwarded() http.Handler {
	v1, bare := a.handler("/v1/", true), a.handler("/", true)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			v1.ServeHTTP(w, r)
			return
		}
		bare.ServeHTTP(w, r)
	})
}

func (a *API) handler(prefix string, forwarded bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		x := &exchange{api: a, w: w, r: r, forwarded: forwarded}
		x.req.ID = uuid.NewString()
		defer x.recovered()
		h := w.Header()
		h["Cache-Control"] = noStore
		if err := x.decode(prefix); err != nil {
			x.fail(err)
		} else {
			x.serve()
		}
		a.opts.Observe(x.req.Op, x.mountType, x.status, time.Since(start))
	})
}

// recovered answers a request that hit a bug. One broken request must not end the others.
func (x *exchange) recovered() {
	switch p := recover(); p {
	case nil:
	case http.ErrAbortHandler:
		panic(p) // breaking the connection is what was asked for
	default:
		x.api.log.Error("a request panicked", "request_id", x.req.ID, "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
		if x.status == 0 {
			x.fail(errPanic)
		}
	}
}

var errPanic = errors.New("panic")

var (
	noStore  = []string{"no-store"}
	jsonType = []string{"application/json"}
)

// exchange is one request and its answer.
type exchange struct {
	api       *API
	w         http.ResponseWriter
	r         *http.Request
	req       server.Request
	forwarded bool
	mountType string
	status    int
	only      bool // the request is about this node: no other may answer it
	bodyRead  bool // x.req.Body is the whole body
	again     bool // forwarding led back here
}

// decode fills the request from everything but the body.
func (x *exchange) decode(prefix string) error {
	r := x.r
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return engines.Invalid("the query string is malformed")
	}
	x.req.Query, x.req.Header = q, r.Header
	x.req.Token = engines.Sensitive(bearer(r.Header))
	x.req.Namespace = strings.Trim(r.Header.Get("X-Vault-Namespace"), "/")
	x.req.Remote, _ = netip.ParseAddrPort(r.RemoteAddr)
	if x.req.Help, err = boolQuery(q, "help"); err != nil {
		return err
	}
	if x.req.Op, err = operation(r.Method, q); err != nil {
		return err
	}
	x.req.Path = strings.TrimPrefix(r.URL.Path, prefix)
	if err := checkPath(x.req.Path); err != nil {
		return err
	}
	return x.lastSlash()
}

// lastSlash makes the end of the path the same for everybody behind: only LIST paths end in a slash. Engines
// that do not mind one would else see the same object behind two paths, of which a policy names one.
func (x *exchange) lastSlash() error {
	slash := strings.HasSuffix(x.req.Path, "/")
	switch x.req.Op {
	case engines.List:
		if !slash {
			x.req.Path += "/"
		}
	case engines.Update, engines.Patch:
		if slash {
			return engines.Invalid("cannot write to a path ending in '/'")
		}
	default:
		x.req.Path = strings.TrimSuffix(x.req.Path, "/")
	}
	return nil
}

func bearer(h http.Header) string {
	if t := h.Get("X-Vault-Token"); t != "" {
		return t
	}
	if scheme, t, ok := strings.Cut(h.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(t)
	}
	return ""
}

func boolQuery(q url.Values, name string) (bool, error) {
	v := q.Get(name)
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, engines.Invalid("query parameter %q must be true or false", name)
	}
	return b, nil
}

func operation(method string, q url.Values) (engines.Operation, error) {
	switch method {
	case http.MethodGet, http.MethodHead:
		list, err := boolQuery(q, "list")
		if list {
			return engines.List, err
		}
		return engines.Read, err
	case http.MethodPost, http.MethodPut:
		return engines.Update, nil
	case http.MethodDelete:
		return engines.Delete, nil
	case http.MethodPatch:
		return engines.Patch, nil
	case "LIST":
		return engines.List, nil
	}
	return "", &engines.Error{Kind: engines.KindUnsupported, Detail: "unsupported method: use GET, POST, PUT, PATCH, DELETE or LIST"}
}

// maxPathBytes bounds a request path; every storage key derived from one stays below storage.MaxKeyBytes.
const maxPathBytes = 2 << 10

// checkPath refuses what could mean different things to different layers.
func checkPath(path string) error {
	switch {
	case len(path) > maxPathBytes:
		return engines.Invalid("the path is %d bytes long, the limit is %d", len(path), maxPathBytes)
	case !utf8.ValidString(path):
		return engines.Invalid("the path is not valid UTF-8")
	}
	for i := 0; i < len(path); i++ {
		if path[i] < ' ' || path[i] == 0x7f {
			return engines.Invalid("the path contains a control character")
		}
	}
	start := 0
	for i := 0; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			continue
		}
		switch seg := path[start:i]; {
		case seg == "." || seg == "..":
			return engines.Invalid("the path contains a %q segment", seg)
		case seg == "" && i < len(path):
			return engines.Invalid("the path contains an empty segment")
		}
		start = i + 1
	}
	return nil
}

// serve runs the request here or on the active node.
func (x *exchange) serve() {
	backend := x.api.opts.Backend
	ctx, cancel := context.WithTimeout(x.r.Context(), x.api.opts.Timeout)
	defer cancel()
	place, err := backend.Place(ctx, &x.req)
	if err != nil {
		x.fail(err)
		return
	}
	x.only = place == server.Only
	x.req.Current = x.forwarded // somebody took this node for the active one
	switch {
	case x.only || x.forwarded || backend.Active():
		place = server.Here
	case place == server.Here && x.r.Header.Get("X-Vault-Forward") == "active-node" && !backend.Sealed():
		place = server.Active
	}
	if place == server.Active {
		x.forward(x.r)
		return
	}
	if done := x.consistent(ctx); done {
		return
	}
	x.local(ctx)
}

// consistent holds a read back until this node has what the client says it must have seen: the states it
// names in X-Vault-Index, or the newest one, if it asks for a linearizable read or only says that it will
// wait. It reports whether the request has been answered.
func (x *exchange) consistent(ctx context.Context) (answered bool) {
	backend, h := x.api.opts.Backend, x.r.Header
	if backend.Sealed() {
		return false
	}
	states, policy := h.Values("X-Vault-Index"), h.Values("X-Vault-Inconsistent")
	if h.Get("X-Vault-Consistency") == "linearizable" || len(states) == 0 && slices.Contains(policy, "await-state") {
		x.req.Current = true
	}
	if len(states) == 0 {
		return false
	}
	wait, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if len(policy) > 0 && !slices.Contains(policy, "await-state") {
		cancel() // look, but do not wait
	}
	for _, state := range states {
		err := backend.AwaitState(wait, state)
		switch {
		case err == nil:
		case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled):
			x.fail(err)
			return true
		case slices.Contains(policy, "forward-active-node") && !x.forwarded && !x.only && !backend.Active():
			x.forward(x.r)
			return true
		default:
			x.fail(&engines.Error{Kind: engines.KindPrecondition, Detail: "required index state not present"})
			return true
		}
	}
	return false
}

// local runs the request on this node.
func (x *exchange) local(ctx context.Context) {
	backend := x.api.opts.Backend
	if backend.WantsRawBody(ctx, &x.req) {
		x.takeTime()
		x.req.RawBody = x.r.Body
		ctx = context.WithoutCancel(ctx) // no time limit, but the client's disconnection still counts
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(x.r.Context(), cancel)()
	} else if err := x.readBody(); err != nil {
		x.fail(err)
		return
	}
	reply, err := backend.Handle(ctx, &x.req)
	if errors.Is(err, storage.ErrReadOnly) && !x.forwarded && !x.only && !backend.Active() && x.req.RawBody == nil {
		// It turned out to write: the whole request runs again on the active node.
		again := x.r.Clone(x.r.Context())
		again.Body = io.NopCloser(strings.NewReader(string(x.req.Body)))
		again.ContentLength = int64(len(x.req.Body))
		x.forward(again)
		return
	}
	if err != nil {
		x.fail(err)
		return
	}
	x.reply(reply)
}

// trustedBytes is how large a body may claim to be and get its memory at once. A larger one gets it as it comes.
const trustedBytes = 64 << 10

// limitBody gives the client as long to send the body as the request may take. Not every connection can.
func (x *exchange) limitBody() {
	http.NewResponseController(x.w).SetReadDeadline(time.Now().Add(x.api.opts.Timeout))
}

// takeTime lifts the server's limit on how long an answer may take.
func (x *exchange) takeTime() { http.NewResponseController(x.w).SetWriteDeadline(time.Time{}) }

// readBody reads the body whole. The literal null counts as no body.
func (x *exchange) readBody() error {
	if x.bodyRead {
		return nil
	}
	x.bodyRead = true
	if x.r.Body == nil || x.r.Body == http.NoBody {
		return nil
	}
	limit := x.api.opts.MaxBodyBytes
	tooLarge := &engines.Error{Kind: engines.KindTooLarge, Detail: "the request body is larger than " + strconv.FormatInt(limit, 10) + " bytes"}
	if x.r.ContentLength > limit {
		return tooLarge
	}
	x.limitBody()
	var body []byte
	var err error
	if n := x.r.ContentLength; n >= 0 && n <= trustedBytes {
		body = make([]byte, n)
		_, err = io.ReadFull(x.r.Body, body)
	} else {
		body, err = io.ReadAll(http.MaxBytesReader(x.w, x.r.Body, limit))
	}
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return tooLarge
	case err != nil:
		return &engines.Error{Kind: engines.KindInvalid, Detail: "the request body broke off", Err: err}
	}
	http.NewResponseController(x.w).SetReadDeadline(time.Time{})
	if t := strings.TrimSpace(string(body[:min(len(body), 16)])); t == "" && len(body) <= 16 || t == "null" {
		return nil
	}
	x.req.Body = json.RawMessage(body)
	return nil
}

// forward relays to the active node, or says why it cannot.
func (x *exchange) forward(r *http.Request) {
	backend := x.api.opts.Backend
	if r.Header.Get("X-Vault-No-Request-Forwarding") != "" {
		addr := backend.ActiveAddr()
		if addr == "" {
			x.fail(storage.ErrUnavailable)
			return
		}
		x.status = http.StatusTemporaryRedirect
		x.w.Header().Set("Location", addr+r.URL.RequestURI())
		x.w.WriteHeader(x.status)
		return
	}
	raw := backend.WantsRawBody(r.Context(), &x.req)
	if r.ContentLength > x.api.opts.MaxBodyBytes && !raw {
		x.fail(&engines.Error{Kind: engines.KindTooLarge, Detail: "the request body is too large"})
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	sw := &statusWriter{ResponseWriter: x.w, before: func() { x.catchUp(ctx) }}
	x.takeTime() // the answer may be a stream
	if !raw {
		if r.Body != nil && r.Body != http.NoBody && !x.bodyRead {
			x.limitBody()
		}
		late := time.AfterFunc(x.api.opts.Timeout, cancel)
		defer late.Stop()
		sw.before = func() { late.Stop(); x.catchUp(ctx) }
	}
	err := backend.Forward(sw, r.WithContext(ctx))
	x.status = sw.status
	switch {
	case err == nil || sw.status != 0:
	case errors.Is(err, storage.ErrUnavailable) && !x.again && backend.AwaitActive(r.Context()):
		x.again = true // nothing was sent: this node has become the active one
		x.serve()
	default:
		x.fail(err)
	}
}

// catchUp waits until this node has what the active node's answer was made from, so that the client's next
// read here finds what it wrote. A node that lags for longer than two seconds answers all the same: the
// client's X-Vault-Index still tells the difference.
func (x *exchange) catchUp(ctx context.Context) {
	state := x.w.Header().Get("X-Vault-Index")
	if state == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := x.api.opts.Backend.AwaitState(ctx, state); err != nil {
		x.api.log.Warn("answering a forwarded request before this node has its effects", "request_id", x.req.ID, "err", err)
	}
}

// statusWriter remembers the status.
type statusWriter struct {
	http.ResponseWriter
	status int
	before func() // runs once, before the header goes out
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && w.before != nil {
		w.before()
	}
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
