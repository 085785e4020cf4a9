package engines

import (
	"context"
	"crypto/x509"
)

// MaxCertificates is how many certificates of a client are looked at, its own among them: a chain is never that long.
const MaxCertificates = 10

type certificatesKey struct{}

// WithCertificates returns the context of a request whose client has shown in its TLS handshake that it has the key of the first
// certificate. The others are what it sent with it. Nothing about them has been checked.
func WithCertificates(ctx context.Context, chain []*x509.Certificate) context.Context {
	if len(chain) == 0 {
		return ctx
	}
	return context.WithValue(ctx, certificatesKey{}, chain)
}

// CertificatesOf returns what WithCertificates has put into the context: an engine's request is under way, or a renewal. nil: the client
// has shown none.
func CertificatesOf(ctx context.Context) []*x509.Certificate {
	chain, _ := ctx.Value(certificatesKey{}).([]*x509.Certificate)
	return chain
}
