package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/openbao/openbao/api/v2"
)

// Exit statuses, those of the family.
const (
	exitLocal  = 1 // usage, files, terminal
	exitServer = 2 // the server refused, failed or was not reached; also "sealed" and "nothing there"
)

// exitError ends the program with code. A nil err means everything worth saying has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usagef is a mistake in the command line.
func usagef(format string, args ...any) error {
	return &exitError{code: exitLocal, err: fmt.Errorf(format, args...)}
}

// serverErrorf is an answer of the server which is no error to HTTP, but one to the user.
func serverErrorf(format string, args ...any) error {
	return &exitError{code: exitServer, err: fmt.Errorf(format, args...)}
}

// requestError is a failed request with what the hint needs to know about it.
type requestError struct {
	method, path, address string
	hasToken              bool
	denied                string // the hint for a 403, if the usual one would mislead
	hint                  string // the hint, whatever the status
	err                   error
}

func (e *requestError) Error() string { return e.err.Error() }
func (e *requestError) Unwrap() error { return e.err }

// withHint gives the error of a request a hint of its own.
func withHint(err error, hint string) error {
	var e *requestError
	if errors.As(err, &e) {
		e.hint = hint
	}
	return err
}

// silent reports whether the server answered with a status and no text.
func (e *requestError) silent() bool {
	var response *api.ResponseError
	return errors.As(e.err, &response) && strings.TrimSpace(strings.Join(response.Errors, "")) == ""
}

// report writes err for people and returns the exit status.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	code := exitLocal
	text := err.Error()
	var exit *exitError
	var request *requestError
	switch {
	case errors.As(err, &exit):
		code = exit.code
	case errors.Is(err, context.Canceled):
		text = "interrupted"
	case errors.As(err, &request):
		code, text = exitServer, request.explain()
	}
	if text != "" {
		fmt.Fprintln(w, "Error: "+printable(text)) // a server's words, among others
	}
	return code
}

// explain says what failed and what to do about it.
func (e *requestError) explain() string {
	var response *api.ResponseError
	if errors.As(e.err, &response) {
		texts := strings.Join(response.Errors, "\n  ")
		if texts == "" {
			texts = strings.ToLower(http.StatusText(response.StatusCode))
		}
		text := fmt.Sprintf("%s\n\n  URL:  %s %s\n  Code: %d", strings.TrimSpace(texts), response.HTTPMethod, response.URL, response.StatusCode)
		hint := e.hint
		if hint == "" {
			hint = e.responseHint(response.StatusCode, texts)
		}
		if hint != "" {
			text += "\n\n" + hint
		}
		return text
	}
	cause := e.err
	var wrapped *url.Error
	if errors.As(e.err, &wrapped) {
		cause = wrapped.Err
	}
	text := fmt.Sprintf("cannot reach %s: %v", e.address, cause)
	if hint := e.transportHint(cause); hint != "" {
		text += "\n\n" + hint
	}
	return text
}

func (e *requestError) responseHint(status int, text string) string {
	lower := strings.ToLower(text)
	switch {
	case status == http.StatusServiceUnavailable && strings.Contains(lower, "sealed"):
		return "The server is sealed. Give it its unseal keys with: coffer operator unseal"
	case strings.Contains(lower, "not initialized"), strings.Contains(lower, "not yet initialized"):
		return "The server has never been initialised. Create its keys with: coffer operator init"
	case status == http.StatusServiceUnavailable && strings.Contains(lower, "locked"):
		return "The namespace is locked. Who has the key of the lock can end it with: coffer namespace unlock"
	case status == http.StatusForbidden && (strings.Contains(lower, "invalid accessor") || strings.Contains(lower, "bad token")):
		return "What was named is wrong, or has ended already."
	case status == http.StatusForbidden && !e.hasToken:
		return "The request carried no token. Run coffer login, or set COFFER_TOKEN."
	case status == http.StatusForbidden && strings.Contains(lower, "permission denied: "):
		return "" // the server says itself what is missing
	case status == http.StatusForbidden && e.denied != "":
		return e.denied
	case status == http.StatusForbidden:
		return fmt.Sprintf("The token may not do this on %q, or is no longer valid. See what it may do with: coffer token capabilities %s", e.path, e.path)
	case status == http.StatusNotFound && (strings.Contains(lower, "no mount at this path") || strings.Contains(lower, "no handler for route")):
		return "Nothing is mounted there. See what is with: coffer secrets list"
	case status == http.StatusNotFound && strings.Contains(lower, "namespace not found"):
		return "There is no such namespace, or it is being deleted. See those there are with: coffer namespace list"
	case status == http.StatusNotFound && strings.Contains(lower, "in the root namespace only"):
		return "Ask there, with -namespace=root, if the token is one of the root namespace."
	case status == http.StatusNotFound && strings.Contains(lower, "unsupported path"):
		return "The mount has other paths: coffer path-help MOUNT lists them. Key/value secrets are read with coffer kv get, which finds theirs."
	case status == http.StatusTooManyRequests:
		return "A quota is used up: wait and try again, or have the quota changed. See them with: coffer quota list"
	case strings.Contains(lower, "http request to an https server"):
		return "The server speaks TLS: the address has to begin with https://. Set COFFER_ADDR or -address."
	}
	return ""
}

func (e *requestError) transportHint(cause error) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var timeout net.Error
	var dns *net.DNSError
	switch {
	case errors.Is(cause, syscall.ECONNREFUSED), errors.As(cause, &dns):
		return fmt.Sprintf("Is the server running at %s? Set COFFER_ADDR or -address to where it listens.", e.address)
	case strings.Contains(cause.Error(), "server gave HTTP response to HTTPS client"):
		return "The server speaks plain HTTP: the address has to begin with http://. Set COFFER_ADDR or -address."
	case errors.As(cause, &authority):
		return "The server's certificate is signed by an authority unknown here. Name its CA file with -ca-cert or COFFER_CACERT."
	case errors.As(cause, &name):
		return "The server's certificate is for another name. Name the one to expect with -tls-server-name or COFFER_TLS_SERVER_NAME."
	case errors.Is(cause, context.DeadlineExceeded), errors.As(cause, &timeout) && timeout.Timeout():
		return "The server did not answer in time. COFFER_CLIENT_TIMEOUT gives it longer; coffer status shows how it is."
	}
	return ""
}

// statusOf returns the HTTP status err carries, or 0.
func statusOf(err error) int {
	var response *api.ResponseError
	if errors.As(err, &response) {
		return response.StatusCode
	}
	return 0
}
