package config_test

import (
	"net"
	"strings"
	"testing"
)

// The configuration that Vault's chart makes for three nodes starts with a warning for each key that has no effect.
func TestFilesOfCharts(t *testing.T) {
	for _, product := range []string{"vault", "openbao"} {
		c, err := load(t, `
disable_mlock = true
ui = true
log_format = "standard"
log_level = "notice"
listener "tcp" {
  tls_disable = 1
  address = "[::]:8200"
  cluster_address = "[::]:8201"
  tls_cipher_suites = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
  telemetry { unauthenticated_metrics_access = "true" }
}
storage "raft" {
  path = "/`+product+`/data"
  max_entry_size = 1048576
  retry_join = [
    { leader_api_addr = "https://a:8200" leader_client_cert = "PEM" leader_client_key = "PEM" },
    { leader_api_addr = "https://b:8200" }
  ]
}
telemetry {
  prometheus_retention_time = "30s"
  disable_hostname = true
}
service_registration "kubernetes" {}
api_addr = "http://10.0.0.1:8200"
cluster_addr = "https://10.0.0.1:8201"
`)
		if err == nil {
			err = c.Complete()
		}
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(c.Warnings, "\n")
		for _, key := range []string{`coffer.hcl:2: "disable_mlock"`, `"storage.max_entry_size"`, `"telemetry.prometheus_retention_time"`, `"telemetry.disable_hostname"`} {
			if strings.Count(text, key) != 1 {
				t.Errorf("the warnings are\n%s\nwant one on %s", text, key)
			}
		}
		if len(c.Warnings) != 4 || c.LogFormat != "text" || c.LogLevel != "info" || len(c.Storage.RetryJoin) != 2 || c.Registration == nil ||
			c.Storage.RetryJoin[0].LeaderClientKey != "PEM" || len(c.Listeners[0].TLSCipherSuites) != 1 {
			t.Errorf("config = %+v", c)
		}
	}
}

// What decides how something is protected is implemented or rejected, and wrong values are errors also where the key has no effect.
func TestRejected(t *testing.T) {
	for text, want := range map[string]string{
		`disable_mlock = "perhaps"`:                                         "must be true or false",
		`disable_clustering = true`:                                         "remove it",
		`log_rotate_max_files = -2`:                                         "0 or more",
		`log_rotate_duration = "daily"`:                                     "must be a duration",
		`initialize "a" {}`:                                                 "needs a name",
		`entropy "seal" {}`:                                                 "operating system",
		`unsafe_allow_api_audit_creation = false`:                           "deny that path",
		`service_registration "consul" {}`:                                  "the only type",
		`listener "tcp" { tls_cipher_suites = "TLS_RSA_WITH_RC4_128_SHA" }`: "no cipher suite",
		`listener "tcp" { disable_unauthed_rekey_endpoints = false }`:       "enable_unauthenticated_ceremonies",
		`listener "tcp" { cors_enabled = true }`:                            "sys/config/cors",
		`listener "tcp" { max_request_json_strings = -1 }`:                  "0 or more",
		`listener "tcp" { custom_response_headers { "2x" = {} } }`:          "2xx",
		`listener "unix" { address = "/s" socket_mode = "999" }`:            "must be a mode",
		`storage "raft" { retry_join { auto_join = "provider=aws" } }`:      "headless service",
		`telemetry { statsite_address = "a:1" }`:                            "statsd_address",
		`plugin "auth" "a" { image = "x" }`:                                 "plugin_directory",
		`telemetry { circonus_api_url = "a" }`:                              "otlp_endpoint",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "coffer.hcl:1") {
			t.Errorf("%s: %v, want a word on %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		`listener "tcp" { tls_disable = true tls_client_ca_file = "a" tls_disable_client_certs = true }`: "contradicts",
		`listener "tcp" { tls_disable = true tls_min_version = "tls13" tls_max_version = "tls12" }`:      "below",
		`listener "unix" { address = "/s" }`:                                                                     `listener "tcp"`,
		`listener "tcp" { tls_disable = true } telemetry { statsd_address = "a" }`:                               "host:port",
		`listener "tcp" { tls_disable = true } telemetry { statsd_address = "a:1" dogstatsd_addr = "a:1" }`:      "one address",
		`listener "tcp" { tls_disable = true } telemetry { dogstatsd_tags = ["a"] }`:                             "dogstatsd_addr",
		`listener "tcp" { tls_disable = true } initialize "a" { request "b" { operation = "read" path = "p" } }`: "opens by itself",
		`listener "tcp" { tls_disable = true } seal "static" {} initialize "a" { request "b" { operation = "read" path = "p" } }
		storage "raft" { path = "d" retry_join { leader_api_addr = "https://b:1" } }`: "must name every node",
		`listener "tcp" { tls_disable = true } listener "unix" { address = "s" }`: "absolute path",
	} {
		c, err := load(t, `storage "raft" { path = "d" } `+text)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a word on %s", text, err, want)
		}
	}
}

