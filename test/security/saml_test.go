package security_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

// method is a SAML method with the role staff, whoever administers it, and the identity provider that it trusts.
type method struct {
	user
	idp  *samltest.IdP
	name string
	acs  string
}

const entityID = "https://coffer.example.com"

// alice has the role staff, mallory has not.
var (
	alice   = samltest.User{Subject: "alice@example.com", Attributes: map[string][]string{"groups": {"staff", "admins"}}}
	mallory = samltest.User{Subject: "mallory@example.com", Attributes: map[string][]string{"groups": {"guests"}}}
)

// saml enables a method in the namespace, with further fields of its configuration.
func (u user) saml(name string, idp *samltest.IdP, config fields) method {
	u.t.Helper()
	ns := ""
	if u.ns != "" {
		ns = u.ns + "/"
	}
	m := method{u, idp, name, u.n.URL + "/v1/" + ns + "auth/" + name + "/callback"}
	all := fields{
		"idp_sso_url": idp.SSOURL, "idp_entity_id": idp.EntityID, "idp_cert": idp.CertificatePEM(),
		"entity_id": entityID, "acs_urls": m.acs, "default_role": "staff",
	}
	maps.Copy(all, config)
	u.must("POST", "sys/auth/"+name, fields{"type": "saml"})
	m.role("staff", nil)
	m.must("POST", m.path("config"), all)
	return m
}

func (m method) path(rest string) string { return "auth/" + m.name + "/" + rest }

// as is the method for somebody else; on is it on another node.
func (m method) as(u user) method          { m.user = u; return m }
func (m method) on(n *harness.Node) method { m.user = m.user.at(n); return m }

func (m method) role(name string, more fields) {
	m.t.Helper()
	all := fields{"bound_attributes": "groups=staff", "groups_attribute": "groups", "token_policies": "staff"}
	maps.Copy(all, more)
	m.must("POST", m.path("role/"+name), all)
}

// samlLogin is one that a client waits for.
type samlLogin struct {
	url, poll, code, relay, verifier string
	short                            string // code of its short link
}

func (m method) startBody(verifier string, more fields) fields {
	digest := sha256.Sum256([]byte(verifier))
	all := fields{"client_challenge": base64.StdEncoding.EncodeToString(digest[:]), "client_type": "cli", "acs_url": m.acs, "short_link": true}
	maps.Copy(all, more)
	return all
}

func (m method) start(more fields) samlLogin {
	m.t.Helper()
	l := samlLogin{verifier: rand.Text()}
	data := dataOf(m.t, m.nobody().must("POST", m.path("sso_service_url"), m.startBody(l.verifier, more)))
	l.url, l.poll, l.code = data["sso_service_url"].(string), data["token_poll_id"].(string), data["verification_code"].(string)
	request, err := samltest.ParseRequest(l.url)
	if err != nil {
		m.t.Fatal(err)
	}
	l.relay, l.short = request.RelayState, data["short_url"].(string)
	l.short = l.short[strings.LastIndexByte(l.short, '/')+1:]
	return l
}

// post is what a browser does that the identity provider has given a form.
func (m method) post(form url.Values, header ...string) harness.Answer {
	m.t.Helper()
	header = append([]string{"Content-Type", "application/x-www-form-urlencoded", "Origin", "https://idp.example.com"}, header...)
	return m.nobody().do("POST", m.path("callback"), []byte(form.Encode()), header...)
}

// confirm posts the identity provider's answer about somebody, which must be taken.
func (m method) confirm(l samlLogin, u samltest.User) harness.Answer {
	m.t.Helper()
	a := m.post(m.idp.Answer(l.url, u))
	if a.Status != 200 {
		m.t.Fatalf("the callback answers %d: %.300s", a.Status, a.Body)
	}
	return a
}

func (m method) redeem(l samlLogin, header ...string) harness.Answer {
	m.t.Helper()
	return m.nobody().do("POST", m.path("token"), fields{"client_verifier": l.verifier, "token_poll_id": l.poll}, header...)
}

// logIn is a whole login.
func (m method) logIn(u samltest.User) auth {
	m.t.Helper()
	l := m.start(nil)
	m.confirm(l, u)
	return m.take(l)
}

