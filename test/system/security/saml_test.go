package security_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

// method is a SAML method with the role staff, its administrator, and the identity provider that it trusts.
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

// as is the method for another user; on is it on another node.
func (m method) as(u user) method          { m.user = u; return m }
func (m method) on(n *harness.Node) method { m.user = m.user.at(n); return m }

func (m method) role(name string, more fields) {
	m.t.Helper()
	// Most tests are about other things than the user's click: see TestSAMLConfirmed.
	all := fields{"confirm": "never", "bound_attributes": "groups=staff", "groups_attribute": "groups", "token_policies": "staff"}
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

// confirm posts the identity provider's response about a user, which must be accepted.
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

// shut wants the callback to reject a form, with a page that says and does nothing.
func (m method) shut(what string, form url.Values, header ...string) {
	m.t.Helper()
	a := m.post(form, header...)
	if a.Status != 400 && a.Status != 403 || !bytes.Contains(a.Body, []byte("The login was denied")) {
		m.t.Errorf("%s: status %d, want a rejection: %.300s", what, a.Status, a.Body)
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

// TestSAMLPolicies: what a method is set up with, and whom it has rejected, takes a policy; logging in takes none and gives
// nothing but the role's.
func TestSAMLPolicies(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	m := root.saml("sso", samltest.New(t), fields{"sign_authn_requests": true})
	m.shut("another user", m.idp.Answer(m.start(nil).url, mallory))
	root.policy("staff", `path "kv/app" { capabilities = ["read"] }`)
	requests := [][2]string{
		{"GET", "config"}, {"POST", "config"}, {"POST", "config/verify"}, {"POST", "config/rotate-signing-key"}, {"LIST", "role"}, {"GET", "role?list=true"},
		{"GET", "role/staff"}, {"POST", "role/staff"}, {"DELETE", "role/staff"}, {"POST", "role/staff/explain"}, {"POST", "role/STAFF/explain"}, {"POST", "role/new"},
	}
	who := map[string]user{"no token": root.nobody(), "default": root.having("default"), "a login": root.with(m.logIn(alice).Token)}
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
	t.Parallel()
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
		m.shut("an unsolicited response in "+name, url.Values{"SAMLResponse": {idp.Response(samltest.Response{User: alice, ACSURL: ma.acs, Audience: entityID})}})
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
	t.Parallel()
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
	t.Parallel()
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
