package saml_test

import (
	"crypto"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

// TestSAMLLogin is about the three steps of a login, and what each rejects.
func TestSAMLLogin(t *testing.T) {
	t.Parallel()
	c := alone(t, "login", "")
	m := ready(t, c, "saml")
	start := func(t *testing.T, change object) harness.Answer {
		t.Helper()
		m := m.in(t)
		return m.send(m.node, "POST", "sso_service_url", "", m.startBody(change))
	}
	t.Run("the three steps need no token", func(t *testing.T) {
		got := m.in(t).login("dev", alice)
		wantData(t, m.in(t).lookup(m.node, got.Token), object{"path": "auth/saml/token", "meta": object{"role": "dev"}})
	})
	t.Run("what begins a login is answered with the SSO URL and a token_poll_id", func(t *testing.T) {
		m := m.in(t)
		a, b := m.start(m.node, nil), m.start(m.node, nil)
		r, err := samltest.ParseRequest(a.url)
		if err != nil || !strings.HasPrefix(a.url, m.idp.SSOURL+"?") || r.ACSURL != m.acs || r.RelayState == "" {
			t.Errorf("%s: %+v, %v", a.url, r, err)
		}
		if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(a.poll) || a.poll == b.poll {
			t.Errorf("token_poll_id %q, %q", a.poll, b.poll)
		}
	})
	t.Run("client_challenge is required", func(t *testing.T) {
		wantStatus(t, "start", start(t, object{"client_challenge": nil}), 400, "client_challenge")
	})
	t.Run("client_challenge shorter than 44 bytes", func(t *testing.T) {
		for _, short := range []string{"x", challenge(verifier)[:43]} {
			wantStatus(t, "start", start(t, object{"client_challenge": short}), 400, "client_challenge", "at least 44 bytes")
		}
		wantStatus(t, "44 bytes", start(t, object{"client_challenge": challenge(verifier)}), 200)
	})
	t.Run("client_challenge is base64", func(t *testing.T) {
		wantStatus(t, "start", start(t, object{"client_challenge": strings.Repeat("!", 44)}), 400, "client_challenge", "base64")
	})
	t.Run("client_type is required", func(t *testing.T) {
		wantStatus(t, "start", start(t, object{"client_type": nil}), 400, "client_type")
	})
	t.Run("client_type is cli or browser", func(t *testing.T) {
		for kind, status := range map[string]int{"cli": 200, "browser": 200, "CLI": 400, "": 400, "other": 400} {
			wantStatus(t, "client_type "+kind, start(t, object{"client_type": kind}), status)
		}
	})
	t.Run("acs_url is required", func(t *testing.T) {
		wantStatus(t, "start", start(t, object{"acs_url": nil}), 400, "acs_url")
	})
	t.Run("acs_url not in acs_urls", func(t *testing.T) {
		for _, u := range []string{m.acs + "/", strings.ToUpper(m.acs), "https://evil.example.com/callback", ""} {
			wantStatus(t, "start", start(t, object{"acs_url": u}), 400, "acs_url")
		}
	})
	t.Run("acs_url is one of several", func(t *testing.T) {
		m := m.in(t)
		other := "https://other.example.com:8200/v1/auth/saml/callback"
		m.configure(object{"acs_urls": []string{m.acs, other}})
		s := m.start(m.node, object{"acs_url": other})
		r, err := samltest.ParseRequest(s.url)
		if err != nil || r.ACSURL != other {
			t.Errorf("the request names %q, %v", r.ACSURL, err)
		}
		wantStatus(t, "an answer to the other URL", m.post(m.node, m.idp.AnswerWith(s.url, samltest.Response{User: alice, ACSURL: m.acs})), 400)
		m.confirm(m.node, s, alice)
		tokenOf(t, m.redeem(m.node, s.poll))
		m.configure()
	})
	t.Run("role is one that exists", func(t *testing.T) {
		wantStatus(t, "start", start(t, object{"role": "nobody"}), 400, `"role"`)
	})
	t.Run("callback: what is required", func(t *testing.T) {
		m := m.in(t)
		form := m.idp.Answer(m.start(m.node, nil).url, alice)
		for field, status := range map[string]int{"RelayState": 400, "SAMLResponse": 400} {
			less := url.Values{}
			for name, values := range form {
				if name != field {
					less[name] = values
				}
			}
			wantStatus(t, "without "+field, m.post(m.node, less), status)
		}
		wantStatus(t, "with both", m.post(m.node, form), 200)
	})
	t.Run("callback: the response is validated", func(t *testing.T) { validated(t, m.in(t)) })
	t.Run("callback: a page that says nothing", func(t *testing.T) {
		m := m.in(t)
		a := m.post(m.node, m.idp.AnswerWith(m.start(m.node, nil).url, samltest.Response{User: alice, Unsigned: true}))
		wantStatus(t, "callback", a, 400, "denied")
		for _, word := range []string{"signature", "assertion", "groups", alice.Subject} {
			has(t, "page", string(a.Body), word, false)
		}
		if kind := a.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/html") {
			t.Errorf("Content-Type %q", kind)
		}
	})
	t.Run("callback: a success page for cli and a blank one for browser", func(t *testing.T) {
		m := m.in(t)
		for kind, wants := range map[string]bool{"cli": true, "browser": false} {
			a := m.post(m.node, m.idp.Answer(m.start(m.node, object{"client_type": kind}).url, alice))
			wantStatus(t, kind, a, 200)
			body := string(a.Body)
			if _, after, ok := strings.Cut(body, "</title>"); ok {
				body = after
			}
			body = regexp.MustCompile(`(?s)<style>.*?</style>|<[^>]*>`).ReplaceAllString(body, "")
			if shows := strings.TrimSpace(body) != ""; shows != wants || !strings.HasPrefix(a.Header.Get("Content-Type"), "text/html") {
				t.Errorf("%s: %v %q", kind, a.Header["Content-Type"], body)
			}
		}
	})
	t.Run("token: what is required", func(t *testing.T) {
		m := m.in(t)
		s := m.start(m.node, nil)
		for field, in := range map[string]object{"client_verifier": {"token_poll_id": s.poll}, "token_poll_id": {"client_verifier": verifier}} {
			wantStatus(t, "token", m.send(m.node, "POST", "token", "", in), 400, field)
		}
	})
	t.Run("token: not before the user has authenticated", func(t *testing.T) {
		m := m.in(t)
		s := m.start(m.node, nil)
		wantStatus(t, "before", m.redeem(m.node, s.poll), 401)
		m.post(m.node, m.idp.AnswerWith(s.url, samltest.Response{User: alice, Unsigned: true}))
		wantStatus(t, "after an answer that proves nothing", m.redeem(m.node, s.poll), 401)
		m.confirm(m.node, s, alice)
		wantStatus(t, "afterwards", m.redeem(m.node, s.poll), 200)
	})
	t.Run("token: the digest of client_verifier is not client_challenge", func(t *testing.T) {
		m := m.in(t)
		s, other := m.start(m.node, nil), m.start(m.node, object{"client_challenge": challenge("another")})
		m.confirm(m.node, s, alice)
		for _, wrong := range []string{"another", verifier + " ", challenge(verifier)} {
			wantStatus(t, "verifier", m.send(m.node, "POST", "token", "", object{"client_verifier": wrong, "token_poll_id": s.poll}), 400, "client_verifier")
		}
		wantStatus(t, "another's token_poll_id", m.redeem(m.node, other.poll), 400)
		wantStatus(t, "the right one, still", m.redeem(m.node, s.poll), 200)
	})
	t.Run("token: an unknown token_poll_id", func(t *testing.T) {
		wantStatus(t, "token", m.in(t).redeem(m.node, "5e8e1f3c-8b1a-4f3c-9d3e-0c2d2f5d7a11"), 400)
	})
	t.Run("token: once", func(t *testing.T) {
		m := m.in(t)
		s := m.start(m.node, nil)
		m.confirm(m.node, s, alice)
		wantStatus(t, "first", m.redeem(m.node, s.poll), 200)
		wantStatus(t, "second", m.redeem(m.node, s.poll), 400, "expired or used")
	})
	t.Run("mounted at any location", func(t *testing.T) {
		for _, name := range []string{"corp/sso", "second"} {
			m := ready(t, c, name)
			got := m.login("dev", alice)
			wantData(t, m.lookup(m.node, got.Token), object{"path": "auth/" + name + "/token"})
		}
	})
	t.Run("paths without the prefix v1", func(t *testing.T) {
		m := m.in(t)
		ctx := t.Context()
		a, err := m.node.Do(ctx, "POST", "/auth/saml/sso_service_url", "", m.startBody(nil))
		if err != nil {
			t.Fatal(err)
		}
		if target, _ := dataOf(t, a)["sso_service_url"].(string); target == "" {
			t.Errorf("answered %s", a.Body)
		}
	})
	t.Run("methods of the endpoints", func(t *testing.T) { verbs(t, m.in(t)) })
	t.Run("everything else needs a token and a policy", func(t *testing.T) { needsToken(t, m.in(t)) })
	t.Run("a token that is no good changes nothing", func(t *testing.T) { // a browser may still have one
		m := m.in(t)
		a := m.send(m.node, "POST", "sso_service_url", "hvs.no-good", m.startBody(nil))
		poll, _ := dataOf(t, a)["token_poll_id"].(string)
		a = m.send(m.node, "POST", "token", "hvs.no-good", object{"client_verifier": verifier, "token_poll_id": poll})
		wantStatus(t, "token", a, 401, "not finished")
	})
	t.Run("the server is killed between the steps", func(t *testing.T) { // the last one: it is another process then
		m := m.in(t)
		restart := func() {
			m.node.Kill9()
			m.node.Start()
			m.node.WaitHealth(200)
		}
		s := m.start(m.node, nil)
		form := m.idp.Answer(s.url, alice)
		restart()
		wantStatus(t, "callback", m.post(m.node, form), 200)
		restart()
		tokenOf(t, m.redeem(m.node, s.poll))
		next, err := samltest.ParseRequest(m.start(m.node, nil).url)
		if err != nil {
			t.Fatal(err)
		}
		wantStatus(t, "the answer again", m.post(m.node, form), 400)
		form.Set("RelayState", next.RelayState)
		wantStatus(t, "the answer for another login", m.post(m.node, form), 400)
		wantStatus(t, "the poll id again", m.redeem(m.node, s.poll), 400)
	})
}

