package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/server/mfa"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/token"
)

// login makes the token of a user or workload that an auth method has identified: it finds their entity, asks for a
// second factor if one is required, and fills the answer's Auth.
func (s *Server) login(ctx context.Context, c *call, r *engines.Response) error {
	if !c.mount.IsAuth() {
		return errors.New("an engine that is no auth method answered a login")
	}
	login := r.Auth.Login
	if !login.Token.Allows(c.Remote.Addr()) {
		return engines.Denied(errors.New("the login is bound to other addresses"))
	}
	entityID, err := s.entityFor(ctx, c.mount.Mount, login.Alias, login.GroupAliases)
	if err != nil {
		return err
	}
	requirement, err := s.mfa.Required(ctx, c.mount.Mount, entityID)
	if err != nil {
		return err
	}
	if requirement != nil {
		done, err := s.secondFactor(ctx, c, r, entityID, requirement)
		if err != nil || !done {
			return err
		}
	}
	auth, warnings, err := s.issue(ctx, c.mount, c.storedPath(), *login, entityID)
	if err != nil {
		return err
	}
	r.Auth, r.Warnings = auth, append(r.Warnings, warnings...)
	return nil
}

// pendingLogin is a login that waits for its second factor.
type pendingLogin struct {
	Mount    string        `json:"mount"` // uuid
	Path     string        `json:"path"`
	Login    engines.Login `json:"login"`
	EntityID string        `json:"entity_id"`
}

// secondFactor checks the codes that came with the login. Without any, the login is kept until they come: the answer
// then says what is wanted, and done is false.
func (s *Server) secondFactor(ctx context.Context, c *call, r *engines.Response, entityID string, need *mfa.Requirement) (done bool, err error) {
	if given := c.Header.Values("X-Vault-MFA"); len(given) > 0 {
		return true, s.mfa.Check(ctx, need, given)
	}
	kept, err := json.Marshal(pendingLogin{Mount: c.mount.UUID, Path: c.storedPath(), Login: *r.Auth.Login, EntityID: entityID})
	if err != nil {
		return false, err
	}
	if _, err := s.mfa.Hold(ctx, need, kept); err != nil {
		return false, err
	}
	r.Auth = &engines.Auth{MFARequirement: need, Policies: []string{}, TokenPolicies: []string{}}
	return false, nil
}

// validated finishes a login whose second factor has come.
func (s *Server) validated(ctx context.Context, req *engines.Request, kept []byte) (*engines.Response, error) {
	var p pendingLogin
	if err := json.Unmarshal(kept, &p); err != nil {
		return nil, fmt.Errorf("reading a login that waits for its second factor: %w", err)
	}
	m, err := s.mounts.ByUUID(ctx, p.Mount)
	if err != nil {
		return nil, err
	}
	switch {
	case m == nil:
		return nil, engines.Denied(errors.New("the auth method is gone"))
	case !p.Login.Token.Allows(req.RemoteIP):
		return nil, engines.Denied(errors.New("the login is bound to other addresses"))
	}
	if err := m.Hold(); err != nil { // the token would not be among those that are revoked with the mount
		return nil, err
	}
	defer m.Release()
	if err := s.stillKnown(ctx, m, p.Login, p.EntityID); err != nil {
		return nil, err
	}
	auth, warnings, err := s.issue(ctx, m, p.Path, p.Login, p.EntityID)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Auth: auth, Warnings: warnings}, nil
}

// stillKnown reports whether the auth method would still renew the token of a login that has waited: not if its user or
// role is gone or has other policies now.
func (s *Server) stillKnown(ctx context.Context, m *mount.Mounted, l engines.Login, entityID string) error {
	method, ok := m.Engine.(engines.Renewer)
	if !ok {
		return nil
	}
	_, err := method.RenewLogin(ctx, m.Mount, engines.RenewedLogin{
		Role: l.Role, Internal: l.Internal, Metadata: l.Metadata, Policies: l.Token.TokenPolicies, EntityID: entityID, Waiting: true,
	})
	if answered(err) {
		return engines.Denied(fmt.Errorf("the login has waited too long: %w", err))
	}
	return err
}

// issue makes the token of a login.
func (s *Server) issue(ctx context.Context, m *mount.Mounted, path string, login engines.Login, entityID string) (*engines.Auth, []string, error) {
	var who *identity.Effective
	if entityID != "" {
		var err error
		if who, err = s.identity.Effective(ctx, entityID, m.Namespace); err != nil {
			return nil, nil, err
		}
		if who.Entity.Disabled {
			return nil, nil, engines.Denied(errors.New("the entity is disabled"))
		}
	}
	created, err := s.tokens.CreateLogin(ctx, m.Mount, m.Config.TokenType, path, login, entityID)
	if err != nil {
		return nil, nil, err
	}
	auth := s.tokens.Auth(created)
	if who != nil {
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
	method, ok := m.Engine.(engines.Renewer)
	if !ok {
		terms.DefaultTTL, terms.SystemMaxTTL = m.Mount.DefaultLeaseTTL, m.Mount.MaxLeaseTTL
		return terms, nil
	}
	fields, err := method.RenewLogin(ctx, m.Mount, engines.RenewedLogin{
		Role: e.Role, Internal: e.Internal, Metadata: e.Meta, Policies: e.Policies, EntityID: e.EntityID,
	})
	if err != nil {
		return terms, err
	}
	return token.TermsOf(m.Mount, fields), nil
}

// namespacePath returns the path of a namespace for people.
func (s *Server) namespacePath(id string) string {
	if id == namespace.RootID {
		return ""
	}
	return s.namespaces.Path(id)
}
