package saml_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// everyPage returns one of each page that a browser can be shown.
func everyPage(t *testing.T) map[string]*engines.Raw {
	t.Helper()
	f := newFlow(t, byIdP)
	out := map[string]*engines.Raw{}
	out["done"] = f.confirm(f.start(nil), alice).Raw
	out["blank"] = f.confirm(f.start(fields{"client_type": "browser"}), alice).Raw
	f.role("asks", fields{"confirm": "always"})
	short := f.start(fields{"role": "asks", "short_link": true})
	link := "go/" + short.data["short_url"].(string)[strings.LastIndexByte(short.data["short_url"].(string), '/')+1:]
	must := func(resp *engines.Response, err error) *engines.Response {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	out["ask"] = must(f.do(engines.Read, link, nil)).Raw
	out["leave"] = must(f.do(engines.Update, link, fields{"decision": "confirm"})).Raw
	asking := must(f.post(f.idp.Answer(short.url, alice)))
	out["confirm"] = asking.Raw
	out["stopped"] = must(f.decide(asking, "reject")).Raw
	out["code"] = must(f.post(f.unsolicited(samltest.Response{}))).Raw
	for name, call := range map[string]func() error{
		"refused": func() error { _, err := f.post(map[string][]string{"SAMLResponse": {"!"}}); return err },
		"gone":    func() error { _, err := f.do(engines.Read, "go/unknown", nil); return err },
	} {
		var e *engines.Error
		if !errors.As(call(), &e) || e.Page == nil {
			t.Fatalf("no page %q", name)
		}
		out[name] = e.Page
	}
	return out
}

var styleElement = regexp.MustCompile(`(?s)<style>(.*?)</style>`)

// TestPagesAreStrict checks what pages may do and load: nothing, and only their own style.
func TestPagesAreStrict(t *testing.T) {
	for name, page := range everyPage(t) {
		policy := page.Header.Get("Content-Security-Policy")
		form, referrer, tags := "form-action 'none'", "no-referrer", []string{"<form", "<input", "<button"}
		if name == "ask" || name == "confirm" { // with a form for this server
			form, referrer, tags = "form-action 'self'", "same-origin", []string{"action="}
		}
		if name != "leave" { // which leads to the identity provider
			tags = append(tags, "http-equiv", "http:", "https:", "<a ")
		}
		for _, directive := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", form} {
			if !strings.Contains("; "+policy+";", "; "+directive+";") {
				t.Errorf("%s: the policy %q lacks %s", name, policy, directive)
			}
		}
		for header, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": referrer} {
			if got := page.Header.Get(header); got != want {
				t.Errorf("%s: %s is %q", name, header, got)
			}
		}
		if page.ContentType != "text/html; charset=utf-8" {
			t.Errorf("%s: its type is %q", name, page.ContentType)
		}
		body := string(page.Body)
		if m := styleElement.FindStringSubmatch(body); m != nil {
			sum := sha256.Sum256([]byte(m[1]))
			if hash := base64.StdEncoding.EncodeToString(sum[:]); !strings.Contains(policy, "style-src 'sha256-"+hash+"'") {
				t.Errorf("%s: the policy does not allow the page's own style", name)
			}
		} else if name != "blank" {
			t.Errorf("%s: no style", name)
		}
		for _, never := range append(tags, "<script", "url(", "@import", " style=", "<img", "ZgotmplZ") {
			if strings.Contains(body, never) {
				t.Errorf("%s: has %q", name, never)
			}
		}
		if !strings.Contains(body, "<title>") || !strings.HasPrefix(body, "<!doctype html>\n<html lang=\"en\">") {
			t.Errorf("%s: is no whole page", name)
		}
	}
}

func TestCLIGetsASuccessPage(t *testing.T) {
	f := newFlow(t)
	s := f.start(nil)
	body := string(f.from("198.51.100.1").confirm(s, alice).Raw.Body)
	for _, text := range []string{"alice@example.com", "dev", "coffer.example.com:8200", s.code, "203.0.113.7", "UTC", "close this tab and go back to your terminal"} {
		if !strings.Contains(body, text) {
			t.Errorf("the page lacks %q", text)
		}
	}
	if strings.Contains(body, s.poll) {
		t.Error("the page holds the poll id")
	}
}

func TestBrowserGetsABlankPage(t *testing.T) {
	f := newFlow(t)
	body := string(f.confirm(f.start(fields{"client_type": "browser"}), alice).Raw.Body)
	if shown := regexp.MustCompile(`(?s)<title>.*</title>|<[^>]*>|\s`).ReplaceAllString(body, ""); shown != "" {
		t.Errorf("the page shows %q", shown)
	}
}

func TestPagesEscape(t *testing.T) {
	f := newFlow(t)
	f.role("dev", fields{"bound_attributes": fields{"groups": "staff"}})
	body := string(f.confirm(f.start(nil), samltest.User{Subject: `<script>alert("x")</script>`, Attributes: alice.Attributes}).Raw.Body)
	if strings.Contains(body, "<script") || !strings.Contains(body, "&lt;script&gt;") {
		t.Error("the subject is not escaped")
	}
}

func TestCodePageNamesTheMount(t *testing.T) {
	f := newFlow(t, byIdP)
	f.Mount.Mount.Path, f.Mount.Mount.Namespace = "auth/corp/sso/", "team/a/"
	resp, err := f.post(f.unsolicited(samltest.Response{}))
	if err != nil {
		t.Fatal(err)
	}
	if want := "coffer login -namespace=team/a -method=saml -path=corp/sso code=" + shown(t, resp); !strings.Contains(string(resp.Raw.Body), want) {
		t.Errorf("the page does not say %q", want)
	}
}
