// Package webhooktest is a receiver of webhooks for tests, as docs/sync-destinations.md says that receivers are: it verifies the signature and its
// time, carries a request out once for each Idempotency-Key, and answers 409 for names of another owner.
package webhooktest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// Key is what requests are signed with, Secret the value of the header Authorization.
const (
	Key    = "0123456789abcdef-signing"
	Secret = "Bearer hook-AAAAAAAA"
)

type entry struct{ owner, value string }

// Server is a receiver. Safe for concurrent use.
type Server struct {
	desttest.Front // Calls are the requests that were accepted, as "action name"

	t testing.TB

	mu    sync.Mutex
	names map[string]entry
	done  map[string]bool // by Idempotency-Key
}

// New starts a Server that lives as long as the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, names: map[string]entry{}, done: map[string]bool{}}
	s.Listen(t, &desttest.Faults{Next: s, Reads: func(_ *http.Request, body []byte) bool { return strings.Contains(string(body), `"action":"ping"`) }})
	return s
}

// Put stores a value of another owner.
func (s *Server) Put(name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[name] = entry{"another", value}
}

// Get returns the value of a name.
func (s *Server) Get(name string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.names[name]
	return e.value, ok
}

// Verified reports whether a body was signed with Key, within the last five minutes.
func Verified(header string, body []byte) bool {
	at, sum, ok := strings.Cut(strings.TrimPrefix(header, "t="), ",v1=")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false
	}
	mac := hmac.New(sha256.New, []byte(Key))
	mac.Write([]byte(at + "." + string(body)))
	got, err := hex.DecodeString(sum)
	return err == nil && hmac.Equal(got, mac.Sum(nil))
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if !Verified(r.Header.Get("Coffer-Signature"), body) || r.Header.Get("Authorization") != Secret {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	var in struct {
		Action, Name, Owner, Version, Timestamp string
		Value                                   *string
	}
	key := r.Header.Get("Idempotency-Key")
	_, bad := time.Parse(time.RFC3339, "2026-01-01T00:00:00Z")
	if json.Unmarshal(body, &in) == nil {
		_, bad = time.Parse(time.RFC3339, in.Timestamp)
	}
	writes := in.Action == "create" || in.Action == "update" || in.Action == "adopt"
	if bad != nil || key == "" || r.Header.Get("Content-Type") != "application/json" || writes && in.Value == nil || in.Version != key || in.Action != "ping" && (in.Name == "" || in.Owner == "") {
		s.t.Errorf("the request is not as documented: action %q", in.Action)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Note(in.Action + " " + in.Name)
	now, exists := s.names[in.Name]
	switch {
	case in.Action == "ping":
	case exists && now.owner != in.Owner && in.Action != "adopt":
		w.WriteHeader(http.StatusConflict)
		return
	case s.done[key] && writes && exists && now.value == *in.Value:
	case in.Action == "delete" && !exists:
		w.WriteHeader(http.StatusNotFound)
		return
	case in.Action == "delete":
		delete(s.names, in.Name)
	case writes:
		s.names[in.Name] = entry{in.Owner, *in.Value}
	default:
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.done[key] = true
	w.WriteHeader(http.StatusNoContent)
}
