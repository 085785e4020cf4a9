// Package config reads the server's configuration: HCL files with the stanzas that operators of this family
// know. Keys of Vault and OpenBao that have no effect here are accepted with a warning (package known), unknown keys are rejected, and all
// problems are reported at once, each with file and line.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config/initialize"
	"github.com/coffer-project/coffer/engines"
)

// Config is a whole configuration. Zero values are defaults.
type Config struct {
	ClusterName            string
	APIAddr                string // URL
	ClusterAddr            string // host:port or URL
	LogLevel               string // trace, debug, info, warn, error
	LogFormat              string // text or json
	LogFile                string // "": stderr
	LogRotation            LogRotation
	PIDFile                string // "": none
	UI                     bool
	DefaultLeaseTTL        time.Duration
	MaxLeaseTTL            time.Duration
	UnauthenticatedMetrics bool
	// UserLockout has the user_lockout stanzas by label: a type of auth method, or "all".
	UserLockout map[string]engines.LockoutSettings
	Listeners   []Listener
	Storage     Storage
	Snapshots   Snapshots
	Audit       Audit
	// FreeSpaceWarning is how many bytes should be free on the disks of data and audit files.
	FreeSpaceWarning int64
	FreeSpacePercent int64 // likewise, of the size of the disk
	Replication      Replication
	Sync             Sync
	Plugins          Plugins
	Traces           Traces
	Statsd           Statsd
	Initialize       []initialize.Request // what the first start of a cluster does
	Founds           bool                 // this node is the one that does it
	Seal             Seal
	OldSeal          Seal // the seal that is disabled: what the cluster is to leave; "" for none

	MaxRequestDuration time.Duration // of listeners that do not say
	HostnameHeader     bool          // responses name the host
	NodeIDHeader       bool          // responses name the node
	Registration       *Registration // nil: none
	// Warnings say which keys have no effect, and what was derived and may be wrong. They are not errors.
	Warnings []string
}

// Listener is one address that the API is served at.
type Listener struct {
	Address             string // host:port
	ClusterAddress      string // host:port of the cluster listener; default: the same host, port + 1
	TLSDisable          bool
	TLSCertFile         string
	TLSKeyFile          string
	TLSMinVersion       string // tls12 or tls13
	TLSClientCAFile     string
	TLSRequireClient    bool
	MaxRequestBytes     int64
	MaxRequestDuration  time.Duration
	ReadHeaderTimeout   time.Duration
	UnauthMetricsAccess bool
	JSON                JSONLimits
	RequestMemory       int64 // bytes that bodies of requests with a token may take; 0: a default
	MaxConnections      int64 // 0: a default
	MaxConnectionsEach  int64 // of one address; 0: a default
	OpenCeremonies      bool  // generate-root and rekey need no token
	RedactAddresses     bool
	RedactVersion       bool
	RedactClusterName   bool
	Forwarded           ForwardedFor
	Proxy               ProxyProtocol

	Unix                  bool // Address is the path of a socket
	Socket                Socket
	TLSMaxVersion         string // likewise
	TLSCipherSuites       []uint16
	TLSDisableClientCerts bool
	ReadTimeout           time.Duration
	WriteTimeout          time.Duration
	IdleTimeout           time.Duration
	Headers               map[string]map[string][]string // of responses, by status: "default", "2xx" or "200"
	NoMetrics             bool                           // sys/metrics is not served
	MetricsOnly           bool                           // nothing else is served
}

// JSONLimits bound bodies in JSON. 0: the server's own bound, which no number is above.
type JSONLimits struct {
	Memory       int64 // bytes that a body may take when it is decoded, estimated
	Depth        int64 // objects and lists in each other
	Strings      int64 // texts: names and values
	StringLength int64 // bytes of one text
	Entries      int64 // of one object
	Elements     int64 // of one list
}

// Storage is the raft stanza.
type Storage struct {
	Path              string
	NodeID            string
	RetryJoin         []RetryJoin
	NonVoter          bool
	HeartbeatTimeout  time.Duration
	ElectionTimeout   time.Duration
	Multiplier        int64 // of those two, where they are not set; 0: they are what package cluster has
	TrailingLogs      int64
	SnapshotThreshold int64
	SnapshotInterval  time.Duration
	FreeSpaceMinimum  int64         // bytes that must be free for writes of clients; negative: a default
	BallastSize       int64         // bytes of the file that keeps room on the disk; negative: a default
	ScrubInterval     time.Duration // time in which every file is read once and compared with its checksums
	VerifyAtStart     int64         // bytes of a state file that is checked as a whole before it is used
}

