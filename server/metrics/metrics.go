// Package metrics counts requests and renders everything the node knows about itself, in the Prometheus text
// format or as JSON. The values come from Numbers of each part, which package server joins; what a name does not say
// is in the table help. Labels never carry paths or names that users chose, but for names of sync destinations, a
// bounded number of them.
package metrics

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
)

const namespace = "coffer"

// Metrics is a registry of its own. Safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

// New returns metrics that also report numbers() by name at each rendering. Names that end in "_total" are
// counters, the others gauges. A name may have labels, as the text format writes them: name{label="value"}.
func New(numbers func() map[string]float64) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "requests_total",
			Help: "API requests answered, by operation, type of mount and class of status.",
		}, []string{"operation", "mount_type", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "request_seconds", Help: "Time to answer API requests.",
			Buckets: []float64{.0001, .0005, .001, .005, .01, .05, .1, .5, 1, 5, 30},
		}, []string{"operation"}),
	}
	m.registry.MustRegister(m.requests, m.seconds, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector(numbers))
	return m
}

// Observe counts one finished request.
func (m *Metrics) Observe(op, mountType string, status int, took time.Duration) {
	m.requests.WithLabelValues(op, mountType, strconv.Itoa(status/100)+"xx").Inc()
	m.seconds.WithLabelValues(op).Observe(took.Seconds())
}

// Value is one number with its labels, as pairs of name and value. The numbers of a counter only grow while the process lives.
type Value struct {
	Name    string
	Labels  [][2]string
	Number  float64
	Counter bool
}

// Values returns all there is now. A histogram has its count and its sum.
func (m *Metrics) Values() ([]Value, error) {
	families, err := m.registry.Gather()
	var all []Value
	for _, f := range families {
		for _, one := range f.GetMetric() {
			v := Value{Name: f.GetName()}
			for _, l := range one.GetLabel() {
				v.Labels = append(v.Labels, [2]string{l.GetName(), l.GetValue()})
			}
			add := func(suffix string, number float64, counter bool) {
				v.Name, v.Number, v.Counter = f.GetName()+suffix, number, counter
				all = append(all, v)
			}
			switch {
			case one.GetCounter() != nil:
				add("", one.GetCounter().GetValue(), true)
			case one.GetGauge() != nil:
				add("", one.GetGauge().GetValue(), false)
			case one.GetHistogram() != nil:
				add("_count", float64(one.GetHistogram().GetSampleCount()), true)
				add("_sum", one.GetHistogram().GetSampleSum(), true)
			}
		}
	}
	return all, err
}

// collector reports numbers that others keep.
type collector func() map[string]float64

// Describe sends nothing: the set of numbers depends on the state of the node.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	for name, v := range c() {
		name, labels, values := splitLabels(name)
		kind := prometheus.GaugeValue
		if strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		text := help[name]
		if text == "" {
			text = strings.ReplaceAll(name, "_", " ")
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(namespace+"_"+name, text, labels, nil), kind, v, values...)
	}
}

// splitLabels takes the labels off a name.
func splitLabels(name string) (plain string, labels, values []string) {
	plain, rest, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
	for rest != "" {
		label, quoted, _ := strings.Cut(rest, "=")
		prefix, err := strconv.QuotedPrefix(quoted)
		if err != nil {
			break
		}
		value, _ := strconv.Unquote(prefix) // QuotedPrefix has checked it
		labels, values = append(labels, label), append(values, value)
		rest = strings.TrimPrefix(quoted[len(prefix):], ",")
	}
	return plain, labels, values
}

