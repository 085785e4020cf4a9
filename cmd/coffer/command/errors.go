package command

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

	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/openbao/openbao/api/v2"
)

// Exit statuses, those of the family.
const (
	ExitLocal  = 1 // usage, files, terminal
	ExitServer = 2 // the server refused, failed or was not reached; also "sealed" and "nothing there"
)

// ExitError ends the program with code. A nil err means everything worth saying has been said.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Usagef is a mistake in the command line.
func Usagef(format string, args ...any) error {
	return &ExitError{Code: ExitLocal, Err: fmt.Errorf(format, args...)}
}

// ServerErrorf is a response of the server which is no error to HTTP, but one to the user.
func ServerErrorf(format string, args ...any) error {
	return &ExitError{Code: ExitServer, Err: fmt.Errorf(format, args...)}
}

// RequestError is a failed request with what the hint needs to know about it.
type RequestError struct {
	method, path, address string
	hasToken              bool
	Denied                string // the hint for a 403, if the usual one would mislead
	Instead               string // the text of a 403, if the server's would mislead
	Hint                  string // the hint, whatever the status
	Err                   error
}

func (e *RequestError) Error() string { return e.Err.Error() }
func (e *RequestError) Unwrap() error { return e.Err }

// WithHint gives the error of a request a hint of its own.
func WithHint(err error, hint string) error {
	var e *RequestError
	if errors.As(err, &e) {
		e.Hint = hint
	}
	return err
}

// silent reports whether the server answered with a status and no text.
func (e *RequestError) silent() bool {
	var response *api.ResponseError
	return errors.As(e.Err, &response) && strings.TrimSpace(strings.Join(response.Errors, "")) == ""
}

// Report writes err for people and returns the exit status.
func Report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	code := ExitLocal
	text := err.Error()
	var exit *ExitError
	var request *RequestError
	switch {
	case errors.As(err, &exit):
		code = exit.Code
	case errors.Is(err, context.Canceled):
		text = "interrupted"
	case errors.As(err, &request):
		code, text = ExitServer, request.Explain()
	}
	if text != "" {
		fmt.Fprintln(w, Coloring(w, table.Red, "Error:")+" "+table.Printable(text)) // a server's words, among others
	}
	return code
}

// Explain says what failed and what to do about it.
func (e *RequestError) Explain() string {
	var response *api.ResponseError
	if errors.As(e.Err, &response) {
		texts := strings.Join(response.Errors, "\n  ")
		if texts == "" {
			texts = strings.ToLower(http.StatusText(response.StatusCode))
		}
		address, _, _ := strings.Cut(response.URL, "?") // an OIDC login has a code in its query
		text := fmt.Sprintf("%s\n\n  URL:  %s %s\n  Code: %d", strings.TrimSpace(texts), response.HTTPMethod, address, response.StatusCode)
		hint := e.Hint
		if e.Instead != "" && response.StatusCode == http.StatusForbidden {
			text = fmt.Sprintf("%s\n\n  URL:  %s %s\n  Code: %d, %s", e.Instead, response.HTTPMethod, address, response.StatusCode, strings.TrimSpace(texts))
		}
		if hint == "" {
			hint = e.responseHint(response.StatusCode, texts)
		}
		if hint != "" {
			text += "\n\n" + hint
		}
		return text
	}
	cause := e.Err
	var wrapped *url.Error
	if errors.As(e.Err, &wrapped) {
		cause = wrapped.Err
	}
	text := fmt.Sprintf("cannot reach %s: %v", e.address, cause)
	if hint := e.transportHint(cause); hint != "" {
		text += "\n\n" + hint
	}
	return text
}

func (e *RequestError) responseHint(status int, text string) string {
	lower := strings.ToLower(text)
	switch {
	case status == http.StatusServiceUnavailable && strings.Contains(lower, "sealed"):
		return "The server is sealed. Give it its unseal keys with: coffer operator unseal"
	case strings.Contains(lower, "not initialized"), strings.Contains(lower, "not yet initialized"):
		return "The server has never been initialised. Create its keys with: coffer operator init"
	case status == http.StatusServiceUnavailable && strings.Contains(lower, "locked"):
		return "The namespace is locked. Who has the key of the lock can end it with: coffer namespace unlock"
	case strings.Contains(lower, "invalid accessor"), status == http.StatusForbidden && strings.Contains(lower, "bad token"):
		return "What was named is wrong, or has ended already."
	case status == http.StatusForbidden && !e.hasToken:
		return "The request carried no token. Run coffer login, or set COFFER_TOKEN."
	case status == http.StatusForbidden && strings.Contains(lower, "permission denied: "):
		return "" // the server says itself what is missing
	case status == http.StatusForbidden && e.Denied != "":
		return e.Denied
	case status == http.StatusForbidden:
		return fmt.Sprintf("The token may not do this on %q, or is no longer valid. See what it may do with: coffer token capabilities %s", e.path, e.path)
	case status == http.StatusNotFound && strings.Contains(lower, "no handler for route"):
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

func (e *RequestError) transportHint(cause error) string {
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

// StatusOf returns the HTTP status err carries, or 0.
func StatusOf(err error) int {
	var response *api.ResponseError
	if errors.As(err, &response) {
		return response.StatusCode
	}
	return 0
}

// Refusal is what the server said of a request it refused.
func Refusal(err error) string {
	text, _, _ := strings.Cut(err.(*RequestError).Explain(), "\n")
	return text
}

// Passing reports whether a request failed for a reason that may be gone soon.
func Passing(err error) bool {
	var e *RequestError
	if !errors.As(err, &e) {
		return false
	}
	status := StatusOf(err)
	return status == 0 && !errors.Is(err, context.Canceled) || status >= http.StatusInternalServerError || status == http.StatusTooManyRequests
}

// Shortly is the first line of what went wrong.
func Shortly(err error) string {
	var e *RequestError
	text := ""
	if err != nil {
		text = err.Error()
	}
	if errors.As(err, &e) {
		text = e.Explain()
	}
	text, _, _ = strings.Cut(text, "\n")
	return table.Printable(text)
}
