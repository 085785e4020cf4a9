// Package idp reads what identity providers say about themselves.
package idp

import (
	"crypto/x509"
	"time"
)

// Descriptor is what a service provider needs to know of an identity provider. It is shared: do not modify it.
type Descriptor struct {
	EntityID     string
	SSOURL       string              // takes requests by HTTP-Redirect
	Certificates []*x509.Certificate // at least one; several while keys roll over
	// WantsSignedRequests reports that it refuses requests that are not signed.
	WantsSignedRequests bool
	ValidUntil          time.Time     // zero: it did not say
	CacheDuration       time.Duration // 0: it did not say
}
