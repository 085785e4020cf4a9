package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/coffer-project/coffer/server/snapshots"
)

const docs = "../../docs"

// exprs returns every value under a key "expr", at any depth.
func exprs(v any) []string {
	var found []string
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if text, ok := value.(string); ok && key == "expr" {
				found = append(found, text)
			}
			found = append(found, exprs(value)...)
		}
	case []any:
		for _, value := range v {
			found = append(found, exprs(value)...)
		}
	}
	return found
}

// sometimes are metrics that a new server does not have yet, or only with some seals.
var sometimes = []string{
	"coffer_snapshot_auto_last_success_timestamp_seconds", "coffer_seal_reachable", "coffer_replication_canary_age_seconds",
	"coffer_scrub_state_completed_time_seconds", "coffer_scrub_raft_log_completed_time_seconds",
	"coffer_sync_links", "coffer_sync_circuit_open", "coffer_sync_unsynced_seconds", "coffer_sync_drifted", "coffer_sync_drift_check_failing",
	"coffer_sync_drift_check_completed_time_seconds",
	"coffer_plugin_processes", "coffer_plugin_starts_total", "coffer_plugin_failures_total", "coffer_plugin_requests_total",
	"coffer_plugin_request_seconds_total",
}

// metricNames returns the names that a server reports, on its own, as the primary and as a secondary.
func metricNames(t *testing.T) map[string]bool {
	t.Helper()
	url, stop := serverHere(t, "-dev-root-token-id=root")
	defer stop()
	defer http.DefaultClient.CloseIdleConnections()
	ask := func(method, path string) string {
		req, err := http.NewRequest(method, url+"/v1/sys/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Vault-Token", "root")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %d, %v", method, path, resp.StatusCode, err)
		}
		return string(text)
	}
	names := map[string]bool{}
	for _, change := range []string{"", "enable", "demote"} {
		if change != "" {
			ask(http.MethodPost, "replication/performance/primary/"+change)
		}
		for range 2 { // the first answer is counted when the second is made
			for line := range strings.Lines(ask(http.MethodGet, "metrics?format=prometheus")) {
				name, _, _ := strings.Cut(line, " ")
				name, _, _ = strings.Cut(name, "{")
				names[name] = true
			}
		}
	}
	return names
}

var metricName = regexp.MustCompile(`\b(coffer|go|process)_[a-z][a-z0-9_]*\b`)

