// Package admission bounds what clients can make the server hold before anything is known of them: connections
// (Gate), bytes of request bodies (Budget) and the time that a body may take (Pace). It also finds out which client a
// request is from when a proxy stands between (Proxies, Forwarded).
//
// Clients are counted by address, IPv6 clients by their /64 (Client). Start reading at Budget, then Gate.
package admission

import (
	"errors"
	"net/netip"
)

// ErrBusy rejects a request whose body has no room left in a Budget. Nothing of the request ran.
var ErrBusy = errors.New("the budget for request bodies is used up")

// Client returns the address that a client is counted by: IPv6 clients by their /64, because that is what one
// subscriber gets. What is no address counts as one client.
func Client(ip netip.Addr) netip.Addr {
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		p, err := ip.Prefix(64)
		if err != nil {
			panic(err) // every IPv6 address has one
		}
		return p.Addr()
	}
	return ip
}

// Contains reports whether one of the networks contains the address.
func Contains(networks []netip.Prefix, ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	for _, n := range networks {
		if n.Contains(ip) {
			return true
		}
	}
	return false
}
