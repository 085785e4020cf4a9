package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/node/clientcerts"
	"github.com/coffer-project/coffer/cmd/coffer/node/socket"
	"github.com/coffer-project/coffer/server/admission"
)

// listener is one API address being served.
type listener struct {
	config config.Listener
	net    net.Listener
	gate   *admission.Gate // in front of net
	socket net.Listener    // below net, as the system has it
	http   *http.Server
	cert   atomic.Pointer[tls.Certificate]
	// headers of responses, by status, as the configuration has them now.
	headers atomic.Pointer[map[string]map[string][]string]
	// asks reports whether clients are to be asked for certificates, where the configuration leaves that open.
	asks func(context.Context) bool
}

// answerTime is how long a client may take to read an answer.
const answerTime = time.Minute

// Memory for what a client sends ahead over HTTP/2: of one connection, and of one of its streams.
const (
	connBuffer   = 512 << 10
	streamBuffer = 256 << 10
)

// bind takes the address; nothing is served yet. listeners is how many there are. Refused certificates are reported before
// anything else runs.
func bind(c config.Listener, listeners int, from *handover, log *slog.Logger) (*listener, error) {
	l := &listener{config: c}
	header := c.ReadHeaderTimeout
	if header == 0 {
		header = 10 * time.Second
	}
	request := c.MaxRequestDuration
	if request == 0 {
		request = 90 * time.Second
	}
	l.http = &http.Server{
		ReadHeaderTimeout: header, IdleTimeout: cmp.Or(c.IdleTimeout, 5*time.Minute), MaxHeaderBytes: 64 << 10,
		WriteTimeout: cmp.Or(c.WriteTimeout, request+answerTime), // streams lift it
		ReadTimeout:  c.ReadTimeout,
		HTTP2:        &http.HTTP2Config{MaxReceiveBufferPerConnection: connBuffer, MaxReceiveBufferPerStream: streamBuffer},
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if err := l.Take(c); err != nil {
		return nil, err
	}
	var err error
	if !c.TLSDisable {
		if l.http.TLSConfig, err = l.tlsConfig(); err != nil {
			return nil, err
		}
	}
	if l.socket, err = from.listen(c); err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	l.net = l.socket
	if c.Proxy.Behavior != "" {
		l.net = admission.WithProxyProtocol(l.net, c.Proxy.Behavior, c.Proxy.Authorized)
	}
	total, each := socket.Connections(c, listeners)
	if c.Unix {
		each = total // its clients have no addresses
	}
	l.gate = admission.NewGate(l.net, admission.GateOptions{
		Total: total, Each: each, Exempt: slices.Concat(c.Proxy.Authorized, c.Forwarded.Authorized), Late: c.Proxy.Behavior != "",
	})
	l.net, l.http.ConnState = l.gate, l.gate.ConnState
	return l, nil
}

// Take implements reload.Listener.
func (l *listener) Take(c config.Listener) error {
	l.headers.Store(&c.Headers)
	if c.TLSDisable {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.TLSCertFile, c.TLSKeyFile)
	if err != nil {
		return fmt.Errorf("listener %s: loading the certificate: %w", c.Address, err)
	}
	l.cert.Store(&pair)
	return nil
}

func (l *listener) tlsConfig() (*tls.Config, error) {
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return l.cert.Load(), nil },
	}
	if l.config.TLSMinVersion == "tls13" {
		c.MinVersion = tls.VersionTLS13
	}
	if l.config.TLSMaxVersion == "tls12" {
		c.MaxVersion = tls.VersionTLS12
	}
	if c.CipherSuites = l.config.TLSCipherSuites; c.CipherSuites != nil && c.MinVersion < tls.VersionTLS13 && !slices.ContainsFunc(c.CipherSuites, forHTTP2) {
		l.http.Protocols = new(http.Protocols)
		l.http.Protocols.SetHTTP1(true)
		c.NextProtos = []string{"http/1.1"}
	}
	if err := clientcerts.Configure(c, &l.config, func(ctx context.Context) bool { return l.asks != nil && l.asks(ctx) }); err != nil {
		return nil, fmt.Errorf("listener %s: %w", l.config.Address, err)
	}
	return c, nil
}

// forHTTP2 reports whether HTTP/2 can do with nothing but this cipher suite, of those before TLS 1.3.
func forHTTP2(suite uint16) bool {
	return suite == tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 || suite == tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
}

// serve blocks until the listener is shut down, which may come first.
func (l *listener) serve() error {
	var err error
	if l.config.TLSDisable {
		err = l.http.Serve(l.net)
	} else {
		err = l.http.ServeTLS(l.net, "", "")
	}
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) { // the latter while sealing
		return nil
	}
	return err
}

// url is the address with its scheme.
func (l *listener) url() string {
	if l.config.Unix {
		return "unix://" + l.config.Address
	}
	scheme := "https"
	if l.config.TLSDisable {
		scheme = "http"
	}
	return scheme + "://" + l.net.Addr().String()
}

// drain stops accepting and waits for the requests under way.
func (l *listener) drain(ctx context.Context) error {
	if err := l.http.Shutdown(ctx); err != nil {
		return errors.Join(err, l.http.Close())
	}
	return nil
}
