package server

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/server/token"
)

func (s *Server) newTokens() *token.Store {
	return token.New(token.Options{
		Store: s.barrier, OnRevoke: s.wipeCubbyhole,
		DefaultTTL: s.opts.DefaultLeaseTTL, MaxTTL: s.opts.MaxLeaseTTL,
	})
}

// declareShared lets the packages that own sys paths declare them.
func (s *Server) declareShared() {
	policy.Routes(s.system.Router(), policy.Deps{
		Store: s.policies,
		OfToken: func(ctx context.Context, req *engines.Request, id string) (*policy.ACL, error) {
			entry, err := s.tokens.Lookup(ctx, id)
			if err != nil {
				return nil, err
			}
			return s.aclOf(ctx, entry, req.Mount.Namespace)
		},
		OfAccessor: func(ctx context.Context, req *engines.Request, accessor string) (*policy.ACL, error) {
			entry, err := s.tokens.LookupAccessor(ctx, accessor)
			if err != nil {
				return nil, err
			}
			return s.aclOf(ctx, entry, req.Mount.Namespace)
		},
		OfCaller: func(_ context.Context, req *engines.Request) (*policy.ACL, error) {
			return req.Caller.Access.(*policy.ACL), nil // as authenticate put it there
		},
	})
	s.audit.Routes(s.system.Router())
	s.tokenPaths = token.NewEngine(token.EngineOptions{Tokens: s.tokens, Authorizer: authorizer{s}, Policies: s.policies})
}

// aclOf returns what a token may do, looking from a namespace.
func (s *Server) aclOf(ctx context.Context, entry *token.Entry, ns string) (*policy.ACL, error) {
	acl, err := s.policies.ACL(ctx, nil, policy.Scope{Namespace: rootNS, Names: entry.Policies})
	if err != nil {
		return nil, err
	}
	return acl.In(ns), nil
}

// authorizer answers what the token paths ask about callers.
type authorizer struct{ *Server }

// Sudo reports whether the caller has the sudo capability on path.
func (a authorizer) Sudo(_ context.Context, c engines.Caller, path string) (bool, error) {
	return c.Access != nil && c.Access.Sudo(path), nil
}

// rootToken creates a root token for a new cluster.
func (s *Server) rootToken(ctx context.Context) (string, error) {
	t, err := s.tokens.CreateRoot(ctx, s.opts.RootTokenID)
	return t.Reveal(), err
}
