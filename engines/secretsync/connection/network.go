package connection

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

// reservedNetworks have no public services: private, shared, loopback, link-local with the metadata
// services of clouds, multicast, reserved, and what is mapped to IPv4 by other names.
var reservedNetworks = func() (all []netip.Prefix) {
	for _, p := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
		"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
		"::/127", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "fc00::/7", "fe80::/10", "ff00::/8",
	} {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}()

// hostNetworks are networks that only the operator can open: this machine, and its metadata service, which some clouds have among
// other addresses.
var hostNetworks = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("168.63.129.16/32"), netip.MustParsePrefix("100.100.100.200/32"), netip.MustParsePrefix("192.0.0.192/32"),
	netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("fd00:ec2::/32"), netip.MustParsePrefix("fd20:ce::/32"),
}

// embeddedIPv4 returns the IPv4 address that a gateway on the way makes of an IPv6 one: compatible, translated and 6to4 addresses.
func embeddedIPv4(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return a
	}
	b := a.As16()
	switch {
	case netip.MustParsePrefix("::/96").Contains(a), netip.MustParsePrefix("64:ff9b::/96").Contains(a),
		netip.MustParsePrefix("64:ff9b:1::/48").Contains(a), netip.MustParsePrefix("::ffff:0:0:0/96").Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16]))
	case netip.MustParsePrefix("2002::/16").Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return a
}

func containedIn(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// addressGuard says where the connections of a destination may go. It is asked about addresses, after names were resolved.
type addressGuard struct {
	allowPrivate bool // the operator allows everything
	strict       bool
	allowed      []netip.Prefix
	ports        []uint16 // nil: 80 and 443
}

func NewGuard(n *state.Network, operator bool) (addressGuard, error) {
	g := addressGuard{allowPrivate: operator, strict: !n.DisableStrict}
	for _, of := range []struct {
		field string
		texts []string
		ipv6  bool
		like  string
	}{{"allowed_ipv4_addresses", n.IPv4, false, "10.1.0.0/16"}, {"allowed_ipv6_addresses", n.IPv6, true, "fd12:3456::/32"}} {
		for i, text := range of.texts {
			p, err := netip.ParsePrefix(text)
			if err != nil || p.Addr().Is6() != of.ipv6 {
				return g, fmt.Errorf("field %q: element %d is not a network such as %s", of.field, i+1, of.like)
			}
			g.allowed = append(g.allowed, p)
		}
	}
	for i, text := range n.Ports {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return g, fmt.Errorf(`field "allowed_ports": element %d is not a port`, i+1)
		}
		g.ports = append(g.ports, uint16(port))
	}
	return g, nil
}

// check returns why a connection may not be made. It is net.Dialer's Control.
func (g *addressGuard) check(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return errBlocked("an address that cannot be read")
	}
	a := to.Addr().Unmap().WithZone("")
	switch {
	case g.allowPrivate:
		return nil
	case containedIn(hostNetworks, a), containedIn(hostNetworks, embeddedIPv4(a)):
		return errBlocked("addresses of this machine and of its metadata service")
	case containedIn(g.allowed, a):
	case len(g.allowed) > 0:
		return errBlocked("addresses outside of allowed_ipv4_addresses and allowed_ipv6_addresses")
	case g.strict && containedIn(reservedNetworks, a):
		return errBlocked("private and reserved addresses: name them in allowed_ipv4_addresses or allowed_ipv6_addresses if the destination is there")
	}
	ports := g.ports
	if ports == nil {
		ports = []uint16{80, 443}
	}
	if g.strict && !slices.Contains(ports, to.Port()) {
		return errBlocked("other ports than " + fmt.Sprint(ports) + ": name it in allowed_ports")
	}
	return nil
}

func errBlocked(what string) error {
	return &destination.Error{Class: destination.Client, Code: destination.Blocked, Text: "secret sync does not connect to " + what}
}

// metadataAddress is where the clouds' machines have their metadata service.
const metadataAddress = "169.254.169.254:80"

// metadataClient returns a client that goes to the metadata service of this machine, and nowhere else.
func metadataClient() *http.Client {
	dialer := &net.Dialer{Timeout: 2 * time.Second}
	return &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if address != metadataAddress {
					return nil, errBlocked("other addresses than that of the metadata service for credentials of the machine")
				}
				return dialer.DialContext(ctx, network, address)
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// network is what the connections of a type of destinations, within its network, are made with.
func (p *Pool) network(typeName string, n *state.Network) (*net.Dialer, *tls.Config, error) {
	end := p.opts.Operator.Endpoints[typeName]
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if end.CAFile != "" {
		pem, err := os.ReadFile(end.CAFile)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the ca_file of the endpoint %s: %w", typeName, err)
		}
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("the ca_file of the endpoint %s holds no certificate", typeName)
		}
	}
	g, err := NewGuard(n, p.opts.Operator.AllowPrivate)
	if err != nil {
		return nil, nil, err
	}
	return &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, Control: g.check}, trust, nil
}

func newClient(dialer *net.Dialer, trust *tls.Config) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSClientConfig: trust.Clone(), ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 8,
			TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= 5 || r.URL.Host != via[0].URL.Host || r.URL.Scheme != via[0].URL.Scheme {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

// Client returns a client that goes where a destination of a type and with a network may go, and trusts the same certificates.
func (p *Pool) Client(typeName string, n *state.Network) (*http.Client, error) {
	dialer, trust, err := p.network(typeName, n)
	if err != nil {
		return nil, err
	}
	return newClient(dialer, trust), nil
}

// environmentOf is what a destination is opened with.
func (p *Pool) environmentOf(d *state.Destination) (destination.Env, error) {
	dialer, trust, err := p.network(d.Type, &d.Network)
	if err != nil {
		return destination.Env{}, err
	}
	var metadata *http.Client
	if p.allowsEnvironment(d.NS) {
		metadata = metadataClient()
	}
	end := p.opts.Operator.Endpoints[d.Type]
	return destination.Env{
		Metadata: metadata,
		Client:   newClient(dialer, trust),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		},
		IdentityToken: p.identityTokens(d),
		TLS:           trust, URL: end.URL, AuthorityURL: end.AuthorityURL, TokenURL: end.TokenURL, Getenv: os.Getenv,
	}, nil
}
