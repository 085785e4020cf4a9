// Package api answers the paths of the auth/token mount: creating, looking up, renewing and revoking tokens on behalf of a
// caller, and token roles.
//
// It promises that no token gives more than its creator has, but by sudo or by a role. What tokens are, and what is stored of them, is
// in package token; roles are in package role. Start reading at Engine, then Engine.issue.
package api

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/server/token/role"
)

// Policies is what the token paths need to know of policies. Names are in the form of token.NormalPolicies.
type Policies interface {
	Exists(ctx context.Context, namespace, name string) (bool, error)
	// Assignable reports whether a token may be given the policy on request.
	Assignable(name string) bool
}

// Options of an Engine. All are required.
type Options struct {
	Tokens   *token.Store
	Policies Policies
}

// Engine answers the paths of auth/token.
type Engine struct {
	opts   Options
	tokens *token.Store
	roles  *role.Store
	router *engines.Router

	tidying tidying
}

// New returns an Engine. It declares the paths.
func New(o Options) *Engine {
	e := &Engine{opts: o, tokens: o.Tokens, roles: o.Tokens.Roles(), router: engines.NewRouter()}
	// Tokens are local to the cluster, so everything about them is.
	const (
		local = engines.ClusterLocal
		sudo  = engines.ClusterLocal | engines.Sudo
	)
	r := e.router
	engines.On(r, engines.Update, "create", "Create a token as a child of the caller's.", local, e.create).Returns("auth;")
	engines.On(r, engines.Update, "create-orphan", "Create a token that does not go with the caller's.", sudo, e.createOrphan).
		Returns("auth;")
	engines.On(r, engines.Update, "create/{role_name}", "Create a token by a role.", local, e.createByRole).Returns("auth;")

	engines.On(r, engines.Read, "lookup", "Describe a token; the caller's if none is given.", local, e.lookup).Returns(lookupShape)
	engines.On(r, engines.Update, "lookup", "Describe a token; the caller's if none is given.", local, e.lookup).Returns(lookupShape)
	engines.On(r, engines.Read, "lookup-self", "Describe the caller's token.", local, e.lookupSelf).Returns(lookupShape)
	engines.On(r, engines.Update, "lookup-self", "Describe the caller's token.", local, e.lookupSelf).Returns(lookupShape)
	engines.On(r, engines.Update, "lookup-accessor", "Describe the token with an accessor.", local, e.lookupAccessor).Returns(lookupShape)
	engines.On(r, engines.List, "accessors", "List the accessors of all tokens of the namespace and those below it.", sudo, e.accessors).
		Returns("keys: [string]")

	engines.On(r, engines.Update, "renew", "Renew a token; the caller's if none is given.", local, e.renew).Returns("auth;")
	engines.On(r, engines.Update, "renew-self", "Renew the caller's token.", local, e.renewSelf).Returns("auth;")
	engines.On(r, engines.Update, "renew-accessor", "Renew the token with an accessor.", local, e.renewAccessor).Returns("auth;")

	engines.On(r, engines.Update, "revoke", "Revoke a token and all tokens made from it.", local|engines.FreesSpace, e.revoke)
	engines.On(r, engines.Update, "revoke-self", "Revoke the caller's token and all tokens made from it.", local|engines.FreesSpace, e.revokeSelf)
	engines.On(r, engines.Update, "revoke-accessor", "Revoke the token with an accessor and all tokens made from it.", local|engines.FreesSpace, e.revokeAccessor)
	engines.On(r, engines.Update, "revoke-orphan", "Revoke a token and leave the tokens made from it as orphans.", sudo|engines.FreesSpace, e.revokeOrphan)

	engines.On(r, engines.Update, "tidy", "Compare all tokens with their indexes and mend what does not fit.", sudo|engines.FreesSpace, e.tidy)
	engines.On(r, engines.Read, "tidy", "Tell how the latest tidy operation on this node went.", sudo|engines.Active, e.readTidy).
		Returns(`accessors_mended: integer, children_mended: integer, expiries_mended: integer, finished_at: string?, revoked: integer,
			started_at: string?, state, tokens: integer`)
	e.rolePaths()
	return e
}

// Router implements engines.Engine.
func (e *Engine) Router() *engines.Router { return e.router }

var _ engines.Engine = (*Engine)(nil)

// namespace returns the id of the namespace a request is in.
func namespace(req *engines.Request) string {
	return cmp.Or(req.Mount.NamespaceID, token.RootNamespace)
}

type noInput struct{}

type tokenInput struct {
	Token engines.Sensitive `json:"token" help:"The token."`
}

type accessorInput struct {
	Accessor string `json:"accessor" required:"true" help:"Accessor of the token."`
}

type renewSelfInput struct {
	Increment engines.Duration `json:"increment" help:"Lifetime to ask for; 0 is that of the creation."`
}

type renewInput struct {
	tokenInput
	renewSelfInput
}

type renewAccessorInput struct {
	accessorInput
	renewSelfInput
}

// found turns token.ErrInvalid into what clients read. Tokens of other namespaces than the request's and those below it
// are not found.
func (e *Engine) found(ctx context.Context, req *engines.Request, entry *token.Entry, err error, none *engines.Error) (*token.Entry, error) {
	if err == nil && !e.tokens.Below(ctx, namespace(req), entry.Namespace) {
		err = token.ErrInvalid
	}
	if errors.Is(err, token.ErrInvalid) {
		return nil, none
	}
	return entry, err
}

