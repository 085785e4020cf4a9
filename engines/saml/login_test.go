package saml_test

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

func TestStart(t *testing.T) {
	f := newFlow(t)
	s := f.start(nil)
	r, err := samltest.ParseRequest(s.url)
	if err != nil {
		t.Fatal(err)
	}
	if r.ACSURL != acsURL || r.Issuer != entityID || r.Destination != f.idp.SSOURL || !strings.HasPrefix(s.url, f.idp.SSOURL+"?") {
		t.Errorf("the request at %s is %+v", s.url, r)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(s.poll) {
		t.Errorf("token_poll_id %q is no random UUID", s.poll)
	}
	if !regexp.MustCompile(`^[A-HJ-NP-Z2-9]{4}-[A-HJ-NP-Z2-9]{4}$`).MatchString(s.code) {
		t.Errorf("verification_code %q", s.code)
	}
	if n := len(r.RelayState); n < 32 || n > 80 {
		t.Errorf("the RelayState has %d bytes, want 80 at most and nothing that can be guessed", n)
	}
	if s.data["expires_in"] != json.Number("300") || s.data["role"] != "dev" || s.data["short_url"] != nil {
		t.Errorf("data %v", s.data)
	}
	// What one party sees tells nothing about what another one has.
	id := strings.TrimPrefix(r.ID, "_")
	for _, pair := range [][2]string{{s.url, s.poll}, {s.url, s.code}, {s.poll, r.RelayState}, {s.poll, id}, {r.RelayState, id}} {
		if strings.Contains(pair[0], pair[1]) {
			t.Errorf("%q is in %q", pair[1], pair[0])
		}
	}
	again := f.start(nil)
	if again.poll == s.poll || again.url == s.url || again.code == s.code {
		t.Error("two logins share a value")
	}
	if f.counts.Started.Load() != 2 {
		t.Errorf("%d logins counted", f.counts.Started.Load())
	}
	for key := range f.Snapshot() {
		for _, secret := range []string{s.poll, r.RelayState, r.ID} {
			if strings.Contains(string(key), secret) {
				t.Errorf("the key %q holds a secret", key)
			}
		}
	}
}

func TestStartKeepsTheQueryOfTheSSOURL(t *testing.T) {
	f := newFlow(t, fields{"idp_sso_url": "https://idp.example.com/sso?tenant=7"})
	u, err := url.Parse(f.start(nil).url)
	if err != nil || u.Query().Get("tenant") != "7" || u.Query().Get("SAMLRequest") == "" {
		t.Errorf("the URL is %s (%v)", u, err)
	}
}

func TestLoginUsesTheDefaultRole(t *testing.T) {
	f := newFlow(t, fields{"default_role": "dev"})
	for _, role := range []any{"", nil} {
		if s := f.start(fields{"role": role}); s.data["role"] != "dev" {
			t.Errorf("a login without a role is for %v", s.data["role"])
		}
	}
}

func TestLoginWithNoRoleAndNoDefaultRoleIsRejected(t *testing.T) {
	f := newFlow(t)
	for _, role := range []any{"", nil} {
		text := f.Fails(engines.KindInvalid, engines.Update, "sso_service_url", startBody(fields{"role": role}))
		if !strings.Contains(text, "missing required 'role' parameter") {
			t.Errorf("the error is %q", text)
		}
	}
}

func TestACSURLNotConfiguredIsRejected(t *testing.T) {
	f := newFlow(t)
	for _, u := range []string{acsURL + "/", strings.ToUpper(acsURL), strings.Replace(acsURL, "https", "http", 1), "https://evil.example.com/callback"} {
		text := f.Fails(engines.KindInvalid, engines.Update, "sso_service_url", startBody(fields{"acs_url": u}))
		if !strings.Contains(text, `"acs_url"`) || !strings.Contains(text, "acs_urls") || strings.Contains(text, acsURL) {
			t.Errorf("the error is %q", text)
		}
	}
}

func TestClientChallengeShorterThan44BytesIsRejected(t *testing.T) {
	f := newFlow(t)
	for _, c := range []string{"x", challenge(verifier)[:43]} {
		if text := f.Fails(engines.KindInvalid, engines.Update, "sso_service_url", startBody(fields{"client_challenge": c})); !strings.Contains(text, "at least 44 bytes") {
			t.Errorf("the error is %q", text)
		}
	}
}

func TestStartRefuses(t *testing.T) {
	f := newFlow(t)
	good := challenge(verifier)
	for name, test := range map[string]struct {
		change fields
		text   string
	}{
		"an unknown role":             {fields{"role": "nobody"}, `"role"`},
		"a role that cannot be":       {fields{"role": "../x"}, `"role"`},
		"a long challenge":            {fields{"client_challenge": good + "="}, "base64"},
		"a challenge not in base64":   {fields{"client_challenge": "!" + good[1:]}, "base64"},
		"a challenge with loose bits": {fields{"client_challenge": strings.Repeat("A", 42) + "B="}, "base64"},
		"no client type":              {fields{"client_type": nil}, `"client_type"`},
		"an empty client type":        {fields{"client_type": ""}, `"client_type"`},
		"another client type":         {fields{"client_type": "phone"}, `"client_type"`},
	} {
		if text := f.Fails(engines.KindInvalid, engines.Update, "sso_service_url", startBody(test.change)); !strings.Contains(text, test.text) {
			t.Errorf("%s: the error is %q", name, text)
		}
	}
	f.Must(engines.Update, "config", fields{"default_role": "gone"})
	f.Fails(engines.KindInvalid, engines.Update, "sso_service_url", startBody(fields{"role": ""}))
}

func TestTokenBoundCIDRsAtTheStart(t *testing.T) {
	f := newFlow(t)
	f.role("dev", fields{"token_bound_cidrs": "198.51.100.0/24"})
	_, err := f.do(engines.Update, "sso_service_url", startBody(nil))
	wantError(t, err, engines.KindDenied, "token_bound_cidrs")
	f.from("198.51.100.9").start(nil)
	f.from("::ffff:198.51.100.9").start(nil)
}

func TestSignedRequests(t *testing.T) {
	f := newFlow(t, fields{"sign_authn_requests": true})
	resp := f.Must(engines.Update, "config/rotate-signing-key", nil)
	block, _ := pem.Decode([]byte(f.Data(resp)["certificate"].(string)))
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	s := f.start(nil)
	if err := samltest.CheckRequest(s.url, certificate); err != nil {
		t.Errorf("the request's signature: %v", err)
	}
	r, err := samltest.ParseRequest(s.url)
	if err != nil {
		t.Fatal(err)
	}
	if samltest.CheckRequest(strings.Replace(s.url, r.RelayState, r.RelayState+"x", 1), certificate) == nil {
		t.Error("the signature does not cover the RelayState")
	}
	f.confirm(s, alice)
	f.login(s.poll)
}

func TestUnsignedRequestsCarryNoSignature(t *testing.T) {
	if s := newFlow(t).start(nil); strings.Contains(s.url, "Signature") || strings.Contains(s.url, "SigAlg") {
		t.Errorf("the URL is %s", s.url)
	}
}

func TestShortLink(t *testing.T) {
	f := newFlow(t)
	s := f.start(fields{"short_link": true})
	short, _ := s.data["short_url"].(string)
	code, ok := strings.CutPrefix(short, "https://coffer.example.com:8200/v1/auth/saml/go/")
	if !ok || len(code) < 16 {
		t.Fatalf("short_url is %q", short)
	}
	phone := f.peer().from("198.51.100.1")
	for range 2 { // opening it uses nothing up: programs that look at links do so, too
		resp, err := phone.do(engines.Read, "go/"+code, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"Is this your login?", "dev", s.code, f.addr, "This is not me", "<form method=\"post\">"} {
			if !strings.Contains(string(resp.Raw.Body), text) {
				t.Errorf("the page lacks %q", text)
			}
		}
		if strings.Contains(string(resp.Raw.Body), "SAMLRequest") {
			t.Error("the page holds the request")
		}
	}
	resp, err := phone.do(engines.Update, "go/"+code, fields{"decision": "confirm"})
	if err != nil {
		t.Fatal(err)
	}
	h := resp.Raw.Header
	if !strings.Contains(string(resp.Raw.Body), `http-equiv="refresh" content="0;url=`+html.EscapeString(s.url)+`"`) || h.Get("Cache-Control") != "no-store" || h.Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("the link answers %v %s", h, resp.Raw.Body)
	}
	wantGone(t, phone, code)
	f.confirm(s, alice)
	f.login(s.poll)
}

