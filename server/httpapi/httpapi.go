// Package httpapi is the HTTP edge: it turns HTTP requests into pipeline.Requests, decides whether they run
// here or on the active node, and writes answers and errors in the family's envelope. It knows nothing of
// engines, tokens or Raft. Start reading at ServeHTTP, then serve.
package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/admission"
	"github.com/coffer-project/coffer/server/pipeline"
	"github.com/coffer-project/coffer/storage"
	"github.com/google/uuid"
	"github.com/gorilla/mux"
)

// Backend is the server behind the edge.
type Backend interface {
	Activity
	Consistency
	NodeID() string
	Sealed() bool
}

// Requests are handled, and say beforehand what the edge has to know of them.
type Requests interface {
	// Place says where the request must run.
	Place(ctx context.Context, req *pipeline.Request) (pipeline.Place, error)
	Handle(ctx context.Context, req *pipeline.Request) (*pipeline.Reply, error)
	// WantsRawBody reports whether the request's route takes its body as a stream.
	WantsRawBody(ctx context.Context, req *pipeline.Request) bool
	// BodyRule returns what the body of the request may be, as far as this node knows.
	BodyRule(ctx context.Context, req *pipeline.Request) pipeline.BodyRule
	// WantsForeignForm reports whether the route takes forms of other sites' pages, or that is not known while sealed.
	WantsForeignForm(ctx context.Context, req *pipeline.Request) bool
}

// Activity tells which node is active, and reaches it.
type Activity interface {
	// Active reports whether this node is the active one.
	Active() bool
	// AwaitActive waits, for a moment, until a node that has become the leader serves as the active one, and
	// reports whether it does.
	AwaitActive(ctx context.Context) bool
	// Forward relays the request to the active node.
	Forward(w http.ResponseWriter, r *http.Request) error
	// ActiveAddr returns the active node's API address, "" if there is none.
	ActiveAddr() string
}

// Consistency is what a node knows of the age of its state.
type Consistency interface {
	// State returns the consistency token of the state on this node as the one value of a header, nil if there is none.
	// The value is shared: nothing may change it.
	State() []string
	// AwaitState waits until this node has the state that the token stands for, at most as long as ctx.
	AwaitState(ctx context.Context, token string) error
	// Behind returns how old the state of this node may be; negative if that is not known.
	Behind() time.Duration
}

// Options of an API. Requests and Backend are required.
type Options struct {
	Requests Requests
	Backend  Backend
	Logger   *slog.Logger
	// UI serves below /ui/; nil: there is none.
	UI http.Handler
	// MaxBodyBytes limits request bodies; 0 means 32 MiB.
	MaxBodyBytes int64
	JSON         JSONBounds
	// Bodies is the memory for request bodies; nil: NewBodies(DefaultBodyMemory), or more for a large MaxBodyBytes.
	Bodies *Bodies
	// Timeout limits a request, from its header to the beginning of its answer; 0 means 90 s. Routes that take
	// their body as a stream are not limited.
	Timeout time.Duration
	// Observe is called after each request.
	Observe func(op, mountType string, status int, took time.Duration)
	Version string
}

// DefaultBodyMemory is the memory for request bodies of a node, in bytes, unless it is configured.
const DefaultBodyMemory = 256 << 20

// Bodies are the budgets of request bodies that are in memory at once.
type Bodies struct {
	Open  *admission.Budget // of routes that need no token
	Token *admission.Budget // of all others, whose bodies are read once the token is known to be valid
}

// NewBodies returns the budgets of a node that spends so many bytes on bodies that come with a token. One client gets
// half of it, and of the eighth of it that is for requests without a token a quarter.
func NewBodies(bytes int64) *Bodies {
	return &Bodies{Open: admission.NewBudget(bytes/8, bytes/32), Token: admission.NewBudget(bytes, bytes/2)}
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
	if o.Bodies == nil {
		o.Bodies = NewBodies(max(DefaultBodyMemory, 4*o.MaxBodyBytes))
	}
	if o.Timeout == 0 {
		o.Timeout = 90 * time.Second
	}
	if o.Observe == nil {
		o.Observe = func(string, string, int, time.Duration) {}
	}
	uuid.EnableRandPool()
	a := &API{opts: o, log: o.Logger}
	// SkipClean: a cleaned path would be answered with a redirect that turns a POST into a GET.
	a.router = mux.NewRouter().SkipClean(true).UseEncodedPath()
	a.router.MatcherFunc(func(r *http.Request, _ *mux.RouteMatch) bool { // PathPrefix would run a regular expression for each request
		return strings.HasPrefix(r.URL.EscapedPath(), "/v1/")
	}).Handler(a.handler("/v1/", false))
	if o.UI != nil {
		a.router.PathPrefix("/ui/").Handler(o.UI)
		a.router.Path("/ui").Handler(http.RedirectHandler("/ui/", http.StatusTemporaryRedirect))
		a.router.Path("/").Methods(http.MethodGet, http.MethodHead).Handler(http.RedirectHandler("/ui/", http.StatusTemporaryRedirect))
	}
	a.router.PathPrefix("/").Handler(a.handler("/", false))
	return a
}

