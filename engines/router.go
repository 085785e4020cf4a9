package engines

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines/input"
)

// Flags say how a route is treated by the server.
type Flags uint32

const (
	// Unauthenticated routes need no token.
	Unauthenticated Flags = 1 << iota
	// Sudo routes need the sudo capability besides the one of the operation.
	Sudo
	// RootNamespace routes answer only in the root namespace.
	RootNamespace
	// Primary routes must run on the primary cluster even if they only read.
	Primary
	// ClusterLocal routes never leave the cluster, even when they write.
	ClusterLocal
	// Active routes run on the active node even if they only read: a standby forwards them.
	Active
	// AnyNode routes run where they arrive, even if they write: they concern this node.
	AnyNode
	// WorksSealed routes answer while the server is sealed or not initialised.
	WorksSealed
	// AnyToken routes need a valid token but no policy: what they answer depends on what the token may do.
	AnyToken
	// WorksBehind routes answer on a node whose state is not current, although the token may have been revoked since: what
	// they tell is how the node is.
	WorksBehind
	// FreesSpace routes write even if the disk is too full for writes, because what they do is to remove or to end something.
	FreesSpace
	// RawBody routes get the request body as a stream, whatever its size.
	RawBody
	// Form routes also take the form that a browser posts: each field once, as texts.
	Form
	// Ceremony routes need no token when the request came through a listener that opens key ceremonies: CeremonyHeader.
	Ceremony
	// ForeignForm routes take the form also from pages of other sites, as an identity provider's.
	ForeignForm
	// Strict routes reject fields that they do not declare: what such a field asks for matters too much to be left undone.
	Strict
	// TellsCreate routes have a handler that depends on whether a write creates its object: Request.Op is Create then.
	TellsCreate
	// FreeForm routes take any fields, and look at them in the request themselves.
	FreeForm
)

// CeremonyHeader marks a request of a listener that opens key ceremonies to clients without a token. Listeners remove it
// from what clients send; nodes of the cluster forward it.
const CeremonyHeader = "Coffer-Open-Ceremonies"

// Has reports whether all of the given flags are set.
func (f Flags) Has(g Flags) bool { return f&g == g }

// Handler answers a request whose input is decoded.
type Handler[In any] func(ctx context.Context, req *Request, in *In) (*Response, error)

// Route is one declared path and operation.
type Route struct {
	Pattern string
	Op      Operation // Create is declared, and kept, as Update
	Help    string
	Flags   Flags
	Fields  []input.Field
	Shape   string // of its responses: see Returns
	// Exists, if set, tells create from update on writes: it reports whether the object is already there.
	// It runs before authorisation, if policies tell a create from an update, through CheckExists: path parameters are in Request.Param, the body is
	// not decoded, and it must neither write nor answer anything but that one bit.
	Exists func(ctx context.Context, req *Request) (bool, error)

	segments []segment
	plan     *input.Plan
	handle   func(ctx context.Context, req *Request, in reflect.Value) (*Response, error)
}

// Returns declares the shape of the route's responses, and returns the route: "name, ttl: integer, keys: [string]" are fields of "data". A type
// is string, which need not be said, integer, number, boolean, any, a list "[type]" or an object "{name: type, …}", in which "*" stands for
// any name; "a|b" is either of two; "?" behind it lets it be null, a text in quotes after that describes it. Words before a semicolon say more: "auth" that there is a token, "top" that the fields are at the
// top of the envelope, too, "empty" that there may be no body, "json" that there is no envelope, "text/plain" that the body is of that type.
// Routes without a shape have responses without a body. Package openapi reads it.
func (r *Route) Returns(shape string) *Route {
	r.Shape = shape
	return r
}

// Serve decodes the request's input and calls the handler. params are what Match returned. Every problem of
// the input is reported in one Error of KindInvalid; unknown fields become a warning of the response, or an Error of Strict routes.
func (r *Route) Serve(ctx context.Context, req *Request, params map[string]string) (*Response, error) {
	v := r.plan.New()
	req.params = params
	given, err := r.plan.Decode(req.source(params), v)
	if err != nil {
		return nil, Invalid("%s", err)
	}
	unknown := len(given.Unknown) > 0
	if unknown && r.Flags.Has(Strict) {
		return nil, Invalid("not supported: %s; leave out what is not needed", input.QuoteNames(given.Unknown))
	}
	req.given, req.nulls = given.Fields, given.Nulls
	resp, err := r.handle(ctx, req, v)
	if err != nil {
		return nil, err
	}
	if unknown && !r.Flags.Has(FreeForm) {
		if resp == nil {
			resp = &Response{}
		}
		resp.Warnings = append(resp.Warnings, "unrecognized field(s) ignored: "+input.QuoteNames(given.Unknown))
	}
	return resp, nil
}

// CheckExists reports whether the object that a write names is already there, so that the write is an update
// and not a create. Routes without Exists only know updates. Call it before authorisation.
func (r *Route) CheckExists(ctx context.Context, req *Request, params map[string]string) (bool, error) {
	if r.Exists == nil {
		return true, nil
	}
	req.params = params
	return r.Exists(ctx, req)
}

