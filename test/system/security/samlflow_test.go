package security_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

// record is a line of the audit log.
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

// TestSAMLAudit: each answer of an identity provider is in the audit log before anything is done, and then with what came of it
// and the reason, which the browser is not told. What cannot be recorded is not done.
func TestSAMLAudit(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	m := root.saml("sso", samltest.New(t), fields{"allow_idp_initiated": true})
	auditLog := filepath.Join(t.TempDir(), "audit.log")
	root.must("POST", "sys/audit/file", fields{"type": "file", "options": fields{"file_path": auditLog}})
	used := m.start(nil)
	m.confirm(used, alice)
	answer := func(o samltest.Response) url.Values {
		if o.User.Subject == "" {
			o.User = alice
		}
		return m.idp.AnswerWith(m.start(nil).url, o)
	}
	seen := len(records(t, auditLog, m.path("callback")))
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
		all := records(t, auditLog, m.path("callback"))
		if len(all) != seen+2 {
			t.Fatalf("%s: %d records, want two", test.reason, len(all)-seen)
		}
		request, response := all[seen], all[seen+1]
		seen = len(all)
		if request.Type != "request" || request.Error != "" || response.Type != "response" || request.Request.ID != response.Request.ID {
			t.Errorf("%s: the records are %+v and %+v", test.reason, request, response)
		}
		if want := "the login was denied: " + test.reason; !strings.HasPrefix(response.Error, want) {
			t.Errorf("the audit log says %q, want %q", response.Error, want)
		}
	}
	// The disk under the audit log is full for a while.
	l := m.start(nil)
	form := m.idp.Answer(l.url, alice)
	fillDisk(t, auditLog)
	reopen := func(want int) {
		t.Helper()
		root.n.Reload()
		harness.Await(t, "the audit log to be reopened", time.Minute, func() error {
			if a := root.do("GET", "sys/mounts", nil); a.Status != want {
				return fmt.Errorf("status %d", a.Status)
			}
			return nil
		})
	}
	reopen(500)
	if a := m.post(form); a.Status != 500 || bytes.Contains(a.Body, []byte(alice.Subject)) {
		t.Errorf("without an audit log the callback answers %d: %.200s", a.Status, a.Body)
	}
	if err := os.Remove(auditLog); err != nil {
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
	t.Parallel()
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
	// JSON that a form sends as text needs no preflight.
	denied := func(what, path string, body fields, header ...string) {
		t.Helper()
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		a := root.nobody().do("POST", path, text, append([]string{"Content-Type", "text/plain"}, header...)...)
		if a.Status != 403 || !bytes.Contains(a.Body, []byte("another site")) {
			t.Errorf("%s: %s: status %d, want 403: %.200s", what, path, a.Status, a.Body)
		}
	}
	root.must("DELETE", "sys/config/cors", nil) // which would deny all of that already
	for path, body := range map[string]fields{
		m.path("sso_service_url"): m.startBody("x", nil), m.path("callback"): {"RelayState": l.relay, "SAMLResponse": "PA=="},
		m.path("token"): {"client_verifier": l.verifier, "token_poll_id": l.poll}, "auth/people/login/bob": {"password": "bob-password-1"},
		"sys/init": {"secret_shares": 1, "secret_threshold": 1}, "sys/unseal": {"reset": true}, "sys/wrapping/unwrap": {"token": "x"},
	} {
		denied("JSON as text", path, body, "Origin", foreign)
		denied("JSON as text, without Origin", path, body, "Sec-Fetch-Site", "cross-site")
	}
	root.must("POST", "sys/config/cors", fields{"allowed_origins": "https://app.example.com"})
	if a := root.nobody().do("POST", m.path("sso_service_url"), m.startBody("x", nil), "Origin", "https://app.example.com", "Sec-Fetch-Site", "cross-site"); a.Status != 200 {
		t.Errorf("a page that CORS allows: status %d: %.200s", a.Status, a.Body)
	}
	root.nobody().refused("a preflight", "OPTIONS", m.path("callback"), nil, "Origin", foreign, "Access-Control-Request-Method", "POST")
	m.take(l)
	// Another user's response, posted into a browser: it is signed in to nothing, and the page has no more than a code.
	a := m.post(url.Values{"SAMLResponse": {m.idp.Response(samltest.Response{User: alice, ACSURL: m.acs, Audience: entityID})}})
	if a.Status != 200 || len(a.Header.Values("Set-Cookie")) > 0 || bytes.Contains(a.Body, []byte("hvs.")) || a.Header.Get("X-Frame-Options") != "DENY" {
		t.Errorf("an unsolicited response: status %d, header %v", a.Status, a.Header)
	}
}