// help are the texts of numbers whose name does not say enough.
var help = map[string]string{
	"unsealed":                     "1 while the node is unsealed.",
	"active":                       "1 while the node is the active one.",
	"fsm_applied_index":            "Index of the last log entry applied on this node.",
	"audit_failures_total":         "Records that no audit device took; the requests failed.",
	"audit_device_errors_total":    "Single audit devices failing to take a record.",
	"audit_request_records_total":  "Request records written to the audit log.",
	"audit_response_records_total": "Response records written to the audit log.",
	"audit_devices_failing":        "Audit devices that did not take their last record.",
	"audit_lost_records_total":     "Records of requests to a sealed node that were too many to keep until a device could be written.",
	"disk_data_free_bytes":         "Free on the disk of the data directory.",
	"disk_audit_free_bytes":        "Free on the disk of audit files that has the least room.",
	"disk_data_ballast_bytes":      "Size of the ballast, the file that keeps room for deletes on the disk of the data.",
	"disk_data_pending_bytes":      "Accepted and in the log, but not in the state file yet: there must be room for it.",
	"disk_data_full":               "1 while the disk of the data has no room for writes of clients.",
	"disk_writes_rejected_total":   "Writes rejected because there was no room.",
	"disk_directories_low":         "Directories of data and audit files whose disk has less room than free_space_warning or free_space_warning_percent.",
	"requests_in_flight":           "Requests that the node is working on.",

	"raft_log_folds_total":        "Times that entries of the Raft log moved from its journal to raft.db, or could not.",
	"raft_log_fold_seconds_total": "Time that this took. The next write waits for it only when the journal is full.",
	"raft_log_fold_bytes_total":   "Bytes of the entries that moved.",

	"state_unverified_bytes":                  "Bytes of the state file that have not been checked since the node started; 0: all of it is right.",
	"scrub_state_bytes_total":                 "Bytes of the state file that were read to compare them with their checksums.",
	"scrub_state_failures_total":              "Passes over the state file that found damage.",
	"scrub_state_completed_time_seconds":      "When the state file was last read as a whole and found right.",
	"scrub_raft_log_bytes_total":              "Bytes of the Raft log that were read to compare them with their checksums.",
	"scrub_raft_log_failures_total":           "Passes over the Raft log that found damage.",
	"scrub_raft_log_completed_time_seconds":   "When the Raft log was last read as a whole and found right.",
	"scrub_change_log_bytes_total":            "Bytes of the log of changes for other clusters that were read to compare them with their checksums.",
	"scrub_change_log_failures_total":         "Passes over the log of changes for other clusters that found damage.",
	"scrub_change_log_completed_time_seconds": "When the log of changes for other clusters was last read as a whole and found right.",

	"namespaces":          "Namespaces, with the root one.",
	"namespaces_deleting": "Namespaces whose content is being deleted.",
	"mounts":              "Secrets engines and auth methods, in all namespaces.",

	"request_body_bytes":            "Memory that bodies of requests take now.",
	"request_bodies_rejected_total": "Requests rejected as bodies took all the memory they may, on the node or of an address.",
	"connections":                   "Open connections to the listeners.",
	"connections_evicted_total":     "Idle connections closed to make room for new ones.",
	"connections_rejected_total":    "Connections closed at once, as there was no room and none was idle.",

	"tokens_created_total":       "Service tokens made on this node since it started.",
	"tokens_batch_created_total": "Batch tokens made on this node since it started.",
	"tokens_revoked_total":       "Tokens removed on this node since it started, expired ones too.",
	"tokens_expired_total":       "Tokens removed on this node because their time was over.",

	"leases":                          "Leases in force; on the active node.",
	"leases_irrevocable":              "Leases whose revocation was given up; list them with sys/leases.",
	"lease_creations_total":           "Leases made on this node since it started.",
	"lease_renewals_total":            "Leases renewed on this node since it started.",
	"lease_revocations_total":         "Leases revoked on this node since it started.",
	"lease_revocation_failures_total": "Attempts to revoke a lease that failed.",

	"userpass_logins_waiting":        "Logins and new passwords that wait for a turn to be hashed.",
	"userpass_logins_overload_total": "Logins and new passwords answered 503, because too many waited or for too long.",
	"userpass_locks_total":           "Locks of user names after too many wrong passwords, set on this node since it started.",

	"cert_logins_accepted_total": "Logins with TLS client certificates that were accepted, since this node started.",
	"cert_logins_refused_total":  "Logins with TLS client certificates that were refused: none, or one that no role accepts.",

	"saml_logins_started_total":    "SAML logins started on this node since it started.",
	"saml_answers_accepted_total":  "Responses of SAML identity providers that were accepted.",
	"saml_answers_refused_total":   "Responses of SAML identity providers that were refused; the log says why.",
	"saml_logins_redeemed_total":   "SAML logins that clients redeemed for a token.",
	"saml_metadata_failures_total": "Fetches of an identity provider's metadata that failed.",

	"cloud_credentials_issued_total":  "Credentials of cloud providers handed out on this node since it started, of all types.",
	"cloud_users_removed_total":       "Users at cloud providers removed because their lease ended.",
	"cloud_keys_rotated_total":        "Keys of static roles and root keys replaced.",
	"cloud_rotation_failures_total":   "Attempts to replace such a key that failed; the old one stays in use.",
	"cloud_rollbacks_completed_total": "Things made at a cloud provider that belonged to nothing and were removed.",

	"plugin_processes":             "Processes of a plugin that run; on the active node.",
	"plugin_starts_total":          "Starts of processes of a plugin.",
	"plugin_failures_total":        "Starts of a plugin that failed, and requests that it did not handle: it ended, took too long, or responded with what cannot be read.",
	"plugin_requests_total":        "Requests to a plugin, also those about leases and what is due by the clock.",
	"plugin_request_seconds_total": "Time that a plugin took for its requests.",

	"sync_destinations":      "Destinations of secret sync, in all namespaces; on the active node of the cluster that syncs.",
	"sync_attention":         "Secrets that are not synced until an operator acts: CONFLICT and CLIENT_SIDE_ERROR. Of those that wait for room in queue_capacity, at most 1000 are counted.",
	"sync_unreadable":        "Records of secret sync that cannot be read: of a newer version, or damaged. What they are about is left as it is.",
	"sync_associations":      "Associations of secrets and prefixes with destinations; on the active node of the cluster that syncs.",
	"sync_pending":           "Secrets that are not in sync and are tried again without an operator: those that are due and wait for their turn, and those that have failed and back off.",
	"sync_running":           "Secrets that are being synced.",
	"sync_writes_total":      "Names written at destinations by this node since it started.",
	"sync_deletes_total":     "Names deleted at destinations by this node since it started.",
	"sync_failures_total":    "Attempts to sync a secret that failed; they are made again.",
	"sync_conflicts_total":   "Attempts that met an external name of another owner, which was left alone.",
	"sync_drift_found_total": "Names that checks found changed or missing at destinations, each once.",

	"sync_links":            "Associated secrets by destination and status of the last attempt; those of more than 100 destinations are one destination.",
	"sync_unsynced_seconds": "Seconds since the oldest change that is not at the destination; 0 if all are. Changes that wait while the destination is paused are not counted.",
	"sync_drifted":          "Names that the last check found changed or missing at the destination.",
	"sync_drift_check_completed_time_seconds": "When all names of the destination were last compared with it; nothing while it is paused or was never checked.",
	"sync_drift_check_failing":                "1 while the last drift check of the destination has failed; nothing while it is paused.",
	"sync_circuit_open":                       "1 while the destination is not called for a while, because calls have failed or it has asked to wait.",
	"sync_redeploys_total":                    "Redeployments after changes of destinations: deploy hooks called and workflows started, also those that failed.",
	"sync_redeploy_failures_total":            "Redeployments that failed; they are tried again.",
	"sync_notifications_total":                "Notifications of failures that the receiver has taken from this node since it started.",
	"sync_notification_failures_total":        "Notifications of failures that were given up after five attempts, or because the receiver rejects them.",
	"sync_overwritten_changes_total":          "Changes of other clients to synced names that this node has overwritten or deleted since it started.",

	"quota_rate_limit_violations_total":  "Requests that a rate limit refused on this node.",
	"quota_lease_count_violations_total": "Leases and logins that a lease count quota refused on this node.",

	"replication_primary":               "1 on a replication primary.",
	"replication_secondary":             "1 on a replication secondary.",
	"replication_epoch":                 "Epoch of the replication set: one more at each promotion.",
	"replication_fenced":                "1 on a primary that has met a later one, and takes no more shared writes.",
	"replication_other_primaries":       "Clusters of the set that were promoted in epochs which are not of this cluster's history.",
	"replication_former_primaries":      "Former primaries that have not confirmed yet that they are fenced or demoted.",
	"replication_demoted":               "1 on a former primary that follows no primary yet.",
	"replication_connected":             "1 while the secondary is connected to its primary and hears it; on the active node.",
	"replication_exact":                 "1 while the secondary holds exactly what the primary held at one position.",
	"replication_terminal":              "1 if the secondary cannot connect until an operator acts: revoked, fenced or rejected.",
	"replication_paused":                "1 while the secondary takes nothing from its primary because its disk has too little free space.",
	"replication_lag_seconds":           "Seconds since the secondary and its primary were last known to be equal; on a primary, of the latest enrolled secondary, connected or not.",
	"replication_lag_entries":           "Entries of the primary's log that are still to come.",
	"replication_lag_bytes":             "About how many bytes are still to come.",
	"replication_canary_age_seconds":    "Age of the newest sign of life of the primary that has arrived.",
	"replication_units_quarantined":     "Mounts and namespaces that differed after two repairs, and are no longer repaired by themselves.",
	"replication_secondaries_connected": "Secondaries that are connected to this primary and heard.",
	"replication_secondaries_known":     "Secondaries that may connect to this primary.",
	"replication_oldest_index":          "Index after which this node keeps changes for other clusters.",
}

