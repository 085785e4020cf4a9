package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit/record"
	"github.com/coffer-project/coffer/server/fence"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/rights"
	"github.com/coffer-project/coffer/server/system/process"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/server/trace"
	"github.com/coffer-project/coffer/storage"
)

const sysPrefix = "sys/"

// call is one request on its way through the pipeline.
type call struct {
	*Request
	ns   *namespace.Namespace
	path string // in the namespace
	// synonym and neutral are what Synonym returns of path.
	synonym, neutral string
	mount            *mount.Mounted  // nil when nothing is mounted there
	router           *engines.Router // of the mount
	route            *engines.Route  // nil when the mount has no such path
	flags            engines.Flags   // of the route; none without one
	open             bool            // it needs no token
	params           map[string]string
	miss             error // why route is nil
	inner            *engines.Request
	token            *token.Entry // nil on unauthenticated paths
	acl              *policy.ACL  // looking from the namespace; nil on unauthenticated paths
	who              *identity.Effective
	record           record.Record
	flight           process.Flight
	// wrapTTL is how long the answer shall be kept for the holder of a wrapping token; 0: it goes out as it is.
	wrapTTL    time.Duration
	header     http.Header // for the answer; may be nil
	unrecorded bool        // refused by a rate limit, which need no audit record
	bodyErr    error       // of fetch
	told       bool        // inner.Op says whether a write creates its object
	elsewhere  bool        // it is a write, and another cluster had the shared data when it began
}

// Handle runs a request through the pipeline. Errors are engines.Error or storage's sentinels.
func (p *Pipeline) Handle(ctx context.Context, req *Request) (*Reply, error) {
	own, params := p.systemRoute(req)
	if own != nil && own.Flags.Has(engines.WorksSealed) && !req.Help {
		return p.handleAlways(ctx, req, own, params)
	}
	if p.Node.Sealed() {
		return nil, storage.ErrSealed
	}
	c := &call{Request: req}
	ctx = engines.WithCertificates(ctx, req.Certificates)
	if writes(req.Op) {
		role := p.Replicated.Role()
		c.elsewhere, ctx = role.Mode == roles.Secondary, fence.InLife(ctx, role)
	}
	if err := p.resolve(ctx, c, own); err != nil {
		return nil, p.limitLost(ctx, c, err)
	}
	c.flight = process.Flight{ID: c.ID, Op: c.Op, Path: c.Request.Path, Remote: c.Remote}
	p.Flights.Begin(&c.flight)
	defer p.Flights.End(&c.flight)
	if c.route != nil {
		trace.Route(ctx, c.ID, string(c.Op), c.mount.Type, c.route.Pattern)
	}
	denied := p.limit(ctx, c)
	if denied == nil {
		denied = p.admit(ctx, c)
	}
	if denied != nil && !answered(denied) {
		return nil, denied // not a decision: sealed, forwarded, unavailable
	}
	if c.unrecorded {
		return nil, denied // which carries the header
	}
	c.record.Unauthenticated = c.token == nil
	c.record.Brief = c.record.Unauthenticated && denied != nil
	if err := p.Audit.Record(ctx, false, func() (*record.Record, error) { return p.describe(c, denied), nil }); err != nil {
		return nil, p.unrecorded("request rejected: it could not be recorded", req.ID, err)
	}
	if c.record.Brief {
		return nil, c.withHeader(denied) // its one record has said all
	}
	var response *engines.Response
	err := denied
	if err == nil {
		response, err = p.serve(ctx, c)
	}
	if errors.Is(err, storage.ErrReadOnly) {
		return nil, err // runs again, and is recorded, on the active node
	}
	if err := p.recordResponse(ctx, c, response, err); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, c.withHeader(err)
	}
	return p.reply(c, response), nil
}

// withHeader gives an error that is an answer the headers that every answer gets.
func (c *call) withHeader(err error) error {
	var e *engines.Error
	if c.header == nil || !errors.As(err, &e) || e.Header != nil {
		return err
	}
	with := *e
	with.Header = c.header
	return &with
}