func (m method) take(l samlLogin) auth {
	m.t.Helper()
	a := m.redeem(l)
	if a.Status != 200 {
		m.t.Fatalf("redeeming: status %d: %.300s", a.Status, a.Body)
	}
	return authOf(m.t, a)
}

// shut wants the callback to refuse a form, with a page that says and does nothing.
func (m method) shut(what string, form url.Values, header ...string) {
	m.t.Helper()
	a := m.post(form, header...)
	if a.Status != 400 && a.Status != 403 || !bytes.Contains(a.Body, []byte("The login was refused")) {
		m.t.Errorf("%s: status %d, want a refusal: %.300s", what, a.Status, a.Body)
	}
	if len(a.Header.Values("Set-Cookie")) > 0 || !strings.Contains(a.Header.Get("Content-Security-Policy"), "default-src 'none'") {
		m.t.Errorf("%s: a page with the header %v", what, a.Header)
	}
}

// pending wants a login to be as it was.
func (m method) pending(what string, l samlLogin) {
	m.t.Helper()
	if a := m.redeem(l); a.Status != 401 {
		m.t.Errorf("%s: the login answers %d, want 401: %.200s", what, a.Status, a.Body)
	}
}

// TestSAMLPolicies: what a method is set up with, and whom it has refused, takes a policy; logging in takes none and gives
// nothing but the role's.
func TestSAMLPolicies(t *testing.T) {
	_, root := single(t, harness.Options{})
	m := root.saml("sso", samltest.New(t), fields{"sign_authn_requests": true})
	m.shut("somebody else", m.idp.Answer(m.start(nil).url, mallory))
	root.policy("staff", `path "kv/app" { capabilities = ["read"] }`)
	requests := [][2]string{
		{"GET", "config"}, {"POST", "config"}, {"POST", "config/verify"}, {"POST", "config/rotate-signing-key"}, {"LIST", "role"}, {"GET", "role?list=true"},
		{"GET", "role/staff"}, {"POST", "role/staff"}, {"DELETE", "role/staff"}, {"POST", "role/staff/explain"}, {"POST", "role/STAFF/explain"}, {"POST", "role/new"},
	}
	who := map[string]user{"nobody": root.nobody(), "default": root.having("default"), "a login": root.with(m.logIn(alice).Token)}
	for name, u := range who {
		for _, r := range requests {
			if a := u.do(r[0], m.path(r[1]), fields{"default_role": "x", "token_policies": "x"}); a.Status != 403 {
				t.Errorf("%s: %s %s: status %d: %.200s", name, r[0], r[1], a.Status, a.Body)
			}
		}
	}
	root.policy("reader", `path "auth/sso/role/*" { capabilities = ["read", "list"] }
		path "auth/sso/config" { capabilities = ["read"] }`)
	reader := m.as(root.having("reader"))
	for _, path := range []string{"config", "role/staff"} {
		reader.must("GET", m.path(path), nil)
	}
	for _, path := range []string{"config", "config/verify", "config/rotate-signing-key", "role/staff", "role/staff/explain"} {
		reader.refused("a reader", "POST", m.path(path), fields{"default_role": "x"})
	}
	// A rule about one role holds, however the role is spelled.
	root.policy("all-but-staff", `path "auth/sso/role/*" { capabilities = ["create", "read", "update", "delete", "list"] }
		path "auth/sso/role/staff" { capabilities = ["deny"] }
		path "auth/sso/role/staff/*" { capabilities = ["deny"] }`)
	other := root.having("all-but-staff")
	before := dataText(t, root, m.path("role/staff"))
	for _, name := range []string{"staff", "STAFF", "Staff", "%73taff", "\u017ftaff", "staff%20", "staff/", "staff%2f"} {
		for _, r := range [][2]string{{"GET", name}, {"POST", name}, {"DELETE", name}, {"POST", name + "/explain"}} {
			other.refused("as "+name, r[0], m.path("role/"+r[1]), fields{"token_policies": "x"})
		}
	}
	if now := dataText(t, root, m.path("role/staff")); !bytes.Equal(now, before) {
		t.Errorf("the role was changed:\n%s\nwas\n%s", now, before)
	}
	// No role makes an operator.
	for _, name := range []string{"root", "ROOT", " root "} {
		if a := root.do("POST", m.path("role/top"), fields{"bound_attributes": "groups=staff", "token_policies": []string{name}}); a.Status >= 300 {
			continue
		}
		l := m.start(fields{"role": "top"})
		m.confirm(l, alice)
		if a := m.redeem(l); a.Status < 300 && slices.Contains(authOf(t, a).Policies, "root") {
			t.Errorf("a login has the policy %q", name)
		}
	}
}