// Snapshots is what operators allow schedules of snapshots to do.
type Snapshots struct {
	LocalRoot string // directory below which they may keep files; "": nowhere on this node's disk
}

// Audit is what operators allow audit devices to do.
type Audit struct {
	FileRoots []string      // directories below which their files may be; nil: one beside the data directory
	Devices   []AuditDevice // that the cluster has as long as the configuration has them
}

// AuditDevice is an audit stanza with a type and a path.
type AuditDevice struct {
	Type, Path, Description string
	Options                 map[string]string
}

// Plugins is how engines run that are programs of their own.
type Plugins struct {
	Directory   string // of their files
	User        string // that they run as; "": the server's
	MemoryLimit int64  // bytes, of each; 0: the default
	Registered  []Plugin
}

// Plugin is one that the configuration registers.
type Plugin struct {
	Type, Name, Version, Command, SHA256 string
	Args, Env                            []string
}

// Sync is what operators decide about secret sync, and callers of the API cannot.
type Sync struct {
	AllowPrivate      bool                // destinations may be at private, link-local and loopback addresses
	Endpoints         map[string]Endpoint // in place of the vendors' own, by type of destination
	NoVendorTypeNames bool                // vendors' names of types, such as aws-sm, are rejected
	// EnvironmentCredentials says who may use the server's own credentials: "all" namespaces, the "root" one, or "none".
	EnvironmentCredentials string
}

// Endpoint is where destinations of a type are.
type Endpoint struct {
	URL          string `json:"url,omitempty"`
	AuthorityURL string `json:"authority_url,omitempty"` // of cloud2-kv: who issues its tokens
	TokenURL     string `json:"token_url,omitempty"`     // of cloud3-sm: likewise
	CAFile       string `json:"ca_file,omitempty"`       // certificates to trust, PEM; "": the system's
	// The budget of each of them, in place of what is known of the vendor; 0: that.
	WritesPerSecond float64 `json:"writes_per_second,omitempty"`
	ReadsPerSecond  float64 `json:"reads_per_second,omitempty"`
}

// EndpointTypes are the types of destinations.
var EndpointTypes = []string{"cloud1-sm", "cloud1-ssm", "cloud2-kv", "cloud3-sm", "gitlab", "kubernetes", "repohost", "webhook", "webhost-project"}

// Replication is how much of its changes a node keeps for other clusters. Zero values leave it to the log.
type Replication struct {
	LogBytes int64         // most bytes on the disk
	LogAge   time.Duration // what no secondary needs is removed after this time
}

// Traces says where spans of requests go.
type Traces struct {
	Endpoint    string  // host:port of a collector's OTLP/gRPC port; "": nowhere
	Insecure    bool    // without TLS
	SampleRatio float64 // 0 to 1; default 1
}

// Statsd says where metrics are sent over UDP.
type Statsd struct {
	Address    string        // host:port; "": nowhere
	DogAddress string        // likewise, of DogStatsD, which gets labels as tags
	Tags       []string      // of every metric, for DogStatsD
	Every      time.Duration // 0: a default
}

// RetryJoin is a node of the cluster to join.
type RetryJoin struct {
	LeaderAPIAddr        string
	LeaderCACertFile     string
	LeaderCACert         string
	LeaderClientCertFile string
	LeaderClientKeyFile  string
	LeaderServerName     string
	LeaderClientCert     string // PEM
	LeaderClientKey      string // PEM

	file string // that has it
	line int
}

// Seal is a seal stanza. Values are the type's own and may be secret.
type Seal struct {
	Type   string // "shamir", "static", "transit", "awskms", "gcpckms" or "azurekeyvault"
	Values map[string]string
}

// String keeps the values of the seal out of logs.
func (s Seal) String() string { return "seal " + s.Type }

// GoString is String.
func (s Seal) GoString() string { return s.String() }

// Load reads files, and the *.hcl and *.json files of directories, as one configuration. The error joins all
// problems.
func Load(paths ...string) (*Config, error) {
	c := &Config{UI: true, FreeSpaceWarning: 1 << 30, FreeSpacePercent: 10, Storage: Storage{FreeSpaceMinimum: -1, BallastSize: -1, ScrubInterval: 24 * time.Hour, VerifyAtStart: 64 << 20}, Traces: Traces{SampleRatio: 1}}
	d := &decoder{}
	for _, path := range paths {
		files, err := expand(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("reading the configuration: %w", err)
			}
			d.file(file, string(text), c)
		}
	}
	c.Warnings = d.warnings
	// The first listener is the one that other nodes reach this one at.
	slices.SortStableFunc(c.Listeners, func(a, b Listener) int { return cmp.Compare(bit(a.Unix), bit(b.Unix)) })
	if len(d.problems) > 0 {
		return nil, errors.Join(append(d.problems, c.Complete())...)
	}
	return c, nil
}

