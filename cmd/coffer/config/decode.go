package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/hashicorp/hcl"
	"github.com/hashicorp/hcl/hcl/ast"
	"github.com/hashicorp/hcl/hcl/token"
)

// decoder walks a parsed file and collects problems instead of stopping at the first.
type decoder struct {
	name     string
	problems []error
	warnings []string
	declared func(where string, fields map[string]field) // in tests: gets every stanza
}

// field takes the value of one key.
type field func(d *decoder, item *ast.ObjectItem)

// maxFileBytes bounds a configuration file: the parser's time grows faster than its input.
const maxFileBytes = 256 << 10

func (d *decoder) file(name, text string, c *Config) {
	d.name = name
	if len(text) > maxFileBytes {
		d.problems = append(d.problems, fmt.Errorf("%s: larger than %d bytes", name, maxFileBytes))
		return
	}
	tree, err := hcl.Parse(text)
	if err != nil {
		d.problems = append(d.problems, fmt.Errorf("%s: %w", name, err))
		return
	}
	list, ok := tree.Node.(*ast.ObjectList)
	if !ok {
		d.problems = append(d.problems, fmt.Errorf("%s: not a configuration", name))
		return
	}
	fields := map[string]field{
		"cluster_name":        text1(&c.ClusterName),
		"api_addr":            text1(&c.APIAddr),
		"cluster_addr":        text1(&c.ClusterAddr),
		"log_level":           logLevel(&c.LogLevel),
		"log_format":          logFormat(&c.LogFormat),
		"log_file":            text1(&c.LogFile),
		"pid_file":            text1(&c.PIDFile),
		"snapshots":           d.snapshots(c),
		"audit":               d.audit(c),
		"initialize":          d.initialize(c),
		"replication":         d.replication(c),
		"sync":                d.sync(c),
		"ui":                  boolean(&c.UI),
		"plugin":              d.plugin(c),
		"plugin_directory":    text1(&c.Plugins.Directory),
		"plugin_user":         text1(&c.Plugins.User),
		"plugin_memory_limit": sizeOr0(&c.Plugins.MemoryLimit),
		"default_lease_ttl":   duration(&c.DefaultLeaseTTL),
		"max_lease_ttl":       duration(&c.MaxLeaseTTL),
		"telemetry":           d.telemetry(c),
		"user_lockout":        d.userLockout(c),
		"listener":            d.listener(c),
		"storage":             d.storage(c),
		"seal":                d.seal(c),

		"service_registration":                d.registration(c),
		"enable_response_header_hostname":     boolean(&c.HostnameHeader),
		"enable_response_header_raft_node_id": boolean(&c.NodeIDHeader),
		"default_max_request_duration":        duration(&c.MaxRequestDuration),

		"free_space_warning":         sizeOr0(&c.FreeSpaceWarning),
		"free_space_warning_percent": number(&c.FreeSpacePercent),
	}
	maps.Copy(fields, c.LogRotation.fields())
	d.object("", list, fields)
}

func (d *decoder) problem(pos token.Pos, format string, args ...any) {
	d.problems = append(d.problems, fmt.Errorf("%s:%d: %s", d.name, pos.Line, fmt.Sprintf(format, args...)))
}

func keyOf(item *ast.ObjectItem) string { return strings.Trim(item.Keys[0].Token.Text, `"`) }

// object hands each item to its field. where names the stanza in messages.
func (d *decoder) object(where string, list *ast.ObjectList, fields map[string]field) {
	if d.declared != nil {
		d.declared(where, fields)
	}
	for _, item := range list.Items {
		name := keyOf(item)
		f := fields[name]
		if f == nil {
			d.other(where, item)
			continue
		}
		f(d, item)
	}
}

// block returns the label and the content of a stanza such as listener "tcp" { … }.
func (d *decoder) block(item *ast.ObjectItem) (label string, list *ast.ObjectList) {
	if len(item.Keys) > 1 {
		label = strings.Trim(item.Keys[1].Token.Text, `"`)
	}
	if object, ok := item.Val.(*ast.ObjectType); ok {
		return label, object.List
	}
	d.problem(item.Pos(), "%q must be a block", keyOf(item))
	return label, &ast.ObjectList{}
}