// TestSAMLNamespaces: methods of two namespaces that share an identity provider, and even their name for it, have nothing
// to do with one another.
func TestSAMLNamespaces(t *testing.T) {
	_, root, a, sub, b := neighbours(t)
	idp := samltest.New(t)
	ma, mb, ms := a.saml("sso", idp, fields{"allow_idp_initiated": true}), b.saml("sso", idp, nil), sub.saml("sso", idp, nil)
	a.policy("staff", `path "kv/x" { capabilities = ["read"] }`)
	elsewhere := map[string]method{"b": mb, "the root": ma.as(root), "below": ms}
	l := ma.start(nil)
	for name, m := range elsewhere {
		if form := idp.Answer(l.url, alice); name == "the root" {
			m.refused("answered in "+name, "POST", m.path("callback"), []byte(form.Encode()), "Content-Type", "application/x-www-form-urlencoded")
		} else {
			m.shut("answered in "+name, form)
		}
		m.nobody().refused("the short link in "+name, "GET", m.path("go/"+l.short), nil)
	}
	ma.confirm(l, alice)
	for name, m := range elsewhere {
		m.nobody().refused("redeemed in "+name, "POST", m.path("token"), fields{"client_verifier": l.verifier, "token_poll_id": l.poll})
	}
	token := ma.with(ma.take(l).Token)
	if got := token.do("GET", "kv/x", nil); got.Status != 200 {
		t.Errorf("in its own namespace the login gets %d", got.Status)
	}
	for name, m := range elsewhere {
		token.in(m.ns).refused("the token in "+name, "GET", "kv/x", nil)
	}
	// The answer to a login of one, given to a login of another.
	for name, m := range map[string]method{"b": mb, "below": ms} {
		victim := m.start(nil)
		form := idp.Answer(ma.start(nil).url, alice)
		form.Set("RelayState", victim.relay)
		m.shut("an answer of a in "+name, form)
		m.shut("an answer to nobody in "+name, url.Values{"SAMLResponse": {idp.Response(samltest.Response{User: alice, ACSURL: ma.acs, Audience: entityID})}})
		m.pending(name, victim)
	}
	for _, path := range []string{"config", "role/staff"} {
		b.in("a").refused("a's "+path+" from b", "GET", "auth/sso/"+path, nil)
		b.in("").refused("a's "+path+" from b, by its path", "GET", "a/auth/sso/"+path, nil)
		b.refused("a's "+path+" from b, by a way out", "GET", "../a/auth/sso/"+path, nil)
		sub.in("a").refused("a's "+path+" from below", "POST", "auth/sso/"+path, fields{"default_role": "all", "token_policies": "all"})
	}
	b.in("a").refused("a's explanation from b", "POST", "auth/sso/role/staff/explain", nil)
}

// TestSAMLAcrossMounts: two methods with the same identity provider and entity id take no answers that were for the other.
func TestSAMLAcrossMounts(t *testing.T) {
	_, root := single(t, harness.Options{})
	idp := samltest.New(t)
	open := fields{"allow_idp_initiated": true}
	one, two := root.saml("one", idp, open), root.saml("two", idp, open)
	m := two
	for _, name := range []string{"", " that lists both URLs"} {
		if name != "" {
			m.must("POST", m.path("config"), fields{"acs_urls": []string{one.acs, two.acs}})
		}
		mine, theirs := m.start(nil), one.start(nil)
		form := idp.Answer(theirs.url, alice)
		m.shut("as it is, at one"+name, form)
		stolen := url.Values{"RelayState": {mine.relay}, "SAMLResponse": form["SAMLResponse"]}
		m.shut("with a RelayState of its own, at one"+name, stolen)
		m.shut("without a RelayState, at one"+name, url.Values{"SAMLResponse": form["SAMLResponse"]})
		m.pending("after a stolen answer", mine)
		m.nobody().refused("the other's poll id", "POST", m.path("token"), fields{"client_verifier": theirs.verifier, "token_poll_id": theirs.poll})
		one.confirm(theirs, alice)
		m.nobody().refused("the other's poll id, completed", "POST", m.path("token"), fields{"client_verifier": theirs.verifier, "token_poll_id": theirs.poll})
		one.take(theirs)
		m.confirm(mine, alice)
		m.take(mine)
	}
	// A method that comes back under its old name knows nothing of the logins of before.
	old := one.start(nil)
	root.must("DELETE", "sys/auth/one", nil)
	one = root.saml("one", idp, nil)
	one.shut("a login of before", idp.Answer(old.url, alice))
	one.nobody().refused("a poll id of before", "POST", one.path("token"), fields{"client_verifier": old.verifier, "token_poll_id": old.poll})
}

