package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/httpapi"
)

// A body beyond the limits is answered before anything behind the edge sees it.
func TestBodyBeyondLimits(t *testing.T) {
	for name, body := range map[string]string{
		"nests objects and lists deeper than 100": strings.Repeat(`{"a":`, 101) + "1" + strings.Repeat("}", 101),
		"more than 100000 values":                 `{"a":[` + strings.Repeat("1,", 100_000) + "1]}",
		"a text of more than 4194304 bytes":       `{"a":"` + strings.Repeat("x", 4<<20+1) + `"}`,
	} {
		b := &backend{active: true}
		w := call(t, b, httpapi.Options{}, "POST", "/v1/secret/data/a", body)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), name) || b.got != nil {
			t.Errorf("%s: %d %.200s, reached the backend: %v", name, w.Code, w.Body, b.got != nil)
		}
	}
}
