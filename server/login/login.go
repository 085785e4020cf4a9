// Package login turns what an auth method has found out into a token: it finds the entity of the user or workload, asks for a second
// factor where one is required, and issues the token, or renews it by what the auth method says then. Start reading at
// Logins.Complete.
package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/server/mfa"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/remote"
	"github.com/coffer-project/coffer/server/rights"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

// Logins are those of a server. All fields are required.
type Logins struct {
	Mounts   *mount.Table
	Tokens   *token.Store
	Identity *identity.Store
	MFA      *mfa.Store
	Primary  remote.Primary
}

// Attempt is where a login comes from.
type Attempt struct {
	Mount *mount.Mounted
	Path  string     // with names spelled as they are stored
	From  netip.Addr // the client's
	Codes []string   // of a second factor, as the client sent them
}

// Complete makes the token of a user or workload that an auth method has identified: it finds their entity, asks for a
// second factor if one is required, and fills the answer's Auth.
func (l *Logins) Complete(ctx context.Context, a Attempt, r *engines.Response) error {
	if !a.Mount.IsAuth() {
		return errors.New("an engine that is no auth method answered a login")
	}
	login := r.Auth.Login
	if !login.Token.Allows(a.From) {
		return engines.Denied(errors.New("the login is bound to other addresses"))
	}
	entityID, err := l.Entity(ctx, a.Mount.Mount, login.Alias, login.GroupAliases)
	if err != nil {
		return err
	}
	requirement, err := l.MFA.Required(ctx, a.Mount.Mount, entityID)
	if err != nil {
		return err
	}
	if requirement != nil {
		done, err := l.secondFactor(ctx, a, r, entityID, requirement)
		if err != nil || !done {
			return err
		}
	}
	auth, warnings, err := l.issue(ctx, a.Mount, a.Path, *login, entityID)
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
func (l *Logins) secondFactor(ctx context.Context, a Attempt, r *engines.Response, entityID string, need *mfa.Requirement) (done bool, err error) {
	if len(a.Codes) > 0 {
		return true, l.MFA.Check(ctx, need, a.Codes)
	}
	kept, err := json.Marshal(pendingLogin{Mount: a.Mount.UUID, Path: a.Path, Login: *r.Auth.Login, EntityID: entityID})
	if err != nil {
		return false, err
	}
	if _, err := l.MFA.Hold(ctx, need, kept); err != nil {
		return false, err
	}
	r.Auth = &engines.Auth{MFARequirement: need, Policies: []string{}, TokenPolicies: []string{}}
	return false, nil
}

// Validated finishes a login whose second factor has come.
func (l *Logins) Validated(ctx context.Context, req *engines.Request, kept []byte) (*engines.Response, error) {
	var p pendingLogin
	if err := json.Unmarshal(kept, &p); err != nil {
		return nil, fmt.Errorf("reading a login that waits for its second factor: %w", err)
	}
	m, err := l.Mounts.ByUUID(ctx, p.Mount)
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
	if err := l.stillKnown(ctx, m, p.Login, p.EntityID); err != nil {
		return nil, err
	}
	auth, warnings, err := l.issue(ctx, m, p.Path, p.Login, p.EntityID)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Auth: auth, Warnings: warnings}, nil
}

// stillKnown reports whether the auth method would still renew the token of a login that has waited: not if its user or
// role is gone or has other policies now.
func (l *Logins) stillKnown(ctx context.Context, m *mount.Mounted, kept engines.Login, entityID string) error {
	method, ok := m.Engine.(engines.Renewer)
	if !ok {
		return nil
	}
	_, err := method.RenewLogin(ctx, m.Mount, engines.RenewedLogin{
		Role: kept.Role, Internal: kept.Internal, Metadata: kept.Metadata, Policies: kept.Token.TokenPolicies, EntityID: entityID, Waiting: true,
	})
	if e := (*engines.Error)(nil); errors.As(err, &e) {
		return engines.Denied(fmt.Errorf("the login has waited too long: %w", err))
	}
	return err
}

// issue makes the token of a login.
func (l *Logins) issue(ctx context.Context, m *mount.Mounted, path string, login engines.Login, entityID string) (*engines.Auth, []string, error) {
	var who *identity.Effective
	if entityID != "" {
		var err error
		if who, err = l.Identity.Effective(ctx, entityID, m.Namespace); err != nil {
			return nil, nil, err
		}
		if who.Entity.Disabled {
			return nil, nil, engines.Denied(errors.New("the entity is disabled"))
		}
	}
	created, err := l.Tokens.CreateLogin(ctx, m.Mount, m.Config.TokenType, path, login, entityID)
	if err != nil {
		return nil, nil, err
	}
	auth := l.Tokens.Auth(created)
	if who != nil {
		auth.IdentityPolicies = who.Policies[created.Entry.Namespace]
		auth.Policies = rights.Policies(created.Entry, who)
	}
	return auth, created.Warnings, nil
}

// RenewTerms asks the auth method that issued a token what governs it now.
func (l *Logins) RenewTerms(ctx context.Context, e *token.Entry) (token.Terms, error) {
	terms := token.Terms{TTL: e.TTL, MaxTTL: e.MaxTTL, Period: e.Period}
	if e.Mount == "" {
		return terms, nil
	}
	m, err := l.Mounts.ByUUID(ctx, e.Mount)
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

// EntityByAlias finds or makes the entity that an auth mount of a namespace knows by a name.
func (l *Logins) EntityByAlias(ctx context.Context, ns, accessor, name string) (string, error) {
	m, err := l.Mounts.ByAccessor(ctx, ns, accessor)
	if err != nil {
		return "", err
	}
	if m == nil {
		return "", engines.Invalid("no auth method has the accessor")
	}
	return l.Entity(ctx, m.Mount, engines.Alias{Name: name}, nil)
}

// Entity finds or makes the entity of a login here; on a secondary, where it is not there yet or is to
// change, through the primary. Whether the user has left a group is never passed over: without the primary such a login
// fails.
func (l *Logins) Entity(ctx context.Context, m engines.Mount, alias engines.Alias, groups []string) (string, error) {
	id, err := l.Identity.Login(ctx, m, alias, groups)
	if !errors.Is(err, storage.ErrPrimaryOnly) {
		return id, err
	}
	return l.Primary.Login(ctx, remote.Login{
		MountUUID: m.UUID, Accessor: m.Accessor, NamespaceID: m.NamespaceID, Local: m.Local, Alias: alias, GroupAliases: groups,
	})
}