// TestShortLinkIsRejected: who says that the login is not theirs ends it.
func TestShortLinkIsRejected(t *testing.T) {
	f := newFlow(t)
	s := f.start(fields{"short_link": true})
	short := s.data["short_url"].(string)
	code := short[strings.LastIndexByte(short, '/')+1:]
	resp, err := f.do(engines.Update, "go/"+code, fields{"decision": "reject"})
	if err != nil || !strings.Contains(string(resp.Raw.Body), "was stopped") {
		t.Fatalf("rejecting answers %+v, %v", resp, err)
	}
	wantGone(t, f, code)
	_, err = f.post(f.idp.Answer(s.url, alice))
	wantError(t, err, engines.KindInvalid)
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindDenied)
}

// wantGone checks that a short link leads to a page that says so.
func wantGone(t *testing.T, f *flow, code string) {
	t.Helper()
	_, err := f.do(engines.Read, "go/"+code, nil)
	wantError(t, err, engines.KindNotFound)
	_, err2 := f.do(engines.Update, "go/"+code, fields{"decision": "confirm"})
	wantError(t, err2, engines.KindNotFound)
	var e *engines.Error
	if errors.As(err, &e) && (e.Page == nil || !strings.Contains(string(e.Page.Body), "does not work any more")) {
		t.Errorf("no page for a browser: %+v", e)
	}
}

