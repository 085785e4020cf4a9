package admission

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	proxyproto "github.com/pires/go-proxyproto"
)

// Forwarded is what a listener makes of the header X-Forwarded-For. Without authorized networks the header means nothing.
type Forwarded struct {
	Authorized          []netip.Prefix // proxies whose header counts
	HopSkips            int64          // addresses at the header's end that are skipped: those of further proxies
	RejectNotPresent    bool           // reject requests without the header
	RejectNotAuthorized bool           // reject requests with the header that come from elsewhere; else it is ignored
	CertHeader          string         // has the client's certificate, in the canonical form of headers; "": none has
	CertDecoders        []string       // of CertHeader, the outermost first
}

// Client returns the address of the client of a request, with the port of the connection. remote is r.RemoteAddr itself
// where the header does not count.
func (f *Forwarded) Client(r *http.Request) (remote string, err error) {
	headers := r.Header["X-Forwarded-For"]
	if len(f.Authorized) == 0 {
		return r.RemoteAddr, nil
	}
	if len(headers) == 0 {
		if f.RejectNotPresent {
			return "", fmt.Errorf("the header X-Forwarded-For is missing: the listener requires it of every request")
		}
		return r.RemoteAddr, nil
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !Contains(f.Authorized, peer.Addr()) {
		if f.RejectNotAuthorized {
			return "", fmt.Errorf("the header X-Forwarded-For is not accepted from this address: it is not in x_forwarded_for_authorized_addrs")
		}
		return r.RemoteAddr, nil
	}
	hops := strings.Split(strings.Join(headers, ","), ",")
	i := int64(len(hops)) - 1 - f.HopSkips
	if i < 0 {
		return "", fmt.Errorf("the header X-Forwarded-For has %d addresses, of which x_forwarded_for_hop_skips skips %d", len(hops), f.HopSkips)
	}
	client, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
	if err != nil {
		return "", fmt.Errorf("the header X-Forwarded-For does not hold an IP address at the place that counts")
	}
	return netip.AddrPortFrom(client, peer.Port()).String(), nil
}

// The behaviors of a listener that understands the PROXY protocol.
const (
	UseAlways        = "use_always"        // every peer may name the client
	AllowAuthorized  = "allow_authorized"  // authorized proxies may; what others say is ignored
	DenyUnauthorized = "deny_unauthorized" // only authorized proxies may connect
)

// proxyHeaderTime is how long a PROXY header may take.
const proxyHeaderTime = 10 * time.Second

// WithProxyProtocol returns a listener whose connections have the client's address that an authorized proxy says in a
// PROXY header, version 1 or 2. Connections of proxies without a header, as for health checks, keep their own.
func WithProxyProtocol(l net.Listener, behavior string, authorized []netip.Prefix) net.Listener {
	return &proxyproto.Listener{
		Listener: l, ReadHeaderTimeout: proxyHeaderTime, ValidateHeader: checkProxyHeader,
		ConnPolicy: func(o proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			peer, ok := o.Upstream.(*net.TCPAddr)
			switch {
			case behavior == UseAlways:
				return proxyproto.USE, nil
			case ok && Contains(authorized, peer.AddrPort().Addr()):
				return proxyproto.USE, nil
			case behavior == AllowAuthorized:
				return proxyproto.IGNORE, nil
			}
			return proxyproto.REJECT, proxyproto.ErrInvalidUpstream
		},
	}
}

// checkProxyHeader rejects headers that do not say an IP address.
func checkProxyHeader(h *proxyproto.Header) error {
	if h.Command.IsLocal() || h.TransportProtocol == proxyproto.TCPv4 || h.TransportProtocol == proxyproto.TCPv6 {
		return nil
	}
	return fmt.Errorf("the PROXY header is not of TCP")
}
