package saml_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/engines/saml"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

const (
	acsURL   = "https://coffer.example.com:8200/v1/auth/saml/callback"
	entityID = "https://coffer.example.com/saml"
	verifier = "what the client keeps"
)

type fields = map[string]any

var alice = samltest.User{
	Subject:    "alice@example.com",
	Attributes: map[string][]string{"groups": {"staff", "admins"}, "department": {"engineering"}},
}

// flow is a configured mount with the role "dev" for the staff, and the identity provider that it trusts.
type flow struct {
	*enginetest.Mount
	t      *testing.T
	idp    *samltest.IdP
	log    *logged
	counts *saml.Counts
	addr   string // where requests come from
}

func newFlow(t *testing.T, config ...fields) *flow {
	t.Helper()
	f := &flow{t: t, idp: samltest.New(t), log: new(logged), counts: new(saml.Counts), addr: "203.0.113.7"}
	f.Mount = enginetest.New(t, saml.New(saml.Options{Logger: slog.New(f.log), Counts: f.counts}), enginetest.Options{Type: "saml", Path: "auth/saml/"})
	all := fields{
		"idp_sso_url": f.idp.SSOURL, "idp_entity_id": f.idp.EntityID, "idp_cert": f.idp.CertificatePEM(),
		"entity_id": entityID, "acs_urls": []string{acsURL},
	}
	for _, c := range config {
		maps.Copy(all, c)
	}
	f.Must(engines.Update, "config", all)
	f.role("dev", nil)
	return f
}

// role writes a role for the staff, whose logins need no click unless further fields say so.
func (f *flow) role(name string, more fields) {
	f.t.Helper()
	all := fields{"confirm": "never", "bound_attributes": fields{"groups": "staff"}, "groups_attribute": "groups", "token_policies": "dev"}
	maps.Copy(all, more)
	f.Must(engines.Update, "role/"+name, all)
}

// peer is the same mount on another node.
func (f *flow) peer() *flow {
	f.t.Helper()
	p := *f
	p.Mount = f.Mount.Peer()
	return &p
}

// from is the same mount for a client elsewhere.
func (f *flow) from(addr string) *flow {
	g := *f
	g.addr = addr
	return &g
}

// do sends a request from the flow's address.
func (f *flow) do(op engines.Operation, path string, body any) (*engines.Response, error) {
	f.t.Helper()
	req := f.Request(op, path, body)
	req.RemoteIP, req.Caller = netip.MustParseAddr(f.addr), engines.Caller{}
	return f.Handle(f.t.Context(), req)
}

func challenge(verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// startBody is a good request for a login, with other fields.
func startBody(more fields) fields {
	all := fields{"role": "dev", "client_challenge": challenge(verifier), "client_type": "cli", "acs_url": acsURL}
	maps.Copy(all, more)
	return all
}

// started is a login that a client waits for.
type started struct {
	url, poll, code string
	data            map[string]any
}

func (f *flow) start(more fields) started {
	f.t.Helper()
	resp, err := f.do(engines.Update, "sso_service_url", startBody(more))
	if err != nil {
		f.t.Fatalf("starting a login: %v", err)
	}
	data := f.Data(resp)
	return started{url: data["sso_service_url"].(string), poll: data["token_poll_id"].(string), code: data["verification_code"].(string), data: data}
}

// post sends an identity provider's form to the callback.
func (f *flow) post(form url.Values) (*engines.Response, error) {
	f.t.Helper()
	body := map[string]string{}
	for name := range form {
		body[name] = form.Get(name)
	}
	return f.do(engines.Update, "callback", body)
}

// confirm answers a login in the browser, and confirms it there if the page asks.
func (f *flow) confirm(s started, u samltest.User) *engines.Response {
	f.t.Helper()
	resp, err := f.post(f.idp.Answer(s.url, u))
	if err == nil && samltest.Confirmation(resp.Raw.Body) != "" {
		resp, err = f.decide(resp, "confirm")
	}
	if err != nil {
		f.t.Fatalf("the callback rejected it: %v (%s)", err, reasonOf(err))
	}
	return resp
}

// decide clicks on a button of the page that asks the user.
func (f *flow) decide(page *engines.Response, decision string) (*engines.Response, error) {
	f.t.Helper()
	return f.post(url.Values{"confirmation": {samltest.Confirmation(page.Raw.Body)}, "decision": {decision}})
}

func (f *flow) redeem(poll string) (*engines.Response, error) {
	f.t.Helper()
	return f.do(engines.Update, "token", fields{"client_verifier": verifier, "token_poll_id": poll})
}

// login redeems a login, which must succeed.
func (f *flow) login(poll string) *engines.Login {
	f.t.Helper()
	resp, err := f.redeem(poll)
	if err != nil {
		f.t.Fatalf("redeeming: %v (%s)", err, reasonOf(err))
	}
	if resp.Auth == nil || resp.Auth.Login == nil {
		f.t.Fatalf("redeeming answered %+v", resp)
	}
	return resp.Auth.Login
}

func reasonOf(err error) string {
	var e *engines.Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// wantError checks kind and text of an error; texts are looked for in the detail and in the reason for the audit log.
func wantError(t *testing.T, err error, kind engines.Kind, texts ...string) {
	t.Helper()
	var e *engines.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Errorf("error %v (%s), want one of kind %d", err, reasonOf(err), kind)
		return
	}
	for _, text := range texts {
		if !strings.Contains(e.Detail+" / "+e.Reason, text) {
			t.Errorf("error %q (%s) does not say %q", e.Detail, e.Reason, text)
		}
	}
}

// wantRefused checks that the callback answered the page that says nothing, and why.
func wantRefused(t *testing.T, err error, kind engines.Kind, reason string) {
	t.Helper()
	wantError(t, err, kind, reason)
	var e *engines.Error
	if !errors.As(err, &e) {
		return
	}
	if e.Detail != "the login was denied" || e.Page == nil || !strings.Contains(string(e.Page.Body), "request-1") {
		t.Errorf("rejected with %q and the page %+v", e.Detail, e.Page)
	}
	if e.Page != nil && strings.Contains(string(e.Page.Body), reason) {
		t.Errorf("the page tells the reason %q", reason)
	}
}

// logged collects what is logged, as text.
type logged struct {
	mu    sync.Mutex
	level slog.Level // lowest one
	lines []string
}

func (l *logged) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level }

func (l *logged) Handle(ctx context.Context, r slog.Record) error {
	var b strings.Builder
	if err := slog.NewTextHandler(&b, &slog.HandlerOptions{Level: saml.LevelTrace}).Handle(ctx, r); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, b.String())
	return nil
}

func (l *logged) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *logged) WithGroup(string) slog.Handler      { return l }

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "")
}

func TestDocumented(t *testing.T) { enginetest.Documented(t, newFlow(t).Mount) }

func TestHostile(t *testing.T) {
	f := newFlow(t)
	f.start(nil)
	enginetest.Hostile(t, f.Mount)
}
