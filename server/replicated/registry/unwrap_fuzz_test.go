package registry

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
)

// FuzzUnwrapAnswer: whatever answers in the primary's place, the data is JSON or there is an error.
func FuzzUnwrapAnswer(f *testing.F) {
	for _, seed := range []string{`{"data":{"secret":"x"}}`, `{"data":null}`, `{}`, `[]`, `<html>`, ``, `{"data":{}}x`} {
		f.Add(http.StatusOK, []byte(seed))
	}
	f.Add(http.StatusBadRequest, []byte(`{"errors":["x"]}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		data, err := answerOf("https://p.example", status, body)
		if err == nil && (status != http.StatusOK || !json.Valid(data)) {
			t.Errorf("status %d with %q is taken for the bundle %q", status, body, data)
		}
	})
}

// FuzzAPIAddr: what is accepted leads to the path that unwraps, at a host, without credentials.
func FuzzAPIAddr(f *testing.F) {
	for _, seed := range []string{"https://p.example:8200", "http://[::1]:8200/", "p.example:8200", "https://", "https://a@b", "https://a?", "https://a#", "https://p.example/x?y#z", "", "https://p.example/%zz"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, addr string) {
		base, err := primaryURL(addr, "")
		if err != nil {
			return
		}
		u, err := url.Parse(base + unwrapPath)
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Scheme != "https" && u.Scheme != "http" {
			t.Errorf("%q is accepted and leads to %v, %v", addr, u, err)
		}
	})
}