// validated posts answers with one thing wrong each. The package assertion has many more.
func validated(t *testing.T, m *method) {
	other := m.in(t)
	other.idp = samltest.New(t, samltest.WithECDSA())
	for name, bad := range map[string]struct {
		by     *samltest.IdP
		change samltest.Response
		status int // 403 for what the identity provider has signed and sent for this login
		reason string
	}{
		"no signature":                 {m.idp, samltest.Response{Unsigned: true}, 400, "signature"},
		"another's signature":          {other.idp, samltest.Response{}, 400, "signature"},
		"changed after it was signed":  {m.idp, samltest.Response{Tamper: swap(alice.Subject, "admin@example.com")}, 400, "signature"},
		"another issuer":               {m.idp, samltest.Response{Issuer: "https://other.example.com/"}, 400, "issuer"},
		"for another service provider": {m.idp, samltest.Response{Audience: "https://other.example.com/saml"}, 403, "audience"},
		"to another URL":               {m.idp, samltest.Response{ACSURL: "https://other.example.com/callback"}, 400, "destination"},
		"for another login":            {m.idp, samltest.Response{RequestID: "_another"}, 400, "in_response_to"},
		"too old":                      {m.idp, samltest.Response{Age: time.Hour}, 403, "time"},
		"not yet good":                 {m.idp, samltest.Response{Age: -time.Hour, Lifetime: 2 * time.Hour}, 403, "time"},
		"the user did not log in":      {m.idp, samltest.Response{Status: "Responder", SubStatus: "AuthnFailed", SignResponse: true}, 403, "status"},
		"with a document type":         {m.idp, samltest.Response{Tamper: func(s string) string { return "<!DOCTYPE x>" + s }}, 400, "structure"},
		"two assertions":               {m.idp, samltest.Response{Tamper: double}, 400, "structure"},
		"no name of anybody":           {m.idp, samltest.Response{User: samltest.User{Subject: " "}}, 403, "subject"},
		"signed with SHA-1":            {m.idp, samltest.Response{AssertionSignature: samltest.Signature{Hash: crypto.SHA1}}, 400, "algorithm"},
		"nothing that could be XML":    {m.idp, samltest.Response{Tamper: func(string) string { return "x" }}, 400, "encoding"},
	} {
		s := m.start(m.node, nil)
		if bad.change.User.Subject == "" {
			bad.change.User = alice
		}
		before := len(m.node.Log())
		wantStatus(t, name, m.post(m.node, bad.by.AnswerWith(s.url, bad.change)), bad.status)
		if log := m.node.Log()[before:]; !strings.Contains(log, "a SAML login was denied") || !strings.Contains(log, "reason="+bad.reason) {
			t.Errorf("%s: the log does not say reason=%s: %s", name, bad.reason, log)
		}
		want := 401
		if bad.status == 403 {
			want = 403
		}
		wantStatus(t, name+": who waits", m.redeem(m.node, s.poll), want)
	}
	s := m.start(m.node, nil)
	form := m.idp.Answer(s.url, alice)
	wantStatus(t, "a good one", m.post(m.node, form), 200)
	wantStatus(t, "the same again", m.post(m.node, form), 400)
	next := m.start(m.node, nil)
	r, err := samltest.ParseRequest(next.url)
	if err != nil {
		t.Fatal(err)
	}
	form.Set("RelayState", r.RelayState)
	wantStatus(t, "the same for another login", m.post(m.node, form), 400)
	form.Set("RelayState", "unknown")
	wantStatus(t, "the same for no login", m.post(m.node, form), 400)
}

