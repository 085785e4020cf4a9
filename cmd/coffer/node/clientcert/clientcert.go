// Package clientcert says when a listener asks clients for certificates, and how many it takes. The auth method cert judges them.
package clientcert

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// maxChainBytes bounds what a client sends of certificates: it goes to the active node with each of its requests.
const maxChainBytes = 32 << 10

// Bound refuses a handshake with more certificates than a chain has.
func Bound(cs tls.ConnectionState) error {
	bytes := 0
	for _, c := range cs.PeerCertificates {
		bytes += len(c.Raw)
	}
	if len(cs.PeerCertificates) > engines.MaxCertificates || bytes > maxChainBytes {
		return fmt.Errorf("the client sends more than %d certificates, or more than %d bytes of them", engines.MaxCertificates, maxChainBytes)
	}
	return nil
}

// askTime is how long a handshake waits to know whether there is an auth method that needs certificates.
const askTime = time.Second

// AskOnDemand has a listener ask clients for certificates only while an auth method needs them: browsers bother their users with the
// question. The auth method verifies them. A session from before it was there is not resumed.
func AskOnDemand(c *tls.Config, asks func(context.Context) bool) {
	const asked = "asked for a certificate"
	asking := c.Clone()
	asking.ClientAuth = tls.RequestClientCert
	asking.WrapSession = func(cs tls.ConnectionState, s *tls.SessionState) ([]byte, error) {
		s.Extra = append(s.Extra, []byte(asked))
		return c.EncryptTicket(cs, s)
	}
	asking.UnwrapSession = func(identity []byte, cs tls.ConnectionState) (*tls.SessionState, error) {
		s, err := c.DecryptTicket(identity, cs)
		if err != nil || s == nil || !slices.ContainsFunc(s.Extra, func(b []byte) bool { return string(b) == asked }) {
			return nil, err
		}
		return s, nil
	}
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		ctx, cancel := context.WithTimeout(hello.Context(), askTime)
		defer cancel()
		if asks(ctx) {
			return asking, nil
		}
		return nil, nil
	}
}
