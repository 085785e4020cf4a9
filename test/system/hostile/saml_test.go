package hostile_test

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

const formType = "application/x-www-form-urlencoded"

// callbackURL is where the identity provider sends its answers.
func (p *place) callbackURL() string {
	ns := ""
	if p.ns != "" {
		ns = p.ns + "/"
	}
	return p.n.URL + "/v1/" + ns + "auth/sso/callback"
}

// seedSAML makes a SAML method with a role.
func (p *place) seedSAML(t *testing.T) {
	t.Helper()
	p.idp = samltest.New(t)
	p.mustDo(t, "POST", "sys/auth/sso", fields{"type": "saml"})
	p.mustDo(t, "POST", "auth/sso/config", fields{
		"idp_sso_url": p.idp.SSOURL, "idp_entity_id": p.idp.EntityID, "idp_cert": p.idp.CertificatePEM(),
		"entity_id": "https://coffer.example.com", "acs_urls": p.callbackURL(), "sign_authn_requests": true,
	})
	p.mustDo(t, "POST", "auth/sso/role/staff", fields{"bound_attributes": "groups=staff", "token_policies": "mine", "confirm": "never"})
}

// samlLogin is a login that a client waits for.
type samlLogin struct {
	*place
	url, poll, relay string
}

const samlVerifier = "what the client keeps"

func (p *place) samlStart(t *testing.T) *samlLogin {
	t.Helper()
	digest := sha256.Sum256([]byte(samlVerifier))
	var out struct {
		Data struct {
			URL  string `json:"sso_service_url"`
			Poll string `json:"token_poll_id"`
		}
	}
	p.mustDo(t, "POST", "auth/sso/sso_service_url", fields{
		"role": "staff", "client_challenge": base64.StdEncoding.EncodeToString(digest[:]), "client_type": "cli", "acs_url": p.callbackURL(),
	}).Decode(t, &out)
	request, err := samltest.ParseRequest(out.Data.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &samlLogin{p, out.Data.URL, out.Data.Poll, request.RelayState}
}

// pending wants a login to be as it was when it was started.
func (l *samlLogin) pending(t *testing.T) {
	t.Helper()
	if a := l.do(t, "POST", "auth/sso/token", fields{"client_verifier": samlVerifier, "token_poll_id": l.poll}); a.Status != 401 {
		t.Errorf("a login that waits answers %d: %.200s", a.Status, a.Body)
	}
}

// finish finishes a login that nothing has ended.
func (l *samlLogin) finish(t *testing.T) {
	t.Helper()
	form := l.idp.Answer(l.url, l.idp.User)
	if a := postForm(t, l.callbackURL(), l.n, formType, strings.NewReader(form.Encode()), -1); a.Status != 200 {
		t.Errorf("the callback answers %d: %.300s", a.Status, a.Body)
	}
	l.mustDo(t, "POST", "auth/sso/token", fields{"client_verifier": samlVerifier, "token_poll_id": l.poll})
}

func postForm(t *testing.T, to string, n *harness.Node, kind string, body io.Reader, length int64) harness.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", to, body)
	if err != nil {
		t.Fatal(err)
	}
	if length >= 0 {
		req.ContentLength = length
	}
	req.Header.Set("Content-Type", kind)
	a, err := n.Send(req)
	if err != nil {
		t.Errorf("no answer: %v", err)
	}
	return a
}

// refusesByPage reports whether a refusal is a page as browsers are shown where one is expected: one that may do nothing.
func (op *operation) refusesByPage(a harness.Answer) bool {
	return (op.template == "/auth/sso/callback" || op.template == "/auth/sso/go/{code}") && harmless(a)
}

func harmless(a harness.Answer) bool {
	return strings.HasPrefix(a.Header.Get("Content-Type"), "text/html") && a.Header.Get("Cache-Control") == "no-store" &&
		strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "default-src 'none';") && !bytes.Contains(a.Body, []byte("<script"))
}

