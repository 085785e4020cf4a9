package server

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

const sysPrefix = "sys/"

// call is one request on its way through the pipeline.
type call struct {
	*Request
	mount  *mount.Mounted // nil while sealed, or when nothing is mounted there
	route  *engines.Route // nil when the mount has no such path
	params map[string]string
	miss   error // why route is nil
	inner  *engines.Request
	token  *token.Entry // nil on unauthenticated paths
	acl    *policy.ACL
	record audit.Record
}

// Handle runs a request through the pipeline. Errors are engines.Error or storage's sentinels.
func (s *Server) Handle(ctx context.Context, req *Request) (*Reply, error) {
	if req.Namespace != "" && req.Namespace != rootNS {
		return nil, engines.NotFound("namespace not found")
	}
	if route, params := s.always(req); route != nil {
		return s.handleAlways(ctx, req, route, params)
	}
	if s.node.Sealed() {
		return nil, storage.ErrSealed
	}
	c := &call{Request: req}
	if err := s.resolve(ctx, c); err != nil {
		return nil, err
	}
	denied := s.admit(ctx, c)
	if denied != nil && !answered(denied) {
		return nil, denied // not a decision: sealed, forwarded, unavailable
	}
	s.describe(c)
	if denied != nil {
		c.record.Error = clientText(denied)
	}
	if err := s.audit.Broker().Request(ctx, &c.record); err != nil {
		return nil, s.unrecorded("request refused: it could not be recorded", req.ID, err)
	}
	var response *engines.Response
	err := denied
	if err == nil {
		response, err = s.serve(ctx, c)
	}
	if errors.Is(err, storage.ErrReadOnly) {
		return nil, err // runs again, and is recorded, on the active node
	}
	if err := s.recordResponse(ctx, c, response, err); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	return s.reply(c, response), nil
}

// answered reports whether the error is an answer to the caller, and so worth a record.
func answered(err error) bool {
	var e *engines.Error
	return errors.As(err, &e)
}

// clientText is what the client sees of an error.
func clientText(err error) string {
	var e *engines.Error
	if errors.As(err, &e) && e.Kind != engines.KindInternal {
		return e.Detail
	}
	if err != nil {
		return "internal error"
	}
	return ""
}

// unrecorded is the error of a request whose record could not be written. A node that is sealed has closed its
// devices.
func (s *Server) unrecorded(text, id string, err error) error {
	if s.node.Sealed() {
		return storage.ErrSealed
	}
	s.log.Error(text, "request_id", id, "err", err)
	return &engines.Error{Kind: engines.KindInternal, Detail: "audit", Err: err}
}

// always returns the route of a request that works in every state of the node, else nil.
func (s *Server) always(req *Request) (*engines.Route, map[string]string) {
	rest, ok := strings.CutPrefix(req.Path, sysPrefix)
	if !ok || req.Help {
		return nil, nil
	}
	route, params, err := s.system.Router().Match(req.Op, rest)
	if err != nil || !route.Flags.Has(engines.WorksSealed) {
		return nil, nil
	}
	return route, params
}

// handleAlways answers the few paths that work without any key. They need neither token nor storage nor the
// audit trail, so that a node in trouble can still be asked how it is.
func (s *Server) handleAlways(ctx context.Context, req *Request, route *engines.Route, params map[string]string) (*Reply, error) {
	response, err := route.Serve(ctx, s.inner(req, nil, strings.TrimPrefix(req.Path, sysPrefix)), params)
	if err != nil {
		return nil, err
	}
	return &Reply{Response: response, MountType: "system"}, nil
}

func (s *Server) inner(req *Request, m *mount.Mounted, rest string) *engines.Request {
	in := &engines.Request{
		ID: req.ID, Op: req.Op, Path: rest, Body: req.Body, Query: req.Query, Header: req.Header,
		RemoteIP: req.Remote.Addr(),
	}
	if req.RawBody != nil {
		in.RawBody = req.RawBody
	}
	if m != nil {
		in.Mount = m.Mount
	}
	return in
}

// resolve finds mount and route. On the active node, or if the request says so, it first makes sure that local
// reads are current, unless the path concerns this node only.
func (s *Server) resolve(ctx context.Context, c *call) error {
	anyNode := false
	if rest, ok := strings.CutPrefix(c.Path, sysPrefix); ok {
		route, _, err := s.system.Router().Match(c.Op, rest)
		anyNode = err == nil && route.Flags.Has(engines.AnyNode)
	}
	if !anyNode && (c.Current || s.node.Active()) {
		if err := s.node.ReadIndex(ctx); err != nil {
			return err
		}
	}
	m, rest, err := s.mounts.Resolve(ctx, rootNS, c.Path)
	if err != nil {
		return err
	}
	c.mount = m
	c.inner = s.inner(c.Request, m, rest)
	if m == nil {
		c.miss = engines.NotFound("no mount at this path: list what is there with sys/mounts and sys/auth")
		return nil
	}
	if c.Help {
		return nil
	}
	c.route, c.params, c.miss = m.Engine.Router().Match(c.Op, rest)
	if c.miss != nil {
		c.route = nil
	}
	return nil
}

