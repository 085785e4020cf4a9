package source_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command/importer/source"
)

// newClient is for a server that responds with what respond says of each request, counted from 1.
func newClient(t *testing.T, rate float64, respond func(n int32, w http.ResponseWriter, r *http.Request)) *source.Client {
	var n atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { respond(n.Add(1), w, r) }))
	t.Cleanup(s.Close)
	return source.New(source.Options{Address: s.URL + "/", Namespace: "top/", Token: "t", HTTP: s.Client(), Rate: rate, Pause: time.Millisecond})
}

func TestGet(t *testing.T) {
	c := newClient(t, 1e6, func(_ int32, w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"data":{"token":%q,"namespace":%q,"path":%q,"query":%q}}`, r.Header.Get("X-Vault-Token"), r.Header.Get("X-Vault-Namespace"), r.URL.EscapedPath(), r.URL.RawQuery)
	})
	data, err := c.Get(t.Context(), "team", "a b/ü?%", url.Values{"version": {"2"}})
	if want := `{"token":"t","namespace":"top/team","path":"/v1/a%20b/%C3%BC%3F%25","query":"version=2"}`; string(data) != want || err != nil {
		t.Errorf("Get = %s, %v, want %s", data, err, want)
	}
}

func TestRepeats(t *testing.T) {
	for name, c := range map[string]struct {
		status, times int
		want          int64 // requests
		fails         bool
	}{
		"too fast":     {429, 2, 3, false},
		"not current":  {412, 1, 2, false},
		"sealed":       {503, 3, 4, false},
		"for too long": {503, 100, 9, true},
		"failing":      {500, 100, 4, true},
		"denied":       {403, 1, 2, true},
		"bad":          {400, 1, 1, true},
	} {
		client := newClient(t, 1e6, func(n int32, w http.ResponseWriter, _ *http.Request) {
			if int(n) <= c.times {
				w.WriteHeader(c.status)
				fmt.Fprint(w, `{"errors":["why"]}`)
				return
			}
			fmt.Fprint(w, `{"data":{}}`)
		})
		_, err := client.Get(t.Context(), "", "x", nil)
		if (err != nil) != c.fails || client.Requests() != c.want {
			t.Errorf("%s: %d requests, want %d; error %v", name, client.Requests(), c.want, err)
		}
		var e *source.Error
		if c.fails && (!errors.As(err, &e) || e.Status != c.status || err.Error() != fmt.Sprintf("reading x at the source: why (status %d)", c.status)) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	client := newClient(t, 1e6, func(n int32, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(429)
			return
		}
		fmt.Fprint(w, `{"data":{}}`)
	})
	began := time.Now()
	if _, err := client.Get(t.Context(), "", "x", nil); err != nil || time.Since(began) < time.Second {
		t.Errorf("after %v: %v, want a second and nil", time.Since(began), err)
	}
}

func TestRate(t *testing.T) {
	client := newClient(t, 100, func(_ int32, w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":{}}`) })
	began := time.Now()
	for range 35 {
		if _, err := client.Get(t.Context(), "", "x", nil); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < 290*time.Millisecond { // five at once, thirty at 100/s
		t.Errorf("35 requests at 100/s took %v", took)
	}
}

func TestEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := newClient(t, 1e6, func(_ int32, w http.ResponseWriter, _ *http.Request) {
		cancel()
		w.Header().Set("Retry-After", "100")
		w.WriteHeader(503)
	})
	if _, err := client.Get(ctx, "", "x", nil); err == nil || client.Requests() != 1 {
		t.Errorf("%d requests, %v", client.Requests(), err)
	}
}

func TestAbsent(t *testing.T) {
	for status, absent := range map[int]bool{404: true, 405: true, 403: false, 400: false} {
		client := newClient(t, 1e6, func(_ int32, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/"+source.Self {
				w.WriteHeader(status)
			}
		})
		names, err := client.List(t.Context(), "", "x")
		if names != nil || (err == nil) != absent || source.Denied(err) != (status == 403) {
			t.Errorf("status %d: %v, %v", status, names, err)
		}
	}
	client := newClient(t, 1e6, func(_ int32, w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") })
	if _, err := client.Get(t.Context(), "", "x", nil); err == nil || client.Requests() != 1 {
		t.Errorf("a page: %v after %d requests", err, client.Requests())
	}
}

// TestTokenEnds: a token that ends in the middle is not taken for one that may not read things.
func TestTokenEnds(t *testing.T) {
	client := newClient(t, 1e6, func(_ int32, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) })
	if _, err := client.Get(t.Context(), "", "x", nil); !errors.Is(err, source.ErrToken) || source.Denied(err) || client.Requests() != 2 {
		t.Errorf("%v after %d requests", err, client.Requests())
	}
}

func TestAway(t *testing.T) {
	for status, away := range map[int]bool{429: true, 503: true, 502: true, 500: false, 403: false, 404: false} {
		if source.Away(&source.Error{Status: status}) != away {
			t.Errorf("status %d", status)
		}
	}
	server := httptest.NewServer(nil)
	client := source.New(source.Options{Address: server.URL, HTTP: server.Client(), Rate: 1e6, Pause: 1})
	server.Close()
	if _, err := client.Get(t.Context(), "", "x", nil); !source.Away(err) {
		t.Errorf("no server: %v", err)
	}
}
