package config

import (
	"cmp"
	"path/filepath"
)

// Sanitized returns the configuration as operators may see it over the API: without the values of the seal, and
// without what certificates of other nodes hold.
func (c *Config) Sanitized() map[string]any {
	listeners := []map[string]any{}
	for _, l := range c.Listeners {
		listeners = append(listeners, map[string]any{"type": "tcp", "config": map[string]any{
			"address": l.Address, "cluster_address": l.ClusterAddress, "tls_disable": l.TLSDisable, "tls_cert_file": l.TLSCertFile,
			"tls_min_version": l.TLSMinVersion, "tls_client_ca_file": l.TLSClientCAFile,
			"tls_require_and_verify_client_cert": l.TLSRequireClient, "tls_disable_client_certs": l.TLSDisableClientCerts,
			"x_forwarded_for_client_cert_header":          l.Forwarded.CertHeader,
			"x_forwarded_for_client_cert_header_decoders": l.Forwarded.CertDecoders,
			"max_request_size":                            l.MaxRequestBytes,
			"max_request_duration":                        l.MaxRequestDuration.String(), "max_request_memory": l.RequestMemory,
			"max_request_json_memory": l.JSON.Memory, "max_request_json_strings": l.JSON.Strings, "max_request_json_depth": l.JSON.Depth,
			"max_connections": l.MaxConnections, "max_connections_per_address": l.MaxConnectionsEach,
			"enable_unauthenticated_ceremonies": l.OpenCeremonies,
			"redact_addresses":                  l.RedactAddresses, "redact_version": l.RedactVersion, "redact_cluster_name": l.RedactClusterName,
			"x_forwarded_for_authorized_addrs": l.Forwarded.Authorized, "x_forwarded_for_hop_skips": l.Forwarded.HopSkips,
			"x_forwarded_for_reject_not_present":    l.Forwarded.RejectNotPresent,
			"x_forwarded_for_reject_not_authorized": l.Forwarded.RejectNotAuthorized,
			"proxy_protocol_behavior":               l.Proxy.Behavior, "proxy_protocol_authorized_addrs": l.Proxy.Authorized,
		}})
	}
	joins := []string{}
	for _, j := range c.Storage.RetryJoin {
		joins = append(joins, j.LeaderAPIAddr)
	}
	devices := []string{}
	for _, a := range c.Audit.Devices {
		devices = append(devices, a.Type+" "+a.Path+"/")
	}
	lockouts := map[string]any{}
	for label, l := range c.UserLockout {
		lockouts[label] = map[string]any{
			"lockout_threshold": l.Threshold, "lockout_duration": int64(l.Duration.Seconds()),
			"lockout_counter_reset": int64(l.CounterReset.Seconds()), "disable_lockout": l.Disabled,
		}
	}
	return map[string]any{
		"api_addr": c.APIAddr, "cluster_addr": c.ClusterAddr, "cluster_name": c.ClusterName, "log_level": c.LogLevel, "log_format": c.LogFormat,
		"log_file": c.LogFile, "log_rotate_bytes": c.LogRotation.Bytes, "log_rotate_duration": c.LogRotation.Every.String(),
		"log_rotate_max_files": c.LogRotation.Keep, "ui": c.UI, "pid_file": c.PIDFile,
		"default_lease_ttl": int64(c.DefaultLeaseTTL.Seconds()), "max_lease_ttl": int64(c.MaxLeaseTTL.Seconds()),
		"listeners": listeners, "seals": []map[string]any{{"type": c.Seal.Type, "disabled": false}},
		"storage": map[string]any{
			"type": "raft", "cluster_addr": c.ClusterAddr, "redirect_addr": c.APIAddr, "disable_clustering": false,
			"raft": map[string]any{"path": filepath.Clean(c.Storage.Path), "node_id": c.Storage.NodeID, "retry_join": joins,
				"free_space_minimum": auto(c.Storage.FreeSpaceMinimum), "ballast_size": auto(c.Storage.BallastSize),
				"scrub_interval": int64(c.Storage.ScrubInterval.Seconds()), "verify_at_start": c.Storage.VerifyAtStart},
		},
		"replication": map[string]any{
			"log_max_size": c.Replication.LogBytes, "log_max_age": int64(c.Replication.LogAge.Seconds()),
		},
		"sync": map[string]any{
			"allow_private_addresses": c.Sync.AllowPrivate, "vendor_type_names": !c.Sync.NoVendorTypeNames, "endpoints": c.Sync.Endpoints, "environment_credentials": cmp.Or(c.Sync.EnvironmentCredentials, "all"),
		},
		"user_lockout": lockouts,
		"snapshots":    map[string]any{"local_root": c.Snapshots.LocalRoot},
		"audit":        map[string]any{"file_roots": c.Audit.FileRoots, "devices": devices}, "free_space_warning": c.FreeSpaceWarning, "free_space_warning_percent": c.FreeSpacePercent,
		"telemetry": map[string]any{
			"otlp_endpoint": c.Traces.Endpoint, "otlp_insecure": c.Traces.Insecure, "sample_ratio": c.Traces.SampleRatio,
			"statsd_address": c.Statsd.Address, "dogstatsd_addr": c.Statsd.DogAddress,
			"unauthenticated_metrics_access": c.UnauthenticatedMetrics,
		},
	}
}

// auto is a size, or that it depends on the disk.
func auto(size int64) any {
	if size < 0 {
		return "auto"
	}
	return size
}
