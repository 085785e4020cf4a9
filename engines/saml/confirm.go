package saml

import (
	"context"
	"crypto/subtle"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/page"
	"github.com/coffer-project/coffer/engines/saml/role"
	"github.com/coffer-project/coffer/storage"
)

// userReason is the reason of a login that its user says is not theirs.
const userReason assertion.Reason = "user"

const (
	confirmDecision = "confirm"
	rejectDecision  = "reject"
)

// confirmation is what the page knows that asks the user about a login: who posts it has seen that page, which only the
// browser gets that brought the identity provider's response. Other sites' pages do not know it.
func confirmation(l *login, secret string) string { return l.id + "." + secret }

func confirmationHash(secret string) string { return hash("confirm", secret) }

// confirm takes the user's decision about a login that the identity provider has responded to.
func (e *engine) confirm(ctx context.Context, req *engines.Request, in *callbackIn) (*engines.Response, error) {
	id, secret, _ := strings.Cut(in.Confirmation.Reveal(), ".")
	p := &acsRequest{engine: e, req: req}
	_, err := storage.Update(ctx, req.Mount.ClusterStorage, func(t *storage.Txn) error {
		l, err := getLogin(ctx, t, id)
		switch {
		case err != nil:
			return err
		case l == nil || l.State != confirmingState || subtle.ConstantTimeCompare([]byte(confirmationHash(secret)), []byte(l.Confirmation)) != 1:
			return &assertion.Rejection{Reason: unknownReason, Detail: "no such login waits to be confirmed"}
		}
		p.login, req.LoginID = l, l.AuditID
		l.Confirmation, l.Browser = "", address(req)
		if in.Decision == rejectDecision {
			return p.reject(t)
		}
		l.State = completedState
		return engines.PutRecord(t, loginKey(l.id), l)
	})
	if err := p.decisionError(err); err != nil {
		return nil, err
	}
	if in.Decision == rejectDecision {
		return p.stopped(), nil
	}
	return p.finished(), nil
}

// reject ends the login because its user says that it is not theirs.
func (p *acsRequest) reject(t *storage.Txn) error {
	r := &assertion.Rejection{Reason: userReason, Detail: "the user said in the browser that the login is not theirs"}
	p.login.State, p.login.Reason = rejectedState, r.Detail
	if err := p.record(t, r, p.login.User, true); err != nil {
		return err
	}
	p.login.User = nil
	return engines.PutRecord(t, loginKey(p.login.id), p.login)
}

// stopped responds to a user who has rejected a login. Another client has probably started it: an administrator should know.
func (p *acsRequest) stopped() *engines.Response {
	p.counts.Rejected.Add(1)
	p.log.Warn("a user rejected a SAML login: another client may have started it", "role", p.login.Role, "request_id", p.req.ID,
		"address", address(p.req), "started_from", p.login.Address)
	return &engines.Response{Raw: page.Stopped(p.req.ID), Data: p.about(rejectDecision)}
}

// finished responds to the browser of a login that is to be redeemed.
func (p *acsRequest) finished() *engines.Response {
	shown := page.Blank()
	if p.login.ClientType != role.Browser {
		shown = page.Done(p.login.shown())
	}
	return &engines.Response{Raw: shown, Data: p.about(confirmDecision)}
}

// about is what the audit log has of a response about the login.
func (p *acsRequest) about(decision string) map[string]any {
	l := p.login
	return map[string]any{
		"role": l.Role, "client_type": l.ClientType, "address": l.Address, "browser_address": l.Browser, "decision": decision,
	}
}

type linkIn struct {
	Code string `json:"code" help:"The code of a short link."`
}

// ask shows who opens a short link whose login it is. It changes nothing: programs that look at links in messages must not
// use them up.
func (e *engine) ask(ctx context.Context, req *engines.Request, in *linkIn) (*engines.Response, error) {
	l, err := referredLogin(ctx, req.Mount.ClusterStorage, linkKey(strings.ToLower(in.Code)))
	if err != nil {
		return nil, err
	}
	if l == nil || l.State != pendingState || l.Target == "" {
		return nil, errGone()
	}
	req.LoginID = l.AuditID
	return &engines.Response{Raw: page.Ask(l.shown()), Data: map[string]any{"role": l.Role, "address": l.Address}}, nil
}

type followIn struct {
	linkIn
	Decision string `json:"decision" required:"true" enum:"confirm,reject" help:"What the user says: confirm leads to the identity provider, reject ends the login."`
}

// follow leads the browser that has opened a short link to the identity provider, once, or ends the login. The page does
// so and not a redirect: browsers apply form-action to the redirects of a form, and the identity provider may redirect
// anywhere.
func (e *engine) follow(ctx context.Context, req *engines.Request, in *followIn) (*engines.Response, error) {
	key := linkKey(strings.ToLower(in.Code))
	p := &acsRequest{engine: e, req: req}
	_, err := storage.Update(ctx, req.Mount.ClusterStorage, func(t *storage.Txn) error {
		l, err := referredLogin(ctx, t, key)
		if err != nil {
			return err
		}
		if l == nil || l.State != pendingState || l.Target == "" {
			return errGone()
		}
		p.login, req.LoginID = l, l.AuditID
		t.Delete(key)
		if in.Decision != rejectDecision {
			return nil
		}
		l.Browser = address(req)
		return p.reject(t)
	})
	if err != nil {
		return nil, err
	}
	if in.Decision == rejectDecision {
		return p.stopped(), nil
	}
	return &engines.Response{Raw: page.Leave(p.login.Target), Data: map[string]any{"role": p.login.Role, "address": p.login.Address}}, nil
}

func errGone() error {
	return &engines.Error{Kind: engines.KindNotFound, Detail: "the link is unknown, expired or used", Page: page.Gone()}
}

// shown is what pages tell of the login.
func (l *login) shown() *page.Login {
	shown := &page.Login{
		Role: l.Role, ACSURL: l.ACSURL, Code: l.VerificationCode, Address: l.Address, StartedAt: l.CreatedAt, Terminal: l.ClientType == role.CLI,
	}
	if l.User != nil {
		shown.Subject = cut(l.User.Subject, maxDisplayBytes)
	}
	return shown
}
