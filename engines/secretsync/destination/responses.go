package destination

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"
)

// NoResponse is the error of an HTTP request that a vendor has not answered. unknown says that it may have been carried out.
func NoResponse(vendor string, err error, unknown bool) *Error {
	if known, ok := errors.AsType[*Error](err); ok { // of the client that we were given: an address that must not be called
		return known
	}
	e := &Error{Class: External, Code: Unreachable, Unknown: unknown, Text: vendor + " cannot be reached" + WhyNoResponse(err)}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e.Text, e.Err = vendor+" did not answer in time"+addressOf(err), context.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		e.Text, e.Err = "the call was given up", context.Canceled
	}
	return e
}

// WhyNoResponse returns " at HOST (ADDRESS): REASON" for the error of a request that had no response, as far as the error has them.
// Paths and queries, which may hold secrets, are left out.
func WhyNoResponse(err error) string {
	if reason := noResponseReason(err); reason != "" {
		return addressOf(err) + ": " + reason
	}
	return addressOf(err)
}

func addressOf(err error) string {
	text := ""
	if e, ok := errors.AsType[*url.Error](err); ok {
		if u, err := url.Parse(e.URL); err == nil && u.Host != "" {
			text = " at " + u.Host
		}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Addr != nil && " at "+op.Addr.String() != text {
		text = cmp.Or(text, " at the address") + " (" + op.Addr.String() + ")"
	}
	return text
}

// noResponseReason returns why a connection failed, "" if the error does not say.
func noResponseReason(err error) string {
	op, isOp := errors.AsType[*net.OpError](err)
	name, unresolved := errors.AsType[*net.DNSError](err)
	untrusted, isUntrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	_, alert := errors.AsType[tls.AlertError](err)
	var timeout interface{ Timeout() bool }
	switch {
	case unresolved && name.IsNotFound:
		return host(name) + " is not found"
	case unresolved:
		return host(name) + " cannot be looked up"
	case isUntrusted:
		return "its certificate is not trusted: " + certificateProblem(untrusted.Err)
	case plain, errors.Is(err, http.ErrSchemeMismatch):
		return "it does not speak TLS"
	case alert:
		return "it rejected the TLS handshake"
	case isOp && op.Op == "proxyconnect":
		return "the proxy does not connect to it"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed without a response"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to it"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return ""
}

func host(e *net.DNSError) string {
	if e.Name == "" {
		return "its name"
	}
	return "the name " + e.Name
}

func certificateProblem(err error) string {
	_, wrongHost := errors.AsType[x509.HostnameError](err)
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case wrongHost:
		return "it is for another host"
	case unknown:
		return "the authority is unknown; set ca_file of the endpoint"
	case isInvalid && invalid.Reason == x509.Expired:
		return "it has expired, or is not valid yet"
	}
	return "it is not valid"
}

// InternalError is an error of ours: something that no caller may do.
func InternalError(text string) *Error { return &Error{Class: Internal, Code: Unexpected, Text: text} }

// UnexpectedResponse is the error of a response of a vendor that is not what it should be.
func UnexpectedResponse(vendor string, unknown bool) *Error {
	return &Error{Class: External, Code: Unexpected, Unknown: unknown, Text: vendor + " gave an unexpected response"}
}

// MaxRetryAfter bounds Error.RetryAfter.
const MaxRetryAfter = 24 * time.Hour

// RetryAfter reads the header Retry-After: seconds, or a time by the vendor's clock; 0 without one.
func RetryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.Duration(min(max(seconds, 0), int64(MaxRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return RetryAt(h, at)
}

// RetryAt is the time until at, by the vendor's clock in the header Date.
func RetryAt(h http.Header, at time.Time) time.Duration {
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return min(max(at.Sub(now), 0), MaxRetryAfter)
}
