package security_test

import (
	"bytes"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"html"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

var codeOnPage = regexp.MustCompile(`>([A-Z2-9]{5}(?:-[A-Z2-9]{5}){3})<`)

// signInCode returns the code that a page shows.
func signInCode(t *testing.T, page []byte) string {
	t.Helper()
	found := codeOnPage.FindSubmatch(page)
	if found == nil {
		t.Fatalf("no code on the page: %.300s", page)
	}
	return string(found[1])
}

// noteLogin notes what a login has to keep from others.
func (v *tour) noteLogin(what string, l samlLogin) samlLogin {
	v.note("verifier of "+what, l.verifier)
	v.note("poll id of "+what, l.poll)
	v.note("RelayState of "+what, l.relay)
	v.note("short link of "+what, l.short)
	v.note("verification code of "+what, l.code)
	return l
}

// noteAnswer notes an identity provider's answer, as it is posted and as it is inside.
func (v *tour) noteAnswer(what string, form url.Values) url.Values {
	v.t.Helper()
	v.note("response of "+what, form.Get("SAMLResponse"))
	v.note("encoded response of "+what, url.QueryEscape(form.Get("SAMLResponse")))
	return form
}

// person returns a user whose name and attributes are noted.
func (v *tour) person(name, group string) samltest.User {
	v.t.Helper()
	return samltest.User{
		Subject: v.note("subject "+name, name+"-sUbJeCt@example.com"),
		Attributes: map[string][]string{
			"groups": {group, v.note("group of "+name, name+"-gRoUp-vAlUe")}, "mail": {v.note("attribute of "+name, name+"-aTtRiBuTe-vAlUe")},
		},
	}
}

// refuse posts a form that is rejected and keeps what the page says.
func (v *tour) refuse(m method, form url.Values) {
	v.t.Helper()
	a := m.post(form)
	if a.Status < 400 || a.Status >= 500 {
		v.t.Errorf("the callback answers %d, want a rejection", a.Status)
	}
	v.errors.Write(a.Body)
}

// walkSAML takes every way through a method, rightly and wrongly, and leaves some logins unfinished.
func (v *tour) walkSAML(m method) {
	v.t.Helper()
	ann, bob, eve := v.person("ann", "staff"), v.person("bob", "staff"), v.person("eve", "guests")
	page := func(a harness.Answer, l samlLogin, u samltest.User) { // the user's own name and the login's code are on it
		v.t.Helper()
		v.findBut("a page", a.Body, u.Subject, l.code)
	}
	l := v.noteLogin("a login", m.start(nil))
	v.findBut("the URL of a login", []byte(l.url+unescape(l.url)), l.relay)
	link := m.nobody().must("GET", m.path("go/"+l.short), nil)
	v.findBut("the page of a link", link.Body, l.code)
	link = m.nobody().must("POST", m.path("go/"+l.short), fields{"decision": "confirm"})
	if !strings.Contains(html.UnescapeString(string(link.Body)), l.url) {
		v.t.Errorf("the short link answers %.300s", link.Body)
	}
	v.findBut("the page after a link", link.Body, l.relay)
	m.pending("at first", l)
	form := v.noteAnswer("a login", m.idp.Answer(l.url, ann))
	page(m.post(form), l, ann)
	v.refuse(m, form)
	v.fail(m.nobody(), "POST", m.path("token"), fields{"token_poll_id": l.poll, "client_verifier": v.note("wrong verifier", "vErIfIeR-wrong-1")})
	v.fail(m.nobody(), "POST", m.path("token"), fields{"token_poll_id": v.note("wrong poll id", "pOlL-iD-wrong-2"), "client_verifier": l.verifier})
	v.fail(m.nobody(), "POST", m.path("token"), fields{"token_poll_id": l.poll, "client_verifier": []string{v.note("verifier in a list", "vErIfIeR-list-3")}})
	v.fail(m.nobody(), "POST", m.path("token"), fields{"token_poll_id": l.poll, "client_verifier": v.note("long verifier", "vErIfIeR-long-4"+strings.Repeat("x", 9000))})
	v.fail(m.nobody(), "POST", m.path("token"), []byte(`{"token_poll_id": "`+l.poll+`", "client_verifier": "`+v.note("verifier in a broken body", "vErIfIeR-broken-5")+`"`))
	v.fail(m.nobody(), "POST", m.path("token"), fields{"code": v.note("wrong code", "CODE2-WRONG-CODE3-WRONG")})
	v.note("token of a login", m.take(l).Token)
	v.fail(m.nobody(), "POST", m.path("token"), fields{"token_poll_id": l.poll, "client_verifier": l.verifier})

	l = v.noteLogin("a wrapped login", m.start(fields{"client_type": "browser"}))
	page(m.post(v.noteAnswer("a wrapped login", m.idp.Answer(l.url, bob))), l, samltest.User{})
	var out struct {
		Info struct{ Token string } `json:"wrap_info"`
	}
	m.redeem(l, "X-Vault-Wrap-TTL", "10m").Decode(v.t, &out)
	v.note("wrapping token of a login", out.Info.Token)

	l = v.noteLogin("a rejected login", m.start(nil))
	v.refuse(m, v.noteAnswer("a rejected login", m.idp.Answer(l.url, eve)))
	v.fail(m.nobody(), "POST", m.path("token"), fields{"token_poll_id": l.poll, "client_verifier": l.verifier})
	m.must("POST", m.path("role/staff/explain"), nil)
	m.must("POST", m.path("role/staff/explain"), fields{"subject": "x", "attributes": fields{"groups": v.note("explained attribute", "eXpLaInEd-vAlUe-6")}})
	v.fail(v.user, "POST", m.path("role/staff/explain"), fields{"subject": "x", "attributes": v.note("explained text", "eXpLaInEd-vAlUe-7")})

	l = v.noteLogin("a forged login", m.start(nil))
	v.refuse(m, v.noteAnswer("a forged login", m.idp.AnswerWith(l.url, samltest.Response{User: eve, Unsigned: true})))
	v.refuse(m, v.noteAnswer("a login that is late", m.idp.AnswerWith(l.url, samltest.Response{User: ann, Age: time.Hour})))
	cut := v.noteAnswer("a broken form", m.idp.Answer(v.noteLogin("a broken form", m.start(nil)).url, ann)).Encode()
	v.fail(m.nobody(), "POST", m.path("callback"), []byte(cut+"&%zz"), "Content-Type", "application/x-www-form-urlencoded")
	v.fail(m.nobody(), "POST", m.path("callback"), []byte(cut+"&"+cut), "Content-Type", "application/x-www-form-urlencoded")

	var codes []string
	for range 2 {
		a := m.post(v.noteAnswer("a login of the identity provider", url.Values{"SAMLResponse": {m.idp.Response(samltest.Response{User: ann, ACSURL: m.acs, Audience: entityID})}}))
		code := signInCode(v.t, a.Body)
		v.findBut("the page of a code", a.Body, ann.Subject)
		v.note("code", code)
		v.note("code as it is typed", strings.ToLower(strings.ReplaceAll(code, "-", "")))
		v.note("code without dashes", strings.ReplaceAll(code, "-", ""))
		codes = append(codes, code)
	}
	v.note("token of a code", authOf(v.t, m.nobody().must("POST", m.path("token"), fields{"code": strings.ToLower(codes[0])})).Token)
	v.noteLogin("a login that waits", m.start(nil))
	l = v.noteLogin("a login that is not redeemed", m.start(nil))
	m.post(v.noteAnswer("a login that is not redeemed", m.idp.Answer(l.url, bob)))
}

// unescape returns a URL without its escapes.
func unescape(u string) string {
	text, err := url.QueryUnescape(u)
	if err != nil {
		return ""
	}
	return text
}

// findBut is find with secrets that belong there.
func (v *tour) findBut(where string, text []byte, allowed ...string) {
	v.t.Helper()
	for _, a := range allowed {
		text = bytes.ReplaceAll(text, []byte(html.EscapeString(a)), nil)
		if a != "" {
			text = bytes.ReplaceAll(text, []byte(url.QueryEscape(a)), nil)
			text = bytes.ReplaceAll(text, []byte(a), nil)
		}
	}
	v.find(where, text)
}

// signingModulus returns what the signing key and its certificate have in common.
func signingModulus(t *testing.T, m method) []byte {
	t.Helper()
	data := dataOf(t, m.must("POST", m.path("config/rotate-signing-key"), nil))
	certificate, _ := data["certificate"].(string)
	block, rest := pem.Decode([]byte(certificate))
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		t.Fatalf("rotating the key answers %.100q", certificate)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	modulus := c.PublicKey.(*rsa.PublicKey).N.Bytes()
	delete(data, "certificate")
	keyless(t, "the answer to its rotation", encode(t, data), modulus)
	return modulus
}

// keyless fails if a key with the modulus is in a text, whatever way it is written.
func keyless(t *testing.T, where string, text, modulus []byte) {
	t.Helper()
	part := modulus[30:90]
	forms := [][]byte{part, []byte(hex.EncodeToString(part)), []byte("PRIVATE KEY")}
	for shift := range 3 {
		forms = append(forms, []byte(base64.StdEncoding.EncodeToString(part[shift:shift+48])))
	}
	for _, form := range forms {
		if bytes.Contains(text, form) {
			t.Errorf("the signing key is in %s", where)
		}
	}
}

// TestSAMLLeaks looks for everything that a login has to keep in the logs at their most talkative, in the audit log, in
// errors and pages, in metrics, in files, their keys included, and in a snapshot. With verbose_logging the log has what an
// administrator asked for, at its level, and still nothing that is worth anything to who reads it.
func TestSAMLLeaks(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{Config: `log_level = "trace"`})
	v := &tour{user: root, secrets: map[string]string{}}
	auditLog := filepath.Join(t.TempDir(), "audit.log")
	root.must("POST", "sys/audit/file", fields{"type": "file", "options": fields{"file_path": auditLog}})
	m := root.saml("sso", samltest.New(t), fields{"sign_authn_requests": true, "allow_idp_initiated": true})
	modulus := signingModulus(t, m)
	v.walkSAML(m)
	snapshot := root.must("GET", "sys/storage/raft/snapshot", nil).Body
	for _, path := range []string{"sys/metrics", "sys/metrics?format=prometheus", "sys/config/state/sanitized", "sys/in-flight-req", "sys/pprof/goroutine?debug=2",
		"sys/auth", "sys/auth/sso/tune", "sys/internal/ui/mounts", m.path("config"), m.path("role/staff"), m.path("metadata")} {
		v.find(path, root.must("GET", path, nil).Body)
	}
	v.find("the errors", v.errors.Bytes())
	v.find("the log", []byte(root.n.Log()))

	// The links are in the audit log, as the paths that they are: they lead to the identity provider, once. So are the names of
	// those who logged in, as the display names of their tokens.
	text, err := os.ReadFile(auditLog)
	if err != nil || len(text) < 20_000 {
		t.Fatalf("the audit log has %d bytes: %v", len(text), err)
	}
	v.find("the audit log", regexp.MustCompile(`"path":"auth/sso/go/[^"]*"|"display_name":"sso-[^"]*"`).ReplaceAll(text, nil))

	quiet := len(root.n.Log())
	loud := &tour{user: root, secrets: map[string]string{}}
	u := samltest.User{Subject: "vera-sUbJeCt@example.com", Attributes: map[string][]string{"groups": {"staff"}, "mail": {"vera-aTtRiBuTe"}}}
	root.must("POST", m.path("config"), fields{"verbose_logging": true})
	verbose := func(level string) (lines []string) {
		t.Helper()
		root.must("POST", "sys/loggers/saml", fields{"level": level})
		start := len(root.n.Log())
		l := loud.noteLogin("a login at "+level, m.start(nil))
		form := m.idp.Answer(l.url, u)
		loud.note("encoded response at "+level, form.Get("SAMLResponse")[:400])
		m.post(form)
		loud.note("token of a login at "+level, m.take(l).Token)
		for line := range strings.Lines(root.n.Log()[start:]) {
			if strings.Contains(line, "vera-") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	if lines := verbose("info"); len(lines) > 0 {
		t.Errorf("at info there is %q", lines)
	}
	if lines := verbose("debug"); len(lines) != 1 || !strings.Contains(lines[0], "level=DEBUG ") || !strings.Contains(lines[0], "vera-aTtRiBuTe") || strings.Contains(lines[0], "SignatureValue") {
		t.Errorf("at debug there is %q", lines)
	}
	if lines := verbose("trace"); len(lines) != 2 || !strings.Contains(lines[0]+lines[1], "SignatureValue") || !strings.Contains(lines[0]+lines[1], "level=DEBUG-4 ") {
		t.Errorf("at trace there is %q", lines)
	}
	root.n.Stop()
	log := []byte(root.n.Log())
	loud.find("the verbose log", log[quiet:])
	keyless(t, "the log", log, modulus)
	keyless(t, "the audit log", text, modulus)
	keyless(t, "the errors", v.errors.Bytes(), modulus)
	v.searchFiles(root.n.Dir)
	for name, part := range unpack(t, snapshot) {
		v.find("the snapshot's "+name, part)
		keyless(t, "the snapshot's "+name, part, modulus)
	}
}
