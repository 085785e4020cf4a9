package web

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/system/systemtest"
	"github.com/coffer-project/coffer/storage"
)

func TestUIHeaders(t *testing.T) {
	store := &storage.Memory{}
	u := NewUIHeaders(store)
	store.OnChange(u.Changed)
	r := systemtest.Router(u.Routes)
	page := u.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Write([]byte("page"))
	}))
	get := func() http.Header {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest("GET", "/ui/", nil))
		if w.Body.String() != "page" {
			t.Errorf("the page is %q", w.Body)
		}
		return w.Header()
	}
	systemtest.Refused(t, r, engines.KindNotFound, engines.List, "config/ui/headers", "")
	systemtest.Refused(t, r, engines.KindNotFound, engines.Read, "config/ui/headers/X-Custom", "")
	for _, name := range []string{"X-Vault-Token", "x-vault-anything", "Content-Type", "set-cookie", "Access-Control-Allow-Origin", "a b"} {
		systemtest.Refused(t, r, engines.KindInvalid, engines.Update, "config/ui/headers/"+name, `{"values":"v"}`)
	}
	for _, body := range []string{`{}`, `{"values":[]}`, `{"values":"a\r\nSet-Cookie: x"}`, `{"values":{"a":1}}`, `{"values":[""]}`} {
		systemtest.Refused(t, r, engines.KindInvalid, engines.Update, "config/ui/headers/X-Custom", body)
	}
	systemtest.Must(t, r, engines.Update, "config/ui/headers/x-custom", `{"values":["one, and a comma","two"]}`)
	_, resp, err := systemtest.Ask(t, r, engines.Update, "config/ui/headers/Content-Security-Policy", `{"values":"default-src 'self'"}`)
	if err != nil || resp == nil || len(resp.Warnings) != 1 {
		t.Errorf("replacing the policy = %v, %v, want a warning", resp, err)
	}
	if h := get(); len(h["X-Custom"]) != 2 || h.Get("Content-Security-Policy") != "default-src 'self'" || h.Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("the page's headers are %v", h)
	}
	if data := systemtest.Must(t, r, engines.List, "config/ui/headers", ""); len(data["keys"].([]any)) != 2 {
		t.Errorf("list = %v", data)
	}
	if data := systemtest.Must(t, r, engines.Read, "config/ui/headers/X-CUSTOM", ""); data["value"] != "one, and a comma" {
		t.Errorf("read = %v", data)
	}
	if data := systemtest.Must(t, r, engines.Read, "config/ui/headers/x-custom?multivalue=true", ""); len(data["values"].([]any)) != 2 {
		t.Errorf("read all = %v", data)
	}
	systemtest.Must(t, r, engines.Delete, "config/ui/headers/Content-Security-Policy", "")
	if h := get(); h.Get("Content-Security-Policy") != "default-src 'none'" {
		t.Errorf("after delete the policy is %q", h.Get("Content-Security-Policy"))
	}
}
