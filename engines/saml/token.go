package saml

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/provider"
	"github.com/coffer-project/coffer/engines/saml/role"
	"github.com/coffer-project/coffer/storage"
)

type tokenIn struct {
	ClientVerifier engines.Sensitive `json:"client_verifier" max:"4096" help:"The secret whose digest the login was started with."`
	TokenPollID    string            `json:"token_poll_id" max:"256" help:"The id that the start of the login returned."`
	Code           engines.Sensitive `json:"code" max:"256" help:"Instead of the two others: the sign-in code of a login that the identity provider began."`
}

// errUnknown is the response to every client that does not prove to have started a login that is there.
func errUnknown(reason string) error {
	return &engines.Error{
		Kind: engines.KindInvalid, Reason: reason,
		Detail: "the login is unknown, expired or used, or client_verifier is not the one that it was started with: log in again",
	}
}

// token redeems a login. What the client asks for every second must cost little while there is nothing to redeem: then
// it is one read.
func (e *engine) token(ctx context.Context, req *engines.Request, in *tokenIn) (*engines.Response, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	var l *login
	var c *provider.Config
	var ro *role.Role
	var outcome error // of a transaction that removes the login and yet is no success
	_, err = storage.Update(ctx, req.Mount.ClusterStorage, func(t *storage.Txn) (err error) {
		outcome, ro = nil, nil
		switch l, err = getLogin(ctx, t, id); {
		case err != nil:
			return err
		case l == nil:
			return errUnknown("unknown, expired or used login")
		}
		req.LoginID = l.AuditID
		switch {
		case !l.Unsolicited && !in.proves(l.Challenge):
			return errUnknown("wrong verifier")
		case l.State == pendingState:
			return &engines.Error{Kind: engines.KindUnauthorized, Detail: "the login is not finished: the identity provider has not responded yet"}
		case l.State == confirmingState:
			return &engines.Error{Kind: engines.KindUnauthorized, Detail: "the login is not finished: the user has to confirm it in the browser, on the page that shows its code"}
		}
		if ro, err = role.Get(ctx, req.Mount.Storage, l.Role); err != nil {
			return err
		}
		if reason := misplaced(req, l, ro); reason != "" {
			return denied(reason) // the login is still there for the client that may redeem it
		}
		if c, err = provider.GetConfig(ctx, req.Mount.Storage); err != nil {
			return err
		}
		l.drop(t)
		outcome = l.outcome(c, ro)
		return nil
	})
	if err == nil {
		err = outcome
	}
	if err != nil {
		return nil, err
	}
	e.counts.Redeemed.Add(1)
	return &engines.Response{Auth: &engines.Auth{Login: &engines.Login{
		DisplayName:  cut(l.User.Subject, maxDisplayBytes),
		Alias:        engines.Alias{Name: c.Alias(l.User.Subject), Metadata: ro.Token.AliasMetadata},
		GroupAliases: ro.Groups(*l.User),
		Metadata:     map[string]string{"role": ro.Name},
		Token:        ro.Token,
		Role:         ro.Name,
		Internal:     terms(c, ro),
	}}}, nil
}

// internal is what is kept with a login and its token, as JSON.
type internal struct {
	Format int    `json:"format"` // 1
	Terms  string `json:"terms"`  // what admitted the login
}

// terms identifies what a user is admitted by: a role, and whom the configuration trusts.
func terms(c *provider.Config, r *role.Role) json.RawMessage {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // texts, numbers and lists of them
	}
	out, err := json.Marshal(internal{Format: 1, Terms: hash("terms", trust(c)+string(text))})
	if err != nil {
		panic(err)
	}
	return out
}

// id returns the id of the login that is to be redeemed.
func (in *tokenIn) id() (string, error) {
	poll := in.TokenPollID != "" || in.ClientVerifier != ""
	switch {
	case in.Code != "" && poll:
		return "", engines.Invalid(`field "code": is for logins that the identity provider began: leave it out, or client_verifier and token_poll_id`)
	case in.Code != "":
		return codeLogin(in.Code.Reveal()), nil
	case in.TokenPollID == "":
		return "", engines.Invalid(`field "token_poll_id": is required`)
	case in.ClientVerifier == "":
		return "", engines.Invalid(`field "client_verifier": is required`)
	}
	return pollLogin(in.TokenPollID), nil
}

// proves reports whether the verifier is the one of a challenge.
func (in *tokenIn) proves(challenge []byte) bool {
	digest := sha256.Sum256([]byte(in.ClientVerifier.Reveal()))
	return subtle.ConstantTimeCompare(digest[:], challenge) == 1
}

