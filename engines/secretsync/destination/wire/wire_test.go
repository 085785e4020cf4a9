package wire_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
)

const credential = "not-to-be-shown"

func client(t *testing.T, through http.RoundTripper) *wire.Client {
	t.Helper()
	c, err := wire.New("Vendor", "access_token", destination.Env{Client: &http.Client{Transport: through}})
	if err != nil {
		t.Fatal(err)
	}
	c.Header.Set("Authorization", "Bearer "+credential)
	return c
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func TestWithoutAClient(t *testing.T) {
	_, err := wire.New("Vendor", "access_token", destination.Env{})
	desttest.Fails(t, err, destination.Unexpected)
}

// A redirect is not followed, even one within the host: the credential would go along.
func TestRedirects(t *testing.T) {
	calls := 0
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		calls++
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	c := client(t, &http.Transport{})
	resp, err := c.Do(t.Context(), wire.Call{Method: http.MethodPut, URL: url, Writes: true})
	if err != nil || resp.OK() || calls != 1 {
		t.Fatalf("%+v, %v after %d calls", resp, err, calls)
	}
	if e := desttest.Fails(t, c.Refusal(resp), destination.Unexpected, credential); !e.Unknown || e.Class != destination.External {
		t.Errorf("%+v", e)
	}
}

func TestLongResponses(t *testing.T) {
	read := 0
	c := client(t, desttest.Hook(func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(desttest.Endless{N: &read}), Request: r}, nil
	}))
	_, err := c.Do(t.Context(), wire.Call{Method: http.MethodGet, URL: "http://vendor.invalid"})
	desttest.Fails(t, err, destination.Unexpected)
	if read > 16<<20 {
		t.Errorf("%d bytes are read", read)
	}
}

// A write is of unknown outcome from when there is a connection.
func TestUnknown(t *testing.T) {
	url := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	refused := desttest.Hook(func(*http.Request, http.RoundTripper) (*http.Response, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 443}, Err: errors.New("connection refused")}
	})
	for name, tt := range map[string]struct {
		through http.RoundTripper
		writes  bool
		unknown bool
		text    string
	}{
		"a broken write":    {&http.Transport{}, true, true, "Vendor cannot be reached"},
		"a broken read":     {&http.Transport{}, false, false, "Vendor cannot be reached"},
		"a write not begun": {refused, true, false, "Vendor cannot be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client(t, tt.through).Do(t.Context(), wire.Call{Method: http.MethodPost, URL: url, Writes: tt.writes})
			if e := desttest.Fails(t, err, destination.Unreachable, credential); e.Unknown != tt.unknown || !strings.Contains(e.Text, tt.text) {
				t.Errorf("%+v", e)
			}
		})
	}
}

func TestStatuses(t *testing.T) {
	for status, want := range map[int]destination.Error{
		302: {Code: destination.Unexpected, Class: destination.External, Unknown: true},
		400: {Code: destination.BadRequest, Class: destination.Client},
		401: {Code: destination.Denied, Class: destination.Client},
		403: {Code: destination.Denied, Class: destination.Client},
		404: {Code: destination.NoLocation, Class: destination.Client},
		413: {Code: destination.TooLarge, Class: destination.Client},
		429: {Code: destination.Throttled, Class: destination.External, RetryAfter: 7 * time.Second},
		503: {Code: destination.Unavailable, Class: destination.External, Unknown: true, RetryAfter: 7 * time.Second},
	} {
		url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			_, _ = w.Write([]byte("the-value"))
		})
		c := client(t, &http.Transport{})
		resp, err := c.Do(t.Context(), wire.Call{Method: http.MethodPost, URL: url, Writes: true})
		if err != nil {
			t.Fatal(err)
		}
		e := desttest.Fails(t, c.Refusal(resp), want.Code, credential)
		if e.Class != want.Class || e.Unknown != want.Unknown || e.RetryAfter != want.RetryAfter {
			t.Errorf("%d: %+v", status, e)
		}
	}
}

func TestURLProblem(t *testing.T) {
	for text, legal := range map[string]bool{
		"https://gitlab.example.com": true, "https://cluster.example.com:6443/k8s/clusters/c-1": true, "https://[2001:db8::1]:6443": true,
		"http://gitlab.example.com": false, "https://": false, "": false, "gitlab.example.com": false, "https:opaque": false, "https://a@example.com": false,
		"https://example.com?x=1": false, "https://example.com?": false, "https://example.com#x": false, "https://example.com#": false,
		"https://example.com/a/../b": false, "file:///etc/passwd": false, "https://exa mple.com": false,
	} {
		if problem := wire.URLProblem(text); (problem == "") != legal {
			t.Errorf("%q: %q", text, problem)
		}
	}
}

func TestLocation(t *testing.T) {
	for _, text := range []string{"https://Example.com", "https://example.com/", "https://example.com:443"} {
		if got := wire.Location(text); got != "example.com" {
			t.Errorf("%q is %q", text, got)
		}
	}
	if got := wire.Location("https://example.com:8443/A/"); got != "example.com:8443/A" {
		t.Errorf("got %q", got)
	}
}

func TestCredentialProblem(t *testing.T) {
	for value, legal := range map[string]bool{"glpat-x": true, "": false, "@file": false, destination.Mask: false, "a b": false, "ü": false, "a\n": false} {
		if problem := wire.CredentialProblem(value); (problem == "") != legal || value != "" && value != "a b" && strings.Contains(problem, value) && value != "@file" {
			t.Errorf("%q: %q", value, problem)
		}
	}
}
