package server_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/httpapi"
)

// discard is a ResponseWriter that costs nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header       { return d.header }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

// BenchmarkRead is a KV read with an ordinary token, from the HTTP edge down to an in-memory store.
func BenchmarkRead(b *testing.B) {
	in := start(b)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"user":"shop","password":"correct-horse"}}`)
	in.must(in.root, engines.Update, "sys/policies/acl/reader", `{"policy":"path \"secret/data/*\" { capabilities = [\"read\"] }"}`)
	token := in.token("reader")
	api := httpapi.New(httpapi.Options{Requests: in.Requests(), Backend: in.Server, Observe: in.Metrics().Observe})
	r := httptest.NewRequest(http.MethodGet, "/v1/secret/data/app", nil)
	r.Header.Set("X-Vault-Token", token)
	w := discard{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		api.ServeHTTP(w, r)
	}
}

// BenchmarkWrite is a KV write with an ordinary token, from the HTTP edge down to an in-memory store.
func BenchmarkWrite(b *testing.B) {
	in := start(b)
	in.must(in.root, engines.Update, "sys/policies/acl/writer", `{"policy":"path \"secret/data/*\" { capabilities = [\"create\", \"update\"] }"}`)
	token := in.token("writer")
	api := httpapi.New(httpapi.Options{Requests: in.Requests(), Backend: in.Server, Observe: in.Metrics().Observe})
	r := httptest.NewRequest(http.MethodPost, "/v1/secret/data/app", nil)
	r.Header.Set("X-Vault-Token", token)
	w := discard{http.Header{}}
	const body = `{"data":{"user":"shop","password":"correct-horse"}}`
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		api.ServeHTTP(w, r)
	}
}
