// Package idp reads what identity providers say about themselves.
//
// Parse reads a SAML 2.0 metadata document and ParseCertificates a PEM text; Fetch gets a document from the URL that an
// administrator gave. A signature on the metadata is not checked: what vouches for a document is who handed it over, the
// administrator or the TLS connection. Nothing of it is shown to others than administrators. Texts of errors name what is
// wrong and what to do, and are cut to a bounded length.
package idp

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Limits of what is read.
const (
	MaxDocumentBytes = 1 << 20 // of metadata
	MaxURLBytes      = 2048
	MaxEntityIDBytes = 1024 // SAML core 8.3.6
	MaxCertificates  = 16
)

// Descriptor is what a service provider needs to know of an identity provider. It is shared: do not modify it.
type Descriptor struct {
	EntityID     string
	SSOURL       string              // takes requests by HTTP-Redirect
	Certificates []*x509.Certificate // at least one; several while keys roll over
	// WantsSignedRequests reports that it rejects requests that are not signed.
	WantsSignedRequests bool
	ValidUntil          time.Time     // zero: it did not say
	CacheDuration       time.Duration // 0: it did not say
}

// Has reports whether the certificate is one of the descriptor's.
func (d *Descriptor) Has(c *x509.Certificate) bool {
	return slices.ContainsFunc(d.Certificates, c.Equal)
}

// CheckURL reports what keeps a text from being an absolute http or https URL with a host, without user info and
// fragment, or nil. The error completes a sentence that begins with the name of the field.
func CheckURL(text string) error {
	if len(text) > MaxURLBytes {
		return fmt.Errorf("is longer than %d bytes", MaxURLBytes)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || strings.ContainsFunc(text, unicode.IsSpace) || strings.ContainsFunc(text, unprintable):
		return errors.New("is not a well-formed URL")
	case u.Scheme != "https" && u.Scheme != "http":
		return errors.New(`must be an absolute URL that begins with "https://"`)
	case u.Hostname() == "" || !validPort(u.Port()):
		return errors.New("must be a URL with a host, and with a port between 1 and 65535 if it has one")
	case u.User != nil:
		return errors.New("must be a URL without user name and password")
	case strings.Contains(text, "#"):
		return errors.New(`must be a URL without a fragment: leave out "#" and what follows it`)
	}
	return nil
}

// CheckEntityID is CheckURL for an entity id, which should be a URI; some providers allow any text.
func CheckEntityID(text string) error {
	switch {
	case len(text) > MaxEntityIDBytes:
		return fmt.Errorf("is longer than %d bytes", MaxEntityIDBytes)
	case strings.ContainsFunc(text, unprintable):
		return errors.New("must not contain control characters")
	}
	return nil
}

func unprintable(r rune) bool { return unicode.IsControl(r) || r == unicode.ReplacementChar }

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && n > 0
}

// cut bounds what an error repeats of foreign text.
func cut(text string) string {
	const most = 120
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// IsURI reports whether a text can be the URI of a format or class.
func IsURI(text string) bool {
	return strings.Contains(text, ":") && !strings.ContainsFunc(text, unicode.IsSpace) && CheckEntityID(text) == nil
}
