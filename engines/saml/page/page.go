// Package page makes the pages that a login shows in the user's browser. A page has no script, loads nothing, and may send its
// form, if it has one, to this server only. Whatever comes from outside is escaped.
package page

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
)

//go:embed pages/style.css
var style string

//go:embed pages/pages.html
var pageText string

// Most processes show no page: they are commands. The style is a part of the text, which is no work when a page is shown.
var pages = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Parse(strings.Replace(pageText, "STYLE", style, 1)))
})

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

// Login is what pages tell of a login.
type Login struct {
	Role      string
	Subject   string // of who has signed in, "" if it is not known
	ACSURL    string // has the server's name, as the user knows it
	Code      string // which the user compares with that of the terminal
	Address   string // that it was started from
	StartedAt time.Time
	Terminal  bool // it waits in a terminal
}

// data is what the pages about a login show of it.
func (l *Login) data(title string) pageData {
	return pageData{
		Title: title, Subject: l.Subject, Role: l.Role, Host: host(l.ACSURL), Code: l.Code,
		Started: started(l.StartedAt), Address: l.Address,
	}
}

// started is how pages show when a login was started.
func started(at time.Time) string {
	return at.UTC().Format("2 Jan 2006, 15:04:05 UTC") + " (" + time.Since(at).Truncate(time.Second).String() + " ago)"
}

func render(name string, data pageData) *engines.Raw {
	var b bytes.Buffer
	b.Grow(len(style) + 4096)
	if err := pages().ExecuteTemplate(&b, name, data); err != nil {
		panic("page: " + name + " does not fit its data: " + err.Error())
	}
	return &engines.Raw{ContentType: htmlType, Header: pageHeader(), Body: b.Bytes()}
}

// Done tells the user of a terminal that they are signed in. The code and where the login was started are there for
// the case that another user started it and sent the URL to the user.
func Done(l *Login) *engines.Raw { return render("done", l.data("You are signed in")) }

// Confirm asks the user whether the login is theirs, who has signed in at the identity provider. The form sends the confirmation
// back.
func Confirm(l *Login, confirmation string) *engines.Raw {
	data := l.data("Is this your login?")
	data.Ask, data.Terminal, data.Confirmation = true, l.Terminal, confirmation
	page := render("confirm", data)
	page.Header = formHeader()
	return page
}

// Ask asks who opens a short link whether the login is theirs.
func Ask(l *Login) *engines.Raw {
	data := l.data("Is this your login?")
	data.Ask, data.Terminal = true, l.Terminal
	page := render("ask", data)
	page.Header = formHeader()
	return page
}

// Leave leads to the identity provider.
func Leave(target string) *engines.Raw {
	return render("leave", pageData{Title: "On to your identity provider", Target: target})
}

// Stopped tells a user who has rejected a login that it has ended.
func Stopped(requestID string) *engines.Raw {
	return render("stopped", pageData{Title: "The login was stopped", Bad: true, RequestID: requestID})
}

// Blank is for browsers whose opener waits for the login and closes the window.
func Blank() *engines.Raw {
	return &engines.Raw{
		ContentType: htmlType, Header: pageHeader(),
		Body: []byte("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Signed in</title>\n</html>\n"),
	}
}

// Code shows the code of a login that the identity provider began, and for how long it is good.
func Code(m engines.Mount, l *Login, code string, ttl time.Duration) *engines.Raw {
	command := "coffer login -method=saml"
	if m.Namespace != "" {
		command = "coffer login -namespace=" + shellWord(strings.TrimSuffix(m.Namespace, "/")) + " -method=saml"
	}
	if path := strings.Trim(strings.TrimPrefix(m.Path, "auth/"), "/"); path != "saml" {
		command += " -path=" + shellWord(path)
	}
	return render("code", pageData{
		Title: "Almost signed in", Subject: l.Subject, Role: l.Role, Host: host(l.ACSURL), Code: code,
		Command: command + " code=" + code, Minutes: int(ttl / time.Minute),
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

// Rejected is the same whatever the reason.
func Rejected(requestID string) *engines.Raw {
	return render("refused", pageData{Title: "The login was denied", Bad: true, RequestID: requestID})
}

// Busy is for a browser whose post could not be processed.
func Busy() *engines.Raw {
	return render("busy", pageData{Title: "The server is busy", Bad: true})
}

// Gone is the response to short links that lead nowhere.
func Gone() *engines.Raw {
	return render("gone", pageData{Title: "This link does not work any more", Bad: true})
}

func host(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return u.Host
}