func TestDashboardAndDocumentationNameRealMetrics(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(docs, "deploy", "grafana-dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard any
	if err := json.Unmarshal(raw, &dashboard); err != nil {
		t.Fatal(err)
	}
	queries := exprs(dashboard)
	if len(queries) < 30 {
		t.Fatalf("only %d queries in the dashboard", len(queries))
	}
	charted := metricName.FindAllString(strings.Join(queries, "\n"), -1)
	rules, err := os.ReadFile(filepath.Join(docs, "deploy", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(rules, &parsed); err != nil || len(parsed.Groups) != 1 || len(parsed.Groups[0].Rules) < 15 {
		t.Errorf("the rules of alerts: %v, %d groups", err, len(parsed.Groups))
	}
	named := append(slices.Clone(charted), metricName.FindAllString(string(rules), -1)...)
	alert := regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|")
	for _, name := range []string{"monitoring.md", "replication.md", "sync.md"} {
		page, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			t.Fatal(err)
		}
		named = append(named, metricName.FindAllString(string(page), -1)...)
		alerts := 0
		for _, row := range alert.FindAllStringSubmatch(string(page), -1) {
			for _, metric := range metricName.FindAllString(row[1], -1) {
				alerts++
				if nodeMetric.MatchString(metric) && !slices.Contains(charted, metric) {
					t.Errorf("%s has an alert on %s, and the dashboard no chart of it", name, metric)
				}
			}
		}
		if alerts < 7 {
			t.Errorf("only %d metrics in the alerts of %s", alerts, name)
		}
	}
	names := metricNames(t)
	for name := range snapshots.New(snapshots.Options{}).Numbers() {
		names["coffer_"+name] = true
	}
	slices.Sort(named)
	for _, name := range slices.Compact(named) {
		if !names[name] && !slices.Contains(sometimes, name) {
			t.Errorf("no server reports %s", name)
		}
	}
}

// nodeMetric are metrics of nodes, disks and replication: the dashboard has those that are worth an alert.
var nodeMetric = regexp.MustCompile(`^coffer_(raft|disk|scrub|replication)_`)

// The unit of systemd is one, and lets plugins have the namespaces that package server/plugin/process gives them.
func TestSystemdUnit(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(docs, "deploy", "coffer.service"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nRestrictNamespaces=user pid\n") {
		t.Error("the unit keeps plugins from PID namespaces of their own")
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	unit := filepath.Join(t.TempDir(), "coffer.service")
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/bin/coffer", os.Args[0])), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), analyze, "verify", unit).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// Each node of the Compose file starts with its command line and variables: the configuration passes the check of the server.
func TestComposeFile(t *testing.T) {
	dir := filepath.Join(docs, "deploy", "compose")
	text, err := os.ReadFile(filepath.Join(dir, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var compose struct {
		Services map[string]struct {
			Command     []string
			Environment map[string]string
			Volumes     []string
		}
	}
	if err := yaml.Unmarshal(text, &compose); err != nil {
		t.Fatal(err)
	}
	hcl, err := os.ReadFile(filepath.Join(dir, "coffer.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"coffer-1", "coffer-2", "coffer-3"} {
		t.Run(name, func(t *testing.T) {
			node, here := compose.Services[name], t.TempDir()
			writeCertificate(t, here, 1)
			for key, value := range node.Environment {
				t.Setenv(key, value)
			}
			if node.Environment["COFFER_RAFT_NODE_ID"] != name || node.Environment["COFFER_CLUSTER_ADDR"] != name+":8201" ||
				node.Environment["COFFER_API_ADDR"] != "https://"+name+":8200" || !strings.Contains(string(hcl), `"https://`+name+`:8200"`) {
				t.Errorf("%s has the variables %v", name, node.Environment)
			}
			inPlace := strings.NewReplacer("/etc/coffer/tls/tls.crt", here+"/cert.pem", "/etc/coffer/tls/ca.crt", here+"/cert.pem",
				"/etc/coffer/tls/tls.key", here+"/key.pem", "/var/lib/coffer", here, "/etc/coffer/coffer.hcl", here+"/coffer.hcl")
			if err := os.WriteFile(filepath.Join(here, "coffer.hcl"), []byte(inPlace.Replace(string(hcl))), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{"coffer"}
			for _, arg := range node.Command {
				args = append(args, inPlace.Replace(arg))
			}
			var stderr strings.Builder
			if status := run(t.Context(), append(args, "-check"), strings.NewReader(""), io.Discard, &stderr); status != 0 {
				t.Errorf("status = %d: %s", status, &stderr)
			}
			for _, volume := range node.Volumes {
				for other := range compose.Services {
					if other != name && slices.Contains(compose.Services[other].Volumes, volume) && !strings.HasPrefix(volume, ".") {
						t.Errorf("%s and %s share the volume %s", name, other, volume)
					}
				}
			}
		})
	}
}

// The image is built with the Go version that the module asks for.
func TestDockerfileFitsTheModule(t *testing.T) {
	module, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	dockerfile, err := os.ReadFile(filepath.Join(docs, "deploy", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(module)
	got := regexp.MustCompile(`FROM golang:(\d+\.\d+)`).FindSubmatch(dockerfile)
	if want == nil || got == nil || string(want[1]) != string(got[1]) {
		t.Errorf("the Dockerfile uses Go %s, the module %s", got, want)
	}
}