func swap(old, new string) func(string) string {
	return func(s string) string { return strings.ReplaceAll(s, old, new) }
}

// double repeats the assertion.
func double(s string) string {
	from, to := strings.Index(s, "<saml:Assertion"), strings.Index(s, "</samlp:Response>")
	return s[:to] + s[from:to] + s[to:]
}

// verbs: which methods each endpoint takes.
func verbs(t *testing.T, m *method) {
	for path, verbs := range map[string]string{
		"config": "POST PUT GET", "role/verbs": "POST PUT GET DELETE", "role": "LIST", "sso_service_url": "POST PUT", "callback": "POST PUT", "token": "POST PUT",
	} {
		for _, verb := range []string{"POST", "PUT", "GET", "LIST", "DELETE"} {
			token := m.c.RootToken
			var body any
			switch {
			case verb == "POST" || verb == "PUT":
				body = m.settings(object{"bound_subjects": "x"})
			case path == "role/verbs" && verb == "GET":
				m.role("verbs", nil)
			}
			a := m.send(m.node, verb, path, token, body)
			takes := strings.Contains(" "+verbs+" ", " "+verb+" ")
			if (a.Status == 405) == takes || a.Status == 404 && takes || a.Status >= 500 {
				t.Errorf("%s %s: status %d: %.200s", verb, path, a.Status, a.Body)
			}
		}
	}
	m.configure()
}