// A listener that takes every address gets those of an interface, and a warning that says so.
func TestAddressesOfAnInterface(t *testing.T) {
	c, err := load(t, `listener "tcp" { address = "[::]:8200" tls_disable = true } storage "raft" { path = "d" }`)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Complete(); err != nil {
		if strings.Contains(err.Error(), "no address but loopback") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(c.APIAddr, "http://"))
	if err != nil || port != "8200" || net.ParseIP(host) == nil || net.ParseIP(host).IsUnspecified() || c.ClusterAddr != net.JoinHostPort(host, "8201") {
		t.Errorf("api_addr = %q, cluster_addr = %q", c.APIAddr, c.ClusterAddr)
	}
	if len(c.Warnings) != 2 || !strings.Contains(c.Warnings[0], "COFFER_API_ADDR") || !strings.Contains(c.Warnings[1], "COFFER_CLUSTER_ADDR") {
		t.Errorf("warnings: %q", c.Warnings)
	}
}

// Files of the family's documentation are accepted: metrics at a listener of their own, a plugin's checksum by its other name, zeroes.
func TestFilesOfDocumentation(t *testing.T) {
	c, err := load(t, `storage "raft" { path = "d" }
listener "tcp" { tls_disable = true max_request_size = 0 telemetry { disallow_metrics = true } }
listener "tcp" { address = "127.0.0.1:9101" tls_disable = true telemetry { metrics_only = true unauthenticated_metrics_access = true } }
plugin "secret" "aws" { command = "aws" sha256sum = "ab" }
plugin_download_behavior = "fail"`)
	if err == nil {
		err = c.Complete()
	}
	if err != nil || c.Plugins.Registered[0].SHA256 != "ab" {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = load(t, `storage "raft" { path = "d" } listener "tcp" { tls_disable = true } api_addr = "https://{{ GetPrivateIP }}:8200"`)
	if err == nil {
		err = c.Complete()
	}
	if err == nil || !strings.Contains(err.Error(), "COFFER_API_ADDR") {
		t.Errorf("a template: %v", err)
	}
}

// Of the nodes that share a file, the first in retry_join founds the cluster.
func TestWhoFounds(t *testing.T) {
	for own, founds := range map[string]bool{"https://a:1": true, "https://b:1": false} {
		c, err := load(t, `api_addr = "`+own+`" listener "tcp" { tls_disable = true } seal "static" {}
		storage "raft" { path = "d" retry_join { leader_api_addr = "https://a:1/" } retry_join { leader_api_addr = "https://b:1" } }
		initialize "a" { request "b" { operation = "read" path = "p" } }
		audit "file" "a" { options { file_path = "stdout" log_raw = true } }`)
		if err == nil {
			err = c.Complete()
		}
		if err != nil || c.Founds != founds || len(c.Initialize) != 1 || len(c.Audit.Devices) != 1 || c.Audit.Devices[0].Options["log_raw"] != "true" {
			t.Errorf("%s: founds %v, %+v, %v", own, c.Founds, c.Audit, err)
		}
	}
	c, err := load(t, `{"audit": [{"file": {"to-stdout": {"description": "d", "options": {"file_path": "stdout", "log_raw": "true"}}}}]}`)
	if err != nil || len(c.Audit.Devices) != 1 || c.Audit.Devices[0].Path != "to-stdout" || c.Audit.Devices[0].Options["file_path"] != "stdout" {
		t.Errorf("in JSON: %+v, %v", c, err)
	}
}
