// Package interfaces knows the addresses of this machine.
package interfaces

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// Address returns the address of an interface that a listener at host is reached at: a private one if there is one.
func Address(host string) (string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("the addresses of this machine cannot be read: %w", err)
	}
	best, rank := "", 0
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		ip := prefix.Addr().Unmap()
		if !ip.IsGlobalUnicast() || ip.Is6() && host == "0.0.0.0" {
			continue
		}
		this := 1
		if ip.IsPrivate() {
			this += 2
		}
		if ip.Is4() {
			this++
		}
		if this > rank {
			best, rank = ip.String(), this
		}
	}
	if best == "" {
		return "", errors.New("this machine has no address but loopback ones")
	}
	return best, nil
}

// IsLocal reports whether an address of this machine is host's.
func IsLocal(host string) bool {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host == "localhost"
	}
	if ip.IsLoopback() {
		return true
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Unmap() == ip.Unmap() {
			return true
		}
	}
	return false
}