// Router holds the routes of one engine. Declare all routes with On before the first Match; from then on it
// is only read, so safe for concurrent use.
type Router struct {
	root   node
	routes []*Route

	// Synonym returns a path one segment of which has another name with that name, and with Unnamed in its place; "" for other paths.
	// Policies and quotas that speak of one of the names hold for requests by the other, too. nil: no segment has another name.
	Synonym func(path string) (other, neutral string)

	// Delegate returns the Router for a path that no route here fits, for engines whose paths are only known when they run. nil: there is none.
	Delegate func(path string) *Router
}

// Unnamed is a segment that neither a request nor a policy can name.
const Unnamed = "\x00"

// NewRouter returns a Router without routes.
func NewRouter() *Router { return &Router{} }

// On declares a route: requests with this operation whose path fits the pattern have their input decoded
// into a new In and are answered by h. Segments of a pattern are literal, "{name}" for one segment, or
// "{name...}" for the rest of the path, which may be empty for List and Scan only, or for every operation if it is
// written "{name...?}". A rest may be followed by literal segments ("mounts/{path...}/tune"). A literal beats
// a parameter, a parameter beats a rest. LIST paths fit with and without their trailing slash; a rest
// parameter of a List or Scan is "" or ends in "/".
//
// In is a struct whose exported fields carry the tags that package input describes; every path parameter needs a
// field of its name. On panics on a declaration that cannot work: it is meant to run when the program starts.
func On[In any](r *Router, op Operation, pattern, help string, flags Flags, h Handler[In]) *Route {
	return OnType(r, op, pattern, help, flags, reflect.TypeFor[In](), func(ctx context.Context, req *Request, in reflect.Value) (*Response, error) {
		return h(ctx, req, in.Addr().Interface().(*In))
	})
}

// OnType is On for an input type that is only known when the program runs. The handler gets an addressable value of it.
func OnType(r *Router, op Operation, pattern, help string, flags Flags, in reflect.Type,
	h func(ctx context.Context, req *Request, in reflect.Value) (*Response, error),
) *Route {
	if op == Create {
		op = Update
	}
	segments, err := parsePattern(pattern)
	if err != nil {
		panic(fmt.Sprintf("engines: route %s %q: %v", op, pattern, err))
	}
	p, err := input.Declare(in, parameters(segments), op == Read || op.Lists() || op == Delete)
	if err != nil {
		panic(fmt.Sprintf("engines: route %s %q: %v", op, pattern, err))
	}
	route := &Route{Pattern: pattern, Op: op, Help: help, Flags: flags, Fields: p.Fields(), segments: segments, plan: p, handle: h}
	if !r.root.add(segments, route) {
		panic(fmt.Sprintf("engines: route %s %q is declared twice", op, pattern))
	}
	r.routes = append(r.routes, route)
	return route
}

// parameters returns the names of the path parameters.
func parameters(segments []segment) []string {
	var names []string
	for _, s := range segments {
		if s.kind != literal {
			names = append(names, s.name)
		}
	}
	return names
}

// source returns where the fields of a request come from.
func (r *Request) source(params map[string]string) input.Source {
	s := input.Source{Params: params, Query: r.Query, Read: r.Op == Read}
	if r.RawBody == nil {
		s.Body = r.Body
	}
	return s
}

// Input returns what the route's handler would get of the request, in normal form: decisions that depend on the values of a
// request are made on it, and never on the body. The error is the one that Serve would return.
func (r *Route) Input(req *Request, params map[string]string) (*input.Input, error) {
	in, err := r.plan.Input(req.source(params))
	if err != nil {
		return nil, Invalid("%s", err)
	}
	return in, nil
}

// Routes returns all routes, sorted by pattern and then operation.
func (r *Router) Routes() []*Route {
	routes := slices.Clone(r.routes)
	slices.SortFunc(routes, func(a, b *Route) int {
		if c := strings.Compare(a.Pattern, b.Pattern); c != 0 {
			return c
		}
		return strings.Compare(string(a.Op), string(b.Op))
	})
	return routes
}

// Match finds the route for an operation on a path relative to the mount, and its path parameters (nil when
// it has none). Among several fitting routes of the operation the most literal one wins. The error is of
// KindNotFound if no pattern fits, of KindUnsupported if one does but for other operations only, and of
// KindInvalid for a path that no route may see (MaxPathBytes, NUL, "..", …).
func (r *Router) Match(op Operation, path string) (*Route, map[string]string, error) {
	if err := CheckPath(path); err != nil {
		return nil, nil, err
	}
	if op == Create {
		op = Update
	}
	if op.Lists() {
		path = strings.TrimSuffix(path, "/")
	}
	pos := 0
	if path == "" {
		pos = 1 // there is no segment: see find
	}
	others := false
	route := r.root.find(path, pos, op, &others)
	switch {
	case route != nil:
		return route, route.capture(path, pos), nil
	case r.Delegate != nil:
		return r.Delegate(path).Match(op, path)
	case others:
		return nil, nil, &Error{Kind: KindUnsupported, Detail: "unsupported operation"}
	}
	return nil, nil, NotFound("unsupported path")
}

// Handle is Match and Serve in one.
func (r *Router) Handle(ctx context.Context, req *Request) (*Response, error) {
	route, params, err := r.Match(req.Op, req.Path)
	if err != nil {
		return nil, err
	}
	return route.Serve(ctx, req, params)
}
