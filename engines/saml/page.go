package saml

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
)

//go:embed pages/style.css
var style string

//go:embed pages/pages.html
var pageText string

var pages = template.Must(template.New("").Parse(pageText))

const htmlType = "text/html; charset=utf-8"

// contentPolicy lets a page have its own style, and nothing else: no script, no other address, no frame around. form is
// where it may send a form to.
func contentPolicy(form string) string {
	return "default-src 'none'; style-src 'sha256-" + styleHash + "'; base-uri 'none'; form-action " + form + "; frame-ancestors 'none'"
}

var styleHash = func() string {
	sum := sha256.Sum256([]byte(style))
	return base64.StdEncoding.EncodeToString(sum[:])
}()

// pageHeader is of everything that a browser is shown.
func pageHeader() http.Header {
	return http.Header{
		"Cache-Control":           {"no-store"},
		"Content-Security-Policy": {contentPolicy("'none'")},
		"Referrer-Policy":         {"no-referrer"},
		"X-Content-Type-Options":  {"nosniff"},
		"X-Frame-Options":         {"DENY"}, // for browsers that do not know frame-ancestors
	}
}

// formHeader is of a page that asks. Without a referrer browsers would call its form's origin "null".
func formHeader() http.Header {
	h := pageHeader()
	h.Set("Content-Security-Policy", contentPolicy("'self'"))
	h.Set("Referrer-Policy", "same-origin")
	return h
}

// pageData is what pages show. Whatever of it comes from outside is escaped by the templates.
type pageData struct {
	Title     string
	Bad       bool
	Ask       bool
	Subject   string
	Role      string
	Host      string // of the server, as the user knows it
	Code      string
	Started   string
	Address   string
	Command   string
	Minutes   int
	RequestID string
	// Confirmation is what the form of the page sends back.
	Confirmation string
	Terminal     bool // the login waits in a terminal
	Target       string
}

// Style goes out as it is: it is ours.
func (pageData) Style() template.CSS { return template.CSS(style) } //nolint:gosec // a constant

func render(name string, data pageData) *engines.Raw {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, name, data); err != nil {
		panic("saml: the page " + name + " does not fit its data: " + err.Error())
	}
	return &engines.Raw{ContentType: htmlType, Header: pageHeader(), Body: b.Bytes()}
}

// donePage tells the user of a terminal that they are signed in. The code and where the login was started are there for
// the case that another user started it and sent the URL to the user.
func donePage(l *login, subject string) *engines.Raw {
	return render("done", pageData{
		Title: "You are signed in", Subject: cut(subject, maxDisplayBytes), Role: l.Role, Host: host(l.ACSURL), Code: l.VerificationCode,
		Started: startedAt(l), Address: l.Address,
	})
}

// confirmPage asks the user whether the login is theirs, who has signed in at the identity provider.
func confirmPage(l *login, secret string) *engines.Raw {
	page := render("confirm", pageData{
		Title: "Is this your login?", Ask: true, Subject: cut(l.User.Subject, maxDisplayBytes), Role: l.Role, Host: host(l.ACSURL), Code: l.VerificationCode,
		Started: startedAt(l), Address: l.Address, Confirmation: confirmation(l, secret), Terminal: l.ClientType == cliClient,
	})
	page.Header = formHeader()
	return page
}

// askPage asks who opens a short link whether the login is theirs.
func askPage(l *login) *engines.Raw {
	page := render("ask", pageData{
		Title: "Is this your login?", Ask: true, Role: l.Role, Host: host(l.ACSURL), Code: l.VerificationCode,
		Started: startedAt(l), Address: l.Address, Terminal: l.ClientType == cliClient,
	})
	page.Header = formHeader()
	return page
}

// leavePage leads to the identity provider.
func leavePage(target string) *engines.Raw {
	return render("leave", pageData{Title: "On to your identity provider", Target: target})
}

// stoppedPage tells a user who has rejected a login that it has ended.
func stoppedPage(requestID string) *engines.Raw {
	return render("stopped", pageData{Title: "The login was stopped", Bad: true, RequestID: requestID})
}

// blankPage is for browsers whose opener waits for the login and closes the window.
func blankPage() *engines.Raw {
	return &engines.Raw{
		ContentType: htmlType, Header: pageHeader(),
		Body: []byte("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Signed in</title>\n</html>\n"),
	}
}

// codePage shows the code of a login that the identity provider began.
func codePage(m engines.Mount, l *login, code string) *engines.Raw {
	command := "coffer login -method=saml"
	if m.Namespace != "" {
		command = "coffer login -namespace=" + shellWord(strings.TrimSuffix(m.Namespace, "/")) + " -method=saml"
	}
	if path := strings.Trim(strings.TrimPrefix(m.Path, "auth/"), "/"); path != "saml" {
		command += " -path=" + shellWord(path)
	}
	return render("code", pageData{
		Title: "Almost signed in", Subject: cut(l.User.Subject, maxDisplayBytes), Role: l.Role, Host: host(l.ACSURL), Code: code,
		Command: command + " code=" + code, Minutes: int(codeTTL / time.Minute),
	})
}

// shellWord quotes what a shell would take for more than a word: users copy commands, and the one who names a namespace or a
// mount must not write theirs.
func shellWord(text string) string {
	if strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./@:") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// rejectedPage is the same whatever the reason.
func rejectedPage(requestID string) *engines.Raw {
	return render("refused", pageData{Title: "The login was denied", Bad: true, RequestID: requestID})
}

// busyPage is for a browser whose post could not be processed.
func busyPage() *engines.Raw {
	return render("busy", pageData{Title: "The server is busy", Bad: true})
}

// gonePage is the response to short links that lead nowhere.
func gonePage() *engines.Raw {
	return render("gone", pageData{Title: "This link does not work any more", Bad: true})
}

func host(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return u.Host
}