// TestSAMLAddresses: a user who gets another to open the URL of a login gets that user's token. The page and the audit log show
// where it was started, and a role can demand one address, which headers do not change.
func TestSAMLAddresses(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	m := root.saml("sso", samltest.New(t), nil)
	m.role("near", fields{"require_same_address": true})
	m.role("far", fields{"token_bound_cidrs": "127.0.0.2/32"})
	auditLog := filepath.Join(t.TempDir(), "audit.log")
	root.must("POST", "sys/auth/sso/tune", fields{"audit_non_hmac_response_keys": []string{"address", "browser_address"}})
	root.must("POST", "sys/audit/file", fields{"type": "file", "options": fields{"file_path": auditLog}})
	const attacker = "127.0.0.2"
	var l samlLogin
	root.from(attacker, func() { l = m.start(nil) })
	page := m.confirm(l, alice).Body
	for _, want := range []string{l.code, attacker, alice.Subject, "If it does not"} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page does not show %q", want)
		}
	}
	done := records(t, auditLog, m.path("callback"))
	if data := done[len(done)-1].Response.Data; data["address"] != attacker || data["browser_address"] != "127.0.0.1" {
		t.Errorf("the audit log says %v", data)
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

// TestSAMLStrangers: while a stranger posts large documents by a key of its own, on many connections, others log in, and each
// login that the stranger names ends after a few.
func TestSAMLStrangers(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{Memory: true})
	m := root.saml("sso", samltest.New(t), nil)
	stranger := samltest.New(t, samltest.WithKey(samltest.NewKey(samltest.RSA2048, 7)))
	large := samltest.User{Subject: "x", Attributes: map[string][]string{}}
	for i := range 1500 {
		large.Attributes["groups"] = append(large.Attributes["groups"], fmt.Sprint("g", i))
	}
	ended := m.start(nil)
	form := stranger.Answer(ended.url, large)
	before := resident(t, m.n)
	var all sync.WaitGroup
	statuses := make([]int, 200)
	crowd := &http.Client{Transport: m.n.HTTP.Transport.(*http.Transport).Clone()}
	crowd.Transport.(*http.Transport).DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}).DialContext
	defer crowd.CloseIdleConnections()
	for i := range statuses {
		all.Go(func() {
			resp, err := crowd.PostForm(m.acs, form)
			if err != nil {
				return
			}
			resp.Body.Close()
			statuses[i] = resp.StatusCode
		})
	}
	for range 5 {
		l := m.start(nil)
		for range 20 {
			if a := m.post(m.idp.Answer(l.url, alice)); a.Status != 503 { // else the browser is told to try again
				break
			}
		}
		m.take(l)
	}
	all.Wait()
	for _, status := range statuses {
		if status == 200 || status >= 500 && status != 503 {
			t.Errorf("a stranger is answered %d", status)
		}
	}
	if a := m.redeem(ended); a.Status != 403 || !bytes.Contains(a.Body, []byte("too many responses")) {
		t.Errorf("the stranger's login answers %d: %.200s", a.Status, a.Body)
	}
	if added := resident(t, m.n) - before; added > 256<<20 {
		t.Errorf("the stranger adds %d MiB to the node's memory", added>>20)
	}
}

