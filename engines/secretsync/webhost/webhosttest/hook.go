package webhosttest

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// Hook is a deploy hook. Safe for concurrent use.
type Hook struct {
	URL    string
	Client *http.Client // trusts it
	CA     []byte       // to trust it by, in PEM

	mu     sync.Mutex
	calls  int
	status int
}

// NewHook starts a server, which speaks TLS, with a deploy hook.
func NewHook(t testing.TB) *Hook {
	t.Helper()
	h := &Hook{status: http.StatusCreated}
	l := httptest.NewTLSServer(h)
	t.Cleanup(l.Close)
	h.URL, h.Client = l.URL+"/v1/integrations/deploy/prj_1/secretpart", l.Client()
	h.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.Certificate().Raw})
	return h
}

// Fail has calls be answered with a status.
func (h *Hook) Fail(status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = status
}

// Calls returns how often the hook was called since the last Calls.
func (h *Hook) Calls() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.calls
	h.calls = 0
	return n
}

// ServeHTTP implements http.Handler.
func (h *Hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case r.URL.Path != "/v1/integrations/deploy/prj_1/secretpart":
		fail(w, http.StatusNotFound, "not_found", "The deploy hook was not found", nil)
	case r.Method != http.MethodPost && r.Method != http.MethodGet:
		fail(w, http.StatusMethodNotAllowed, "method_not_allowed", "Method not allowed", nil)
	case r.Header.Get("Authorization") != "": // the address is all that it takes, and a token would leak
		fail(w, http.StatusBadRequest, "bad_request", "Unexpected header", nil)
	case h.status >= 300:
		fail(w, h.status, "failed", "It failed", nil)
	default:
		h.calls++
		desttest.Respond(w, h.status, map[string]any{"job": map[string]any{"id": "job_1", "state": "PENDING", "createdAt": time.Now().UnixMilli()}})
	}
}