// fieldsOf returns a form with n fields.
func fieldsOf(n int, name string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s=%s&", strings.ReplaceAll(name, "#", fmt.Sprint(i)), marker)
	}
	return b.String()
}

// forms are bad bodies, whatever login they are about; RELAY stands for the RelayState of one.
var forms = map[string]string{
	"nothing":                      "",
	"no fields":                    "&&&=&=&",
	"a name":                       marker,
	"only RelayState":              "RelayState=RELAY",
	"only SAMLResponse":            "SAMLResponse=" + marker,
	"names in lower case":          "relaystate=RELAY&samlresponse=" + marker,
	"RelayState twice":             "RelayState=RELAY&RelayState=" + marker + "&SAMLResponse=PHg%2B",
	"SAMLResponse twice":           "RelayState=RELAY&SAMLResponse=PHg%2B&SAMLResponse=" + marker,
	"a name twice, encoded":        "RelayState=RELAY&SAMLResponse=PHg%2B&%53AMLResponse=" + marker,
	"percent garbage":              "RelayState=RELAY&SAMLResponse=%zz" + marker,
	"a lone percent sign":          "RelayState=RELAY&SAMLResponse=%",
	"a percent sign in a name":     "RelayState=RELAY&SAMLResponse=PHg%2B&%4=" + marker,
	"semicolons":                   "RelayState=RELAY;SAMLResponse=" + marker,
	"NUL":                          "RelayState=RELAY%00&SAMLResponse=%00" + marker,
	"a bare NUL":                   "RelayState=RELAY&SAMLResponse=" + marker + "\x00",
	"a NUL in a name":              "RelayState=RELAY&SAMLResponse=PHg%2B&a%00b=" + marker,
	"invalid UTF-8":                "RelayState=%ff%fe&SAMLResponse=" + marker + "%ff",
	"bare invalid UTF-8":           "RelayState=\xff\xfe&SAMLResponse=" + marker + "\xff",
	"line breaks":                  "RelayState=a%0d%0aSet-Cookie:%20a&SAMLResponse=" + marker,
	"markup":                       "RelayState=<script>&SAMLResponse=<script>" + marker + "</script>",
	"JSON in a field":              "RelayState={\"a\":1}&SAMLResponse={\"" + marker + "\":[",
	"an object":                    `{"RelayState": "RELAY", "SAMLResponse": ["` + marker + `"]}`,
	"a list":                       `["` + marker + `"]`,
	"17 fields":                    "RelayState=RELAY&SAMLResponse=PHg%2B&" + fieldsOf(15, "x#"),
	"many fields":                  fieldsOf(100_000, "x#"),
	"one field many times":         fieldsOf(100_000, "x"),
	"many empty fields":            strings.Repeat("&", 2<<20-1),
	"a long name":                  strings.Repeat("n", 1<<20) + "=" + marker,
	"a long RelayState":            "RelayState=" + strings.Repeat("r", 1<<20) + "&SAMLResponse=" + marker,
	"a long SAMLResponse":          "RelayState=RELAY&SAMLResponse=" + strings.Repeat("A", 3<<19),
	"more than 2 MiB":              "RelayState=RELAY&SAMLResponse=" + strings.Repeat("A", 2<<20),
	"more than 2 MiB, encoded":     "RelayState=RELAY&SAMLResponse=" + strings.Repeat("%41", 1<<20),
	"a RelayState of no login":     "RelayState=" + marker + "&SAMLResponse=" + base64.StdEncoding.EncodeToString([]byte("<x/>")),
	"a RelayState cut off":         "RelayState=RELA&SAMLResponse=PHg%2B",
	"a RelayState with a blank":    "RelayState=RELAY%20&SAMLResponse=PHg%2B",
	"the poll id for a RelayState": "RelayState=POLL&SAMLResponse=PHg%2B",
}