// has reports whether the call's route has the flags.
func (c *call) has(f engines.Flags) bool { return c.route != nil && c.route.Flags.Has(f) }

// admit authenticates and authorises. What exists behind a path is not revealed to those who may not use it.
func (s *Server) admit(ctx context.Context, c *call) error {
	if c.Header.Get("X-Vault-Wrap-TTL") != "" && c.Header.Get("X-Vault-Wrap-TTL") != "0" {
		return engines.Invalid("header X-Vault-Wrap-TTL: response wrapping is not supported by this version")
	}
	open := c.has(engines.Unauthenticated)
	if c.Token == "" {
		if open {
			return nil
		}
		return &engines.Error{Kind: engines.KindDenied, Detail: "missing client token: send one in the X-Vault-Token header"}
	}
	err := s.authenticate(ctx, c)
	if err != nil {
		if open && answered(err) {
			return nil // a token that is not needed may also be wrong
		}
		return err
	}
	if open || c.has(engines.AnyToken) {
		return nil
	}
	return s.authorise(ctx, c)
}

// authenticate turns the token into a caller.
func (s *Server) authenticate(ctx context.Context, c *call) error {
	entry, err := s.tokens.Lookup(ctx, c.Token.Reveal())
	if errors.Is(err, token.ErrInvalid) && !s.node.Active() {
		// It may be so new that only the active node knows it.
		if !c.has(engines.AnyNode) {
			return storage.ErrReadOnly
		}
		if err := s.node.ReadIndex(ctx); err != nil {
			return err
		}
		entry, err = s.tokens.Lookup(ctx, c.Token.Reveal())
	}
	if errors.Is(err, token.ErrInvalid) {
		return engines.Denied(err)
	}
	if err != nil {
		return err
	}
	if !entry.AllowsIP(c.Remote.Addr()) {
		return engines.Denied(errors.New("the token is bound to other addresses"))
	}
	acl, err := s.aclOf(ctx, entry, "")
	if err != nil {
		return err
	}
	c.token, c.acl = entry, acl
	c.inner.Caller = engines.Caller{
		Accessor: entry.Accessor, DisplayName: entry.DisplayName, EntityID: entry.EntityID,
		Policies: entry.Policies, Root: acl.Root(), TokenKey: entry.Key, Token: c.Token,
		NamespaceID: entry.Namespace, Access: acl,
	}
	return nil
}

// authorise asks the caller's policies.
func (s *Server) authorise(ctx context.Context, c *call) error {
	op := c.Op
	if op == engines.Update && c.route != nil && c.route.Exists != nil {
		exists, err := c.route.CheckExists(ctx, c.inner, c.params)
		if err != nil && !answered(err) {
			return err
		}
		if err == nil && !exists {
			op = engines.Create
		}
	}
	if c.Help {
		if !c.acl.AnyUnder(c.Path) {
			return engines.Denied(nil)
		}
		return nil
	}
	d := c.acl.Check(op, c.Path, c.input())
	switch {
	case !d.Allowed:
		return engines.Denied(errors.New("no policy allows " + string(op)))
	case c.has(engines.Sudo) && !d.Sudo:
		return engines.Denied(errors.New("the path needs the sudo capability"))
	case !d.AllowsWrap(0):
		return engines.Denied(errors.New("the policy asks for a wrapped response"))
	}
	return nil
}

// input returns the fields that policies look at: the body, and for reads also the query, where their fields
// may come from. What the body holds wins, as it does when the input is decoded.
func (c *call) input() json.RawMessage {
	if c.Op != engines.Read || len(c.Query) == 0 {
		return c.Body
	}
	fields := map[string]any{}
	for name, values := range c.Query {
		fields[name] = values[0]
		if len(values) > 1 {
			fields[name] = values
		}
	}
	var body map[string]json.RawMessage
	if len(c.Body) > 0 && json.Unmarshal(c.Body, &body) != nil {
		return c.Body // not an object, which the check refuses
	}
	for name, value := range body {
		fields[name] = value
	}
	all, err := json.Marshal(fields)
	if err != nil {
		panic(err) // texts, and JSON that has been read
	}
	return all
}

