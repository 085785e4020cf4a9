package saml

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/fairqueue"
	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/idp"
	"github.com/coffer-project/coffer/engines/saml/page"
	"github.com/coffer-project/coffer/engines/saml/provider"
	"github.com/coffer-project/coffer/engines/saml/role"
	"github.com/coffer-project/coffer/storage"
)

type callbackIn struct {
	RelayState   string `json:"RelayState" max:"512" help:"What the login's URL said, given back by the identity provider."`
	SAMLResponse string `json:"SAMLResponse" max:"1500000" help:"The identity provider's signed response, as base64. Required, but with confirmation."`
	// What the page posts that asks the user.
	Confirmation engines.Sensitive `json:"confirmation" max:"256" help:"What the page says that asks the user to confirm the login."`
	Decision     string            `json:"decision" enum:"confirm,reject" help:"What the user says to that."`
}

// codeTTL is how long the code of a login that the identity provider began is good for.
const codeTTL = 2 * time.Minute

// Reasons for rejections beside those of the package assertion.
const (
	unknownReason assertion.Reason = "login"     // it belongs to no login that waits for it
	replayReason  assertion.Reason = "replay"    // the assertion was used before
	roleReason    assertion.Reason = "role"      // it is accepted, but the role does not admit the user
	sourceReason  assertion.Reason = "provider"  // the identity provider is not known well enough to check it
	limitReason   assertion.Reason = "too_many"  // there is no room for another login
	largeReason   assertion.Reason = "too_large" // more than can be kept until the login is redeemed
)

// acsRequest is one request to the assertion consumer service: a response of an identity provider, posted by a browser.
type acsRequest struct {
	*engine
	req   *engines.Request
	conf  *provider.Config
	login *login
}

// callback takes a response. It is for browsers: whatever happens they see a page, which says nothing about the reason.
// Nothing here depends on cookies, which a form that another site sends does not bring: the RelayState finds the login,
// the signature and the request's id decide.
func (e *engine) callback(ctx context.Context, req *engines.Request, in *callbackIn) (*engines.Response, error) {
	switch {
	case in.Confirmation != "" && in.Decision != "" && in.SAMLResponse == "":
		return e.confirm(ctx, req, in)
	case in.Confirmation != "" || in.Decision != "":
		return nil, engines.Invalid(`field "confirmation": goes with decision and without SAMLResponse`)
	case in.SAMLResponse == "":
		return nil, engines.Invalid(`field "SAMLResponse": is required`)
	}
	p := &acsRequest{engine: e, req: req}
	c, err := provider.GetConfig(ctx, req.Mount.Storage)
	if err != nil {
		return nil, p.unchecked(err)
	}
	l, err := referredLogin(ctx, req.Mount.ClusterStorage, relayKey(in.RelayState))
	if err != nil {
		return nil, err
	}
	p.conf, p.login = c, l
	switch {
	case l == nil && c.AllowIDPInitiated:
		p.login = unsolicited(req, c)
	case l == nil:
		return nil, p.page(engines.KindInvalid, &assertion.Rejection{Reason: unknownReason, Detail: "unknown or expired login"})
	}
	req.LoginID = p.login.AuditID
	if p.login.State != pendingState && !p.login.Unsolicited {
		return nil, p.page(engines.KindInvalid, errDecided)
	}
	if !p.login.Unsolicited && !slices.Contains(c.ACSURLs, p.login.ACSURL) {
		return nil, p.page(engines.KindInvalid, &assertion.Rejection{Reason: assertion.Recipient, Detail: "the login's ACS URL is not in acs_urls any more"})
	}
	a, err := p.verify(ctx, in.SAMLResponse)
	if err != nil {
		return nil, p.rejectUnverified(ctx, err)
	}
	return p.accept(ctx, a)
}

var errDecided = &assertion.Rejection{Reason: unknownReason, Detail: "the login was answered before"}

