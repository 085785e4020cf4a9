package config_test

import (
	"strings"
	"testing"
)

const minimal = `storage "raft" { path = "d" } listener "tcp" { tls_disable = true `

func TestListenerBehindProxies(t *testing.T) {
	c, err := load(t, minimal+`
  x_forwarded_for_authorized_addrs = "10.0.0.0/8, 2001:db8::1"
  x_forwarded_for_hop_skips = 2
  proxy_protocol_behavior = "allow_authorized"
  proxy_protocol_authorized_addrs = ["10.0.0.7/8"]
  max_connections = 100 max_connections_per_address = 10 max_request_memory = "256MiB"
  redact_version = true }`)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	l := c.Listeners[0]
	f := l.Forwarded
	if len(f.Authorized) != 2 || f.Authorized[1].String() != "2001:db8::1/128" || f.HopSkips != 2 || !f.RejectNotPresent || !f.RejectNotAuthorized {
		t.Errorf("Forwarded = %+v", f)
	}
	if l.Proxy.Behavior != "allow_authorized" || l.Proxy.Authorized[0].String() != "10.0.0.0/8" {
		t.Errorf("Proxy = %+v", l.Proxy)
	}
	if l.MaxConnections != 100 || l.MaxConnectionsEach != 10 || l.RequestMemory != 256<<20 || !l.RedactVersion || l.RedactAddresses {
		t.Errorf("Listener = %+v", l)
	}
}

func TestListenerContradictions(t *testing.T) {
	for settings, want := range map[string]string{
		`x_forwarded_for_hop_skips = 1`:                                                                      "x_forwarded_for_authorized_addrs",
		`x_forwarded_for_reject_not_present = true`:                                                          "x_forwarded_for_authorized_addrs",
		`x_forwarded_for_authorized_addrs = ["10.0.0.0/33"]`:                                                 "no IP address or network",
		`x_forwarded_for_authorized_addrs = [1]`:                                                             "list of texts",
		`x_forwarded_for_client_cert_header = "X-Cert"`:                                                      "x_forwarded_for_authorized_addrs",
		`x_forwarded_for_authorized_addrs = "10.0.0.1" x_forwarded_for_client_cert_header = "X-Vault-Token"`: "cannot be the header",
		`x_forwarded_for_authorized_addrs = "10.0.0.1" x_forwarded_for_client_cert_header = "X-Cert" x_forwarded_for_client_cert_header_decoders = "ROT"`: "none of",
		`x_forwarded_for_authorized_addrs = "10.0.0.1" x_forwarded_for_client_cert_header_decoders = ["URL"]`:                                             "means nothing without",
		`proxy_protocol_behavior = "allow_authorized"`:                                        "needs proxy_protocol_authorized_addrs",
		`proxy_protocol_behavior = "maybe"`:                                                   "must be one of",
		`proxy_protocol_authorized_addrs = "10.0.0.1"`:                                        "without proxy_protocol_behavior",
		`proxy_protocol_behavior = "use_always" proxy_protocol_authorized_addrs = "10.0.0.1"`: "accepts every address",
		`max_request_memory = "64MiB"`:                                                        "four times max_request_size",
		`max_connections = 5 max_connections_per_address = 6`:                                 "must not be more than max_connections",
	} {
		c, err := load(t, minimal+settings+" }")
		if err == nil {
			err = c.Complete()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a word on %s", settings, err, want)
		}
	}
}
