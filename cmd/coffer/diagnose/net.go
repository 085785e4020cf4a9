package diagnose

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/config/interfaces"
	"github.com/coffer-project/coffer/cmd/coffer/node/settings"
)

// Times and ages that the checks go by.
const (
	sealTime   = 15 * time.Second
	peerTime   = 5 * time.Second
	expirySoon = 30 * 24 * time.Hour
	clockSkew  = 2 * time.Second
)

func diagnoseTLS(_ context.Context, d *diagnosis) {
	for _, l := range d.config.Listeners {
		if l.TLSDisable {
			d.warn(l.Address, "TLS is turned off: secrets and tokens travel in clear")
			continue
		}
		d.certificate(l)
	}
}

// certificate checks the files of one listener.
func (d *diagnosis) certificate(l config.Listener) {
	name := l.Address
	pair, err := tls.LoadX509KeyPair(l.TLSCertFile, l.TLSKeyFile)
	if err != nil {
		d.fail(name, "the certificate and its key cannot be used: %v", err)
		return
	}
	chain := make([]*x509.Certificate, len(pair.Certificate))
	for i, der := range pair.Certificate {
		if chain[i], err = x509.ParseCertificate(der); err != nil {
			d.fail(name, "certificate %d of %s: %v", i+1, l.TLSCertFile, err)
			return
		}
	}
	d.validity(name, chain)
	for i := range len(chain) - 1 {
		if err := chain[i].CheckSignatureFrom(chain[i+1]); err != nil {
			d.fail(name, "certificate %d of %s is not signed by the one that follows it: %v", i+1, l.TLSCertFile, err)
		}
	}
	d.trusted(name, chain)
	if u, err := url.Parse(d.config.APIAddr); err == nil && u.Hostname() != "" {
		if err := chain[0].VerifyHostname(u.Hostname()); err != nil {
			d.warn(name, "clients that use api_addr will refuse the certificate: %v", err)
		}
	}
	if info, err := os.Stat(l.TLSKeyFile); err == nil && info.Mode().Perm()&0o007 != 0 {
		d.warn(name, "everybody on this machine may read the key %s (mode %#o)", l.TLSKeyFile, info.Mode().Perm())
	}
	if l.TLSClientCAFile != "" {
		text, err := os.ReadFile(l.TLSClientCAFile)
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM(text) {
			err = errors.New("it holds no PEM certificate")
		}
		if err != nil {
			d.fail(name, "tls_client_ca_file: %v", err)
		}
	}
}

func (d *diagnosis) validity(name string, chain []*x509.Certificate) {
	now := time.Now()
	for i, c := range chain {
		left := c.NotAfter.Sub(now)
		day := c.NotAfter.UTC().Format(time.DateOnly)
		switch {
		case now.Before(c.NotBefore):
			d.fail(name, "certificate %d is not valid before %s", i+1, c.NotBefore.UTC().Format(time.RFC3339))
		case left < 0:
			d.fail(name, "certificate %d expired on %s", i+1, day)
		case left < expirySoon:
			d.warn(name, "certificate %d expires on %s, in %d days", i+1, day, left/(24*time.Hour))
		case i == 0:
			d.ok(name, "the certificate fits its key and is valid until %s", day)
		}
	}
}

// trusted reports whether clients on this machine would accept the certificate without being told of its authority.
func (d *diagnosis) trusted(name string, chain []*x509.Certificate) {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Intermediates: between})
	if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
		d.ok(name, "clients must be told its authority, %q, which this machine does not know", chain[len(chain)-1].Issuer.CommonName)
	}
}

func diagnoseListeners(ctx context.Context, d *diagnosis) {
	for _, w := range d.config.Warnings {
		d.warn("configuration", "%s", w)
	}
	for i, l := range d.config.Listeners {
		if l.Unix {
			continue
		}
		d.bindable(ctx, "api "+l.Address, l.Address)
		if i == 0 && l.ClusterAddress != "" {
			d.bindable(ctx, "cluster "+l.ClusterAddress, l.ClusterAddress)
			d.reachable(l.ClusterAddress)
		}
	}
}