// serve runs the engine. A token with limited uses pays first; its last use ends it afterwards.
func (s *Server) serve(ctx context.Context, c *call) (*engines.Response, error) {
	if c.token != nil && c.token.NumUses != 0 {
		last, err := s.tokens.Use(ctx, c.token)
		switch {
		case errors.Is(err, token.ErrInvalid):
			return nil, engines.Denied(err)
		case errors.Is(err, storage.ErrReadOnly) && c.has(engines.AnyNode):
			return nil, engines.Invalid("a token with limited uses cannot be used for this on a standby: only the active node counts uses")
		case err != nil:
			return nil, err
		}
		if last {
			defer func() {
				if err := s.tokens.Revoke(context.WithoutCancel(ctx), c.token.Key); err != nil && !errors.Is(err, token.ErrInvalid) {
					s.log.Warn("revoking a used-up token", "request_id", c.ID, "err", err)
				}
			}()
		}
	}
	if c.Help && c.mount != nil {
		text, ok := c.mount.Engine.Router().Help(c.inner.Path)
		if !ok {
			return nil, engines.NotFound("no help for this path")
		}
		return &engines.Response{Top: map[string]any{"help": text, "see_also": nil, "openapi": nil}, Data: map[string]any{"help": text}}, nil
	}
	if c.route == nil {
		return nil, c.miss
	}
	return c.route.Serve(ctx, c.inner, c.params)
}

// describe fills the audit record's request part.
func (s *Server) describe(c *call) {
	r := &c.record.Request
	r.ID, r.Operation, r.Path = c.ID, string(c.Op), c.Path
	r.NamespaceID = rootNS
	r.ClientToken = c.Token.Reveal()
	r.Data, r.Query, r.Headers = c.Body, c.Query, c.Header
	r.RemoteAddress, r.RemotePort = c.Remote.Addr().String(), int(c.Remote.Port())
	if m := c.mount; m != nil {
		r.MountType, r.MountPoint, r.MountAccessor = m.Type, m.Path, m.Accessor
		r.PlainKeys = m.Config.AuditNonHMACRequestKeys
	}
	if t := c.token; t != nil {
		r.ClientTokenAccessor = t.Accessor
		c.record.Auth = &audit.Auth{
			ClientToken: c.Token.Reveal(), Accessor: t.Accessor, DisplayName: t.DisplayName, Policies: t.Policies,
			TokenPolicies: t.Policies, Metadata: t.Meta, EntityID: t.EntityID, TokenType: "service",
			TTL: t.TTL, NumUses: t.NumUses,
		}
	}
}

// recordResponse writes the response's record. Without it the response does not leave.
func (s *Server) recordResponse(ctx context.Context, c *call, response *engines.Response, failure error) error {
	broker := s.audit.Broker()
	c.record.Error = clientText(failure)
	if response != nil && broker.Stats().Devices > 0 {
		out := &audit.Response{Warnings: response.Warnings, Status: response.Status}
		if a := response.Auth; a != nil {
			out.Auth = &audit.Auth{
				ClientToken: a.ClientToken, Accessor: a.Accessor, Policies: a.Policies, TokenPolicies: a.TokenPolicies,
				Metadata: a.Metadata, EntityID: a.EntityID, TokenType: a.TokenType, NumUses: a.NumUses,
			}
		}
		if c.mount != nil {
			out.PlainKeys = c.mount.Config.AuditNonHMACResponseKeys
		}
		switch data := response.Data.(type) {
		case nil:
		case json.RawMessage:
			out.Data = data
		default:
			encoded, err := json.Marshal(data)
			if err != nil {
				return err
			}
			out.Data = encoded
		}
		c.record.Response = out
	}
	err := broker.Response(ctx, &c.record)
	switch {
	case err == nil:
		return nil
	case response == nil && failure == nil && s.node.Sealed():
		return nil // it is what sealed the node (itself or a foreign snapshot), and has nothing to tell
	}
	return s.unrecorded("response withheld: it could not be recorded", c.ID, err)
}

// reply completes the answer.
func (s *Server) reply(c *call, response *engines.Response) *Reply {
	r := &Reply{Response: response}
	if c.mount != nil {
		r.MountType = c.mount.Type
	}
	if response != nil && response.Lease != nil {
		ttl := response.Lease.TTL
		if ttl == 0 {
			ttl = c.mount.Mount.DefaultLeaseTTL
		}
		r.LeaseSeconds = int64(min(ttl, c.mount.Mount.MaxLeaseTTL).Seconds())
	}
	return r
}

// anyUnder reports whether the caller may do anything below a path.
func (s *Server) anyUnder(_ context.Context, caller engines.Caller, prefix string) (bool, error) {
	return caller.Access != nil && caller.Access.AnyUnder(prefix), nil
}