func (d *decoder) telemetry(c *Config) field {
	return func(d *decoder, item *ast.ObjectItem) {
		_, list := d.block(item)
		d.object("telemetry", list, map[string]field{
			"unauthenticated_metrics_access": boolean(&c.UnauthenticatedMetrics),
			"otlp_endpoint":                  text1(&c.Traces.Endpoint),
			"otlp_insecure":                  boolean(&c.Traces.Insecure),
			"sample_ratio":                   ratio(&c.Traces.SampleRatio),
			"statsd_address":                 text1(&c.Statsd.Address),
			"dogstatsd_addr":                 text1(&c.Statsd.DogAddress),
			"dogstatsd_tags":                 texts(&c.Statsd.Tags),
			"statsd_interval":                duration(&c.Statsd.Every),
		})
	}
}

func (d *decoder) snapshots(c *Config) field {
	return func(d *decoder, item *ast.ObjectItem) {
		_, list := d.block(item)
		d.object("snapshots", list, map[string]field{"local_root": text1(&c.Snapshots.LocalRoot)})
	}
}

func (d *decoder) sync(c *Config) field {
	return func(d *decoder, item *ast.ObjectItem) {
		_, list := d.block(item)
		vendorNames := true
		defer func() { c.Sync.NoVendorTypeNames = !vendorNames }()
		d.object("sync", list, map[string]field{
			"vendor_type_names":       boolean(&vendorNames),
			"allow_private_addresses": boolean(&c.Sync.AllowPrivate), "endpoint": d.endpoint(&c.Sync),
			"environment_credentials": choice(&c.Sync.EnvironmentCredentials, "all", "root", "none"),
		})
	}
}

func (d *decoder) endpoint(s *Sync) field {
	return func(d *decoder, item *ast.ObjectItem) {
		label, list := d.block(item)
		if !slices.Contains(EndpointTypes, label) {
			d.problem(item.Pos(), "sync.endpoint %q: the types are %s", label, strings.Join(EndpointTypes, ", "))
		}
		if _, twice := s.Endpoints[label]; twice {
			d.problem(item.Pos(), "sync.endpoint %q: there are two of them", label)
		}
		var e Endpoint
		d.object("sync.endpoint", list, map[string]field{
			"url": text1(&e.URL), "authority_url": text1(&e.AuthorityURL), "token_url": text1(&e.TokenURL), "ca_file": text1(&e.CAFile),
			"writes_per_second": perSecond(&e.WritesPerSecond), "reads_per_second": perSecond(&e.ReadsPerSecond),
		})
		if s.Endpoints == nil {
			s.Endpoints = map[string]Endpoint{}
		}
		s.Endpoints[label] = e
	}
}

func (d *decoder) userLockout(c *Config) field {
	return func(d *decoder, item *ast.ObjectItem) {
		label, list := d.block(item)
		if label != "all" && !slices.Contains(engines.LockoutTypes, label) {
			d.problem(item.Pos(), "user_lockout %q: the labels are \"all\" and the auth methods with passwords: %s", label, strings.Join(engines.LockoutTypes, ", "))
		}
		if _, twice := c.UserLockout[label]; twice {
			d.problem(item.Pos(), "user_lockout %q: there are two of them", label)
		}
		var l engines.LockoutSettings
		var threshold int64
		disabled, given := false, false
		d.object("user_lockout", list, map[string]field{
			"lockout_threshold": number(&threshold), "lockout_duration": duration(&l.Duration), "lockout_counter_reset": duration(&l.CounterReset),
			"disable_lockout": func(d *decoder, item *ast.ObjectItem) {
				given = true
				boolean(&disabled)(d, item)
			},
		})
		if given {
			l.Disabled = &disabled
		}
		l.Threshold = int(min(threshold, engines.MaxLockoutThreshold+1))
		if err := l.Validate(); err != nil {
			d.problem(item.Pos(), "user_lockout %q: %v", label, err)
		}
		if c.UserLockout == nil {
			c.UserLockout = map[string]engines.LockoutSettings{}
		}
		c.UserLockout[label] = l
	}
}

func (d *decoder) replication(c *Config) field {
	return func(d *decoder, item *ast.ObjectItem) {
		_, list := d.block(item)
		d.object("replication", list, map[string]field{
			"log_max_size": size(&c.Replication.LogBytes), "log_max_age": duration(&c.Replication.LogAge),
		})
	}
}

