package web

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/system/systemtest"
	"github.com/coffer-project/coffer/storage"
)

func TestCORS(t *testing.T) {
	store := &storage.Memory{}
	c := NewCORS(store)
	store.OnChange(c.Changed)
	r := systemtest.Router(c.Routes)
	send := func(method, origin string, header ...string) (answered bool, w *httptest.ResponseRecorder) {
		req := httptest.NewRequest(method, "http://coffer.example:8200/v1/sys/health", nil)
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		for _, h := range header {
			req.Header.Set(h, "POST")
		}
		w = httptest.NewRecorder()
		return c.Apply(w, req), w
	}
	if data := systemtest.Must(t, r, engines.Read, "config/cors", ""); data["enabled"] != false {
		t.Errorf("a new server: %v", data)
	}
	if answered, w := send("GET", "https://app.example"); answered || len(w.Header()) != 0 {
		t.Errorf("disabled: answered %v with %v", answered, w.Header())
	}
	for _, bad := range []string{
		`{}`, `{"allowed_origins":"*,https://a.example"}`, `{"allowed_origins":"app.example"}`, `{"allowed_origins":"https://a.example/path"}`,
		`{"allowed_origins":"*","allow_credentials":true}`, `{"allowed_origins":"https://a.example","allowed_headers":["a b"]}`,
	} {
		systemtest.Refused(t, r, engines.KindInvalid, engines.Update, "config/cors", bad)
	}
	systemtest.Must(t, r, engines.Update, "config/cors", `{"allowed_origins":["https://app.example"],"allowed_headers":["X-Mine","content-type"],"enabled":true}`)
	data := systemtest.Must(t, r, engines.Read, "config/cors", "")
	if data["enabled"] != true || len(data["allowed_headers"].([]any)) != len(corsHeaders)+1 {
		t.Errorf("read = %v", data)
	}
	if answered, w := send("GET", "https://app.example"); answered || w.Header().Get("Access-Control-Allow-Origin") != "https://app.example" || w.Header().Get("Vary") != "Origin" {
		t.Errorf("allowed: answered %v with %v", answered, w.Header())
	}
	answered, w := send("OPTIONS", "https://app.example", "Access-Control-Request-Method")
	if !answered || w.Code != 204 || !strings.Contains(w.Header().Get("Access-Control-Allow-Headers"), "X-Mine") || !strings.Contains(w.Header().Get("Access-Control-Allow-Methods"), "LIST") {
		t.Errorf("preflight: answered %v, %d, %v", answered, w.Code, w.Header())
	}
	if answered, w := send("POST", "https://evil.example"); !answered || w.Code != 403 || w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a stranger: answered %v, %d, %v", answered, w.Code, w.Header())
	}
	for _, origin := range []string{"", "http://coffer.example:8200"} {
		if answered, w := send("POST", origin); answered || len(w.Header()) != 0 {
			t.Errorf("origin %q: answered %v with %v", origin, answered, w.Header())
		}
	}
	systemtest.Must(t, r, engines.Update, "config/cors", `{"allowed_origins":"*"}`)
	if answered, w := send("GET", "https://evil.example"); answered || w.Header().Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("everybody: answered %v with %v", answered, w.Header())
	}
	systemtest.Must(t, r, engines.Delete, "config/cors", "")
	if answered, w := send("GET", "https://app.example"); answered || len(w.Header()) != 0 {
		t.Errorf("after delete: answered %v with %v", answered, w.Header())
	}
}
