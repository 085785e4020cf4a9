package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// addresses derives what other nodes and clients reach this node at.
func (c *Config) addresses(add func(string, ...any)) {
	l := c.Listeners[0]
	for name, value := range map[string]string{"address": l.Address, "cluster_address": l.ClusterAddress, "api_addr": c.APIAddr, "cluster_addr": c.ClusterAddr} {
		if strings.Contains(value, "{{") {
			add("%s: templates are not supported: leave it out, and an interface's address is taken, or set a variable such as COFFER_API_ADDR", name)
			return
		}
	}
	host, port, err := net.SplitHostPort(l.Address)
	if err != nil {
		return
	}
	ip := net.ParseIP(host)
	anywhere := host == "" || ip != nil && ip.IsUnspecified()
	if anywhere && (c.APIAddr == "" || c.ClusterAddr == "") {
		own, err := interfaceAddress(host)
		if err != nil {
			add("api_addr and cluster_addr are missing: the listener takes every address, so clients and nodes must be told one, and %v", err)
			return
		}
		host = own
	}
	derived := func(name, value string) {
		if anywhere { // the interface may be the wrong one
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s is %s, after an interface of this machine: set %s or COFFER_%s if others cannot reach it there",
				name, value, name, strings.ToUpper(name)))
		}
	}
	if c.APIAddr == "" {
		scheme := "https"
		if l.TLSDisable {
			scheme = "http"
		}
		c.APIAddr = scheme + "://" + net.JoinHostPort(host, port)
		derived("api_addr", c.APIAddr)
	} else if u, err := url.Parse(c.APIAddr); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		add("api_addr %q must be a URL such as https://10.0.0.1:8200", c.APIAddr)
	}
	if _, port, err := net.SplitHostPort(l.ClusterAddress); err == nil && anywhere && c.ClusterAddr == "" {
		c.ClusterAddr = net.JoinHostPort(host, port)
		derived("cluster_addr", c.ClusterAddr)
	}
	c.ClusterAddr = strings.TrimPrefix(strings.TrimPrefix(c.ClusterAddr, "https://"), "http://")
	if c.ClusterAddr == "" {
		c.ClusterAddr = l.ClusterAddress
	}
	if _, _, err := net.SplitHostPort(c.ClusterAddr); err != nil && c.ClusterAddr != "" {
		add("cluster_addr %q must be host:port", c.ClusterAddr)
	}
}

// interfaceAddress returns the address of an interface that a listener at host is reached at: a private one if there is one.
func interfaceAddress(host string) (string, error) {
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
