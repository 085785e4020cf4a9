package idp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

func TestFetch(t *testing.T) {
	var plain, secure *httptest.Server
	mux := http.NewServeMux()
	mux.HandleFunc("/metadata", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1"})
		fmt.Fprintf(w, "%s cookies:%d", r.Header.Get("User-Agent"), len(r.Cookies()))
	})
	mux.HandleFunc("/size/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.PathValue("n"))
		io.WriteString(w, strings.Repeat("a", n))
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/hops/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.PathValue("n"))
		if n == 0 {
			io.WriteString(w, "arrived")
			return
		}
		http.SetCookie(w, &http.Cookie{Name: "hop", Value: "1"})
		http.Redirect(w, r, fmt.Sprintf("/hops/%d", n-1), http.StatusFound)
	})
	mux.HandleFunc("/to/{where}", func(w http.ResponseWriter, r *http.Request) {
		to := map[string]string{
			"plain": plain.URL + "/metadata", "secure": secure.URL + "/metadata",
			"file": "file:///etc/passwd", "user": "https://user:password@idp.example.com/",
		}
		http.Redirect(w, r, to[r.PathValue("where")], http.StatusFound)
	})
	plain, secure = httptest.NewServer(mux), httptest.NewTLSServer(mux)
	defer plain.Close()
	defer secure.Close()
	c := newClient(secure.Client().Transport.(*http.Transport).Clone())

	tests := []struct{ url, want, err string }{
		{plain.URL + "/metadata", "coffer cookies:0", ""},
		{secure.URL + "/metadata", "coffer cookies:0", ""},
		{plain.URL + "/to/secure", "coffer cookies:0", ""},
		{plain.URL + "/to/plain", "coffer cookies:0", ""},
		{secure.URL + "/to/plain", "", "redirects from https to a URL without TLS"},
		{secure.URL + "/to/file", "", "redirects from https to a URL without TLS"},
		{plain.URL + "/to/file", "", "redirects to what must be an absolute URL"},
		{plain.URL + "/to/user", "", "redirects to what must be a URL without user name"},
		{plain.URL + "/hops/3", "arrived", ""},
		{plain.URL + "/hops/4", "", "redirects more than 3 times"},
		{plain.URL + "/nothing?key=1", "", "answered with the status 404"},
		{plain.URL + "/endless", "", "larger than 1048576 bytes"},
		{"http://127.0.0.1:1/metadata?key=1", "", "connect"},
		{":", "", "not well-formed"},
	}
	for _, tt := range tests {
		got, err := fetch(t.Context(), c, tt.url)
		if string(got) != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("fetch(%s) = %q, %v; want %q, %q", tt.url, got, err, tt.want, tt.err)
		}
		if err != nil && strings.Contains(err.Error(), "key=1") {
			t.Errorf("fetch(%s): the error repeats the URL: %v", tt.url, err)
		}
	}
	if got, err := fetch(t.Context(), c, fmt.Sprintf("%s/size/%d", plain.URL, MaxDocumentBytes)); err != nil || len(got) != MaxDocumentBytes {
		t.Errorf("a document of the largest size: %d bytes, %v", len(got), err)
	}
	// Fetch itself trusts the certificates of the system only.
	if _, err := Fetch(t.Context(), secure.URL+"/metadata"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("Fetch from a server with an unknown certificate: %v", err)
	}
	if _, err := Fetch(t.Context(), plain.URL+"/metadata"); err != nil {
		t.Errorf("Fetch: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Fetch(ended, plain.URL+"/metadata"); !errors.Is(err, context.Canceled) {
		t.Errorf("Fetch with a context that has ended: %v", err)
	}
}

// silent is a server that never answers.
type silent struct{}

func (silent) RoundTrip(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

// trickle is a server whose body never ends.
type trickle struct{}

func (trickle) RoundTrip(req *http.Request) (*http.Response, error) {
	r, w := io.Pipe()
	context.AfterFunc(req.Context(), func() { w.CloseWithError(req.Context().Err()) })
	return &http.Response{StatusCode: http.StatusOK, Body: r, Request: req}, nil
}

func TestFetchTimeout(t *testing.T) {
	for _, server := range []http.RoundTripper{silent{}, trickle{}} {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(&http.Transport{})
			c.Transport = server
			_, err := fetch(t.Context(), c, "https://idp.example.com/metadata")
			if err == nil || err.Error() != "it did not answer within 10s" {
				t.Errorf("%T: %v", server, err)
			}
		})
	}
}
