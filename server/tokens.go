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
	policy.Routes(s.system.Router(), policy.Deps{Store: s.policies, Tokens: s.tokens})
	s.audit.Routes(s.system.Router())
	s.tokenPaths = token.NewEngine(token.EngineOptions{Tokens: s.tokens, Authorizer: authorizer{s}, Policies: s.policies})
}

// authorizer answers what the token paths ask about callers.
type authorizer struct{ *Server }

// Sudo reports whether the caller has the sudo capability on path.
func (a authorizer) Sudo(ctx context.Context, c engines.Caller, path string) (bool, error) {
	acl, err := a.policies.ACL(ctx, rootNS, c.Policies)
	if err != nil {
		return false, err
	}
	return acl.Sudo(path), nil
}

// rootToken creates a root token for a new cluster.
func (s *Server) rootToken(ctx context.Context) (string, error) {
	t, err := s.tokens.CreateRoot(ctx, s.opts.RootTokenID)
	return t.Reveal(), err
}
