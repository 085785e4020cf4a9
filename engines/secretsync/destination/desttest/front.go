package desttest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Front is what fakes that speak HTTP embed: a listener with faults in front, and the requests that were received. Safe for concurrent
// use once it listens.
type Front struct {
	URL string
	// Faults stand in front of the fake.
	Faults *Faults

	frontMu sync.Mutex
	calls   []string
	before  func(method string)
}

// Listen starts a listener with faults in front of the fake, until the test ends.
func (f *Front) Listen(t testing.TB, faults *Faults) {
	f.Faults = faults
	l := httptest.NewServer(faults)
	t.Cleanup(l.Close)
	f.URL = l.URL
}

// Before has do called before every request is served, with its method; nil: no more.
func (f *Front) Before(do func(method string)) {
	f.frontMu.Lock()
	defer f.frontMu.Unlock()
	f.before = do
}

// Calls returns the requests that were received, as "GET /path", and forgets them.
func (f *Front) Calls() []string {
	f.frontMu.Lock()
	defer f.frontMu.Unlock()
	out := f.calls
	f.calls = nil
	return out
}

// Receive notes a request, as the fake's ServeHTTP begins.
func (f *Front) Receive(r *http.Request) {
	f.Note(r.Method + " " + r.URL.Path)
	f.frontMu.Lock()
	before := f.before
	f.frontMu.Unlock()
	if before != nil {
		before(r.Method)
	}
}

// Note adds to Calls.
func (f *Front) Note(call string) {
	f.frontMu.Lock()
	defer f.frontMu.Unlock()
	f.calls = append(f.calls, call)
}

// Respond writes a response of JSON; nil: without a body.
func Respond(w http.ResponseWriter, status int, body any) {
	if body == nil {
		w.WriteHeader(status)
		return
	}
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data) // a client that has disconnected needs no response
}

// At is the environment of a destination whose vendor is at a URL.
func At(url string) destination.Env {
	return destination.Env{Client: &http.Client{Transport: &http.Transport{}}, URL: url, Getenv: func(string) string { return "" }}
}

// Through is At by way of a hook.
func Through(h Hook, url string) destination.Env {
	env := At(url)
	env.Client = &http.Client{Transport: h}
	return env
}

// Open opens a destination whose configuration is right, until the test ends.
func Open(t *testing.T, kind destination.Type, c destination.Config, env destination.Env) destination.Destination {
	t.Helper()
	if p := c.Check(); p != nil {
		t.Fatal(p)
	}
	d, err := kind.Open(c, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() }) //nolint:errcheck // it has nothing to lose
	return d
}