// TestSAMLGuesses: who does not have all that proves a login learns nothing from trying, and ends nothing.
func TestSAMLGuesses(t *testing.T) {
	_, root := single(t, harness.Options{})
	m := root.saml("sso", samltest.New(t), fields{"allow_idp_initiated": true})
	l := m.start(nil)
	m.confirm(l, alice)
	waiting := m.start(nil)
	try := func(body fields) harness.Answer {
		t.Helper()
		return m.nobody().refused("a guess", "POST", m.path("token"), body)
	}
	unknown := try(fields{"token_poll_id": "00000000-0000-4000-8000-000000000000", "client_verifier": l.verifier})
	for name, body := range map[string]fields{
		"another verifier":           {"token_poll_id": l.poll, "client_verifier": "x"},
		"the challenge":              {"token_poll_id": l.poll, "client_verifier": m.startBody(l.verifier, nil)["client_challenge"]},
		"another login's verifier":   {"token_poll_id": l.poll, "client_verifier": waiting.verifier},
		"the wrong one of a waiting": {"token_poll_id": waiting.poll, "client_verifier": l.verifier},
		"in capitals":                {"token_poll_id": strings.ToUpper(l.poll), "client_verifier": l.verifier},
		"the RelayState":             {"token_poll_id": l.relay, "client_verifier": l.verifier},
		"the verification code":      {"code": l.code},
		"the poll id as a code":      {"code": l.poll},
		"the RelayState as a code":   {"code": l.relay},
		"a code":                     {"code": "AAAAA-AAAAA-AAAAA-AAAAA"},
	} {
		if a := try(body); a.Status != unknown.Status || !bytes.Equal(a.Body, unknown.Body) {
			t.Errorf("%s: status %d %s, and for one that is unknown %d %s", name, a.Status, a.Body, unknown.Status, unknown.Body)
		}
	}
	for name, body := range map[string]fields{"no verifier": {"token_poll_id": l.poll}, "nothing": nil, "both": {"token_poll_id": l.poll, "client_verifier": l.verifier, "code": "x"}} {
		if a := try(body); a.Status != 400 {
			t.Errorf("%s: status %d", name, a.Status)
		}
	}
	seen := map[string]bool{l.poll: true, l.relay: true, l.short: true, l.code: true}
	for range 20 {
		n := m.start(nil)
		for _, value := range []string{n.poll, n.relay, n.short, n.code} {
			if seen[value] {
				t.Errorf("%q came twice", value)
			}
			seen[value] = true
		}
	}
	m.take(l)
	try(fields{"token_poll_id": l.poll, "client_verifier": l.verifier}) // once
	m.shut("the answer once more", m.idp.Answer(l.url, alice))
	m.pending("after all that", waiting)
}

// record is a line of the audit trail.
type record struct {
	Type    string
	Error   string
	Request struct {
		ID, Path string
		Remote   string `json:"remote_address"`
	}
	Response struct{ Data map[string]any }
}

func records(t *testing.T, file, path string) (all []record) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Request.Path == path {
			all = append(all, r)
		}
	}
	return all
}

