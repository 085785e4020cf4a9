package admission

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// Forwarded is what a listener makes of the header X-Forwarded-For. Without authorized networks the header means nothing.
type Forwarded struct {
	Authorized          []netip.Prefix // proxies whose header counts
	HopSkips            int64          // addresses at the header's end that are skipped: those of further proxies
	RejectNotPresent    bool           // reject requests without the header
	RejectNotAuthorized bool           // reject requests with the header that come from elsewhere; else it is ignored
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
