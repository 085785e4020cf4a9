package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/coffer-project/coffer/server/httpapi"
)

// TestForeignPages: without a token, what a page of another site has a browser send does not reach the server, but for
// links and the forms of routes that take them from anywhere.
func TestForeignPages(t *testing.T) {
	const form = "application/x-www-form-urlencoded"
	for name, test := range map[string]struct {
		method, path string
		header       []string
		passes       bool
	}{
		"no browser":                       {"POST", "auth/m/token", nil, true},
		"its own page":                     {"POST", "auth/m/token", []string{"Origin", "http://example.com", "Sec-Fetch-Site", "same-origin"}, true},
		"its own page, old browser":        {"POST", "auth/m/token", []string{"Origin", "http://example.com"}, true},
		"its own page, behind a proxy":     {"POST", "auth/m/token", []string{"Origin", "https://coffer.test", "Sec-Fetch-Site", "same-origin"}, true},
		"another page":                     {"POST", "auth/m/token", []string{"Origin", "https://evil.test", "Content-Type", "text/plain"}, false},
		"another page, without Origin":     {"POST", "auth/m/token", []string{"Sec-Fetch-Site", "cross-site"}, false},
		"another page, PUT":                {"PUT", "sys/init", []string{"Origin", "https://evil.test"}, false},
		"another page, unseal":             {"POST", "sys/unseal", []string{"Origin", "https://evil.test", "Content-Type", form}, false},
		"another page of the domain":       {"POST", "auth/m/token", []string{"Origin", "http://wiki.example.com", "Sec-Fetch-Site", "same-site"}, false},
		"an opaque origin":                 {"POST", "auth/m/token", []string{"Origin", "null"}, false},
		"a form for the callback":          {"POST", "auth/m/callback", []string{"Origin", "https://idp.test", "Sec-Fetch-Site", "cross-site", "Content-Type", form}, true},
		"text for the callback":            {"POST", "auth/m/callback", []string{"Origin", "https://idp.test", "Content-Type", "text/plain"}, false},
		"JSON for the callback":            {"POST", "auth/m/callback", []string{"Origin", "https://idp.test", "Content-Type", "application/json"}, false},
		"a link":                           {"GET", "auth/m/go/x", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, true},
		"an image":                         {"GET", "auth/m/go/x", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, false},
		"with a token, after a preflight":  {"POST", "auth/m/token", []string{"Origin", "https://evil.test", "X-Vault-Token", "t"}, true},
		"another page, with an empty one":  {"POST", "auth/m/token", []string{"Origin", "https://evil.test", "X-Vault-Token", ""}, false},
		"another page, without the prefix": {"LIST", "auth/m/role", []string{"Origin", "https://evil.test"}, false},
	} {
		for _, prefix := range []string{"/v1/", "/"} {
			b := &backend{active: true, form: true}
			w := call(t, b, httpapi.Options{}, test.method, prefix+test.path, "", test.header...)
			if passed := b.got != nil; passed != test.passes || !passed && w.Code != http.StatusForbidden {
				t.Errorf("%s: %s%s: reached the server: %t, status %d; want %t", name, prefix, test.path, passed, w.Code, test.passes)
			}
		}
	}
}