// TestSAMLAudit: each answer of an identity provider is in the trail before anything is done, and then with what came of it
// and the reason, which the browser is not told. What cannot be recorded is not done.
func TestSAMLAudit(t *testing.T) {
	_, root := single(t, harness.Options{})
	m := root.saml("sso", samltest.New(t), fields{"allow_idp_initiated": true})
	trail := filepath.Join(t.TempDir(), "audit.log")
	root.must("POST", "sys/audit/file", fields{"type": "file", "options": fields{"file_path": trail}})
	used := m.start(nil)
	m.confirm(used, alice)
	answer := func(o samltest.Response) url.Values {
		if o.User.Subject == "" {
			o.User = alice
		}
		return m.idp.AnswerWith(m.start(nil).url, o)
	}
	seen := len(records(t, trail, m.path("callback")))
	for _, test := range []struct {
		reason string
		form   url.Values
	}{
		{"login: the login was answered before", m.idp.Answer(used.url, alice)},
		{"encoding: ", url.Values{"RelayState": {m.start(nil).relay}, "SAMLResponse": {"!"}}},
		{"structure: ", url.Values{"RelayState": {m.start(nil).relay}, "SAMLResponse": {base64.StdEncoding.EncodeToString([]byte("<a/>"))}}},
		{"signature: ", answer(samltest.Response{Unsigned: true})},
		{"signature: ", answer(samltest.Response{Tamper: func(s string) string { return strings.Replace(s, "alice@", "admin@", 1) }})},
		{"issuer: ", answer(samltest.Response{Issuer: "https://evil.example.com"})},
		{"audience: ", answer(samltest.Response{Audience: "https://other.example.com"})},
		{"destination: ", answer(samltest.Response{ACSURL: "https://other.example.com/callback"})},
		{"in_response_to: ", answer(samltest.Response{RequestID: "_other"})},
		{"in_response_to: ", url.Values{"RelayState": {"none"}, "SAMLResponse": answer(samltest.Response{})["SAMLResponse"]}},
		{"time: ", answer(samltest.Response{Age: time.Hour})},
		{"status: ", answer(samltest.Response{Status: "Responder", SubStatus: "AuthnFailed", SignResponse: true})},
		{"role: ", answer(samltest.Response{User: mallory})},
	} {
		m.shut(test.reason, test.form)
		all := records(t, trail, m.path("callback"))
		if len(all) != seen+2 {
			t.Fatalf("%s: %d records, want two", test.reason, len(all)-seen)
		}
		request, response := all[seen], all[seen+1]
		seen = len(all)
		if request.Type != "request" || request.Error != "" || response.Type != "response" || request.Request.ID != response.Request.ID {
			t.Errorf("%s: the records are %+v and %+v", test.reason, request, response)
		}
		if want := "the login was refused: " + test.reason; !strings.HasPrefix(response.Error, want) {
			t.Errorf("the trail says %q, want %q", response.Error, want)
		}
	}
	// The disk under the trail is full for a while.
	l := m.start(nil)
	form := m.idp.Answer(l.url, alice)
	if err := errors.Join(os.Remove(trail), os.Symlink("/dev/full", trail)); err != nil {
		t.Fatal(err)
	}
	reopen := func(want int) {
		t.Helper()
		root.n.Reload()
		harness.Await(t, "the trail to be reopened", time.Minute, func() error {
			if a := root.do("GET", "sys/mounts", nil); a.Status != want {
				return fmt.Errorf("status %d", a.Status)
			}
			return nil
		})
	}
	reopen(500)
	if a := m.post(form); a.Status != 500 || bytes.Contains(a.Body, []byte(alice.Subject)) {
		t.Errorf("without a trail the callback answers %d: %.200s", a.Status, a.Body)
	}
	if err := os.Remove(trail); err != nil {
		t.Fatal(err)
	}
	reopen(200)
	m.pending("an answer that was not recorded", l)
	if a := m.post(form); a.Status != 200 {
		t.Errorf("the same answer, recorded: status %d", a.Status)
	}
	m.take(l)
}

