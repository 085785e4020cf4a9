package desttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Read reads a name, which succeeds.
func Read(t *testing.T, d destination.Destination, name string) destination.Found {
	t.Helper()
	f, err := d.Read(t.Context(), name)
	if err != nil {
		t.Fatalf("reading %s: %v", name, err)
	}
	return f
}

// Write writes an item over what is there, which succeeds.
func Write(t *testing.T, d destination.Destination, it destination.Item) destination.Held {
	t.Helper()
	held, err := d.Write(t.Context(), it, Read(t, d, it.Name))
	if err != nil {
		t.Fatalf("writing %s: %v", it.Name, err)
	}
	return held
}

// Fails checks the code of an error, and that it holds a text and none of the secrets.
func Fails(t *testing.T, err error, code string, secrets ...string) *destination.Error {
	t.Helper()
	e, ok := errors.AsType[*destination.Error](err)
	if !ok || e.Code != code || e.Text == "" || e.Class == "" {
		t.Fatalf("failed with %v (%+v), want code %q", err, e, code)
	}
	for _, secret := range append(secrets, "the-value") {
		if strings.Contains(fmt.Sprintf("%v %+v %v", err, *e, e.Err), secret) {
			t.Errorf("an error of code %q tells a secret", code)
		}
	}
	return e
}

// Hook is a transport before http.DefaultTransport.
type Hook func(r *http.Request, next http.RoundTripper) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (h Hook) RoundTrip(r *http.Request) (*http.Response, error) { return h(r, http.DefaultTransport) }

// Endless is the body of a response of 128 MiB of blanks. It counts the bytes that are read.
type Endless struct{ N *int }

var blanks = strings.Repeat(" ", 32<<10)

// Read implements io.Reader.
func (e Endless) Read(p []byte) (int, error) {
	if *e.N += min(len(p), len(blanks)); *e.N > 128<<20 {
		return 0, io.EOF
	}
	return copy(p, blanks), nil
}

// Response is a response of 200 to a request.
func Response(r *http.Request, header http.Header, body string) *http.Response {
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: http.StatusOK, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: r}
}

// Unreachable checks the errors of a destination without a trusted certificate, a known name or a listener.
func Unreachable(t *testing.T, open func(destination.Env) destination.Destination, secrets ...string) {
	t.Helper()
	l := httptest.NewTLSServer(http.NotFoundHandler())
	l.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer l.Close()
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.Contains(address, ".invalid:") {
			return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	for url, want := range map[string]string{l.URL: "certificate", "http://nothing.invalid": "name is not found", "http://127.0.0.1:1": "reached"} {
		d := open(destination.Env{Client: &http.Client{Transport: transport}, URL: url})
		_, err := d.Read(t.Context(), "A")
		if e := Fails(t, err, destination.Unreachable, secrets...); e.Class != destination.External || !strings.Contains(e.Text, want) {
			t.Errorf("%s: %+v", url, e)
		}
		err = d.Delete(t.Context(), destination.Found{Name: "A", State: destination.Present, ID: "a", Version: "1"})
		if e := Fails(t, err, destination.Unreachable, secrets...); e.Unknown {
			t.Errorf("%s: nothing was sent", url)
		}
	}
}

// Blocked checks that the error of a client that may not call the address is passed on, and that the first request is one that
// vendor accepts as the vendor's own.
func Blocked(t *testing.T, open func(destination.Env) destination.Destination, vendor func(*http.Request) bool, secrets ...string) {
	t.Helper()
	d := open(destination.Env{Getenv: func(string) string { return "" }, Client: &http.Client{Transport: Hook(
		func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
			if !vendor(r) {
				return nil, fmt.Errorf("called %s", r.URL)
			}
			return nil, &destination.Error{Class: destination.Client, Code: destination.Blocked, Text: "not this one"}
		})}})
	_, err := d.Read(t.Context(), "A")
	Fails(t, err, destination.Blocked, secrets...)
}
