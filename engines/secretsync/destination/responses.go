package destination

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
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