func expand(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	for _, pattern := range []string{"*.hcl", "*.json"} {
		found, err := filepath.Glob(filepath.Join(path, pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("reading the configuration: %s holds no .hcl or .json file", path)
	}
	sort.Strings(files)
	return files, nil
}

// Complete fills what follows from other values and reports everything that is missing or contradictory.
func (c *Config) Complete() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Storage.Path == "" {
		add(`storage "raft" { path = "…" } is missing: it names the directory for the data`)
	}
	if len(c.Listeners) == 0 || c.Listeners[0].Unix {
		add(`listener "tcp" { address = "…" } is missing`)
	}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		l.MaxRequestDuration = cmp.Or(l.MaxRequestDuration, c.MaxRequestDuration)
		l.complete(add)
	}
	if c.Seal.Type == "" {
		c.Seal.Type = "shamir"
	}
	if len(c.Listeners) > 0 && !c.Listeners[0].Unix {
		c.addresses(add)
		c.alike(add)
	}
	c.files(add)
	if c.LogFile == "" && c.LogRotation != (LogRotation{}) {
		c.Warnings = append(c.Warnings, "log_rotate_bytes, log_rotate_duration and log_rotate_max_files have no effect without log_file")
	}
	for _, j := range c.Storage.RetryJoin {
		if u, err := url.Parse(j.LeaderAPIAddr); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			add("%s:%d: retry_join: leader_api_addr must be a URL such as https://10.0.0.1:8200", j.file, j.line)
		}
		for file, both := range map[string]bool{
			"leader_ca_cert": j.LeaderCACert != "" && j.LeaderCACertFile != "", "leader_client_cert": j.LeaderClientCert != "" && j.LeaderClientCertFile != "",
			"leader_client_key": j.LeaderClientKey != "" && j.LeaderClientKeyFile != "",
		} {
			if both {
				add("%s:%d: retry_join: give %s or %s_file, not both", j.file, j.line, file, file)
			}
		}
	}
	c.founds(add)
	// All nodes may have one retry_join: a node does not join itself.
	c.Storage.RetryJoin = slices.DeleteFunc(c.Storage.RetryJoin, func(j RetryJoin) bool {
		return c.isOwn(j)
	})
	c.Storage.timeouts(add)
	if c.FreeSpacePercent > 99 {
		add("free_space_warning_percent must be a number from 0 to 99")
	}
	if c.DefaultLeaseTTL > 0 && c.MaxLeaseTTL > 0 && c.DefaultLeaseTTL > c.MaxLeaseTTL {
		add("default_lease_ttl must not be longer than max_lease_ttl")
	}
	return errors.Join(problems...)
}

func (c *Config) isOwn(j RetryJoin) bool {
	return strings.TrimRight(j.LeaderAPIAddr, "/") == strings.TrimRight(c.APIAddr, "/")
}

// founds decides whether this node does what the initialize stanzas say: of several only the first one in retry_join, so that they
// never found two clusters.
func (c *Config) founds(add func(string, ...any)) {
	if len(c.Initialize) == 0 {
		return
	}
	if c.Seal.Type == "shamir" {
		add("initialize needs a seal that opens by itself: its key shares could be shown to no one")
	}
	if err := initialize.Check(c.Initialize); err != nil {
		add("%w", err)
	}
	own := slices.IndexFunc(c.Storage.RetryJoin, c.isOwn)
	if own < 0 && len(c.Storage.RetryJoin) > 0 {
		add("initialize: retry_join must name every node by its api_addr, this one (%s) too: the first of them founds the cluster", c.APIAddr)
	}
	c.Founds = own <= 0
}

// oneTimeout is what both timeouts are when performance_multiplier is 1.
const oneTimeout = 750 * time.Millisecond

func (s *Storage) timeouts(add func(string, ...any)) {
	if s.Multiplier > 10 {
		add("storage: performance_multiplier must be a number from 1 to 10, or 0 for the default")
	} else if s.Multiplier > 0 {
		each := time.Duration(s.Multiplier) * oneTimeout
		s.HeartbeatTimeout = cmp.Or(s.HeartbeatTimeout, each)
		s.ElectionTimeout = cmp.Or(s.ElectionTimeout, max(each, s.HeartbeatTimeout))
	}
	if h, e := s.HeartbeatTimeout, s.ElectionTimeout; h > 0 && e > 0 && e < h {
		add("storage: election_timeout must not be shorter than heartbeat_timeout")
	}
	if i := s.ScrubInterval; i < time.Second || i > 30*24*time.Hour {
		add("storage: scrub_interval must be from 1s to 720h")
	}
}

