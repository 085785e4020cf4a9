package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
)

// recorder is a server which notes requests and answers from a table.
type recorder struct {
	*httptest.Server
	answers map[string]string // "GET sys/health": "200 {…}"; what is absent gets 404 without a text

	mu   sync.Mutex
	seen []seen
}

type seen struct {
	method, path, query, body string
	header                    http.Header
}

// line is how tests write a request: method, path with query, body.
func (s seen) line() string {
	target := s.path
	if s.query != "" {
		target += "?" + s.query
	}
	return strings.TrimSpace(s.method + " " + target + " " + s.body)
}

// record starts a recorder and makes it the server commands talk to, with the token "t".
func record(t *testing.T, answers map[string]string) *recorder {
	t.Helper()
	r := &recorder{answers: answers}
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	clearEnv(t)
	t.Setenv("COFFER_ADDR", r.URL)
	t.Setenv("COFFER_TOKEN", "t")
	return r
}

func (r *recorder) serve(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	s := seen{req.Method, strings.TrimPrefix(req.URL.Path, "/v1/"), req.URL.RawQuery, string(body), req.Header}
	r.mu.Lock()
	r.seen = append(r.seen, s)
	r.mu.Unlock()
	answer, ok := r.answers[s.method+" "+s.path]
	if !ok {
		answer = `404 {"errors":[]}`
	}
	status, text, _ := strings.Cut(answer, " ")
	code := 0
	if _, err := fmt.Sscan(status, &code); err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	if code == http.StatusTemporaryRedirect {
		w.Header().Set("Location", text+req.URL.Path)
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}

// lines are the requests seen so far.
func (r *recorder) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for _, s := range r.seen {
		lines = append(lines, s.line())
	}
	return lines
}

// clearEnv gives the test a home of its own and no settings.
func clearEnv(t *testing.T) {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		for _, prefix := range []string{"COFFER_", "VAULT_", "BAO_"} {
			if strings.HasPrefix(name, prefix) {
				t.Setenv(name, "")
			}
		}
	}
	t.Setenv("COFFER_KEYRING", "off") // which would be that of the user who runs the tests
}

// coffer runs one command line.
func coffer(t *testing.T, stdin string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(context.Background(), append([]string{"coffer"}, args...), strings.NewReader(stdin), &out, &errs)
	return out.String(), errs.String(), status
}