// answered reports whether the error is an answer to the caller, and so worth a record.
func answered(err error) bool {
	var e *engines.Error
	return errors.As(err, &e)
}

// clientText is what the client sees of an error.
func clientText(err error) string {
	if err == nil {
		return ""
	}
	var e *engines.Error
	if errors.As(err, &e) && e.Kind != engines.KindInternal {
		return e.Detail
	}
	return "internal error"
}

// auditText is what an audit record says of an error.
func auditText(err error) string {
	text := clientText(err)
	var e *engines.Error
	if errors.As(err, &e) && e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// unrecorded is the error of a request whose record could not be written. A node that is sealed has closed its
// devices.
func (p *Pipeline) unrecorded(text, id string, err error) error {
	if p.Node.Sealed() {
		return storage.ErrSealed
	}
	p.Logger.Error(text, "request_id", id, "err", err)
	return &engines.Error{Kind: engines.KindInternal, Detail: "audit", Err: err}
}

// systemRoute returns the route of a path that begins with sys/, which is known in every state of the node; nil if it has none.
func (p *Pipeline) systemRoute(req *Request) (*engines.Route, map[string]string) {
	rest, ok := strings.CutPrefix(req.Path, sysPrefix)
	if !ok {
		return nil, nil
	}
	route, params, err := p.System.Match(req.Op, rest)
	if err != nil {
		return nil, nil
	}
	return route, params
}

// handleAlways answers the few paths that work without any key. They need neither token nor storage nor an
// audit device, so that a node in trouble can still be asked how it is.
func (p *Pipeline) handleAlways(ctx context.Context, req *Request, route *engines.Route, params map[string]string) (*Reply, error) {
	at := time.Now()
	if err := req.fetch(route.Flags); err != nil {
		return nil, err
	}
	response, err := route.Serve(ctx, p.inner(req, nil, strings.TrimPrefix(req.Path, sysPrefix)), params)
	if req.Op != engines.Read {
		p.recordAlways(ctx, req, at, err)
	}
	if err != nil {
		return nil, err
	}
	return &Reply{Response: response, MountType: "system", Path: req.Path}, nil
}

// recordAlways records what changed the node itself, such as an unseal: at once, or as soon as it is unsealed and there
// is a device. Bodies hold shares of keys, and are left out.
func (p *Pipeline) recordAlways(ctx context.Context, req *Request, at time.Time, failure error) {
	p.Audit.Keep(&record.Record{Time: at, Unauthenticated: true, Brief: true, Error: auditText(failure), Request: record.Request{
		ID: req.ID, Operation: string(req.Op), Path: req.Path, NamespaceID: namespace.RootID,
		RemoteAddress: req.Remote.Addr().String(), RemotePort: int(req.Remote.Port()),
	}})
	if p.Node.Sealed() {
		return
	}
	if err := p.Audit.Flush(ctx); err != nil { // it is kept, and every other request fails until it is written
		p.Logger.Error("an audit record is not written yet", "request_id", req.ID, "err", err)
	}
}

func (p *Pipeline) inner(req *Request, m *mount.Mounted, rest string) *engines.Request {
	in := &engines.Request{
		ID: req.ID, Op: req.Op, Path: rest, Body: req.Body, Query: req.Query, Header: req.Header,
		RemoteIP: req.Remote.Addr(), Mount: engines.Mount{NamespaceID: namespace.RootID},
	}
	if req.RawBody != nil {
		in.RawBody = req.RawBody
	}
	if m != nil {
		in.Mount = m.Mount
	}
	return in
}

// place is where a request leads: a namespace, a path in it, perhaps a mount and the rest of the path, perhaps a route.
type place struct {
	ns    *namespace.Namespace
	path  string
	mount *mount.Mounted
	rest  string
}

// find follows a request's path as far as its mount.
func (p *Pipeline) find(ctx context.Context, req *Request) (place, error) {
	ns, path, err := p.Namespaces.Resolve(ctx, req.Namespace, req.Path)
	if err != nil {
		return place{}, err
	}
	if rest, ok := strings.CutPrefix(path, "auth/token/"); ok && (rest == "lookup-self" || rest == "renew-self" || rest == "revoke-self") {
		ns = p.tokensNamespace(ctx, req.Token, ns)
	}
	m, rest, err := p.Mounts.Resolve(ctx, ns.ID, path)
	return place{ns, path, m, rest}, err
}

// tokensNamespace returns the namespace of a token, which is where it is looked up, renewed and revoked by its holder whatever
// namespace the request names; that one if the token is not valid.
func (p *Pipeline) tokensNamespace(ctx context.Context, id engines.Sensitive, named *namespace.Namespace) *namespace.Namespace {
	entry, err := p.Tokens.Lookup(ctx, id.Reveal())
	if err != nil {
		return named
	}
	if ns, err := p.Namespaces.ByID(ctx, entry.Namespace); err == nil && !ns.Deleting {
		return ns
	}
	return named
}

// upToDate makes sure that what is read on this node is current, if it has to be, and that it is not from before the
// node's last start: the request may have come while the node was sealed, and run when it has only just been unsealed. own is
// the call's systemRoute.
func (p *Pipeline) upToDate(ctx context.Context, c *call, own *engines.Route) error {
	active := p.Node.Active()
	newest, current := c.Current || active, active || p.Node.Current()
	aboutNode := own != nil && own.Flags.Has(engines.AnyNode)
	switch {
	case !newest && current:
		return nil
	case aboutNode && !current && own.Flags&(engines.Unauthenticated|engines.WorksBehind) == 0 && !p.Node.AwaitCurrent(ctx):
		return errBehind
	case aboutNode:
		return nil
	case newest:
		return p.Node.ReadIndex(ctx)
	}
	return storage.ErrReadOnly // the active node has what this one lacks
}

// errBehind is the response of a node that can neither check a token nor forward the request, which concerns this node only.
var errBehind = &engines.Error{Kind: engines.KindUnavailable, Detail: "this node is not current: it has not applied what the active node had ten seconds ago, " +
	"so it cannot tell whether the token is still valid; its log and sys/health say more"}

// noRoute says that nothing is mounted where the path, relative to its namespace, leads; clients know the words.
func noRoute(path string) *engines.Error {
	return engines.NotFound(fmt.Sprintf("no handler for route %q. route entry not found.", path))
}

// resolve finds namespace, mount and route. On the active node, or if the request says so, it first makes sure that
// local reads are current, unless the path concerns this node only.
func (p *Pipeline) resolve(ctx context.Context, c *call, own *engines.Route) error {
	if err := p.upToDate(ctx, c, own); err != nil {
		return err
	}
	at, err := p.find(ctx, c.Request)
	if err != nil {
		return err
	}
	c.ns, c.path, c.mount = at.ns, at.path, at.mount
	c.synonym, c.neutral = Synonym(p.System, c.path)
	c.inner = p.inner(c.Request, at.mount, at.rest)
	if c.mount == nil {
		c.miss = noRoute(c.path)
		return nil
	}
	c.router = at.mount.Engine.Router()
	if c.Help {
		return nil
	}
	c.route, c.params, c.miss = c.router.Match(c.Op, at.rest)
	switch {
	case c.miss != nil:
		c.route = nil
	case c.ns.ID != namespace.RootID && c.route.Flags.Has(engines.RootNamespace):
		c.route, c.miss = nil, engines.NotFound("unsupported path: it exists in the root namespace only")
	default:
		c.flags = c.route.Flags
		c.open = c.flags.Has(engines.Unauthenticated) || len(c.Header[engines.CeremonyHeader]) > 0 && c.flags.Has(engines.Ceremony)
	}
	return nil
}

// fetch reads the request's body, at most once. Before it the caller's token has been checked, where one is needed: what
// a client without one can make the server hold is bounded by the rule of the route.
func (c *call) fetch() error {
	if c.ReadBody == nil {
		return c.bodyErr
	}
	c.bodyErr = c.Request.fetch(c.flags)
	c.inner.Body = c.Body
	return c.bodyErr
}

// serve runs the engine. A token with limited uses pays first, where a token is needed; its last use ends it afterwards.
func (p *Pipeline) serve(ctx context.Context, c *call) (*engines.Response, error) {
	if c.token != nil && c.token.NumUses != 0 && !c.open {
		last, err := p.Tokens.Use(ctx, c.token)
		switch {
		case errors.Is(err, token.ErrInvalid):
			return nil, engines.Denied(err)
		case errors.Is(err, storage.ErrReadOnly) && c.flags.Has(engines.AnyNode):
			return nil, engines.Invalid("a token with limited uses cannot be used for this on a standby: only the active node counts uses")
		case err != nil:
			return nil, err
		}
		if last {
			defer func() {
				if err := p.Tokens.Revoke(context.WithoutCancel(ctx), c.token.Key); err != nil && !errors.Is(err, token.ErrInvalid) {
					p.Logger.Warn("revoking a used-up token", "request_id", c.ID, "err", err)
				}
			}()
		}
	}
	if err := c.hold(); err != nil {
		return nil, err
	}
	defer c.release()
	inside := p.inRoom(ctx, c)
	if c.wrapTTL > 0 && fence.NoRoom(inside) {
		return nil, p.Store.Reject()
	}
	response, err := p.engine(inside, c)
	if err != nil {
		return nil, err
	}
	return p.complete(ctx, c, response)
}

// inRoom returns the context that an engine serves a call in. Whether there is room for what it writes is decided once, so that
// nothing is left half done. Deletes, logins, and what operators do to the server may use the room that is kept for them.
func (p *Pipeline) inRoom(ctx context.Context, c *call) context.Context {
	if !p.NoRoom() || c.Op == engines.Delete || c.open || c.flags.Has(engines.FreesSpace) || c.mount != nil && c.mount.Type == "system" && c.wrapTTL == 0 {
		return ctx
	}
	return fence.WithoutRoom(ctx)
}

// hold keeps the mount there until release, so that what is handed out of it is known before it is revoked. After an error
// there is nothing to release.
func (c *call) hold() error {
	if c.route == nil {
		return nil
	}
	return c.mount.Hold()
}

func (c *call) release() {
	if c.route != nil {
		c.mount.Release()
	}
}

// engine has the request answered, here or by the primary cluster. The mount is held.
func (p *Pipeline) engine(ctx context.Context, c *call) (*engines.Response, error) {
	if c.Help && c.mount != nil {
		text, err := c.help(ctx)
		if err != nil {
			return nil, err
		}
		return &engines.Response{Top: map[string]any{"help": text, "see_also": nil, "openapi": nil}, Data: map[string]any{"help": text}}, nil
	}
	if c.route == nil {
		return nil, c.miss
	}
	if c.token != nil && c.mount.Type == "cubbyhole" && (c.token.Batch() || c.token.Namespace != c.ns.ID) {
		return nil, engines.Invalid("a cubbyhole belongs to a service token, in the token's own namespace")
	}
	if p.primaryFirst(c) {
		return p.viaPrimary(ctx, c)
	}
	response, err := c.route.Serve(ctx, c.inner, c.params)
	if errors.Is(err, storage.ErrPrimaryOnly) && p.secondary() {
		return p.viaPrimary(ctx, c)
	}
	return response, err
}

// help returns the text about the path.
func (c *call) help(ctx context.Context) (string, error) {
	if d, ok := c.mount.Engine.(engines.Documenter); ok {
		return d.PathHelp(ctx, c.inner.Path)
	}
	text, ok := c.router.Help(c.inner.Path)
	if !ok {
		return "", engines.NotFound("no help for this path")
	}
	return text, nil
}

// describe returns the audit record of the call as far as it has come.
func (p *Pipeline) describe(c *call, failure error) *record.Record {
	c.record.Error = auditText(failure)
	r := &c.record.Request
	r.LoginID = c.inner.LoginID
	if r.ID != "" {
		return &c.record // it is described already
	}
	r.ID, r.Operation, r.Path = c.ID, string(c.Op), c.path
	r.NamespaceID, r.NamespacePath = c.ns.ID, c.ns.Path
	r.ClientToken = c.Token.Reveal()
	r.Data, r.Query, r.Headers = c.Body, c.Query, c.Header
	if c.ReadBody != nil { // it is not wanted any more
		r.Unread = announced(c.Header)
	}
	r.RemoteAddress, r.RemotePort = c.Remote.Addr().String(), int(c.Remote.Port())
	r.WrapTTL = c.wrapTTL
	if m := c.mount; m != nil {
		r.MountType, r.MountPoint, r.MountAccessor = m.Type, m.Path, m.Accessor
		r.MountClass = "secret"
		if m.IsAuth() {
			r.MountClass = "auth"
		}
		r.PlainKeys = m.Config.AuditNonHMACRequestKeys
	}
	if t := c.token; t != nil {
		r.ClientTokenAccessor = t.Accessor
		a := &record.Auth{
			ClientToken: c.Token.Reveal(), Accessor: t.Accessor, DisplayName: t.DisplayName, Policies: t.Policies,
			TokenPolicies: t.Policies, Metadata: t.Meta, EntityID: t.EntityID, TokenType: t.Type,
			TTL: t.TTL, NumUses: t.NumUses, IssuedAt: t.CreatedAt,
		}
		if c.who != nil {
			a.Policies, a.IdentityPolicies = rights.Policies(t, c.who), c.who.Policies[t.Namespace]
			a.ExternalNamespacePolicies = rights.PoliciesElsewhere(t, c.who)
		}
		c.record.Auth = a
	}
	return &c.record
}

// announced is the length of a body as its header says, -1 if that is not said.
func announced(h http.Header) int64 {
	n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// recordResponse writes the response's record. Without it the response does not leave.
func (p *Pipeline) recordResponse(ctx context.Context, c *call, response *engines.Response, failure error) error {
	err := p.Audit.Record(ctx, true, func() (*record.Record, error) {
		r := p.describe(c, failure)
		if response == nil {
			return r, nil
		}
		out, err := auditOf(response)
		if err != nil {
			return nil, err
		}
		if c.mount != nil {
			out.PlainKeys = c.mount.Config.AuditNonHMACResponseKeys
		}
		r.Response = out
		return r, nil
	})
	switch {
	case err == nil:
		return nil
	case response == nil && failure == nil && p.Node.Sealed():
		return nil // it is what sealed the node (itself or a foreign snapshot), and has nothing to tell
	}
	return p.unrecorded("response withheld: it could not be recorded", c.ID, err)
}

// auditOf is what an audit record says of a response.
func auditOf(r *engines.Response) (*record.Response, error) {
	out := &record.Response{Warnings: r.Warnings, Status: r.Status}
	if a := r.Auth; a != nil {
		out.Auth = &record.Auth{
			ClientToken: a.ClientToken, Accessor: a.Accessor, DisplayName: a.DisplayName, Policies: a.Policies, TokenPolicies: a.TokenPolicies,
			IdentityPolicies: a.IdentityPolicies, Metadata: a.Metadata, EntityID: a.EntityID, TokenType: a.TokenType,
			NumUses: a.NumUses, TTL: time.Duration(a.LeaseDuration) * time.Second,
		}
	}
	if w := r.Wrap; w != nil {
		out.Wrap = &record.Wrap{
			Token: w.Token, Accessor: w.Accessor, TTL: time.Duration(w.TTL) * time.Second,
			CreationPath: w.CreationPath, WrappedAccessor: w.WrappedAccessor,
		}
	}
	if r.Held != nil {
		out.LeaseID = r.Held.ID
	}
	var err error
	out.Data, err = r.EncodedData()
	return out, err
}

// reply completes the answer.
func (p *Pipeline) reply(c *call, response *engines.Response) *Reply {
	r := &Reply{Response: response, Path: c.path, Header: c.header}
	if c.mount != nil {
		r.MountType = c.mount.Type
	}
	if response != nil && response.Header != nil {
		r.Header = response.Header.Clone()
		maps.Copy(r.Header, c.header)
	}
	return r
}
