package model

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
)

// maxWatched is the longest request.
const maxWatched = 1 << 20

// Watch starts a proxy in front of other services that speak the same protocol, such as an independent emulator, and
// returns its URL. Each request is judged before it is passed on as it is; its Host header, which is signed, stays.
// A nil judge fails the test.
func Watch(t testing.TB, target string, judge func(Violation)) (address string) {
	t.Helper()
	models, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	if judge == nil {
		judge = func(v Violation) { t.Errorf("the provider would reject this request: %v", v) }
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
	}}
	l := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, h *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, h.Body, maxWatched))
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		form, err := url.ParseQuery(string(body))
		if err != nil {
			judge(Violation{Rule: "not a form"})
		}
		for _, v := range models.Check(form) {
			judge(v)
		}
		h.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, h)
	}))
	t.Cleanup(l.Close)
	return l.URL
}