// callers returns the caller's own entry, or token.ErrInvalid. It may be in its last use, and in a namespace above the
// request's.
func (e *Engine) callers(ctx context.Context, req *engines.Request) (*token.Entry, error) {
	if token.IsBatchKey(req.Caller.TokenKey) {
		return e.tokens.Lookup(ctx, req.Caller.Token.Reveal())
	}
	return e.tokens.LookupKey(ctx, req.Caller.TokenKey)
}

func (e *Engine) self(ctx context.Context, req *engines.Request) (*token.Entry, error) {
	entry, err := e.callers(ctx, req)
	if errors.Is(err, token.ErrInvalid) {
		return nil, &engines.Error{Kind: engines.KindDenied, Detail: "bad token"}
	}
	return entry, err
}

// given returns the entry of the token in the input, or the caller's own if there is none, with the token.
func (e *Engine) given(ctx context.Context, req *engines.Request, in *tokenInput) (*token.Entry, engines.Sensitive, error) {
	if in.Token == "" || subtle.ConstantTimeCompare([]byte(in.Token), []byte(req.Caller.Token)) == 1 {
		entry, err := e.self(ctx, req)
		return entry, req.Caller.Token, err
	}
	entry, err := e.tokens.Lookup(ctx, in.Token.Reveal())
	entry, err = e.found(ctx, req, entry, err, &engines.Error{Kind: engines.KindDenied, Detail: "bad token"})
	return entry, in.Token, err
}

func (e *Engine) byAccessor(ctx context.Context, req *engines.Request, in *accessorInput) (*token.Entry, error) {
	entry, err := e.tokens.LookupAccessor(ctx, in.Accessor)
	return e.found(ctx, req, entry, err, engines.Invalid("invalid accessor"))
}

func (e *Engine) lookup(ctx context.Context, req *engines.Request, in *tokenInput) (*engines.Response, error) {
	entry, secret, err := e.given(ctx, req, in)
	if err != nil {
		return nil, err
	}
	return e.describe(ctx, entry, secret)
}

func (e *Engine) lookupSelf(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	return e.lookup(ctx, req, &tokenInput{})
}

func (e *Engine) lookupAccessor(ctx context.Context, req *engines.Request, in *accessorInput) (*engines.Response, error) {
	entry, err := e.byAccessor(ctx, req, in)
	if err != nil {
		return nil, err
	}
	return e.describe(ctx, entry, "")
}

func (e *Engine) accessors(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	return engines.Listed(e.tokens.AccessorsBelow(ctx, namespace(req)))
}

func (e *Engine) renew(ctx context.Context, req *engines.Request, in *renewInput) (*engines.Response, error) {
	entry, secret, err := e.given(ctx, req, &in.tokenInput)
	if err != nil {
		return nil, err
	}
	return e.renewEntry(ctx, req, entry, secret, in.Increment)
}

func (e *Engine) renewSelf(ctx context.Context, req *engines.Request, in *renewSelfInput) (*engines.Response, error) {
	entry, err := e.self(ctx, req)
	if err != nil {
		return nil, err
	}
	return e.renewEntry(ctx, req, entry, req.Caller.Token, in.Increment)
}

func (e *Engine) renewAccessor(ctx context.Context, req *engines.Request, in *renewAccessorInput) (*engines.Response, error) {
	entry, err := e.byAccessor(ctx, req, &in.accessorInput)
	if err != nil {
		return nil, err
	}
	return e.renewEntry(ctx, req, entry, "", in.Increment)
}

func (e *Engine) renewEntry(ctx context.Context, req *engines.Request, entry *token.Entry, secret engines.Sensitive, increment engines.Duration) (*engines.Response, error) {
	var limits token.Terms
	if entry.Namespace == namespace(req) { // the mount of the request is that of the token
		limits = token.Terms{DefaultTTL: req.Mount.DefaultLeaseTTL, SystemMaxTTL: req.Mount.MaxLeaseTTL}
	}
	renewed, err := e.tokens.RenewWithin(ctx, entry.Key, time.Duration(increment), limits)
	if errors.Is(err, token.ErrInvalid) {
		return nil, &engines.Error{Kind: engines.KindDenied, Detail: "bad token"}
	}
	if err != nil {
		return nil, err
	}
	renewed.Token = secret
	auth, err := e.tokens.AuthWithIdentity(ctx, renewed)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Auth: auth, Warnings: renewed.Warnings}, nil
}

// revoke answers the same whether the token was there or not.
func (e *Engine) revoke(ctx context.Context, req *engines.Request, in *tokenInput) (*engines.Response, error) {
	if in.Token == "" {
		return nil, engines.Invalid(`field "token": must be given`)
	}
	entry, _, err := e.given(ctx, req, in)
	var refused *engines.Error
	if errors.As(err, &refused) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return nil, e.tokens.Revoke(ctx, entry.Key)
}

func (e *Engine) revokeSelf(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	return nil, e.tokens.Revoke(ctx, req.Caller.TokenKey)
}

func (e *Engine) revokeAccessor(ctx context.Context, req *engines.Request, in *accessorInput) (*engines.Response, error) {
	entry, err := e.byAccessor(ctx, req, in)
	if err != nil {
		return nil, err
	}
	return nil, e.tokens.Revoke(ctx, entry.Key)
}

func (e *Engine) revokeOrphan(ctx context.Context, req *engines.Request, in *tokenInput) (*engines.Response, error) {
	if in.Token == "" {
		return nil, engines.Invalid(`field "token": must be given`)
	}
	entry, _, err := e.given(ctx, req, in)
	var refused *engines.Error
	if errors.As(err, &refused) {
		return nil, engines.Invalid("token to revoke not found")
	}
	if err != nil {
		return nil, err
	}
	return nil, e.tokens.RevokeOrphan(ctx, entry.Key)
}