func (d *decoder) listener(c *Config) field {
	return func(d *decoder, item *ast.ObjectItem) {
		label, list := d.block(item)
		if label != "tcp" && label != "unix" {
			d.problem(item.Pos(), "listener %q: the types are \"tcp\" and \"unix\"", label)
		}
		l := Listener{Unix: label == "unix", Forwarded: ForwardedFor{RejectNotPresent: true, RejectNotAuthorized: true}}
		d.object("listener", list, map[string]field{
			"address":                            text1(&l.Address),
			"cluster_address":                    text1(&l.ClusterAddress),
			"tls_disable":                        boolean(&l.TLSDisable),
			"tls_cert_file":                      text1(&l.TLSCertFile),
			"tls_key_file":                       text1(&l.TLSKeyFile),
			"tls_min_version":                    choice(&l.TLSMinVersion, "tls12", "tls13"),
			"tls_max_version":                    choice(&l.TLSMaxVersion, "tls12", "tls13"),
			"tls_cipher_suites":                  cipherSuites(&l.TLSCipherSuites),
			"tls_disable_client_certs":           boolean(&l.TLSDisableClientCerts),
			"tls_client_ca_file":                 text1(&l.TLSClientCAFile),
			"tls_require_and_verify_client_cert": boolean(&l.TLSRequireClient),
			"max_request_size":                   sizeOr0(&l.MaxRequestBytes),
			"max_request_duration":               duration(&l.MaxRequestDuration),
			"max_request_json_memory":            sizeOr0(&l.JSON.Memory),
			"max_request_json_strings":           number(&l.JSON.Strings),
			"max_request_json_depth":             number(&l.JSON.Depth),
			"max_json_depth":                     number(&l.JSON.Depth),
			"max_json_object_entry_count":        number(&l.JSON.Entries),
			"max_json_array_element_count":       number(&l.JSON.Elements),
			"max_json_string_value_length":       sizeOr0(&l.JSON.StringLength),
			"http_read_header_timeout":           duration(&l.ReadHeaderTimeout),
			"http_read_timeout":                  duration(&l.ReadTimeout),
			"http_write_timeout":                 duration(&l.WriteTimeout),
			"http_idle_timeout":                  duration(&l.IdleTimeout),
			"socket_mode":                        d.socketMode(&l.Socket.Mode),
			"socket_user":                        text1(&l.Socket.User),
			"socket_group":                       text1(&l.Socket.Group),
			"custom_response_headers":            d.headers(&l.Headers),
			"max_request_memory":                 size(&l.RequestMemory),
			"max_connections":                    number(&l.MaxConnections),
			"max_connections_per_address":        number(&l.MaxConnectionsEach),
			"enable_unauthenticated_ceremonies":  boolean(&l.OpenCeremonies),
			"redact_addresses":                   boolean(&l.RedactAddresses),
			"redact_version":                     boolean(&l.RedactVersion),
			"redact_cluster_name":                boolean(&l.RedactClusterName),

			"x_forwarded_for_authorized_addrs":            networks(&l.Forwarded.Authorized),
			"x_forwarded_for_hop_skips":                   given(&l.Forwarded.Given, number(&l.Forwarded.HopSkips)),
			"x_forwarded_for_reject_not_present":          given(&l.Forwarded.Given, boolean(&l.Forwarded.RejectNotPresent)),
			"x_forwarded_for_reject_not_authorized":       given(&l.Forwarded.Given, boolean(&l.Forwarded.RejectNotAuthorized)),
			"x_forwarded_for_client_cert_header":          given(&l.Forwarded.Given, text1(&l.Forwarded.CertHeader)),
			"x_forwarded_for_client_cert_header_decoders": given(&l.Forwarded.Given, decoders(&l.Forwarded.CertDecoders)),
			"proxy_protocol_behavior":                     choice(&l.Proxy.Behavior, "use_always", "allow_authorized", "deny_unauthorized"),
			"proxy_protocol_authorized_addrs":             networks(&l.Proxy.Authorized),
			"telemetry": func(d *decoder, item *ast.ObjectItem) {
				_, list := d.block(item)
				d.object("listener.telemetry", list, map[string]field{
					"unauthenticated_metrics_access": boolean(&l.UnauthMetricsAccess),
					"disallow_metrics":               boolean(&l.NoMetrics), "metrics_only": boolean(&l.MetricsOnly),
				})
			},
		})
		c.Listeners = append(c.Listeners, l)
	}
}

func (d *decoder) storage(c *Config) field {
	return func(d *decoder, item *ast.ObjectItem) {
		label, list := d.block(item)
		if label != "raft" {
			d.problem(item.Pos(), "storage %q: the only type is \"raft\"", label)
		}
		s := &c.Storage
		d.object("storage", list, map[string]field{
			"path":                    text1(&s.Path),
			"node_id":                 text1(&s.NodeID),
			"retry_join":              d.retryJoin(s),
			"retry_join_as_non_voter": boolean(&s.NonVoter),
			"heartbeat_timeout":       duration(&s.HeartbeatTimeout),
			"election_timeout":        duration(&s.ElectionTimeout),
			"trailing_logs":           number(&s.TrailingLogs),
			"snapshot_threshold":      number(&s.SnapshotThreshold),
			"snapshot_interval":       duration(&s.SnapshotInterval),
			"performance_multiplier":  number(&s.Multiplier),
			"free_space_minimum":      sizeOr0(&s.FreeSpaceMinimum),
			"ballast_size":            sizeOr0(&s.BallastSize),
			"scrub_interval":          duration(&s.ScrubInterval),
			"verify_at_start":         sizeOr0(&s.VerifyAtStart),
		})
	}
}