// documents are bad responses, to a login that waits for one.
func documents(p *place, l *samlLogin) map[string][]byte {
	good := p.idp.XML(samltest.Response{User: p.idp.User, RequestID: "_x", ACSURL: p.callbackURL(), Audience: "https://coffer.example.com"})
	bomb := new(bytes.Buffer)
	w, _ := flate.NewWriter(bomb, flate.BestSpeed)
	_, _ = io.CopyN(w, zeros{}, 32<<20)
	_ = w.Close()
	entities := `<!DOCTYPE r [<!ENTITY a "` + marker + `">`
	for i := range 20 {
		entities += fmt.Sprintf(`<!ENTITY %c "%s">`, 'b'+i, strings.Repeat(fmt.Sprintf("&%c;", 'a'+i), 10))
	}
	return map[string][]byte{
		"a deflate bomb":        bomb.Bytes(),
		"entities of entities":  []byte(entities + `]><r>&u;</r>`),
		"an external entity":    []byte(`<!DOCTYPE r SYSTEM "` + p.n.URL + `/v1/` + marker + `"><r/>`),
		"depth":                 []byte(strings.Repeat("<a>", 300_000)),
		"width":                 []byte("<a>" + strings.Repeat("<b/>", 200_000) + "</a>"),
		"attributes":            []byte("<a " + strings.Repeat(`b="c" `, 150_000) + "/>"),
		"namespaces":            []byte("<a " + manyDeclarations(20_000) + "/>"),
		"a long text":           []byte("<a>" + strings.Repeat("t", 1<<20-10) + "</a>"),
		"a long name":           []byte("<" + strings.Repeat("n", 1<<20-10) + "/>"),
		"a comment":             []byte("<a><!--" + strings.Repeat("-x", 1<<18) + "--></a>"),
		"UTF-16":                {0xfe, 0xff, 0, '<', 0, 'a', 0, '/', 0, '>'},
		"not XML":               []byte(marker),
		"nothing":               {},
		"an answer to another":  []byte(good),
		"a good one, cut off":   []byte(good[:len(good)-20]),
		"a good one, doubled":   []byte(good + good),
		"a good one, as a text": []byte(url.QueryEscape(good)),
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func manyDeclarations(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `xmlns:n%d="urn:%d" `, i, i)
	}
	return b.String()
}

