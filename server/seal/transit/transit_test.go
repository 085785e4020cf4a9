package transit_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/server/seal/transit"
)

// server is the transit engine and the token store of another server, as far as a seal needs them. It complains about
// everything that is not as the wire contract has it.
type server struct {
	t   *testing.T
	mu  sync.Mutex
	url string

	token     string
	sealed    bool
	aad       map[string]string // of each ciphertext
	plain     map[string]string
	about     map[string]any // the token
	renewals  int
	onRenewal func()
}

func newServer(t *testing.T) *server {
	s := &server{t: t, token: "the-token", aad: map[string]string{}, plain: map[string]string{}}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	s.url = h.URL
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fail := func(code int, text string) {
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(map[string]any{"errors": []string{text}})
	}
	var in map[string]string
	if r.Method != http.MethodGet {
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			s.t.Errorf("%s: the body is not JSON: %v", r.URL.Path, err)
		}
	}
	if r.Header.Get("X-Vault-Request") != "true" || r.Header.Get("X-Vault-Namespace") != "ops" {
		s.t.Errorf("%s: headers %v", r.URL.Path, r.Header)
	}
	switch {
	case s.sealed:
		fail(http.StatusServiceUnavailable, "Vault is sealed")
		return
	case r.Header.Get("X-Vault-Token") != s.token:
		fail(http.StatusForbidden, "permission denied")
		return
	}
	answer := func(v any) { json.NewEncoder(w).Encode(v) }
	switch r.Method + " " + r.URL.Path {
	case "PUT /v1/keys/transit/encrypt/coffer":
		if _, err := base64.StdEncoding.DecodeString(in["plaintext"]); err != nil || in["plaintext"] == "" || in["associated_data"] == "" || len(in) != 2 {
			s.t.Errorf("encrypt has the fields %v", len(in))
		}
		name := fmt.Sprintf("vault:v1:%d", len(s.plain))
		s.plain[name], s.aad[name] = in["plaintext"], in["associated_data"]
		answer(map[string]any{"data": map[string]any{"ciphertext": name, "key_version": 1}})
	case "PUT /v1/keys/transit/decrypt/coffer":
		if name := in["ciphertext"]; s.plain[name] == "" || s.aad[name] != in["associated_data"] {
			fail(http.StatusBadRequest, "cipher: message authentication failed")
			return
		}
		answer(map[string]any{"data": map[string]any{"plaintext": s.plain[in["ciphertext"]]}})
	case "GET /v1/auth/token/lookup-self":
		answer(map[string]any{"data": s.about})
	case "PUT /v1/auth/token/renew-self":
		s.renewals++
		answer(map[string]any{"auth": map[string]any{"lease_duration": 2}})
		s.onRenewal()
	default:
		s.t.Errorf("%s %s", r.Method, r.URL.Path)
		fail(http.StatusNotFound, "")
	}
}

func (s *server) stanza() map[string]string {
	return map[string]string{
		"address": s.url + "/", "token": s.token, "mount_path": "/keys/transit/", "key_name": "coffer", "namespace": "ops/",
	}
}

func mustNew(t *testing.T, values map[string]string) seal.Wrapper {
	t.Helper()
	w, err := transit.New(values, nil)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWrap(t *testing.T) {
	s := newServer(t)
	w := mustNew(t, s.stanza())
	if w.Type() != "transit" || seal.KeyID(w) != strings.TrimPrefix(s.url, "http://")+"/ops/keys/transit/coffer" {
		t.Errorf("type %q, key %q", w.Type(), seal.KeyID(w))
	}
	secret := bytes.Repeat([]byte{7}, 32)
	blob, err := w.Wrap(t.Context(), secret, "root key")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := w.Unwrap(t.Context(), blob, "root key"); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("Unwrap: %v", err)
	}
	for _, plain := range s.plain {
		if plain == base64.StdEncoding.EncodeToString(secret) {
			t.Error("the service gets to see the secret")
		}
	}
	if _, err := w.Unwrap(t.Context(), blob, "another"); !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("another purpose: %v", err)
	}
	for name, aad := range s.aad { // what the service binds
		if aad != base64.StdEncoding.EncodeToString([]byte("root key")) {
			t.Errorf("%s is bound to %q", name, aad)
		}
	}
}

func TestFailures(t *testing.T) {
	s := newServer(t)
	w := mustNew(t, s.stanza())
	blob, err := w.Wrap(t.Context(), []byte("x"), "p")
	if err != nil {
		t.Fatal(err)
	}
	check := func(name, want string) {
		t.Helper()
		_, err := w.Unwrap(t.Context(), blob, "p")
		if err == nil || errors.Is(err, seal.ErrWrongKey) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "the-token") {
			t.Errorf("%s: the error shows the token", name)
		}
	}
	s.token = "changed"
	check("a token that is no good", "is the setting token valid")
	s.sealed = true
	check("a sealed server", "Vault is sealed")
	redirect := httptest.NewServer(http.RedirectHandler(s.url, http.StatusTemporaryRedirect))
	defer redirect.Close()
	stanza := s.stanza()
	stanza["address"] = redirect.URL
	w = mustNew(t, stanza)
	check("a redirect", "redirect")
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	stanza["address"] = stranger.URL
	w = mustNew(t, stanza)
	check("another kind of server", "does not answer as")
	stranger.Close()
	check("nobody", "asking "+stranger.URL)
}