// Render returns all metrics, in the Prometheus text format or as JSON.
func (m *Metrics) Render(text bool) (contentType string, body []byte, err error) {
	families, err := m.registry.Gather()
	if err != nil {
		return "", nil, err
	}
	if text {
		var b bytes.Buffer
		for _, f := range families {
			if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
				return "", nil, err
			}
		}
		return "text/plain; version=0.0.4; charset=utf-8", b.Bytes(), nil
	}
	type sample struct {
		Name   string
		Value  float64           `json:"Value"`
		Count  uint64            `json:"Count,omitempty"`
		Labels map[string]string `json:"Labels"`
	}
	out := map[string][]sample{"Gauges": {}, "Counters": {}, "Samples": {}}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range metric.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			s := sample{Name: f.GetName(), Labels: labels}
			switch {
			case metric.Counter != nil:
				s.Value = metric.Counter.GetValue()
				out["Counters"] = append(out["Counters"], s)
			case metric.Gauge != nil:
				s.Value = metric.Gauge.GetValue()
				out["Gauges"] = append(out["Gauges"], s)
			case metric.Histogram != nil:
				s.Value, s.Count = metric.Histogram.GetSampleSum(), metric.Histogram.GetSampleCount()
				out["Samples"] = append(out["Samples"], s)
			case metric.Summary != nil:
				s.Value, s.Count = metric.Summary.GetSampleSum(), metric.Summary.GetSampleCount()
				out["Samples"] = append(out["Samples"], s)
			}
		}
	}
	doc := map[string]any{"Timestamp": time.Now().UTC().Format("2006-01-02 15:04:05 -0700 MST")}
	for name, samples := range out {
		doc[name] = samples
	}
	body, err = json.Marshal(doc)
	return "application/json", body, err
}