// TestSAMLConfirmed: a victim who follows the attacker's link, and even signs in, gives the attacker nothing before a click on
// a page that shows whose login it is. No other page can make that click.
func TestSAMLConfirmed(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	m := root.saml("sso", samltest.New(t), nil)
	m.must("POST", m.path("role/cli"), fields{"bound_attributes": "groups=staff"}) // the default
	m.role("always", fields{"confirm": "always"})
	const attacker, foreign = "127.0.0.2", "https://evil.example.com"
	form := func(values url.Values, path string, header ...string) harness.Answer {
		return m.nobody().do("POST", path, []byte(values.Encode()), append([]string{"Content-Type", "application/x-www-form-urlencoded"}, header...)...)
	}
	yes := url.Values{"decision": {"confirm"}}
	for _, kind := range [][2]string{{"cli", "cli"}, {"always", "cli"}, {"always", "browser"}} {
		phished := func() (l samlLogin) {
			root.from(attacker, func() { l = m.start(fields{"role": kind[0], "client_type": kind[1]}) })
			return l
		}
		l := phished()
		link := m.path("go/" + l.short)
		shows := func(page harness.Answer) {
			t.Helper()
			for _, want := range []string{l.code, attacker, kind[0], "This is not me"} {
				if page.Status != 200 || !bytes.Contains(page.Body, []byte(want)) {
					t.Errorf("%v: the page lacks %q: %d %s", kind, want, page.Status, page.Body)
				}
			}
			if h := page.Header; !strings.Contains(h.Get("Content-Security-Policy"), "form-action 'self'; frame-ancestors 'none'") || bytes.Contains(page.Body, []byte("<script")) {
				t.Errorf("%v: the page may do more than it must: %v", kind, h)
			}
		}
		shows(m.nobody().do("GET", link, nil, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"))
		for _, header := range [][]string{{"Origin", foreign}, {"Origin", foreign, "Sec-Fetch-Site", "cross-site"}, {"Origin", "null"}} {
			if a := form(yes, link, header...); a.Status != 403 {
				t.Errorf("another page follows the link: status %d", a.Status)
			}
		}
		own := []string{"Origin", m.n.URL, "Sec-Fetch-Site", "same-origin"}
		if a := form(yes, link, own...); a.Status != 200 || !bytes.Contains(a.Body, []byte("SAMLRequest=")) {
			t.Errorf("%v: the link answers %d: %.200s", kind, a.Status, a.Body)
		}
		page := m.post(m.idp.Answer(l.url, alice))
		shows(page)
		root.from(attacker, func() { m.pending("signed in and not confirmed", l) })
		for _, guess := range []string{l.poll, l.relay, l.code, l.short, "x.y"} {
			m.shut("a guess", url.Values{"confirmation": {guess}, "decision": {"confirm"}})
		}
		value := samltest.Confirmation(page.Body)
		if a := form(url.Values{"confirmation": {value}, "decision": {"reject"}}, m.path("callback"), own...); a.Status != 200 || !bytes.Contains(a.Body, []byte("was stopped")) {
			t.Errorf("%v: rejecting answers %d: %.200s", kind, a.Status, a.Body)
		}
		root.from(attacker, func() {
			if a := m.redeem(l); a.Status != 403 {
				t.Errorf("%v: the attacker gets %d: %.200s", kind, a.Status, a.Body)
			}
		})
		m.shut("too late", url.Values{"confirmation": {value}, "decision": {"confirm"}})
		// The user's own.
		l = m.start(fields{"role": kind[0], "client_type": kind[1]})
		value = samltest.Confirmation(m.post(m.idp.Answer(l.url, alice)).Body)
		if a := form(url.Values{"confirmation": {value}, "decision": {"confirm"}}, m.path("callback"), own...); a.Status != 200 {
			t.Errorf("%v: confirming answers %d: %.200s", kind, a.Status, a.Body)
		}
		m.take(l)
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
	t.Parallel()
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
		if n, _ := everywhere(200, func(m method) harness.Answer {
			return m.nobody().do("POST", m.path("go/"+l.short), fields{"decision": "confirm"})
		}); n != 1 {
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
		t.Fatalf("an unsolicited response was taken %d times", n)
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

// TestSAMLMetadataTellsNothing: who may configure a method in a namespace can have the server ask for metadata at any address,
// and learns nothing of what answers there but that it is no metadata, and why: no more than the name of its first element
// or a date in the place of one. Who logs in does not even learn that.
func TestSAMLMetadataTellsNothing(t *testing.T) {
	t.Parallel()
	_, root, a, _, _ := neighbours(t)
	answers := map[string]string{
		"text":                hidden,
		"JSON":                `{"AccessKeyId": "` + hidden + `"}`,
		"HTML":                `<html><body>` + hidden + `</body>`,
		"another document":    `<Error a="` + hidden + `"><b>` + hidden + `</b></Error>`,
		"an entity":           `<a>&` + hidden + `;</a>`,
		"a cut tag":           `<a></` + hidden,
		"a document type":     `<!DOCTYPE ` + hidden + ` SYSTEM "` + hidden + `"><a/>`,
		"nearly metadata":     `<EntityDescriptor xmlns="urn:oasis:names:tc:SAML:2.0:metadata" entityID=" ` + hidden + `"/>`,
		"metadata of another": strings.ReplaceAll(string(samltest.New(t).MetadataXML()), "IDPSSODescriptor", hidden),
		"a certificate":       strings.ReplaceAll(string(samltest.New(t).MetadataXML()), "MII", "!"+hidden),
	}
	var answer string
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			w.Header().Set("X-Secret", hidden)
			http.Redirect(w, r, "/"+hidden, http.StatusFound)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/refused") {
			w.WriteHeader(http.StatusForbidden)
		}
		_, _ = w.Write([]byte(answer))
	}))
	defer service.Close()
	m := a.saml("sso", samltest.New(t), nil)
	for what, text := range answers {
		answer = text
		for _, path := range []string{"/", "/refused", "/away"} {
			m.must("POST", m.path("config"), fields{"idp_metadata_url": service.URL + path})
			m.verified(what + " at " + path)
			l := m.nobody().do("POST", m.path("sso_service_url"), m.startBody("x", nil))
			if l.Status != 502 || bytes.Contains(l.Body, []byte(hidden)) || bytes.Contains(l.Body, []byte("127.0.0.1")) {
				t.Errorf("%s at %s: a start answers %d: %.200s", what, path, l.Status, l.Body)
			}
		}
	}
	if log := root.n.Log(); strings.Contains(log, hidden) {
		t.Errorf("the log has what answered: %s", log[max(0, strings.Index(log, hidden)-200):][:400])
	}
	// What is no URL of the web is not asked.
	for _, bad := range []string{"file:///etc/passwd", "unix:///var/run/x.sock", "ftp://127.0.0.1/", "gopher://127.0.0.1/", "//127.0.0.1/", "http://user:pass@127.0.0.1/", "http:/x", "data:text/xml,x"} {
		m.refused(bad, "POST", m.path("config"), fields{"idp_metadata_url": bad})
	}
}

// verified wants config/verify to fail without a word of what it got.
func (m method) verified(what string) {
	m.t.Helper()
	if a := m.do("POST", m.path("config/verify"), nil); a.Status != 502 || bytes.Contains(a.Body, []byte(hidden)) {
		m.t.Errorf("%s: config/verify answers %d: %.300s", what, a.Status, a.Body)
	}
}
