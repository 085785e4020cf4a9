// Package clientcerts has the listener ask clients for certificates: as the configuration says, else while an auth method needs them. It
// promises that a client shows few of them. Start reading at Configure.
package clientcerts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/engines"
)

// Configure completes the TLS of a listener. asks is called at handshakes, where the configuration leaves it open whether clients are
// asked; it may block as long as its context.
func Configure(c *tls.Config, l *config.Listener, asks func(context.Context) bool) error {
	if file := l.TLSClientCAFile; file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		c.ClientCAs = x509.NewCertPool()
		if !c.ClientCAs.AppendCertsFromPEM(pem) {
			return errors.New("tls_client_ca_file holds no PEM certificate")
		}
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	if l.TLSRequireClient {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	c.VerifyConnection = bound
	if c.ClientAuth == tls.NoClientCert && !l.TLSDisableClientCerts {
		onDemand(c, asks)
	}
	return nil
}

// maxChainBytes bounds what a client sends of certificates: it goes to the active node with each of its requests.
const maxChainBytes = 32 << 10

// bound refuses a handshake with more certificates than a chain has.
func bound(cs tls.ConnectionState) error {
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

// asked marks the sessions of clients that were asked.
const asked = "asked for a certificate"

// onDemand asks clients only while an auth method needs their certificates: browsers bother their users with the question. The auth
// method verifies them. A session from before it was there is not resumed.
func onDemand(c *tls.Config, asks func(context.Context) bool) {
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