// TestHostileForms posts what no identity provider posts to the callback, which anybody may post to: every one is refused
// by a page or an error that repeats nothing, nothing is written, and the login that it names can still be finished.
func TestHostileForms(t *testing.T) {
	c := harness.NewCluster(t, 1, harness.Options{})
	p := &place{n: c.Nodes[0], token: c.RootToken}
	p.seed(t)
	awaitRegister(t, p.n)
	l := p.samlStart(t)
	check := func(t *testing.T, what string, a harness.Answer) {
		t.Helper()
		if a.Status < 400 || a.Status >= 500 {
			t.Errorf("%s: status %d: %.300s", what, a.Status, a.Body)
		}
		if a.Errors() == nil && !harmless(a) {
			t.Errorf("%s: status %d, neither an error nor a page: %.300s", what, a.Status, a.Body)
		}
		if bytes.Contains(a.Body, []byte(marker)) || bytes.Contains(a.Body, []byte(l.relay)) || len(a.Header.Values("Set-Cookie")) > 0 {
			t.Errorf("%s: the answer repeats what was sent: %.300s", what, a.Body)
		}
	}
	index := func() uint64 {
		i, err := p.n.AppliedIndex()
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	start := index()
	fill := strings.NewReplacer("RELAY", l.relay, "POLL", l.poll)
	reaching := map[string]string{} // what is about a login, so that there is something to note about that
	for what, body := range forms {
		kinds := []string{formType}
		if len(body) < 1000 {
			kinds = append(kinds, "application/x-www-form-urlencoded; charset=utf-16", "Application/X-WWW-Form-Urlencoded", formType+"; =", "multipart/form-data; boundary=x", "text/plain", "application/xml", "")
		}
		for _, kind := range kinds {
			if strings.Contains(body, "SAMLResponse=") && strings.Contains(body, "RELAY&") && wellFormed(body) && strings.HasPrefix(strings.ToLower(kind), formType) {
				reaching[what+" as "+kind] = body
				continue
			}
			check(t, what+" as "+kind, postForm(t, p.callbackURL(), p.n, kind, strings.NewReader(fill.Replace(body)), -1))
		}
	}
	check(t, "more than the limit, announced", postForm(t, p.callbackURL(), p.n, formType, &endless{33 << 20}, 33<<20))
	check(t, "more than the limit, in chunks", postForm(t, p.callbackURL(), p.n, formType, &endless{33 << 20}, -1))
	good := p.idp.Answer(l.url, p.idp.User).Encode()
	for _, method := range []string{"GET", "HEAD", "LIST", "DELETE", "PATCH", "OPTIONS"} {
		a := p.do(t, method, "auth/sso/callback?"+good, nil)
		if a.Status < 400 || a.Status >= 500 {
			t.Errorf("an answer in the query by %s: status %d", method, a.Status)
		}
	}
	check(t, "an answer in the query", postForm(t, p.callbackURL()+"?"+good, p.n, formType, strings.NewReader(""), -1))
	check(t, "one half in the query", postForm(t, p.callbackURL()+"?RelayState="+l.relay, p.n, formType, strings.NewReader("SAMLResponse=PHg%2B"), -1))
	// A page elsewhere can make a browser post a form to any path: only the callback takes one.
	body := url.Values{"role": {"staff"}, "client_verifier": {samlVerifier}, "token_poll_id": {l.poll}, "password": {"correct horse"}, "code": {"x"}, "key": {"x"}}.Encode()
	for _, path := range []string{"auth/sso/token", "auth/sso/sso_service_url", "auth/sso/config", "auth/sso/role/staff", "auth/people/login/bob", "sys/unseal", "sys/seal", "kv1/a/b"} {
		if a := p.do(t, "POST", path, []byte(body), "Content-Type", formType); a.Status < 400 || a.Status >= 500 {
			t.Errorf("a form to %s: status %d: %.200s", path, a.Status, a.Body)
		}
	}
	if end := index(); end != start {
		t.Errorf("the applied index went from %d to %d: something was written", start, end)
	}
	t.Run("documents", func(t *testing.T) {
		// Each to a login of its own, which a number of such posts ends.
		for what, body := range reaching {
			own := p.samlStart(t)
			fill := strings.NewReplacer("RELAY", own.relay, "POLL", own.poll)
			check(t, what, postForm(t, p.callbackURL(), p.n, formType, strings.NewReader(fill.Replace(body)), -1))
		}
		var all sync.WaitGroup
		for what, document := range documents(p, l) { // all at once: they wait for one another, and on a slow machine for too long
			form := url.Values{"RelayState": {p.samlStart(t).relay}, "SAMLResponse": {base64.StdEncoding.EncodeToString(document)}}.Encode()
			all.Go(func() {
				a := postForm(t, p.callbackURL(), p.n, formType, strings.NewReader(form), -1)
				for begin := time.Now(); a.Status == http.StatusServiceUnavailable && time.Since(begin) < time.Minute; {
					a = postForm(t, p.callbackURL(), p.n, formType, strings.NewReader(form), -1)
				}
				check(t, what, a)
			})
		}
		all.Wait()
	})
	if got := p.n.Health(); got != 200 {
		t.Fatalf("afterwards sys/health answers %d", got)
	}
	l.finish(t)
}

// wellFormed reports whether a form has each of its few fields once.
func wellFormed(body string) bool {
	if len(body) > 2<<20 {
		return false
	}
	values, err := url.ParseQuery(body)
	return err == nil && len(values) <= 16 && !slices.ContainsFunc([]string{"RelayState", "SAMLResponse"}, func(name string) bool { return len(values[name]) != 1 })
}