// unsolicited returns a login for a response that was not requested.
func unsolicited(req *engines.Request, c *provider.Config) *login {
	now := time.Now().UTC()
	return &login{
		Role: c.DefaultRole, Unsolicited: true,
		Address: address(req), Browser: address(req), CreatedAt: now, ExpiresAt: now.Add(codeTTL), State: completedState, AuditID: uuid.NewString(),
	}
}

// intendedACS returns the URL among ours that an unsolicited response says it was sent to. It is a guess: the response is
// then held to it, and rejected if it names another one elsewhere, or none of ours.
func intendedACS(ours []string, encoded string) string {
	if len(ours) == 0 {
		return ""
	}
	document, err := assertion.Decode(encoded)
	if err != nil {
		return ours[0]
	}
	d := xml.NewDecoder(bytes.NewReader(document))
	for {
		token, err := d.RawToken()
		if err != nil {
			return ours[0]
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		for _, attr := range start.Attr {
			if (attr.Name.Local == "Destination" || attr.Name.Local == "Recipient") && slices.Contains(ours, attr.Value) {
				return attr.Value
			}
		}
	}
}

// verify returns what the response says. If it does not fit what is known of the identity provider, there may be something
// newer to know, such as another certificate. Errors that are no *assertion.Rejection say that it could not be checked.
func (p *acsRequest) verify(ctx context.Context, encoded string) (*assertion.Assertion, error) {
	d, err := p.provider.Descriptor(ctx, p.req.Mount, p.conf)
	if err != nil {
		return nil, err
	}
	p.trace(ctx, encoded)
	a, err := p.check(ctx, encoded, d)
	var r *assertion.Rejection
	if !errors.As(err, &r) || r.Reason != assertion.Signature && r.Reason != assertion.Certificate && r.Reason != assertion.Issuer {
		return a, err
	}
	newer, fetchErr := p.provider.Newer(ctx, p.req.Mount, p.conf, d)
	if fetchErr != nil || newer == nil {
		return a, err // why there is nothing newer is in the provider's own log
	}
	return p.check(ctx, encoded, newer)
}

// check holds the response against what is known of the identity provider.
func (p *acsRequest) check(ctx context.Context, encoded string, d *idp.Descriptor) (*assertion.Assertion, error) {
	release, err := p.queue.Acquire(ctx, fairqueue.SourceOf(p.req))
	if err != nil {
		return nil, busy(err)
	}
	defer release()
	if p.login.Unsolicited {
		p.login.ACSURL = intendedACS(p.conf.ACSURLs, encoded)
	}
	return assertion.Verify(encoded, p.expect(d))
}

// busy gives the error of the queue a page for browsers. The response has not been verified, so it can be sent again.
func busy(err error) error {
	var e *engines.Error
	if !errors.As(err, &e) {
		return err
	}
	with := *e
	with.Page = page.Busy()
	return &with
}

func (p *acsRequest) expect(d *idp.Descriptor) assertion.Expect {
	return assertion.Expect{
		ACSURL: p.login.ACSURL, EntityID: p.conf.EntityID, Issuer: d.EntityID, RequestID: p.login.RequestID,
		Certificates: d.Certificates, SignedResponse: p.conf.ValidateResponseSignature,
		SignedAssertion: p.conf.ValidateAssertionSignature, NameIDFormat: p.conf.NameIDFormat, Now: time.Now(),
	}
}

// trace writes the whole response, for those who find out why it is rejected.
func (p *acsRequest) trace(ctx context.Context, encoded string) {
	if !p.conf.VerboseLogging || !p.log.Enabled(ctx, LevelTrace) {
		return
	}
	if document, err := assertion.Decode(encoded); err == nil {
		p.log.Log(ctx, LevelTrace, "a SAML response", "request_id", p.req.ID, "response", string(document))
	}
}

// rejectUnverified handles a response that proves nothing. The login stays open, because otherwise a client that learns its
// RelayState could end it with one post. It ends if the identity provider itself reports that the login failed, or after too many
// such responses.
func (p *acsRequest) rejectUnverified(ctx context.Context, err error) error {
	var r *assertion.Rejection
	if !errors.As(err, &r) {
		return p.unchecked(err)
	}
	if r.Signed && !p.login.Unsolicited {
		if err := p.endLogin(ctx, r, nil, nil); err != nil {
			return err
		}
		return p.page(engines.KindDenied, r)
	}
	if !p.login.Unsolicited && p.rejected.add(time.Now(), p.login.id) {
		last := r
		r = &assertion.Rejection{Reason: last.Reason, Detail: fmt.Sprintf("%d responses to this login were rejected, which ends it; the last one: %s", maxRejections, last.Detail)}
		if err := p.endUnverified(ctx); err != nil {
			return err
		}
	}
	if err := p.recordUnverified(ctx, r); err != nil {
		return err
	}
	return p.page(engines.KindInvalid, r)
}

// endUnverified ends a login to which too many responses came that prove nothing. Explain keeps what the identity provider said.
func (p *acsRequest) endUnverified(ctx context.Context) error {
	return p.decide(ctx, nil, func(_ *storage.Txn, l *login) error {
		l.State, l.Browser = rejectedState, address(p.req)
		l.Reason = "too many responses were rejected that are not the identity provider's"
		return nil
	})
}

// keptFor is how long a rejection that the identity provider vouched for is not replaced by one that any client can cause.
const keptFor = 10 * time.Minute

// recordUnverified keeps a rejection that any client can cause, at most once a second, and unless it would hide a better one.
func (p *acsRequest) recordUnverified(ctx context.Context, r *assertion.Rejection) error {
	now := time.Now()
	if !p.unverifiedLimit.allow(now) {
		return nil
	}
	_, err := storage.Update(ctx, p.req.Mount.ClusterStorage, func(t *storage.Txn) error {
		last := new(role.LastRejection)
		found, err := engines.GetRecord(ctx, t, role.RejectedPrefix+storage.Key(p.login.Role), last)
		if age := now.Sub(last.At); err != nil || found && last.Vouched && age >= 0 && age < keptFor {
			return err
		}
		return p.record(t, r, nil, false)
	})
	return err
}

// unchecked turns the error of a response that could not be checked into a page, unless it is the server's own trouble.
func (p *acsRequest) unchecked(err error) error {
	var e *engines.Error
	if !errors.As(err, &e) || e.Page != nil {
		return err
	}
	return p.page(e.Kind, &assertion.Rejection{Reason: sourceReason, Detail: e.Error()})
}

// accept handles a response that the identity provider gave: what is left to decide is whether the role admits the user.
func (p *acsRequest) accept(ctx context.Context, a *assertion.Assertion) (*engines.Response, error) {
	user := role.Identity{Subject: a.Subject, Attributes: a.Attributes, Contexts: a.Contexts}
	ro, err := role.Get(ctx, p.req.Mount.Storage, p.login.Role)
	if err != nil {
		return nil, err
	}
	p.debug(ctx, ro, user)
	if r := p.authorize(ro, user); r != nil {
		known := &user
		if r.Reason == largeReason {
			known = nil
		}
		if err := p.endLogin(ctx, r, a, known); err != nil {
			return nil, err
		}
		return nil, p.page(engines.KindDenied, r)
	}
	if p.login.Unsolicited {
		return p.completeUnsolicited(ctx, a, user)
	}
	secret := ""
	if ro.Confirms(p.login.ClientType) {
		secret = newRelayState()
	}
	if err := p.complete(ctx, a, user, secret); err != nil {
		return nil, err
	}
	p.counts.Completed.Add(1)
	if secret != "" {
		return &engines.Response{Raw: page.Confirm(p.login.shown(), confirmation(p.login, secret)), Data: p.about("")}, nil
	}
	return p.finished(), nil
}

// debug writes what the role demands beside what the user has: support needs to see both together.
func (p *acsRequest) debug(ctx context.Context, ro *role.Role, user role.Identity) {
	if !p.conf.VerboseLogging || ro == nil {
		return
	}
	p.log.DebugContext(ctx, "a user and the bounds of the role", "request_id", p.req.ID, "role", ro.Name,
		"subject", user.Subject, "attributes", user.Attributes, "bound_subjects", ro.BoundSubjects, "bound_subjects_type", ro.BoundSubjectsType,
		"bound_attributes", ro.BoundAttributes, "bound_attributes_type", ro.BoundAttributesType, "groups_attribute", ro.GroupsAttribute)
}

// Limits of a user who can be admitted: those of an alias, and what is kept until the login is redeemed.
const (
	maxSubjectBytes = 1024
	maxUserBytes    = 256 << 10
)

// authorize returns why the role does not admit the user, nil if it does. The texts may be shown to the user.
func (p *acsRequest) authorize(ro *role.Role, user role.Identity) *assertion.Rejection {
	kept, err := json.Marshal(user)
	switch {
	case ro == nil:
		return &assertion.Rejection{Reason: roleReason, Detail: "the role does not exist any more"}
	case len(user.Subject) > maxSubjectBytes || !utf8.ValidString(user.Subject) || strings.ContainsFunc(user.Subject, unicode.IsControl):
		return &assertion.Rejection{Reason: assertion.Subject, Detail: fmt.Sprintf("the subject is longer than %d bytes or has control characters", maxSubjectBytes)}
	case err != nil || len(kept) > maxUserBytes:
		return &assertion.Rejection{Reason: largeReason, Detail: fmt.Sprintf("the attributes are more than %d KiB: have the identity provider send only those that matter", maxUserBytes>>10)}
	case ro.RequireSameAddress && p.login.Address != address(p.req):
		return &assertion.Rejection{Reason: roleReason, Detail: "the role demands that the browser has the address that the login was started from"}
	}
	if err := ro.Admits(user); err != nil {
		return &assertion.Rejection{Reason: roleReason, Detail: err.Error()}
	}
	return nil
}

// complete marks the login as completed, or as one that the user has to confirm if there is a secret for that, and the
// assertion as used, both or none: otherwise two nodes, or two posts at once, could each accept what is good for one.
func (p *acsRequest) complete(ctx context.Context, a *assertion.Assertion, user role.Identity, secret string) error {
	return p.decide(ctx, a, func(_ *storage.Txn, l *login) error {
		l.State, l.User, l.Browser, l.Trust = completedState, &user, address(p.req), trust(p.conf)
		if secret != "" {
			l.State, l.Confirmation = confirmingState, confirmationHash(secret)
		}
		return nil
	})
}

// endLogin marks the login as rejected, so that the client that waits for it learns why, and keeps the rejection for explain. a
// is nil if there is no assertion.
func (p *acsRequest) endLogin(ctx context.Context, r *assertion.Rejection, a *assertion.Assertion, user *role.Identity) error {
	if p.login.Unsolicited {
		_, err := storage.Update(ctx, p.req.Mount.ClusterStorage, func(t *storage.Txn) error {
			if err := p.markUsed(ctx, t, a); err != nil {
				return err
			}
			return p.record(t, r, user, true)
		})
		return p.decisionError(err)
	}
	return p.decide(ctx, a, func(t *storage.Txn, l *login) error {
		l.State, l.Reason, l.Browser = rejectedState, r.Detail, address(p.req)
		return p.record(t, r, user, true)
	})
}

// decide changes a login that is still pending and uses up the assertion, in one transaction.
func (p *acsRequest) decide(ctx context.Context, a *assertion.Assertion, change func(*storage.Txn, *login) error) error {
	_, err := storage.Update(ctx, p.req.Mount.ClusterStorage, func(t *storage.Txn) error {
		l, err := getLogin(ctx, t, p.login.id)
		switch {
		case err != nil:
			return err
		case l == nil || l.State != pendingState:
			return errDecided
		}
		if err := p.markUsed(ctx, t, a); err != nil {
			return err
		}
		if err := change(t, l); err != nil {
			return err
		}
		p.login = l
		return engines.PutRecord(t, loginKey(l.id), l)
	})
	return p.decisionError(err)
}

// markUsed marks an assertion as used, if there is one.
func (p *acsRequest) markUsed(ctx context.Context, t *storage.Txn, a *assertion.Assertion) error {
	if a == nil {
		return nil
	}
	fresh, err := use(ctx, t, assertionKey(a.Issuer, a.ID), a.NotOnOrAfter)
	if err == nil && !fresh {
		err = errReplay
	}
	return err
}

var errReplay = &assertion.Rejection{Reason: replayReason, Detail: "the assertion was used before"}

// decisionError turns a rejection by the transaction into a page.
func (p *acsRequest) decisionError(err error) error {
	var r *assertion.Rejection
	if errors.As(err, &r) {
		return p.page(engines.KindInvalid, r)
	}
	return err
}

// completeUnsolicited stores a login that the identity provider began, and shows the code that redeems it. The browser
// itself is not signed in: a site that makes a user's browser post a response of its own gains nothing by it.
func (p *acsRequest) completeUnsolicited(ctx context.Context, a *assertion.Assertion, user role.Identity) (*engines.Response, error) {
	// What is repeated must not take any room.
	if repeated, err := engines.GetRecord(ctx, p.req.Mount.ClusterStorage, assertionKey(a.Issuer, a.ID), new(used)); repeated || err != nil {
		return nil, p.decisionError(cmp.Or(err, error(errReplay)))
	}
	code := newCode(4, 5) // 100 bits: it is all that is needed
	evict, err := p.checkPendingLimit(ctx, p.req.Mount.ClusterStorage, p.req.RemoteIP, codeLogin(code))
	if err != nil {
		return nil, p.page(engines.KindLimited, &assertion.Rejection{Reason: limitReason, Detail: "too many logins are pending"})
	}
	l := p.login
	l.id, l.User, l.Trust = codeLogin(code), &user, trust(p.conf)
	_, err = storage.Update(ctx, p.req.Mount.ClusterStorage, func(t *storage.Txn) error {
		if err := cmp.Or(p.markUsed(ctx, t, a), makeRoom(ctx, t, evict)); err != nil {
			return err
		}
		return l.create(t)
	})
	if err := p.decisionError(err); err != nil {
		return nil, err
	}
	p.counts.Completed.Add(1)
	return &engines.Response{Raw: page.Code(p.req.Mount, l.shown(), code, codeTTL), Data: map[string]any{
		"role": l.Role, "idp_initiated": true, "browser_address": l.Browser,
	}}, nil
}

// record keeps a rejection for explain. The identity provider vouches for it, or any client may have caused it.
func (p *acsRequest) record(t *storage.Txn, r *assertion.Rejection, user *role.Identity, vouched bool) error {
	if p.login.Role == "" {
		return nil
	}
	return engines.PutRecord(t, role.RejectedPrefix+storage.Key(p.login.Role), &role.LastRejection{
		At: time.Now().UTC(), Reason: r.Reason, Detail: r.Detail, Address: address(p.req), User: user, Vouched: vouched,
	})
}

// page is the error of a response that is rejected: a page that says nothing for the browser, the reason for the log and
// for the audit log.
func (p *acsRequest) page(kind engines.Kind, r *assertion.Rejection) error {
	p.counts.Rejected.Add(1)
	role, started := "", ""
	if p.login != nil {
		role, started = p.login.Role, p.login.Address
	}
	p.log.Warn("a SAML login was denied", "reason", r.Reason, "detail", r.Detail, "role", role, "request_id", p.req.ID,
		"address", address(p.req), "started_from", started)
	return &engines.Error{Kind: kind, Detail: "the login was denied", Reason: r.Error(), Page: page.Rejected(p.req.ID)}
}
