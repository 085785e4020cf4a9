package token

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// Authorizer answers what the token paths need to know of the caller beyond being allowed to ask.
type Authorizer interface {
	// Sudo reports whether the caller has the sudo capability on a path (without leading slash).
	Sudo(ctx context.Context, c engines.Caller, path string) (bool, error)
}

// Policies is what the token paths need to know of policies. Names are in the form of NormalPolicies.
type Policies interface {
	Exists(ctx context.Context, namespace, name string) (bool, error)
	// Assignable reports whether a token may be given the policy on request.
	Assignable(name string) bool
}

// EngineOptions of an Engine. All but the namespace functions are required.
type EngineOptions struct {
	Tokens     *Store
	Authorizer Authorizer
	Policies   Policies
	// Namespace returns the id of the namespace a request is in; nil means that there is only "root".
	Namespace func(*engines.Request) string
	// NamespacePath returns the path of a namespace, "" for root; nil means that there is only root.
	NamespacePath func(id string) string
}

// Engine answers the paths of auth/token.
type Engine struct {
	opts   EngineOptions
	tokens *Store
	router *engines.Router
}

// NewEngine declares the paths.
func NewEngine(o EngineOptions) *Engine {
	e := &Engine{opts: o, tokens: o.Tokens, router: engines.NewRouter()}
	// Tokens are local to the cluster, so everything here is.
	const (
		local = engines.ClusterLocal
		sudo  = engines.ClusterLocal | engines.Sudo
	)
	r := e.router
	engines.On(r, engines.Update, "create", "Create a token as a child of the caller's.", local, e.create)
	engines.On(r, engines.Update, "create-orphan", "Create a token that does not go with the caller's.", sudo, e.createOrphan)
	engines.On(r, engines.Update, "create/{role}", "Create a token by a role. Roles are not supported yet.", local, e.createByRole)

	engines.On(r, engines.Read, "lookup", "Describe a token; the caller's if none is given.", local, e.lookup)
	engines.On(r, engines.Update, "lookup", "Describe a token; the caller's if none is given.", local, e.lookup)
	engines.On(r, engines.Read, "lookup-self", "Describe the caller's token.", local, e.lookupSelf)
	engines.On(r, engines.Update, "lookup-self", "Describe the caller's token.", local, e.lookupSelf)
	engines.On(r, engines.Update, "lookup-accessor", "Describe the token with an accessor.", local, e.lookupAccessor)
	engines.On(r, engines.List, "accessors", "List the accessors of all tokens.", sudo, e.accessors)

	engines.On(r, engines.Update, "renew", "Renew a token; the caller's if none is given.", local, e.renew)
	engines.On(r, engines.Update, "renew-self", "Renew the caller's token.", local, e.renewSelf)
	engines.On(r, engines.Update, "renew-accessor", "Renew the token with an accessor.", local, e.renewAccessor)

	engines.On(r, engines.Update, "revoke", "Revoke a token and all tokens made from it.", local, e.revoke)
	engines.On(r, engines.Update, "revoke-self", "Revoke the caller's token and all tokens made from it.", local, e.revokeSelf)
	engines.On(r, engines.Update, "revoke-accessor", "Revoke the token with an accessor and all tokens made from it.", local, e.revokeAccessor)
	engines.On(r, engines.Update, "revoke-orphan", "Revoke a token and leave the tokens made from it as orphans.", sudo, e.revokeOrphan)

	engines.On(r, engines.Update, "tidy", "Compare all tokens with their indexes and mend what does not fit.", sudo, e.tidy)
	return e
}

// Router implements engines.Engine.
func (e *Engine) Router() *engines.Router { return e.router }

