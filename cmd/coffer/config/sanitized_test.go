package config_test

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSanitizedTellsNoSecret(t *testing.T) {
	c, err := load(t, whole+`
snapshots { local_root = "/var/backups/coffer" }
audit { file_roots = ["/var/log/coffer", "/mnt/audit"] }
free_space_warning = "5GiB"
free_space_warning_percent = 7
replication { log_max_size = 1073741824 log_max_age = "12h" }
telemetry { otlp_endpoint = "collector:4317" sample_ratio = 0.25 otlp_insecure = true }
log_file = "/var/log/coffer.log"
log_rotate_bytes = 1000
log_rotate_duration = "36h"
log_rotate_max_files = -1
`)
	if err != nil {
		t.Fatal(err)
	}
	c.Seal.Values["current_key"] = "the-secret-key"
	c.Storage.RetryJoin[0].LeaderCACert = "some PEM"
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(c.Sanitized())
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"the-secret-key", "env://KEY", "some PEM", "k1"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("the sanitized configuration tells %q", secret)
		}
	}
	for _, want := range []string{`"n1"`, "10.0.0.2:8200", "/var/backups/coffer", `"sample_ratio":0.25`, `"static"`, `"collector:4317"`, "/var/log/coffer.log", `"log_rotate_bytes":1000`, `"log_rotate_duration":"36h0m0s"`, `"log_rotate_max_files":-1`, `"log_max_size":1073741824`, `"log_max_age":43200`, `"environment_credentials":"all"`, `"devices":[],"file_roots":["/var/log/coffer","/mnt/audit"]`, `"free_space_warning":5368709120`, `"free_space_warning_percent":7`, `"free_space_minimum":"auto"`, `"ballast_size":"auto"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the sanitized configuration lacks %s:\n%s", want, text)
		}
	}
}

func TestNewStanzasAreChecked(t *testing.T) {
	c, err := load(t, `listener "tcp" { tls_disable = true } storage "raft" { path = "d" } snapshots { local_root = "relative" } audit { file_roots = ["below"] } telemetry { otlp_endpoint = "no port" }`)
	if err != nil {
		t.Fatal(err)
	}
	if c.Traces.SampleRatio != 1 {
		t.Errorf("the default ratio is %v", c.Traces.SampleRatio)
	}
	problems := c.Complete()
	for _, want := range []string{"local_root", `file_roots: "below"`, "otlp_endpoint"} {
		if problems == nil || !strings.Contains(problems.Error(), want) {
			t.Errorf("Complete = %v, want a word on %s", problems, want)
		}
	}
	if _, err := load(t, `telemetry { sample_ratio = "NaN" } snapshots { nonsense = 1 } audit { file_roots = "/x" }`); err == nil ||
		!strings.Contains(err.Error(), "sample_ratio") || !strings.Contains(err.Error(), "snapshots.nonsense") || !strings.Contains(err.Error(), "list of texts") {
		t.Errorf("Load = %v, want words on sample_ratio and snapshots.nonsense", err)
	}
}