// misplaced returns why a login cannot be redeemed from where the request comes from, "" if it can.
func misplaced(req *engines.Request, l *login, ro *role.Role) string {
	switch {
	case l.State != completedState || ro == nil:
		return ""
	case !ro.Token.Allows(req.RemoteIP):
		return "token_bound_cidrs of the role exclude the address"
	case ro.RequireSameAddress && (l.Address != address(req) || l.Browser != address(req)):
		return "the role demands that a login is started, confirmed and redeemed from one address"
	}
	return ""
}

// outcome returns why a login that has come to its end admits no user, nil if it does. Configuration and role are checked
// again: they may have changed since the identity provider responded.
func (l *login) outcome(c *provider.Config, ro *role.Role) error {
	var reason string
	switch {
	case l.State == rejectedState:
		reason = l.Reason
	case l.Trust != trust(c) || !slices.Contains(c.ACSURLs, l.ACSURL) || l.Unsolicited && !c.AllowIDPInitiated:
		reason = "the configuration of the method has changed"
	case l.User == nil || ro == nil:
		reason = "the role does not exist any more"
	default:
		err := ro.Admits(*l.User)
		if err == nil {
			return nil
		}
		reason = err.Error()
	}
	return &engines.Error{Kind: engines.KindDenied, Detail: "the login was denied: " + reason}
}

// maxDisplayBytes leaves room for the mount's name before it.
const maxDisplayBytes = 256

// cut shortens a text to at most n bytes.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// RenewLogin implements engines.Renewer: what the role says now governs the token. A user who gets the
// token only after a second factor gets it by the terms of the login: the role's bounds cannot be checked again, because the
// user's attributes are not stored any more.
func (e *engine) RenewLogin(ctx context.Context, m engines.Mount, login engines.RenewedLogin) (engines.TokenFields, error) {
	ro, err := role.Get(ctx, m.Storage, login.Role)
	if err != nil {
		return engines.TokenFields{}, err
	}
	if ro == nil {
		return engines.TokenFields{}, engines.Invalid("the token cannot be renewed: its role does not exist any more")
	}
	if login.Waiting {
		c, err := provider.GetConfig(ctx, m.Storage)
		if err != nil {
			return engines.TokenFields{}, err
		}
		if !bytes.Equal(login.Internal, terms(c, ro)) {
			return engines.TokenFields{}, engines.Invalid("the role or the configuration has changed: log in again")
		}
	}
	return ro.Token, nil
}

// LoginRole implements engines.RoleNamer.
func (e *engine) LoginRole(ctx context.Context, req *engines.Request) string {
	if req.Path != "sso_service_url" && req.Path != "token" {
		return "" // a callback's body is large, and says nothing of a role
	}
	// As the input is decoded: encoding/json alone would take "ROLE" for the field.
	var in map[string]json.RawMessage
	if len(req.Body) == 0 || json.Unmarshal(req.Body, &in) != nil {
		return ""
	}
	text := func(field string) string {
		var s string
		if json.Unmarshal(in[field], &s) != nil {
			s = string(in[field]) // a name that looks like a number
		}
		return s
	}
	name := ""
	switch req.Path {
	case "sso_service_url":
		if name = text("role"); name == "" {
			if c, err := provider.GetConfig(ctx, req.Mount.Storage); err == nil {
				name = c.DefaultRole
			}
		}
	case "token":
		id := pollLogin(text("token_poll_id"))
		if code := text("code"); code != "" {
			id = codeLogin(code)
		}
		if l, err := getLogin(ctx, req.Mount.ClusterStorage, id); err == nil && l != nil {
			name = l.Role
		}
	}
	if name == "" {
		return ""
	}
	ro, err := role.Get(ctx, req.Mount.Storage, name)
	if err != nil || ro == nil {
		return ""
	}
	return ro.Name
}

var (
	_ engines.Renewer   = (*engine)(nil)
	_ engines.RoleNamer = (*engine)(nil)
)

// trust identifies whose responses are accepted, and which. A login that was accepted under another configuration must not
// be redeemed: to change it may be how a provider that fell into wrong hands is shut out.
func trust(c *provider.Config) string {
	switches := fmt.Sprint(c.ValidateResponseSignature, c.ValidateAssertionSignature)
	all := []string{c.IDPMetadataURL, c.IDPEntityID, c.IDPCert, c.EntityID, switches}
	if c.NameIDFormat != "" {
		all = append(all, c.NameIDFormat)
	}
	return hash("trust", strings.Join(all, "\x00"))
}
