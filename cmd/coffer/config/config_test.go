package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/engines"
)

func load(t *testing.T, text string) (*config.Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "coffer.hcl")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load(file)
}

const whole = `
cluster_name = "production"
api_addr     = "https://10.0.0.1:8200"
cluster_addr = "https://10.0.0.1:8201"
log_level    = "WARN"
log_format   = "json"
ui           = false
max_lease_ttl = "48h"
disable_mlock = true
listener "tcp" {
  address          = "0.0.0.0:8200"
  tls_cert_file    = "cert.pem"
  tls_key_file     = "key.pem"
  max_request_size = "1MiB"
  telemetry { unauthenticated_metrics_access = true }
}
storage "raft" {
  path    = "/var/lib/coffer"
  node_id = "n1"
  retry_join { leader_api_addr = "https://10.0.0.2:8200" }
  retry_join { leader_api_addr = "https://10.0.0.3:8200" }
  trailing_logs = 1000
}
seal "static" { current_key = "env://KEY" current_key_id = "k1" }
telemetry { prometheus_retention_time = "24h" }
user_lockout "all" { lockout_threshold = "25" lockout_duration = "5m" }
user_lockout "userpass" { lockout_counter_reset = "10m" disable_lockout = "true" }
`

func TestWholeFile(t *testing.T) {
	c, err := load(t, whole)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	if l := (engines.LockoutDefaults{ByType: c.UserLockout}).For("userpass", engines.LockoutSettings{}); l != (engines.Lockout{Threshold: 25, Duration: 5 * time.Minute, CounterReset: 10 * time.Minute, Disabled: true}) {
		t.Errorf("lockout = %+v", l)
	}
	l, s := c.Listeners[0], c.Storage
	if c.ClusterName != "production" || c.ClusterAddr != "10.0.0.1:8201" || c.LogLevel != "warn" || c.UI || c.MaxLeaseTTL != 48*time.Hour ||
		l.ClusterAddress != "0.0.0.0:8201" || l.MaxRequestBytes != 1<<20 || !l.UnauthMetricsAccess ||
		s.NodeID != "n1" || len(s.RetryJoin) != 2 || s.TrailingLogs != 1000 || c.Seal.Values["current_key_id"] != "k1" {
		t.Errorf("config = %+v", c)
	}
}

func TestDefaults(t *testing.T) {
	c, err := load(t, `listener "tcp" { address = "127.0.0.1:8200" tls_disable = true } storage "raft" { path = "d" }`)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	if c.APIAddr != "http://127.0.0.1:8200" || c.ClusterAddr != "127.0.0.1:8201" || c.Seal.Type != "shamir" || !c.UI || c.Storage.ScrubInterval != 24*time.Hour {
		t.Errorf("config = %+v", c)
	}
	for _, interval := range []string{"0", "500ms", "721h"} {
		c, err := load(t, `listener "tcp" { tls_disable = true } storage "raft" { path = "d" scrub_interval = "`+interval+`" }`)
		if err == nil {
			err = c.Complete()
		}
		if err == nil || !strings.Contains(err.Error(), "scrub_interval must be from 1s to 720h") {
			t.Errorf("scrub_interval %s: %v", interval, err)
		}
	}
}

