package saml

import (
	"cmp"
	"context"
	"crypto"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	saml2 "github.com/russellhaering/gosaml2"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/idp"
	"github.com/coffer-project/coffer/engines/saml/provider"
	"github.com/coffer-project/coffer/engines/saml/role"
	"github.com/coffer-project/coffer/storage"
)

// loginTTL is how long a login can be finished: clients of the family poll for three minutes.
const loginTTL = 5 * time.Minute

type startIn struct {
	Role            string `json:"role" max:"512" help:"Name of the role; without it the default role of the configuration."`
	ClientChallenge string `json:"client_challenge" required:"true" max:"512" help:"The SHA-256 of the client's secret verifier, as base64."`
	ClientType      string `json:"client_type" required:"true" enum:"cli,browser" help:"Where the user is to go on after the login."`
	ACSURL          string `json:"acs_url" required:"true" max:"2048" help:"Where the identity provider is to send its response: one of the configured URLs."`
	ShortLink       bool   `json:"short_link" help:"Also return a short URL that leads to the identity provider once."`
}

// start begins a login: it returns where to send the user, and what to ask for the token with.
func (e *engine) start(ctx context.Context, req *engines.Request, in *startIn) (*engines.Response, error) {
	challenge, err := in.challenge()
	if err != nil {
		return nil, err
	}
	c, ro, err := startingRole(ctx, req, in.Role)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(c.ACSURLs, in.ACSURL) {
		return nil, engines.Invalid(`field "acs_url": is not one of the configured acs_urls, byte for byte: add it to acs_urls of the config and at the identity provider, or log in through an address that is there`)
	}
	if !ro.Token.Allows(req.RemoteIP) {
		return nil, denied("token_bound_cidrs of the role exclude the address")
	}
	code := strings.ToLower(newCode(1, 16)) // 80 bits
	short, err := in.short(code)
	if err != nil {
		return nil, err
	}
	relay, pollID := newRelayState(), newPollID()
	evict, err := e.checkPendingLimit(ctx, req.Mount.ClusterStorage, req.RemoteIP, pollLogin(pollID))
	if err != nil { // before anything that costs: a fetch, a signature
		return nil, err
	}
	d, err := e.provider.Descriptor(ctx, req.Mount, c)
	if err != nil {
		return nil, err
	}
	target, requestID, err := authnRequest(ctx, req.Mount, c, ro, d, in.ACSURL, relay)
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	l := &login{
		Role: ro.Name, Challenge: challenge, ClientType: in.ClientType, ACSURL: in.ACSURL, RequestID: requestID,
		VerificationCode: newCode(2, 4), Address: address(req), CreatedAt: now, ExpiresAt: now.Add(loginTTL),
		State: pendingState, AuditID: uuid.NewString(), id: pollLogin(pollID),
	}
	req.LoginID = l.AuditID
	leading := []storage.Key{relayKey(relay)}
	data := map[string]any{
		"sso_service_url": target, "token_poll_id": pollID, "verification_code": l.VerificationCode,
		"expires_in": int(loginTTL / time.Second), "role": l.Role, "confirmation_required": ro.Confirms(l.ClientType),
	}
	if short != "" {
		l.Target, leading, data["short_url"] = target, append(leading, linkKey(code)), short
	}
	if _, err := storage.Update(ctx, req.Mount.ClusterStorage, func(t *storage.Txn) error {
		return cmp.Or(makeRoom(ctx, t, evict), l.create(t, leading...))
	}); err != nil {
		return nil, err
	}
	e.counts.Started.Add(1)
	return &engines.Response{Data: data}, nil
}

// challengeBytes is the length of a SHA-256 in base64, and the least that a challenge has.
const challengeBytes = 44

// challenge returns the digest that the client gave. One that is longer is taken as it is: no verifier has it.
func (in *startIn) challenge() ([]byte, error) {
	if len(in.ClientChallenge) < challengeBytes {
		return nil, engines.Invalid(`field "client_challenge": must be at least %d bytes long: the base64 of the SHA-256 of client_verifier`, challengeBytes)
	}
	digest, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(in.ClientChallenge))
	if err != nil {
		return nil, engines.Invalid(`field "client_challenge": must be the SHA-256 of client_verifier in standard base64, with padding`)
	}
	return digest, nil
}

// short returns the URL of a short link, "" if none is wanted. It leads to the node that the response is to reach.
func (in *startIn) short(code string) (string, error) {
	if !in.ShortLink {
		return "", nil
	}
	u, err := url.Parse(in.ACSURL)
	if err != nil {
		return "", engines.Invalid(`field "acs_url": is not a URL`)
	}
	mount, ok := strings.CutSuffix(u.Path, "/callback")
	if !ok {
		return "", engines.Invalid(`field "short_link": the path of acs_url does not end in "/callback", so there is no knowing where the link would lead: leave short_link out`)
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: mount + "/go/" + code}).String(), nil
}

// startingRole returns the configuration and the role of a login, the default one if none is named.
func startingRole(ctx context.Context, req *engines.Request, name string) (*provider.Config, *role.Role, error) {
	c, err := provider.GetConfig(ctx, req.Mount.Storage)
	if err != nil {
		return nil, nil, err
	}
	if name == "" {
		name = c.DefaultRole
	}
	if name == "" {
		return nil, nil, engines.Invalid("missing required 'role' parameter: name a role, or set default_role in the config")
	}
	ro, err := role.Get(ctx, req.Mount.Storage, name)
	if err == nil && ro == nil {
		err = engines.Invalid(`field "role": there is no such role`)
	}
	return c, ro, err
}

// authnRequest returns the identity provider's URL with a request in it, signed if the configuration says so, and the
// request's id. Providers that want signed requests do not always insist: whether this one does is for it to say.
func authnRequest(ctx context.Context, m engines.Mount, c *provider.Config, ro *role.Role, d *idp.Descriptor, acsURL, relay string) (target, id string, err error) {
	var signer crypto.Signer
	if c.SignAuthnRequests {
		if signer, _, err = provider.SigningKey(ctx, m.Storage); err != nil {
			return "", "", err
		}
	}
	sp := &saml2.SAMLServiceProvider{
		IdentityProviderSSOURL: d.SSOURL, AssertionConsumerServiceURL: acsURL, ServiceProviderIssuer: c.EntityID,
		NameIdFormat: c.NameIDFormat,
	}
	if len(ro.AuthnContext) > 0 {
		sp.RequestedAuthnContext = &saml2.RequestedAuthnContext{Comparison: saml2.AuthnPolicyMatchExact, Contexts: ro.AuthnContext}
	}
	doc, err := sp.BuildAuthRequestDocumentNoSig() // the signature of a redirect is in the query
	if err != nil {
		return "", "", fmt.Errorf("building an AuthnRequest: %w", err)
	}
	if id = doc.Root().SelectAttrValue("ID", ""); id == "" {
		return "", "", errors.New("building an AuthnRequest: it has no ID")
	}
	text, err := doc.WriteToBytes()
	if err != nil {
		return "", "", fmt.Errorf("building an AuthnRequest: %w", err)
	}
	if target, err = redirectURL(d.SSOURL, relay, text, signer); err != nil {
		return "", "", fmt.Errorf("building the URL of an AuthnRequest: %w", err)
	}
	return target, id, nil
}

// address is where a request comes from, as it is stored.
func address(req *engines.Request) string { return req.RemoteIP.Unmap().WithZone("").String() }

// denied is a 403 whose reason is in the audit log.
func denied(reason string) error {
	return &engines.Error{Kind: engines.KindDenied, Detail: "permission denied", Reason: reason}
}