// ServeHTTP implements http.Handler. It asks the router itself: the router's own ServeHTTP would copy the request twice,
// to remember a route without requests.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var match mux.RouteMatch
	if !a.router.Match(r, &match) || match.Handler == nil {
		http.NotFound(w, r)
		return
	}
	match.Handler.ServeHTTP(w, r)
}

// Forwarded returns the handler for requests that another node forwarded to this one: they run here or fail,
// and never travel on.
func (a *API) Forwarded() http.Handler {
	v1, bare := a.handler("/v1/", true), a.handler("/", true)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.EscapedPath(), "/v1/") { // as the router does
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
		if ns := r.Header["X-Vault-Namespace"]; len(ns) == 1 && ns[0] != "" {
			h["X-Vault-Namespace"] = ns
		}
		err := x.decode(prefix)
		if err == nil && !forwarded { // the node that forwarded it has checked
			err = x.checkSite()
		}
		if err != nil {
			x.fail(err)
		} else {
			x.serve()
		}
		a.opts.Observe(string(x.req.Op), x.mountType, x.status, time.Since(start))
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
	req       pipeline.Request
	forwarded bool
	mountType string
	status    int
	only      bool            // the request is about this node: no other may answer it
	bodyRead  bool            // x.req.Body is the whole body
	body      *body           // nil until it is needed
	share     admission.Share // of the budget, for the body
	again     bool            // forwarding led back here
}

// serve runs the request here or on the active node.
func (x *exchange) serve() {
	backend := x.api.opts.Backend
	ctx, cancel := context.WithTimeout(x.r.Context(), x.api.opts.Timeout)
	defer cancel()
	place, err := x.api.opts.Requests.Place(ctx, &x.req)
	if err != nil {
		x.fail(err)
		return
	}
	x.only = place == pipeline.Only
	x.req.Current = x.forwarded // another node took this one for the active one
	elsewhere := place == pipeline.Active || x.r.Header.Get("X-Vault-Forward") == "active-node" && !backend.Sealed()
	if elsewhere && !x.only && !x.forwarded && !backend.Active() {
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
	states, policy := h.Values("X-Vault-Index"), h.Values("X-Vault-Inconsistent")
	if h.Get("X-Vault-Consistency") == "linearizable" || len(states) == 0 && slices.Contains(policy, "await-state") {
		x.req.Current = true // also while sealed: it may not be any more when the request runs
	}
	if len(states) == 0 || backend.Sealed() {
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
	backend, requests := x.api.opts.Backend, x.api.opts.Requests
	if requests.WantsRawBody(ctx, &x.req) {
		x.takeTime()
		x.req.RawBody = x.openStream()
		ctx = context.WithoutCancel(ctx) // no time limit, but the client's disconnection still counts
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(x.r.Context(), cancel)()
	} else if x.hasBody() {
		x.req.ReadBody = x.readBody
		defer x.share.Release()
	}
	reply, err := requests.Handle(ctx, &x.req)
	if errors.Is(err, storage.ErrReadOnly) && !x.forwarded && !x.only && !backend.Active() && x.req.RawBody == nil {
		// It turned out to write: the whole request runs again on the active node.
		again := x.r
		if x.bodyRead {
			again = x.r.Clone(x.r.Context())
			again.Body = io.NopCloser(bytes.NewReader(x.req.Body))
			again.ContentLength = int64(len(x.req.Body))
		}
		x.forward(again)
		return
	}
	if err != nil {
		x.fail(err)
		return
	}
	x.reply(reply)
}