// TestSAMLForeignPages: the identity provider's page may send a browser to the callback whatever pages may use the API, and
// no page may send it anywhere else.
func TestSAMLForeignPages(t *testing.T) {
	_, root := single(t, harness.Options{})
	m := root.saml("sso", samltest.New(t), fields{"allow_idp_initiated": true})
	root.people("bob", "default")
	root.must("POST", "sys/config/cors", fields{"allowed_origins": "https://app.example.com"})
	for _, origin := range []string{"https://idp.example.com", "null", "https://app.example.com"} {
		l := m.start(nil)
		a := m.post(m.idp.Answer(l.url, alice), "Origin", origin, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate")
		if a.Status != 200 || a.Header.Get("Access-Control-Allow-Origin") != "" || len(a.Header.Values("Set-Cookie")) > 0 {
			t.Errorf("a form of %s: status %d, header %v", origin, a.Status, a.Header)
		}
		m.take(l)
	}
	const foreign = "https://idp.example.com"
	l := m.start(nil)
	m.confirm(l, alice)
	form := url.Values{"client_verifier": {l.verifier}, "token_poll_id": {l.poll}, "password": {"bob-password-1"}}.Encode()
	for _, path := range []string{m.path("token"), "auth/people/login/bob", m.path("sso_service_url")} {
		for _, kind := range []string{"application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"} {
			root.nobody().refused("a form", "POST", path, []byte(form), "Content-Type", kind, "Origin", foreign)
		}
		root.nobody().refused("a script", "POST", path, fields{"client_verifier": l.verifier, "token_poll_id": l.poll}, "Content-Type", "application/json", "Origin", foreign)
	}
	root.nobody().refused("a preflight", "OPTIONS", m.path("callback"), nil, "Origin", foreign, "Access-Control-Request-Method", "POST")
	m.take(l)
	// Somebody else's answer, posted into a browser: it is signed in to nothing, and the page has no more than a code.
	a := m.post(url.Values{"SAMLResponse": {m.idp.Response(samltest.Response{User: alice, ACSURL: m.acs, Audience: entityID})}})
	if a.Status != 200 || len(a.Header.Values("Set-Cookie")) > 0 || bytes.Contains(a.Body, []byte("hvs.")) || a.Header.Get("X-Frame-Options") != "DENY" {
		t.Errorf("an answer to nobody: status %d, header %v", a.Status, a.Header)
	}
}

// TestSAMLAddresses: who gets somebody to open the URL of a login gets that person's token. The page and the trail show
// where it was started, and a role can demand one address, which headers do not change.
func TestSAMLAddresses(t *testing.T) {
	_, root := single(t, harness.Options{})
	m := root.saml("sso", samltest.New(t), nil)
	m.role("near", fields{"require_same_address": true})
	m.role("far", fields{"token_bound_cidrs": "127.0.0.2/32"})
	trail := filepath.Join(t.TempDir(), "audit.log")
	root.must("POST", "sys/auth/sso/tune", fields{"audit_non_hmac_response_keys": []string{"address", "browser_address"}})
	root.must("POST", "sys/audit/file", fields{"type": "file", "options": fields{"file_path": trail}})
	const attacker = "127.0.0.2"
	var l samlLogin
	root.from(attacker, func() { l = m.start(nil) })
	page := m.confirm(l, alice).Body
	for _, want := range []string{l.code, attacker, alice.Subject, "If it does not"} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page does not show %q", want)
		}
	}
	done := records(t, trail, m.path("callback"))
	if data := done[len(done)-1].Response.Data; data["address"] != attacker || data["browser_address"] != "127.0.0.1" {
		t.Errorf("the trail says %v", data)
	}
	pretended := []string{"X-Forwarded-For", attacker, "X-Real-Ip", attacker, "Forwarded", "for=" + attacker}
	root.from(attacker, func() {
		m.take(l) // not promised, and documented
		l = m.start(fields{"role": "near"})
	})
	m.shut("from another address", m.idp.Answer(l.url, alice), pretended...)
	root.from(attacker, func() {
		if a := m.redeem(l); a.Status != 403 || !bytes.Contains(a.Body, []byte("address")) {
			t.Errorf("the attacker is told %d: %.200s", a.Status, a.Body)
		}
		l = m.start(fields{"role": "near"})
		m.confirm(l, alice)
	})
	if a := m.redeem(l, pretended...); a.Status != 403 {
		t.Errorf("redeemed from another address: status %d: %.200s", a.Status, a.Body)
	}
	root.from(attacker, func() {
		m.take(l) // it is still there for its owner
		l = m.start(fields{"role": "far"})
	})
	m.confirm(l, alice) // the browser may be anywhere
	m.nobody().refused("started elsewhere", "POST", m.path("sso_service_url"), m.startBody("x", fields{"role": "far"}), pretended...)
	if a := m.redeem(l, pretended...); a.Status != 403 {
		t.Errorf("redeemed elsewhere: status %d: %.200s", a.Status, a.Body)
	}
	root.from(attacker, func() {
		bound := root.with(m.take(l).Token)
		if !bound.valid() {
			t.Error("the token is worth nothing where it is bound to")
		}
		l.verifier = bound.token
	})
	if root.with(l.verifier).valid() {
		t.Error("the token is good elsewhere, too")
	}
}