// retryJoin takes one stanza, or a list of them.
func (d *decoder) retryJoin(s *Storage) field {
	return func(d *decoder, item *ast.ObjectItem) {
		blocks := []ast.Node{item.Val}
		if list, ok := item.Val.(*ast.ListType); ok {
			blocks = list.List
		}
		for _, block := range blocks {
			_, list := d.block(&ast.ObjectItem{Keys: item.Keys, Assign: item.Assign, Val: block})
			j := RetryJoin{file: d.name, line: item.Pos().Line}
			d.object("storage.retry_join", list, map[string]field{
				"leader_api_addr":         text1(&j.LeaderAPIAddr),
				"leader_ca_cert_file":     text1(&j.LeaderCACertFile),
				"leader_ca_cert":          text1(&j.LeaderCACert),
				"leader_client_cert_file": text1(&j.LeaderClientCertFile),
				"leader_client_cert":      text1(&j.LeaderClientCert),
				"leader_client_key_file":  text1(&j.LeaderClientKeyFile),
				"leader_client_key":       text1(&j.LeaderClientKey),
				"leader_tls_servername":   text1(&j.LeaderServerName),
			})
			s.RetryJoin = append(s.RetryJoin, j)
		}
	}
}

// SealTypes are the labels of seal stanzas.
var SealTypes = []string{"shamir", "static", "transit", "awskms", "gcpckms", "azurekeyvault"}

// seal reads a stanza. There may be two: the seal the cluster has or shall get, and one that is disabled, which it has
// and shall leave. The settings are checked by those who know them.
func (d *decoder) seal(c *Config) field {
	return func(d *decoder, item *ast.ObjectItem) {
		label, list := d.block(item)
		if !slices.Contains(SealTypes, label) {
			d.problem(item.Pos(), "seal %q: the types are %s", label, strings.Join(SealTypes, ", "))
		}
		s, disabled := Seal{Type: label, Values: map[string]string{}}, false
		for _, item := range list.Items {
			if keyOf(item) == "disabled" {
				boolean(&disabled)(d, item)
				continue
			}
			s.Values[keyOf(item)], _, _ = d.literal(item)
		}
		into := &c.Seal
		if disabled {
			into = &c.OldSeal
		}
		switch {
		case into.Type != "" && disabled:
			d.problem(item.Pos(), "there is more than one disabled seal stanza")
		case into.Type != "":
			d.problem(item.Pos(), "there is more than one seal stanza: give the one that the cluster is to leave disabled = \"true\"")
		case disabled && label == "shamir":
			d.problem(item.Pos(), "a shamir seal is left by configuring another one: remove the disabled stanza")
		default:
			*into = s
		}
	}
}

// plugin decodes plugin "auth" "jwt" { … }: one that is registered on every node that has the stanza.
func (d *decoder) plugin(c *Config) field {
	return func(d *decoder, item *ast.ObjectItem) {
		if len(item.Keys) != 3 {
			d.problem(item.Pos(), "a plugin stanza has a type and a name: plugin \"secret\" \"transit\" { … }")
			return
		}
		_, list := d.block(item)
		p := Plugin{Type: strings.Trim(item.Keys[1].Token.Text, `"`), Name: strings.Trim(item.Keys[2].Token.Text, `"`)}
		d.object("plugin", list, map[string]field{
			"command": text1(&p.Command), "sha256": text1(&p.SHA256), "sha256sum": text1(&p.SHA256), "version": text1(&p.Version), "args": texts(&p.Args), "env": texts(&p.Env),
		})
		c.Plugins.Registered = append(c.Plugins.Registered, p)
	}
}

// literal returns the text of a plain value. It never shows the value in a problem.
func (d *decoder) literal(item *ast.ObjectItem) (text string, kind token.Type, ok bool) {
	lit, isLiteral := item.Val.(*ast.LiteralType)
	if !isLiteral || len(item.Keys) != 1 {
		d.problem(item.Pos(), "%q must be a plain value", keyOf(item))
		return "", 0, false
	}
	switch v := lit.Token.Value().(type) {
	case string:
		return v, lit.Token.Type, true
	default:
		return fmt.Sprint(v), lit.Token.Type, true
	}
}

