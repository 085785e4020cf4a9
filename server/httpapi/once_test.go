package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coffer-project/coffer/server/httpapi"
)

// Two headers of which each layer could take another one are refused; the same one twice is harmless.
func TestRepeatedHeaders(t *testing.T) {
	for _, name := range []string{"X-Vault-Token", "X-Vault-Namespace", "Authorization", "X-Vault-Wrap-TTL"} {
		for second, want := range map[string]int{"60": http.StatusNoContent, "61": http.StatusBadRequest, "": http.StatusBadRequest} {
			b := &backend{active: true}
			r := httptest.NewRequest("GET", "/v1/x/y", nil)
			r.Header.Add(name, "60")
			r.Header.Add(name, second)
			w := httptest.NewRecorder()
			httpapi.New(httpapi.Options{Requests: b, Backend: b}).ServeHTTP(w, r)
			if w.Code != want && !(want == http.StatusNoContent && w.Code < 300) || (b.got != nil) != (want < 300) {
				t.Errorf("%s %q and %q: status %d, reached the backend: %v", name, "60", second, w.Code, b.got != nil)
			}
		}
	}
}
