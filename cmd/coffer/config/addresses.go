package config

import (
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/config/interfaces"
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
		own, err := interfaces.Address(host)
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