func text1(into *string) field {
	return func(d *decoder, item *ast.ObjectItem) {
		v, kind, ok := d.literal(item)
		if !ok {
			return
		}
		if kind != token.STRING && kind != token.HEREDOC {
			d.problem(item.Pos(), "%q must be a text in quotes", keyOf(item))
			return
		}
		*into = v
	}
}

// texts takes a list of texts. An empty one is a list, too.
func texts(into *[]string) field {
	return func(d *decoder, item *ast.ObjectItem) {
		list, ok := item.Val.(*ast.ListType)
		*into = []string{}
		for i := 0; ok && i < len(list.List); i++ {
			lit, literal := list.List[i].(*ast.LiteralType)
			if ok = literal && lit.Token.Type == token.STRING; ok {
				*into = append(*into, fmt.Sprint(lit.Token.Value()))
			}
		}
		if !ok {
			d.problem(item.Pos(), "%q must be a list of texts in quotes, such as [\"a\", \"b\"]", keyOf(item))
		}
	}
}

func choice(into *string, values ...string) field {
	return func(d *decoder, item *ast.ObjectItem) {
		v, _, ok := d.literal(item)
		if !ok {
			return
		}
		for _, allowed := range values {
			if strings.EqualFold(v, allowed) {
				*into = allowed
				return
			}
		}
		d.problem(item.Pos(), "%q must be one of %s", keyOf(item), strings.Join(values, ", "))
	}
}

func boolean(into *bool) field {
	return func(d *decoder, item *ast.ObjectItem) {
		v, _, ok := d.literal(item)
		if !ok {
			return
		}
		b, err := strconv.ParseBool(v)
		if err != nil {
			d.problem(item.Pos(), "%q must be true or false", keyOf(item))
			return
		}
		*into = b
	}
}

func number(into *int64) field {
	return func(d *decoder, item *ast.ObjectItem) {
		v, _, ok := d.literal(item)
		if !ok {
			return
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 0 {
			d.problem(item.Pos(), "%q must be a whole number, 0 or more", keyOf(item))
			return
		}
		*into = n
	}
}

func ratio(into *float64) field {
	return func(d *decoder, item *ast.ObjectItem) {
		v, _, ok := d.literal(item)
		if !ok {
			return
		}
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || !(f >= 0 && f <= 1) { // not a number is neither
			d.problem(item.Pos(), "%q must be a number from 0 to 1", keyOf(item))
			return
		}
		*into = f
	}
}

// perSecond is how often something may happen.
func perSecond(into *float64) field {
	const most = 100_000
	return func(d *decoder, item *ast.ObjectItem) {
		v, _, ok := d.literal(item)
		if !ok {
			return
		}
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || !(f > 0 && f <= most) { // not a number is neither
			d.problem(item.Pos(), "%q must be a number above 0, up to %d", keyOf(item), most)
			return
		}
		*into = f
	}
}

// maxSeconds is the longest time.Duration, in seconds.
const maxSeconds = int64(1<<63-1) / int64(time.Second)

func duration(into *time.Duration) field {
	return func(d *decoder, item *ast.ObjectItem) {
		v, _, ok := d.literal(item)
		if !ok {
			return
		}
		if n, err := strconv.ParseInt(v, 10, 64); err == nil && n >= 0 && n <= maxSeconds {
			*into = time.Duration(n) * time.Second
			return
		}
		t, err := time.ParseDuration(v)
		if err != nil || t < 0 {
			d.problem(item.Pos(), "%q must be a duration such as \"30s\" or \"24h\"", keyOf(item))
			return
		}
		*into = t
	}
}

// units of sizes, longest first.
var units = []struct {
	suffix string
	factor int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

func size(into *int64) field { return sizeFrom(1, into) }

// sizeOr0 also takes 0, which turns something off.
func sizeOr0(into *int64) field { return sizeFrom(0, into) }

func sizeFrom(least int64, into *int64) field {
	return func(d *decoder, item *ast.ObjectItem) {
		v, _, ok := d.literal(item)
		if !ok {
			return
		}
		for _, u := range units {
			rest, found := strings.CutSuffix(v, u.suffix)
			if !found {
				continue
			}
			n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			if err == nil && n >= least && n <= (1<<62)/u.factor {
				*into = n * u.factor
				return
			}
			break
		}
		d.problem(item.Pos(), "%q must be a size such as 33554432 or \"32MiB\"", keyOf(item))
	}
}