// A token in a file may be replaced while the server runs.
func TestTokenFromFile(t *testing.T) {
	s := newServer(t)
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.token = token
	}
	write("one")
	stanza := s.stanza()
	stanza["token"] = "file://" + file
	w := mustNew(t, stanza)
	for _, token := range []string{"one", "two"} {
		write(token)
		if _, err := w.Wrap(t.Context(), []byte("x"), "p"); err != nil {
			t.Errorf("with token %s: %v", token, err)
		}
	}
}

func TestRenewal(t *testing.T) {
	for name, tt := range map[string]struct {
		about map[string]any
		stops bool
	}{
		"half its time is over": {map[string]any{"ttl": 900, "creation_ttl": 2000, "renewable": true}, true},
		"its period is over":    {map[string]any{"ttl": 900, "creation_ttl": 100, "period": 2000, "renewable": true}, true},
		"it has time":           {map[string]any{"ttl": 1900, "creation_ttl": 2000, "renewable": true}, false},
		"it cannot be renewed":  {map[string]any{"ttl": 9, "creation_ttl": 2000, "renewable": false}, false},
		"it never ends":         {map[string]any{"ttl": 0, "creation_ttl": 0, "renewable": false}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.about = tt.about
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s.onRenewal = cancel
			looked := make(chan struct{}, 10)
			if !tt.stops { // there is nothing to wait for but the look itself
				front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					s.ServeHTTP(w, r)
					looked <- struct{}{}
				}))
				defer front.Close()
				s.url = front.URL
				go func() { <-looked; cancel() }()
			}
			seal.Run(ctx, mustNew(t, s.stanza()))
			if s.renewals > 0 != tt.stops {
				t.Errorf("%d renewals", s.renewals)
			}
		})
	}
	s := newServer(t)
	stanza := s.stanza()
	stanza["disable_renewal"] = "true"
	seal.Run(t.Context(), mustNew(t, stanza)) // returns at once
}

// A key of the same name at another server is another key, so that a cluster can move from one to the other.
func TestKeyID(t *testing.T) {
	id := func(address string) string {
		return seal.KeyID(mustNew(t, map[string]string{"address": address, "token": "t", "key_name": "k"}))
	}
	base := id("https://a.example:8200")
	for address, same := range map[string]bool{
		"https://a.example:8200/": true, "https://A.Example:8200": true, "https://b.example:8200": false,
		"https://a.example:8201": false, "https://a.example:8200/proxied": false,
	} {
		if got := id(address); (got == base) != same {
			t.Errorf("%s has the key id %q, %q is the one of https://a.example:8200", address, got, base)
		}
	}
	one, two := newServer(t), newServer(t)
	from, to := mustNew(t, one.stanza()), mustNew(t, two.stanza())
	blob, err := from.Wrap(t.Context(), bytes.Repeat([]byte{7}, 32), "root key")
	if err != nil {
		t.Fatal(err)
	}
	if !seal.NeedsRewrap(to, blob) || seal.NeedsRewrap(from, blob) {
		t.Error("what one server wrapped passes for wrapped by the other")
	}
}

func TestSettings(t *testing.T) {
	t.Setenv("VAULT_ADDR", "https://10.0.0.9:8200")
	t.Setenv("VAULT_TOKEN", "t")
	t.Setenv("VAULT_TRANSIT_SEAL_KEY_NAME", "from-env")
	if w := mustNew(t, nil); seal.KeyID(w) != "10.0.0.9:8200//transit/from-env" {
		t.Errorf("from the environment: %q", seal.KeyID(w))
	}
	t.Setenv("VAULT_ADDR", "")
	t.Setenv("VAULT_TOKEN", "")
	t.Setenv("VAULT_TRANSIT_SEAL_KEY_NAME", "")
	_, err := transit.New(map[string]string{"addres": "x", "tls_ca_cert": "/nonexistent", "tls_skip_verify": "x"}, nil)
	for _, want := range []string{"address must be set", "key_name must be set", "token must be set", `"addres"`, "tls_ca_cert", "tls_skip_verify must be"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	_, err = transit.New(map[string]string{"address": "10.0.0.9", "token": "t", "key_name": "k"}, nil)
	if err == nil || !strings.Contains(err.Error(), "address must be a URL") {
		t.Errorf("an address that is no URL: %v", err)
	}
	for _, address := range []string{"https://u:do-not-show@10.0.0.9:8200", "https://10.0.0.9:8200?token=do-not-show"} {
		_, err = transit.New(map[string]string{"address": address, "token": "t", "key_name": "k"}, nil)
		if err == nil || !strings.Contains(err.Error(), "address must hold no user") || strings.Contains(err.Error(), "do-not-show") {
			t.Errorf("an address with a secret: %v", err)
		}
	}
}