func TestShortLinkEnds(t *testing.T) {
	code := func(s started) string {
		u := s.data["short_url"].(string)
		return u[strings.LastIndex(u, "/")+1:]
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		wantGone(t, f, "unknown")
		done := f.start(fields{"short_link": true})
		f.confirm(done, alice)
		wantGone(t, f, code(done))
		f.login(done.poll)
		wantGone(t, f, code(done))
		late := f.start(fields{"short_link": true})
		time.Sleep(5 * time.Minute)
		wantGone(t, f, code(late))
	})
}

func TestShortLinkNeedsACallbackURL(t *testing.T) {
	const other = "https://gate.example.com/saml/acs"
	f := newFlow(t, fields{"acs_urls": []string{acsURL, other}})
	body := startBody(fields{"acs_url": other, "short_link": true})
	if text := f.Fails(engines.KindInvalid, engines.Update, "sso_service_url", body); !strings.Contains(text, `"short_link"`) {
		t.Errorf("the error is %q", text)
	}
	f.start(fields{"acs_url": other})
}

func TestLoginRole(t *testing.T) {
	f := newFlow(t, fields{"default_role": "dev"})
	f.role("ops", nil)
	s := f.start(fields{"role": "OPS"})
	for _, test := range []struct{ path, body, want string }{
		{"sso_service_url", `{"role":"ops"}`, "ops"},
		{"sso_service_url", `{"role":"Ops"}`, "ops"},
		{"sso_service_url", `{"role":""}`, "dev"},
		{"sso_service_url", `{"ROLE":"ops"}`, "dev"},
		{"sso_service_url", `{"role":"none"}`, ""},
		{"sso_service_url", `{"role":["ops"]}`, ""},
		{"sso_service_url", `[]`, ""},
		{"token", `{"token_poll_id":"` + s.poll + `"}`, "ops"},
		{"token", `{"token_poll_id":"unknown"}`, ""},
		{"token", `{"code":"unknown"}`, ""},
		{"config", `{"role":"ops"}`, ""},
	} {
		req := f.Request(engines.Update, test.path, test.body)
		if got := f.Engine.(engines.RoleNamer).LoginRole(t.Context(), req); got != test.want {
			t.Errorf("the role of %s %s is %q, want %q", test.path, test.body, got, test.want)
		}
	}
}