func (e *Engine) namespace(req *engines.Request) string {
	if e.opts.Namespace == nil {
		return "root"
	}
	return e.opts.Namespace(req)
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

// found turns ErrInvalid into what clients read.
func found(e *Entry, err error, text string) (*Entry, error) {
	if errors.Is(err, ErrInvalid) {
		return nil, &engines.Error{Kind: engines.KindDenied, Detail: text}
	}
	return e, err
}

// self returns the caller's own entry. It may be in its last use.
func (e *Engine) self(ctx context.Context, req *engines.Request) (*Entry, error) {
	entry, err := e.tokens.LookupKey(ctx, req.Caller.TokenKey)
	return found(entry, err, "bad token")
}

// given returns the entry of the token in the input, or the caller's own if there is none, with the token.
func (e *Engine) given(ctx context.Context, req *engines.Request, in *tokenInput) (*Entry, engines.Sensitive, error) {
	if in.Token == "" || subtle.ConstantTimeCompare([]byte(in.Token), []byte(req.Caller.Token)) == 1 {
		entry, err := e.self(ctx, req)
		return entry, req.Caller.Token, err
	}
	entry, err := e.tokens.Lookup(ctx, in.Token.Reveal())
	entry, err = found(entry, err, "bad token")
	return entry, in.Token, err
}

func (e *Engine) byAccessor(ctx context.Context, in *accessorInput) (*Entry, error) {
	entry, err := e.tokens.LookupAccessor(ctx, in.Accessor)
	return found(entry, err, "invalid accessor")
}

func (e *Engine) lookup(ctx context.Context, req *engines.Request, in *tokenInput) (*engines.Response, error) {
	entry, token, err := e.given(ctx, req, in)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: e.describe(entry, token)}, nil
}

func (e *Engine) lookupSelf(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	return e.lookup(ctx, req, &tokenInput{})
}

func (e *Engine) lookupAccessor(ctx context.Context, _ *engines.Request, in *accessorInput) (*engines.Response, error) {
	entry, err := e.byAccessor(ctx, in)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: e.describe(entry, "")}, nil
}

func (e *Engine) accessors(ctx context.Context, _ *engines.Request, _ *noInput) (*engines.Response, error) {
	keys, err := e.tokens.Accessors(ctx)
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{"keys": keys}}, nil
}

func (e *Engine) renew(ctx context.Context, req *engines.Request, in *renewInput) (*engines.Response, error) {
	entry, token, err := e.given(ctx, req, &in.tokenInput)
	if err != nil {
		return nil, err
	}
	return e.renewEntry(ctx, entry, token, in.Increment)
}

func (e *Engine) renewSelf(ctx context.Context, req *engines.Request, in *renewSelfInput) (*engines.Response, error) {
	entry, err := e.self(ctx, req)
	if err != nil {
		return nil, err
	}
	return e.renewEntry(ctx, entry, req.Caller.Token, in.Increment)
}

func (e *Engine) renewAccessor(ctx context.Context, _ *engines.Request, in *renewAccessorInput) (*engines.Response, error) {
	entry, err := e.byAccessor(ctx, &in.accessorInput)
	if err != nil {
		return nil, err
	}
	return e.renewEntry(ctx, entry, "", in.Increment)
}

func (e *Engine) renewEntry(ctx context.Context, entry *Entry, token engines.Sensitive, increment engines.Duration) (*engines.Response, error) {
	renewed, err := e.tokens.Renew(ctx, entry.Key, time.Duration(increment))
	if errors.Is(err, ErrInvalid) {
		return nil, &engines.Error{Kind: engines.KindDenied, Detail: "bad token"}
	}
	if err != nil {
		return nil, err
	}
	renewed.Token = token
	return &engines.Response{Auth: e.tokens.Auth(renewed), Warnings: renewed.Warnings}, nil
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

func (e *Engine) revokeAccessor(ctx context.Context, _ *engines.Request, in *accessorInput) (*engines.Response, error) {
	entry, err := e.byAccessor(ctx, in)
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

func (e *Engine) tidy(ctx context.Context, _ *engines.Request, _ *noInput) (*engines.Response, error) {
	r, err := e.tokens.Tidy(ctx)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("Tidy operation finished: %d tokens seen, %d accessors, %d child entries and %d expiry entries mended, %d tokens without their parent revoked",
		r.Tokens, r.Accessors, r.Children, r.Expiries, r.Revoked)
	return &engines.Response{Status: http.StatusAccepted, Warnings: []string{text}}, nil
}
