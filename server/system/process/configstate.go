package process

import (
	"context"

	"github.com/coffer-project/coffer/engines"
)

// ConfigState tells the configuration that this node runs with.
type ConfigState struct {
	// Sanitized is the configuration without anything secret, as JSON shows it.
	Sanitized func() map[string]any
}

// Routes declares sys/config/state/sanitized.
func (c ConfigState) Routes(r *engines.Router) {
	engines.On(r, engines.Read, "config/state/sanitized", "Read the configuration that this node runs with, without secrets.", engines.AnyNode|engines.RootNamespace, c.read).
		Returns("top; " + configShape)
}

// configShape is that of the response: see engines.Route.Returns. docs/configuration.md describes each setting.
const configShape = `api_addr, cluster_addr, cluster_name, log_level, log_format, log_file, log_rotate_bytes: integer, log_rotate_duration,
	log_rotate_max_files: integer, ui: boolean, pid_file, default_lease_ttl: integer "Seconds.", max_lease_ttl: integer "Seconds.",
	listeners: [{type, config: {address, cluster_address, tls_disable: boolean, tls_cert_file, tls_min_version, tls_client_ca_file,
		tls_require_and_verify_client_cert: boolean, tls_disable_client_certs: boolean, x_forwarded_for_client_cert_header,
		x_forwarded_for_client_cert_header_decoders: [string]?, max_request_size: integer "Bytes.", max_request_duration,
		max_request_memory: integer "Bytes.", max_request_json_memory: integer "Bytes.", max_request_json_strings: integer "Bytes.",
		max_request_json_depth: integer, max_connections: integer, max_connections_per_address: integer,
		enable_unauthenticated_ceremonies: boolean, redact_addresses: boolean, redact_version: boolean, redact_cluster_name: boolean,
		x_forwarded_for_authorized_addrs: [string]?, x_forwarded_for_hop_skips: integer, x_forwarded_for_reject_not_present: boolean,
		x_forwarded_for_reject_not_authorized: boolean, proxy_protocol_behavior, proxy_protocol_authorized_addrs: [string]?}}],
	seals: [{type, disabled: boolean}],
	storage: {type, cluster_addr, redirect_addr, disable_clustering: boolean, raft: {path, node_id, retry_join: [string],
		free_space_minimum: integer|string "Bytes, or auto.", ballast_size: integer|string "Bytes, or auto.", scrub_interval: integer "Seconds.", verify_at_start: integer "Bytes."}},
	replication: {log_max_size: integer "Bytes.", log_max_age: integer "Seconds."},
	sync: {allow_private_addresses: boolean, vendor_type_names: boolean, endpoints: {*: string}?, environment_credentials},
	user_lockout: {*: {lockout_threshold: integer, lockout_duration: integer "Seconds.", lockout_counter_reset: integer "Seconds.",
		disable_lockout: boolean}},
	snapshots: {local_root}, audit: {file_roots: [string]?, devices: [string]}, free_space_warning: integer "Bytes.",
	free_space_warning_percent: integer, telemetry: {otlp_endpoint, otlp_insecure: boolean, sample_ratio: number, statsd_address,
		dogstatsd_addr, unauthenticated_metrics_access: boolean}`

func (c ConfigState) read(context.Context, *engines.Request, *none) (*engines.Response, error) {
	return both(c.Sanitized()), nil
}