// from does what do does with connections from another address of this machine.
func (u user) from(address string, do func()) {
	old := u.n.HTTP
	defer func() { u.n.HTTP = old }()
	transport := old.Transport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext
	defer transport.CloseIdleConnections()
	u.n.HTTP = &http.Client{Transport: transport, CheckRedirect: old.CheckRedirect}
	do()
}

// TestSAMLOnce: whichever nodes are asked at the same time, a login starts on one and goes on on others, an answer is taken
// once, a login redeemed once, a link followed once; a sealed node takes part in nothing.
func TestSAMLOnce(t *testing.T) {
	c := harness.NewCluster(t, 3, harness.Options{Shamir: true})
	root := user{t, c.Leader(), c.RootToken, ""}
	m := root.saml("sso", samltest.New(t), fields{"allow_idp_initiated": true})
	// everywhere does the same on all nodes at once, and returns how often it was answered with a status.
	everywhere := func(want int, do func(m method) harness.Answer) (got int, body []byte) {
		t.Helper()
		answers := make([]harness.Answer, 12)
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() { answers[i] = do(m.on(c.Nodes[i%len(c.Nodes)])) })
		}
		all.Wait()
		for _, a := range answers {
			switch {
			case a.Status == want:
				got, body = got+1, a.Body
			case a.Status < 400 || a.Status >= 500:
				t.Errorf("status %d: %.200s", a.Status, a.Body)
			}
		}
		return got, body
	}
	for range 3 {
		l := m.on(c.Standbys()[0]).start(nil)
		if n, _ := everywhere(302, func(m method) harness.Answer { return m.nobody().do("GET", m.path("go/"+l.short), nil) }); n != 1 {
			t.Errorf("a link was followed %d times", n)
		}
		form := m.idp.Answer(l.url, alice)
		if n, _ := everywhere(200, func(m method) harness.Answer { return m.post(form) }); n != 1 {
			t.Errorf("an answer was taken %d times", n)
		}
		if n, _ := everywhere(200, func(m method) harness.Answer { return m.redeem(l) }); n != 1 {
			t.Errorf("a login was redeemed %d times", n)
		}
	}
	form := url.Values{"SAMLResponse": {m.idp.Response(samltest.Response{User: alice, ACSURL: m.acs, Audience: entityID})}}
	n, page := everywhere(200, func(m method) harness.Answer { return m.post(form) })
	if n != 1 {
		t.Fatalf("an answer to nobody was taken %d times", n)
	}
	code := signInCode(t, page)
	if n, _ := everywhere(200, func(m method) harness.Answer { return m.nobody().do("POST", m.path("token"), fields{"code": code}) }); n != 1 {
		t.Errorf("a code was redeemed %d times", n)
	}
	sealed := c.Standbys()[0]
	l := m.start(nil)
	root.at(sealed).must("POST", "sys/seal", nil)
	sealed.WaitHealth(503)
	there := m.on(sealed)
	for name, a := range map[string]harness.Answer{
		"the callback": there.post(m.idp.Answer(l.url, alice)), "a poll": there.redeem(l), "a start": there.nobody().do("POST", m.path("sso_service_url"), m.startBody("x", nil)),
		"a link": there.nobody().do("GET", m.path("go/"+l.short), nil), "the metadata": there.nobody().do("GET", m.path("metadata"), nil),
		"the configuration": there.do("GET", m.path("config"), nil),
	} {
		if a.Status != 503 || a.Errors() == nil {
			t.Errorf("sealed, %s answers %d: %.200s", name, a.Status, a.Body)
		}
	}
	m.confirm(l, alice)
	m.take(l)
}
