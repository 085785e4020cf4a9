package cli_test

import (
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// samlProviders are the identity providers of scripts, one for each that wants one.
type samlProviders struct {
	t  testing.TB
	of sync.Map // *testscript.TestScript to *samlScript
}

// samlScript is the identity provider of a script.
type samlScript struct {
	mu  sync.Mutex // a script changes the user, the handler asks who it is
	idp *samltest.IdP
}

func (s *samlScript) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idp.Handler().ServeHTTP(w, r)
}

// start is the command idp: it starts an identity provider that signs its user in without a question, writes its
// metadata to idp.xml and its address to IDP, and makes the command browser the browser.
func (p *samlProviders) start(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: idp")
	}
	s := &samlScript{idp: samltest.New(p.t)}
	server := httptest.NewServer(s)
	ts.Defer(server.Close)
	s.idp.SSOURL = server.URL + "/sso"
	p.of.Store(ts, s)
	ts.Check(os.WriteFile(ts.MkAbs("idp.xml"), s.idp.MetadataXML(), 0o600))
	ts.Setenv("IDP", server.URL)
	ts.Setenv("BROWSER", "browser")
}

func (p *samlProviders) script(ts *testscript.TestScript) *samlScript {
	s, ok := p.of.Load(ts)
	if !ok {
		ts.Fatalf("there is no identity provider: start it with idp")
	}
	return s.(*samlScript)
}

// setUser is the command idp-user SUBJECT [NAME=VALUE …]: it says who signs in from now on.
func (p *samlProviders) setUser(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: idp-user SUBJECT [NAME=VALUE …]")
	}
	user := samltest.User{Subject: args[0], Attributes: map[string][]string{}}
	for _, arg := range args[1:] {
		name, value, _ := strings.Cut(arg, "=")
		user.Attributes[name] = append(user.Attributes[name], value)
	}
	s := p.script(ts)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idp.User = user
}

// begin is the command idp-begin ACS-URL ENTITY-ID: the user clicks on the tile of a service at the identity provider. The
// page that follows is in page.html.
func (p *samlProviders) begin(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: idp-begin ACS-URL ENTITY-ID")
	}
	s := p.script(ts)
	s.mu.Lock()
	response := s.idp.Response(samltest.Response{ACSURL: args[0], Audience: args[1], User: s.idp.User})
	s.mu.Unlock()
	page, err := postForm(args[0], url.Values{"SAMLResponse": {response}, "RelayState": {""}})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("page.html"), page, 0o600))
}

// playBrowser is the program browser URL, of scripts: it opens a page, sends the forms that it finds there by their first
// button, follows where pages lead, and leaves the last one in page.html of its user's home.
func playBrowser() {
	if err := browse(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var (
	formAction = regexp.MustCompile(`<form method="post"(?: action="([^"]*)")?>`)
	formInput  = regexp.MustCompile(`<input[^>]* name="([^"]*)" value="([^"]*)"`)
	formButton = regexp.MustCompile(`<button[^>]* name="([^"]*)" value="([^"]*)"`)
	refresh    = regexp.MustCompile(`http-equiv="refresh" content="0;url=([^"]*)"`)
)

func browse(page string) error {
	var form url.Values
	var text []byte
	for range 10 {
		var err error
		if form == nil {
			text, err = getPage(page)
		} else {
			text, err = postForm(page, form)
		}
		if err != nil {
			return err
		}
		form = nil
		if to := refresh.FindSubmatch(text); to != nil {
			page = html.UnescapeString(string(to[1]))
			continue
		}
		action := formAction.FindSubmatch(text)
		if action == nil {
			break
		}
		if len(action[1]) > 0 {
			page = html.UnescapeString(string(action[1]))
		}
		form = url.Values{}
		for _, input := range append(formInput.FindAllSubmatch(text, -1), formButton.FindSubmatch(text)) {
			if input != nil {
				form.Add(html.UnescapeString(string(input[1])), html.UnescapeString(string(input[2])))
			}
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(home, "page.html"), text, 0o600)
}

func getPage(target string) ([]byte, error) {
	resp, err := http.Get(target)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

func postForm(target string, form url.Values) ([]byte, error) {
	resp, err := http.PostForm(target, form)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/html") {
		return nil, errors.New("the callback answered no page but " + kind)
	}
	return io.ReadAll(resp.Body)
}