// reachable warns if cluster_addr names a port of this machine that no listener of the configuration has.
func (d *diagnosis) reachable(listener string) {
	host, port, err := net.SplitHostPort(d.config.ClusterAddr)
	_, bound, boundErr := net.SplitHostPort(listener)
	if err == nil && boundErr == nil && port != bound && bound != "0" && interfaces.IsLocal(host) {
		d.warn("cluster_addr "+d.config.ClusterAddr, "is this machine, but the cluster listener has port %s: other nodes cannot reach this one; set cluster_address of the listener, or correct cluster_addr", bound)
	}
}

func (d *diagnosis) bindable(ctx context.Context, name, address string) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		d.warn(name, "is in use: fine if the server is running, otherwise something else has the port")
	case err != nil:
		d.fail(name, "%v", err)
	default:
		l.Close()
		d.ok(name, "is free")
	}
}

func diagnosePeers(ctx context.Context, d *diagnosis) {
	if len(d.config.Storage.RetryJoin) == 0 {
		d.add("retry_join", checkSkip, "no other node is named: one with a damaged disk could not fetch its data again")
	}
	for i, j := range d.config.Storage.RetryJoin {
		d.peer(ctx, i, j)
	}
	if endpoint := d.config.Traces.Endpoint; endpoint != "" {
		conn, err := (&net.Dialer{Timeout: peerTime}).DialContext(ctx, "tcp", endpoint)
		if err != nil {
			d.warn("traces "+endpoint, "%v", err)
			return
		}
		conn.Close()
		d.ok("traces "+endpoint, "takes connections")
	}
}

// peer asks another node how it is and what time it has.
func (d *diagnosis) peer(ctx context.Context, i int, j config.RetryJoin) {
	client, err := peerClient(d.config.Storage, i)
	if err != nil {
		d.fail(j.LeaderAPIAddr, "%v", err)
		return
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, peerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(j.LeaderAPIAddr, "/")+"/v1/sys/health", nil)
	if err != nil {
		d.fail(j.LeaderAPIAddr, "%v", err)
		return
	}
	before := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		d.warn(j.LeaderAPIAddr, "cannot be reached: %v", err)
		return
	}
	defer resp.Body.Close()
	raw, err := command.ReadBounded(resp.Body, 64<<10)
	var health struct {
		Initialized, Sealed, Standby bool
		Time                         int64 `json:"server_time_utc"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &health)
	}
	if err != nil || health.Time == 0 {
		d.fail(j.LeaderAPIAddr, "answers, but not as a server of this kind")
		return
	}
	state := "active"
	switch {
	case !health.Initialized:
		state = "not initialized"
	case health.Sealed:
		state = "sealed"
	case health.Standby:
		state = "standby"
	}
	d.ok(j.LeaderAPIAddr, "answers: %s", state)
	took := time.Since(before)
	if skew := time.Until(time.Unix(health.Time, 0)).Abs(); skew > clockSkew+took {
		d.warn(j.LeaderAPIAddr, "its clock differs from this one's by %v: expiry of tokens and leases goes by the active node's", skew.Round(time.Second))
	}
}

// peerClient trusts what the i-th retry_join says.
func peerClient(s config.Storage, i int) (*http.Client, error) {
	targets, err := settings.JoinTargets(config.Storage{RetryJoin: s.RetryJoin[i : i+1]})
	if err != nil {
		return nil, err
	}
	t := targets[0]
	c := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if len(t.CACert) > 0 {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(t.CACert) {
			return nil, errors.New("its CA certificate is not PEM")
		}
	}
	if len(t.ClientCert) > 0 {
		pair, err := tls.X509KeyPair(t.ClientCert, t.ClientKey)
		if err != nil {
			return nil, fmt.Errorf("its client certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: c}}, nil
}
