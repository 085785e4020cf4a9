package server

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/token"
)

// login makes the token of somebody who has proved to an auth method who they are: it finds their entity, asks for a
// second factor if one is required, and fills the answer's Auth.
func (s *Server) login(ctx context.Context, c *call, r *engines.Response) error {
	if !c.mount.IsAuth() {
		return errors.New("an engine that is no auth method answered a login")
	}
	login := r.Auth.Login
	if !login.Token.Allows(c.Remote.Addr()) {
		return engines.Denied(errors.New("the login is bound to other addresses"))
	}
	entityID, err := s.identity.Login(ctx, c.mount.Mount, login.Alias, login.GroupAliases)
	if err != nil {
		return err
	}
	auth, warnings, err := s.issue(ctx, c.mount, c.path, *login, entityID)
	if err != nil {
		return err
	}
	r.Auth, r.Warnings = auth, append(r.Warnings, warnings...)
	return nil
}

// issue makes the token of a login.
func (s *Server) issue(ctx context.Context, m *mount.Mounted, path string, login engines.Login, entityID string) (*engines.Auth, []string, error) {
	if err := s.admitLease(ctx, m.Namespace, m.Path, path, login.Role); err != nil {
		return nil, nil, err
	}
	created, err := s.tokens.CreateLogin(ctx, m.Mount, m.Config.TokenType, path, login, entityID)
	if err != nil {
		return nil, nil, err
	}
	auth := s.tokens.Auth(created)
	if entityID != "" {
		who, err := s.identity.Effective(ctx, entityID)
		if err != nil {
			return nil, nil, err
		}
		auth.IdentityPolicies = who.Policies[created.Entry.Namespace]
		auth.Policies = policiesIn(created.Entry, who)
	}
	return auth, created.Warnings, nil
}

// renewTerms asks the auth method that issued a token what governs it now.
func (s *Server) renewTerms(ctx context.Context, e *token.Entry) (token.Terms, error) {
	terms := token.Terms{TTL: e.TTL, MaxTTL: e.MaxTTL, Period: e.Period}
	if e.Mount == "" {
		return terms, nil
	}
	m, err := s.mounts.ByUUID(ctx, e.Mount)
	if err != nil {
		return terms, err
	}
	if m == nil {
		return terms, engines.Invalid("the auth method that issued the token is gone: log in again")
	}
	terms.DefaultTTL, terms.SystemMaxTTL = m.Mount.DefaultLeaseTTL, m.Mount.MaxLeaseTTL
	method, ok := m.Engine.(engines.Renewer)
	if !ok {
		return terms, nil
	}
	fields, err := method.RenewLogin(ctx, m.Mount, engines.RenewedLogin{
		Role: e.Role, Internal: e.Internal, Metadata: e.Meta, Policies: e.Policies, EntityID: e.EntityID,
	})
	if err != nil {
		return terms, err
	}
	terms.TTL, terms.MaxTTL, terms.Period = time.Duration(fields.TokenTTL), time.Duration(fields.TokenMaxTTL), time.Duration(fields.TokenPeriod)
	return terms, nil
}

// namespacePath returns the path of a namespace for people.
func (s *Server) namespacePath(id string) string {
	if id == namespace.RootID {
		return ""
	}
	return s.namespaces.Path(id)
}
