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

// contentPolicy lets a page have its own style, and nothing else: no script, no form, no other address, no frame around.
var contentPolicy = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

// pageHeader is of everything that a browser is shown.
func pageHeader() http.Header {
	return http.Header{
		"Cache-Control":           {"no-store"},
		"Content-Security-Policy": {contentPolicy},
		"Referrer-Policy":         {"no-referrer"},
		"X-Content-Type-Options":  {"nosniff"},
		"X-Frame-Options":         {"DENY"}, // for browsers that do not know frame-ancestors
	}
}

// pageData is what pages show. Whatever of it comes from outside is escaped by the templates.
type pageData struct {
	Title     string
	Bad       bool
	Subject   string
	Role      string
	Host      string // of the server, as the user knows it
	Code      string
	Started   string
	Address   string
	Command   string
	Minutes   int
	RequestID string
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
// the case that somebody else started it and sent the URL to the user.
func donePage(l *login, subject string) *engines.Raw {
	return render("done", pageData{
		Title: "You are signed in", Subject: cut(subject, maxDisplayBytes), Role: l.Role, Host: host(l.ACSURL), Code: l.VerificationCode,
		Started: l.CreatedAt.UTC().Format("2 Jan 2006, 15:04:05 UTC"), Address: l.Address,
	})
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

// shellWord quotes what a shell would take for more than a word: users copy commands, and whoever names a namespace or a
// mount must not write theirs.
func shellWord(text string) string {
	if strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./@:") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// refusedPage is the same whatever the reason.
func refusedPage(requestID string) *engines.Raw {
	return render("refused", pageData{Title: "The login was refused", Bad: true, RequestID: requestID})
}

// gonePage answers short links that lead nowhere.
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
