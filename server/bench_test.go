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
	in.requests(b, in.token("reader"), http.MethodGet, "secret/data/app", "")
}

// BenchmarkWrite is a KV write on the same way.
func BenchmarkWrite(b *testing.B) {
	in := start(b)
	in.must(in.root, engines.Update, "sys/policies/acl/writer", `{"policy":"path \"secret/data/*\" { capabilities = [\"create\", \"update\"] }"}`)
	in.requests(b, in.token("writer"), http.MethodPost, "secret/data/app", `{"data":{"user":"shop","password":"correct-horse"}}`)
}

// BenchmarkLookupSelf is a token that looks itself up.
func BenchmarkLookupSelf(b *testing.B) {
	in := start(b)
	in.requests(b, in.token("default"), http.MethodGet, "auth/token/lookup-self", "")
}

// BenchmarkTokenCreate is a token that makes another one.
func BenchmarkTokenCreate(b *testing.B) {
	in := start(b)
	in.must(in.root, engines.Update, "sys/policies/acl/maker", `{"policy":"path \"auth/token/create\" { capabilities = [\"create\", \"update\"] }"}`)
	in.requests(b, in.token("maker"), http.MethodPost, "auth/token/create", `{"ttl":"1h"}`)
}

// requests makes the same request again and again.
func (in *instance) requests(b *testing.B, token, method, path, body string) {
	api := httpapi.New(httpapi.Options{Requests: in.Requests(), Backend: in.Server, Observe: in.Metrics().Observe})
	r := httptest.NewRequest(method, "/v1/"+path, nil)
	r.Header.Set("X-Vault-Token", token)
	w := discard{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		if body != "" {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		}
		api.ServeHTTP(w, r)
	}
}