// needsToken: the endpoints of administrators are closed to everybody else.
func needsToken(t *testing.T, m *method) {
	noPolicy := m.login("dev", alice).Token // has the policies default and dev
	for _, op := range []struct{ verb, path string }{
		{"GET", "config"}, {"POST", "config"}, {"POST", "config/verify"}, {"POST", "config/rotate-signing-key"}, {"LIST", "role"},
		{"GET", "role/dev"}, {"POST", "role/dev"}, {"DELETE", "role/dev"}, {"POST", "role/dev/explain"},
	} {
		for who, token := range map[string]string{"no token": "", "a user without a policy": noPolicy} {
			wantStatus(t, op.verb+" "+op.path+" by "+who, m.send(m.node, op.verb, op.path, token, object{}), 403)
		}
	}
	m.node.MustDo("POST", "/v1/sys/policies/acl/saml-reader", object{"policy": `path "auth/saml/role/dev" { capabilities = ["read"] }`})
	var made struct{ Auth token }
	m.node.MustDo("POST", "/v1/auth/token/create", object{"policies": []string{"saml-reader"}}).Decode(t, &made)
	wantStatus(t, "who may", m.send(m.node, "GET", "role/dev", made.Auth.Token, nil), 200)
	wantStatus(t, "and no more", m.send(m.node, "POST", "role/dev", made.Auth.Token, object{}), 403)
}