// files reports what is wrong with the places of files, and with the collector's.
func (c *Config) files(add func(string, ...any)) {
	for kind, e := range c.Sync.Endpoints {
		for name, text := range map[string]string{"url": e.URL, "authority_url": e.AuthorityURL, "token_url": e.TokenURL} {
			if u, err := url.Parse(text); text != "" && (err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http") {
				add("sync.endpoint %q: %s must be a URL such as https://secrets.example.com", kind, name)
			}
		}
	}
	if root := c.Snapshots.LocalRoot; root != "" && !filepath.IsAbs(root) {
		add("snapshots: local_root %q must be an absolute path", root)
	}
	if dir := c.Plugins.Directory; dir != "" && !filepath.IsAbs(dir) {
		add("plugin_directory %q must be an absolute path", dir)
	}
	for _, root := range c.Audit.FileRoots {
		if !filepath.IsAbs(root) {
			add("audit: file_roots: %q must be an absolute path", root)
		}
	}
	for _, address := range []string{c.Statsd.Address, c.Statsd.DogAddress} {
		if _, _, err := net.SplitHostPort(address); err != nil && address != "" {
			add("telemetry: statsd_address and dogstatsd_addr must be host:port, such as statsd.example:8125, not %q", address)
		}
	}
	if c.Statsd.Address != "" && c.Statsd.DogAddress != "" {
		add("telemetry: metrics are sent to one address: give statsd_address or dogstatsd_addr")
	}
	if c.Statsd.Tags != nil && c.Statsd.DogAddress == "" {
		add("telemetry: dogstatsd_tags means nothing without dogstatsd_addr")
	}
	if c.Traces.Endpoint == "" {
		return
	}
	if _, _, err := net.SplitHostPort(c.Traces.Endpoint); err != nil {
		add("telemetry: otlp_endpoint %q must be host:port, such as collector.example:4317", c.Traces.Endpoint)
	}
}

func (l *Listener) complete(add func(string, ...any)) {
	l.protection(add)
	if l.Unix {
		l.socket(add)
		return
	}
	if l.Address == "" {
		l.Address = "127.0.0.1:8200"
	}
	host, port, err := net.SplitHostPort(l.Address)
	if err != nil {
		add("listener: address %q must be host:port", l.Address)
		return
	}
	switch {
	case l.TLSDisable:
	case l.TLSCertFile == "" || l.TLSKeyFile == "":
		add("listener %s: tls_cert_file and tls_key_file are missing (or set tls_disable = true, for tests)", l.Address)
	}
	if l.TLSRequireClient && (l.TLSDisable || l.TLSClientCAFile == "") {
		add("listener %s: tls_require_and_verify_client_cert needs TLS and tls_client_ca_file, or anybody's certificate would do", l.Address)
	}
	l.proxies(add)
	if l.MaxConnections > 0 && l.MaxConnectionsEach > l.MaxConnections {
		add("listener %s: max_connections_per_address must not be more than max_connections", l.Address)
	}
	if l.RequestMemory > 0 && l.RequestMemory < 4*cmp.Or(l.MaxRequestBytes, DefaultRequestBytes) {
		add("listener %s: max_request_memory must be four times max_request_size or more, so that each address has room for a whole request", l.Address)
	}
	if l.ClusterAddress == "" && port != "0" {
		if n, err := net.LookupPort("tcp", port); err == nil {
			l.ClusterAddress = net.JoinHostPort(host, fmt.Sprint(n+1))
		}
	}
}

// alike reports what cannot differ between listeners. Taking the first one's limits for all, or opening the
// metrics on all because one opens them, would not be what was written.
func (c *Config) alike(add func(string, ...any)) {
	first := c.Listeners[0]
	for _, l := range c.Listeners[1:] {
		if l.MaxRequestBytes != first.MaxRequestBytes || l.MaxRequestDuration != first.MaxRequestDuration || l.RequestMemory != first.RequestMemory || l.JSON != first.JSON {
			add("listener %s: max_request_size, max_request_memory, max_request_duration and the limits of JSON must be the same for every listener", l.Address)
		}
	}
	serving := slices.DeleteFunc(slices.Clone(c.Listeners), func(l Listener) bool { return l.NoMetrics })
	for i, l := range serving {
		if l.UnauthMetricsAccess != serving[0].UnauthMetricsAccess && i > 0 {
			add("listener %s: unauthenticated_metrics_access must be the same for every listener that serves metrics", l.Address)
		}
	}
}
