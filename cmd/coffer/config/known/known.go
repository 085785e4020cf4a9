// Package known has the keys of Vault and OpenBao that Coffer does not use, as data: those without effect, with what happens instead,
// and those that are rejected, with what to write instead. A key that decides how something is protected is never without effect unless
// Coffer protects it at least as well.
package known

// Kind is what a value must look like.
type Kind int

// The kinds of values.
const (
	Bool Kind = iota
	Number
	Duration
	Text
	Texts
	Literal // a text, number or boolean
	Block
)

// Value is what a key takes.
type Value struct {
	Kind Kind
	// Only is the one value of a boolean that is accepted; nil: both are. Otherwise says what to do in place of the other one.
	Only      *bool
	Otherwise string
}

var (
	anyBool     = Value{Kind: Bool}
	anyNumber   = Value{Kind: Number}
	anyDuration = Value{Kind: Duration}
	anyText     = Value{Kind: Text}
	anyTexts    = Value{Kind: Texts}
	anyValue    = Value{Kind: Literal}
	anyBlock    = Value{Kind: Block}
)

func must(want bool, otherwise string) Value {
	return Value{Kind: Bool, Only: &want, Otherwise: otherwise}
}

// Key is a key without effect.
type Key struct {
	Value   Value
	Instead string // what happens instead
}

const (
	noDebug   = "Coffer has no such endpoint, so no client can call it"
	inMemory  = "data is read from files that the operating system keeps in memory"
	noLicense = "Coffer needs no license and sends no reports"
	gauges    = "the number of Coffer's metrics does not grow with what is stored"
)

// Ignored are the keys that have no effect, by stanza.
var Ignored = map[string]map[string]Key{
	"": {
		"disable_mlock":                   {anyBool, "memory is never locked; turn swap off or encrypt it, as \"coffer operator diagnose\" checks"},
		"disable_cache":                   {anyBool, inMemory},
		"cache_size":                      {anyValue, inMemory},
		"raw_storage_endpoint":            {anyBool, "there is no sys/raw: stored values are readable through their engines only"},
		"introspection_endpoint":          {anyBool, noDebug},
		"disable_sealwrap":                {anyBool, "every value is encrypted under the key ring, which the seal protects; there is no second layer"},
		"disable_indexing":                {anyBool, "there is no such index"},
		"disable_clustering":              {must(false, "nodes with raft storage always form a cluster; remove it"), "that is how it is"},
		"disable_printable_check":         {anyBool, "each API checks its own names"},
		"disable_performance_standby":     {anyBool, "standbys serve reads that are as fresh as the active node's"},
		"disable_standby_reads":           {must(false, "standbys serve reads that are as fresh as the active node's; remove it"), "that is how it is"},
		"imprecise_lease_role_tracking":   {anyBool, "leases of roles are counted exactly"},
		"detect_deadlocks":                {anyText, "this is for developers"},
		"enable_post_unseal_trace":        {anyBool, "set the log level to debug with sys/loggers"},
		"post_unseal_trace_directory":     {anyText, "set the log level to debug with sys/loggers"},
		"log_requests_level":              {anyText, "requests are in the audit log"},
		"license_path":                    {anyText, noLicense},
		"reporting":                       {anyBlock, noLicense},
		"experiments":                     {anyTexts, "Coffer has none of them"},
		"enable_multiseal":                {must(false, "there is one seal, and one with disabled = \"true\" that the cluster leaves; remove it"), "that is how it is"},
		"plugin_tmpdir":                   {anyText, "sockets of plugins are in a private temporary directory"},
		"plugin_auto_download":            {must(false, "plugins are never downloaded: copy them to plugin_directory"), "that is how it is"},
		"plugin_download_behavior":        {anyText, "plugins are never downloaded"},
		"plugin_download_max_size":        {anyNumber, "plugins are never downloaded"},
		"cluster_cipher_suites":           {anyText, "connections between nodes are of TLS 1.3"},
		"remove_irrevocable_lease_after":  {anyDuration, "leases that cannot be revoked stay until they can, or an operator removes them"},
		"request_limiter":                 {anyBlock, "what requests may take is bounded by max_connections and max_request_memory"},
		"adaptive_overload_protection":    {anyBlock, "what requests may take is bounded by max_connections and max_request_memory"},
		"observations":                    {anyBlock, noLicense},
		"plugin_file_uid":                 {anyNumber, "a plugin's file is started only if it has the registered checksum"},
		"plugin_file_permissions":         {anyValue, "a plugin's file is started only if it has the registered checksum"},
		"plugin_auto_register":            {anyBool, "plugin stanzas are always registered"},
		"allow_audit_log_prefixing":       {must(true, "audit devices take the option prefix, with letters, digits and @:._- only; remove it"), "that is how it is"},
		"unsafe_allow_api_audit_creation": {must(true, "callers with sudo on sys/audit may enable devices, within audit.file_roots: deny that path in policies, and remove this"), "that is how it is, within audit.file_roots"},
		"unsafe_cross_namespace_identity": {must(false, "identities never work across namespaces; remove it"), "that is how it is"},
		"allow_unauthenticated_seal_cancel": {must(false, "cancelling needs a token or the nonce; set enable_unauthenticated_ceremonies at a listener while you need it"),
			"that is how it is"},
	},
	"audit.device": {
		"local": {anyBool, "devices of the configuration belong to this cluster, and are never replicated"},
	},
	"listener": {
		"tls_prefer_server_cipher_suites":  {anyBool, "the order of cipher suites is chosen by what both machines are fast at"},
		"profiling":                        {anyBlock, "sys/pprof always needs a token"},
		"inflight_requests_logging":        {anyBlock, noDebug},
		"agent_api":                        {anyBlock, "this is for agents and proxies"},
		"disable_unauthed_rekey_endpoints": {must(true, "set enable_unauthenticated_ceremonies = true while you need it"), "rekeying needs a token unless enable_unauthenticated_ceremonies is set"},
		"disable_request_limiter":          {anyBool, "what requests may take is bounded by max_connections and max_request_memory"},
	},
	"storage": {
		"autopilot_reconcile_interval":             {anyDuration, "autopilot looks at every change and every few seconds"},
		"autopilot_update_interval":                {anyDuration, "autopilot looks at every change and every few seconds"},
		"autopilot_upgrade_version":                {anyText, "upgrades go node by node, see docs/upgrade.md"},
		"autopilot_redundancy_zone":                {anyText, "every node votes unless retry_join_as_non_voter is set"},
		"raft_wal":                                 {anyBool, "Coffer has one kind of log, with checksums"},
		"raft_log_verifier_enabled":                {anyBool, "the log is always verified"},
		"raft_log_verification_interval":           {anyDuration, "the log is always verified"},
		"max_entry_size":                           {anyValue, "the size of an entry follows from max_request_size"},
		"max_transaction_size":                     {anyValue, "the size of a transaction follows from max_request_size"},
		"max_mount_and_namespace_table_entry_size": {anyValue, "mounts are stored one by one"},
		"snapshot_delay":                           {anyDuration, "snapshots do not stop writes"},
	},
	"telemetry": {
		"prometheus_retention_time":          {anyDuration, "sys/metrics always has current values"},
		"disable_hostname":                   {anyBool, "no metric has the host name in its name"},
		"enable_hostname_label":              {anyBool, "Prometheus adds the label instance"},
		"metrics_prefix":                     {anyText, "names of metrics begin with coffer"},
		"usage_gauge_period":                 {anyDuration, "they are counted when they are asked for"},
		"maximum_gauge_cardinality":          {anyNumber, gauges},
		"lease_metrics_epsilon":              {anyDuration, gauges},
		"num_lease_metrics_buckets":          {anyNumber, gauges},
		"add_lease_metrics_namespace_labels": {anyBool, gauges},
		"add_mount_point_rollback_metrics":   {anyBool, gauges},
		"rollback_metrics_include_mount_point": {
			anyBool, gauges},
		"filter_default": {anyBool, "every metric is served: filter where you collect them"},
		"prefix_filter":  {anyTexts, "every metric is served: filter where you collect them"},
	},
}