func TestTimeouts(t *testing.T) {
	const second = time.Second
	for text, want := range map[string][2]time.Duration{
		``:                            {0, 0},
		`performance_multiplier = 0`:  {0, 0},
		`performance_multiplier = 1`:  {750 * time.Millisecond, 750 * time.Millisecond},
		`performance_multiplier = 10`: {7500 * time.Millisecond, 7500 * time.Millisecond},
		`performance_multiplier = 4`:  {3 * second, 3 * second},
		`performance_multiplier = 4 heartbeat_timeout = "1s"`:                         {second, 3 * second},
		`performance_multiplier = 4 heartbeat_timeout = "5s"`:                         {5 * second, 5 * second},
		`performance_multiplier = 4 heartbeat_timeout = "1s" election_timeout = "2s"`: {second, 2 * second},
	} {
		c, err := load(t, `listener "tcp" { tls_disable = true } storage "raft" { path = "d" `+text+" }")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Complete(); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := [2]time.Duration{c.Storage.HeartbeatTimeout, c.Storage.ElectionTimeout}; got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

func TestProblemsNameTheKey(t *testing.T) {
	for text, want := range map[string]string{
		`colour = "red"`:                                            `unknown key "colour"`,
		`listener "tcp" { adress = "x" }`:                           `"listener.adress"`,
		`listener "udp" {}`:                                         `the types are "tcp" and "unix"`,
		`storage "consul" {}`:                                       `the only type is "raft"`,
		`storage "raft" { path = 5 }`:                               `"path" must be a text`,
		`storage "raft" { trailing_logs = "-1" }`:                   `"trailing_logs" must be a whole number`,
		`storage "raft" { performance_multiplier = -1 }`:            `"performance_multiplier" must be a whole number`,
		`ui = "perhaps"`:                                            `"ui" must be true or false`,
		`max_lease_ttl = "soon"`:                                    `"max_lease_ttl" must be a duration`,
		`listener "tcp" { max_request_size = "1 acre"}`:             `"max_request_size" must be a size`,
		`seal "static" {} seal "shamir" {}`:                         "more than one seal",
		`seal "hsm" {}`:                                             `"hsm"`,
		`seal "static" { disabled=1 } seal "awskms" { disabled=1 }`: "more than one disabled",
		`seal "shamir" { disabled = "true" }`:                       "remove the disabled stanza",
		`seal "static" { disabled = "perhaps" }`:                    `"disabled" must be true or false`,
		`seal "static" { current_key { } }`:                         "plain value",
		`listener = "tcp"`:                                          `"listener" must be a block`,
		`max_lease_ttl = 9223372037`:                                `"max_lease_ttl" must be a duration`,
		`user_lockout "ldap" { lockout_threshold = 3 }`:             "userpass",
		`user_lockout "all" { lockout_threshold = 1001 }`:           `"lockout_threshold": must be from 1 to 1000`,
		`user_lockout "all" { lockout_duration = "1ms" }`:           `"lockout_duration": must be whole seconds`,
		`user_lockout "all" { lockout_disable = true }`:             `unknown key "user_lockout.lockout_disable"`,
		`user_lockout "all" {} user_lockout "all" {}`:               "two of them",
		`api_addr = "x`:                                             "coffer.hcl",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestIncomplete(t *testing.T) {
	const two = `storage "raft" { path = "d" } listener "tcp" { address = "127.0.0.1:1" tls_disable = true } listener "tcp" `
	for text, want := range map[string]string{
		`storage "raft" { path = "d" }`:                                                                                      "listener",
		`listener "tcp" { address = "127.0.0.1:1" tls_disable = true }`:                                                      "storage",
		`listener "tcp" { address = "127.0.0.1:1" } storage "raft" { path = "d" }`:                                           "tls_cert_file",
		`listener "tcp" { tls_disable = true } storage "raft" { path = "d" } api_addr = "10.0.0.1"`:                          "must be a URL",
		`listener "tcp" { tls_disable = true } storage "raft" { path = "d" } cluster_addr = "nowhere"`:                       "host:port",
		`listener "tcp" { tls_disable = true } storage "raft" { path = "d" } default_lease_ttl=9 max_lease_ttl=8`:            "default_lease_ttl",
		`listener "tcp" { tls_disable = true } storage "raft" { path = "d" performance_multiplier = 11 }`:                    "from 1 to 10",
		`listener "tcp" { tls_disable = true } storage "raft" { path = "d" performance_multiplier=4 election_timeout="1s" }`: "shorter than heartbeat_timeout",
		two + `{ address = "127.0.0.1:2" tls_disable = true max_request_size = "1KiB" }`:                                     "max_request_size",
		two + `{ address = "127.0.0.1:2" tls_disable = true telemetry { unauthenticated_metrics_access = true } }`:           "unauthenticated_metrics_access",
		two + `{ address = "127.0.0.1:2" tls_cert_file="c" tls_key_file="k" tls_require_and_verify_client_cert=1 }`:          "tls_client_ca_file",
	} {
		c, err := load(t, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if err := c.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A seal that is disabled is the one to leave; in whatever order they come.
func TestTwoSeals(t *testing.T) {
	old, fresh := `seal "awskms" { kms_key_id = "k" disabled = "true" }`, `seal "transit" { address = "https://a" tls_skip_verify = true }`
	for _, text := range []string{old + fresh, fresh + old} {
		c, err := load(t, text)
		if err != nil {
			t.Fatal(err)
		}
		if c.Seal.Type != "transit" || c.OldSeal.Type != "awskms" || len(c.OldSeal.Values) != 1 || c.OldSeal.Values["kms_key_id"] != "k" ||
			c.Seal.Values["tls_skip_verify"] != "true" {
			t.Errorf("%s: %v, old %v", text, c.Seal, c.OldSeal)
		}
	}
	c, err := load(t, old)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Complete()
	if c.Seal.Type != "shamir" || c.OldSeal.Type != "awskms" {
		t.Errorf("only a disabled seal: %v, old %v", c.Seal, c.OldSeal)
	}
}

func TestSealValuesStayHidden(t *testing.T) {
	c, err := load(t, `seal "static" { current_key = "do-not-show" }`)
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join([]string{c.Seal.String(), c.Seal.GoString()}, " "); strings.Contains(text, "do-not-show") {
		t.Error("the seal's key is printed")
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(whole)
	f.Add(`a {` + strings.Repeat("{", 100))
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 || strings.Count(text, "{") > 64 {
			t.Skip()
		}
		if c, err := load(t, text); err == nil {
			c.Complete()
		}
	})
}
