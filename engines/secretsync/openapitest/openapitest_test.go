package openapitest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/openapitest"
)

const document = `{"openapi":"3.0.3","info":{"title":"t","version":"1"},"paths":{
 "/a/{name}":{"put":{"operationId":"put","parameters":[{"name":"name","in":"path","required":true,"schema":{"type":"string"}},
   {"name":"q","in":"query","schema":{"type":"string"}}],
  "requestBody":{"required":true,"content":{"application/json":{"schema":{"type":"object","required":["v"],"properties":{"v":{"type":"string"}}}}}},
  "responses":{"200":{"description":"","content":{"application/json":{"schema":{"oneOf":[{"type":"object","required":["id"]},{"type":"object"}]}}}}}}}}}`

// recorder is a test that fails in the place of the real one.
type recorder struct {
	testing.TB
	said []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func TestHandler(t *testing.T) {
	tests := []struct {
		name, method, path, body string
		status                   int
		answer                   string
		want                     string // in what is said, "" for nothing
	}{
		{"as documented", "PUT", "/p/a/x%2Fy?q=1", `{"v":"1"}`, 200, `{"id":1}`, ""},
		{"a body of another type", "PUT", "/p/a/x", `{"v":1}`, 200, `{"id":1}`, "request body"},
		{"no body", "PUT", "/p/a/x", ``, 200, `{"id":1}`, "request body"},
		{"an unknown query", "PUT", "/p/a/x?z=1", `{"v":"1"}`, 200, `{"id":1}`, `no parameter "z"`},
		{"an unknown path", "PUT", "/p/b/x", `{"v":"1"}`, 200, `{}`, "no such operation"},
		{"an unknown method", "GET", "/p/a/x", ``, 200, `{}`, "no such operation"},
		{"an undocumented status", "PUT", "/p/a/x", `{"v":"1"}`, 201, `{}`, "status is not supported"},
		{"an allowed status", "PUT", "/p/a/x", `{"v":"1"}`, 404, `gone`, ""},
		{"an answer of another type", "PUT", "/p/a/x", `{"v":"1"}`, 200, `[]`, "response body"},
		{"a bad request that is answered so", "PUT", "/p/a/x", `{"v":1}`, 400, `{}`, ""},
		{"elsewhere", "PUT", "/p/free", `[`, 200, `{}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := openapitest.Load([]byte(document)).AnyOf()
			c.Unlisted = map[int]bool{400: true, 404: true}
			c.Ignore = func(path string) bool { return path == "/free" }
			rec := &recorder{TB: t}
			h := c.Handler(rec, "/p", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.answer))
			}))
			r := httptest.NewRequest(tt.method, tt.path, strings.NewReader(tt.body))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tt.status || w.Body.String() != tt.answer {
				t.Errorf("answered %d %q", w.Code, w.Body)
			}
			said := strings.Join(rec.said, "; ")
			if (said == "") != (tt.want == "") || !strings.Contains(said, tt.want) {
				t.Errorf("said %q, want %q", said, tt.want)
			}
		})
	}
}