// Rejected are keys of Vault and OpenBao that Coffer rejects, with what to write instead. A name that ends with * stands
// for all that begin so.
var Rejected = map[string]map[string]string{
	"": {
		"enable_unauthenticated_access": "which paths need a token is the same everywhere: set enable_unauthenticated_ceremonies at a listener while you need it",
		"ha_storage":                    "data and leadership are both with storage \"raft\": remove it",
		"backend":                       "write storage \"raft\" { … }",
		"entropy":                       "random numbers are the operating system's: remove it if that is enough",
		"sentinel":                      "there is no Sentinel: write policies, and remove it",
		"kms_library":                   "there are no HSM seals: choose another type of seal",
		"administrative_namespace_path": "only the root namespace administers the node: remove it",
	},
	"listener": {
		"tls_acme_*":                           "give tls_cert_file and tls_key_file, which SIGHUP reloads, and let an ACME client renew them",
		"cors_*":                               "write it to sys/config/cors, which counts for every node",
		"chroot_namespace":                     "clients name their namespace: bind them with policies",
		"role":                                 "this is for agents and proxies: use telemetry { metrics_only = true } for a listener of metrics",
		"require_request_header":               "this is for agents and proxies: remove it",
		"x_forwarded_for_client_cert_decoders": "write x_forwarded_for_client_cert_header_decoders, with URL, BASE64, and DER for PEM",
		"x_forwarded_for_client_cert_keep_*":   "certificates of others than the authorized proxies never count: remove it",
		"proxy_api":                            "this is for agents and proxies: remove it",
	},
	"listener.telemetry": {
		"metrics_path": "metrics are at /v1/sys/metrics: have the collector read that, and remove this",
	},
	"plugin": {
		"image":       "plugins are never downloaded: copy the file to plugin_directory, and name it with command",
		"binary_name": "plugins are never downloaded: copy the file to plugin_directory, and name it with command",
	},
	"storage.retry_join": {
		"auto_join*": "name a DNS name with the addresses of all nodes, such as a headless service, in leader_api_addr",
	},
	"telemetry": {
		"statsite_address": "use statsd_address, otlp_endpoint, or let Prometheus read sys/metrics",
		"circonus_*":       "use otlp_endpoint, or let Prometheus read sys/metrics",
		"stackdriver_*":    "let a collector read sys/metrics",
	},
}
