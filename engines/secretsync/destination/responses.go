package destination

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"
)

// NoResponse is the error of an HTTP request that a vendor has not answered. unknown says that it may have been carried out.
func NoResponse(vendor string, err error, unknown bool) *Error {
	if known, ok := errors.AsType[*Error](err); ok { // of the client that we were given: an address that must not be called
		return known
	}
	e := &Error{Class: External, Code: Unreachable, Unknown: unknown, Text: vendor + " cannot be reached"}
	_, unresolved := errors.AsType[*net.DNSError](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case unresolved:
		e.Text += ": its name is not found"
	case untrusted:
		e.Text += ": its certificate is not trusted"
	case errors.Is(err, context.DeadlineExceeded):
		e.Text, e.Err = vendor+" did not answer in time", context.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		e.Text, e.Err = "the call was given up", context.Canceled
	}
	return e
}

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
