package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

const (
	primaryStatus = `200 {"data":{"mode":"primary","cluster_id":"c1","set_id":"s1","epoch":2,"epoch_cluster_id":"c1","state":"running","position":"2:90","known_secondaries":["eu","us"],
"secondaries":[{"node_id":"eu","api_address":"https://eu:8200","cluster_address":"eu:8201","connection_status":"connected","last_heartbeat":"2026-01-02T03:04:05Z","last_heartbeat_duration_ms":"400","lag_entries":3,"lag_bytes":2048,"lag_seconds":0.25,"last_equal":"2026-01-02T03:04:04Z","entries_per_second":12.4},
{"node_id":"us","connection_status":"disconnected","last_heartbeat_duration_ms":"","lag_entries":0}]}}`
	secondaryStatus = `200 {"data":{"mode":"secondary","cluster_id":"c2","set_id":"s1","epoch":2,"state":"stream-wals","phase":"streaming","connection_state":"ready","position":"2:90","secondary_id":"eu",
"lag_entries":0,"lag_bytes":0,"lag_seconds":0,"last_equal":"2026-01-02T03:04:05Z","entries_per_second":7,"last_repair":{"cause":"checkpoint","running":false,"keys":2,"bytes":100,"seconds":0.5},
"primaries":[{"api_address":"https://us:8200","cluster_address":"us:8201","connection_status":"connected","last_heartbeat_duration_ms":"100"},{"cluster_address":"us2:8201","connection_status":"disconnected"}]}}`
	done = `200 {"warnings":["this cluster is being changed"]}`
)

const replicationAPI = "sys/replication/performance/"

var replicationAnswers = map[string]string{
	"GET " + replicationAPI + "status":                         primaryStatus,
	"POST " + replicationAPI + "primary/enable":                done,
	"POST " + replicationAPI + "primary/demote":                done,
	"POST " + replicationAPI + "primary/disable":               done,
	"POST " + replicationAPI + "primary/secondary-token":       `200 {"wrap_info":{"token":"eyJ.a.b","accessor":"wa","ttl":1800,"creation_time":"2026-01-02T03:04:05Z","creation_path":"sys/replication/performance/primary/secondary-token"}}`,
	"POST " + replicationAPI + "primary/revoke-secondary":      "204",
	"POST " + replicationAPI + "primary/paths-filter/eu":       "204",
	"GET " + replicationAPI + "primary/paths-filter/eu":        `200 {"data":{"mode":"deny","paths":["payments/"]}}`,
	"DELETE " + replicationAPI + "primary/paths-filter/eu":     "204",
	"GET " + replicationAPI + "primary/dynamic-filter/eu":      `200 {"data":{"dynamic_filtered_mounts":["payments/"],"dynamic_filtered_namespaces":[]}}`,
	"POST " + replicationAPI + "secondary/enable":              done,
	"POST " + replicationAPI + "secondary/promote":             done,
	"POST " + replicationAPI + "secondary/disable":             done,
	"POST " + replicationAPI + "secondary/update-primary":      done,
	"POST " + replicationAPI + "secondary/generate-public-key": `200 {"data":{"secondary_public_key":"a2V5"}}`,
	"POST sys/replication/recover":                             done,
	"GET " + replicationAPI + "conflicts":                      `200 {"data":{"conflicts":[{"path":"kv/a","part":"version 2","key":"s/m/a","mine":"1:7","theirs":"2:9","at":"2026-01-02T03:04:05Z"}]}}`,
}

// TestReplicationRequests checks for each command what it sends, what it says and how it exits.
func TestReplicationRequests(t *testing.T) {
	tests := []struct {
		args   string
		stdin  string
		last   string // the last request, "" for none
		stdout string // a part of it
		stderr string // a part of it
		status int
	}{
		{args: "primary enable", last: "POST primary/enable {}", stdout: "Success! This cluster is a primary.", stderr: "Warning: this cluster is being changed"},
		{args: "primary enable -primary-cluster-addr=a:1", last: `POST primary/enable {"primary_cluster_addr":"a:1"}`},
		{args: "primary enable -format=json", last: "POST primary/enable {}", stdout: `"warnings"`},
		{args: "primary demote", last: "POST primary/demote {}", stdout: "coffer replication secondary promote"},
		{args: "primary disable -yes", last: "POST primary/disable {}", stdout: "Replication is off."},
		{args: "primary disable", stderr: "-yes goes ahead without asking", status: 1},
		{args: "primary secondary-token eu", last: `POST primary/secondary-token {"id":"eu"}`, stdout: "wrapping_token_ttl              30m\n"},
		{args: "primary secondary-token -ttl=2h -field=wrapping_token eu", last: `POST primary/secondary-token {"id":"eu","ttl":"2h"}`, stdout: "eyJ.a.b"},
		{args: "primary secondary-token -secondary-public-key=- eu", stdin: "a2V5\n", last: `POST primary/secondary-token {"id":"eu","secondary_public_key":"a2V5"}`},
		{args: "primary secondary-token", stderr: "takes ID", status: 1},
		{args: "primary revoke eu", last: `POST primary/revoke-secondary {"id":"eu"}`, stdout: "eu is shut out."},
		{args: "primary filter set eu a/ b/", last: `POST primary/paths-filter/eu {"paths":["a/","b/"]}`},
		{args: "primary filter set -mode=deny eu a/", last: `POST primary/paths-filter/eu {"mode":"deny","paths":["a/"]}`},
		{args: "primary filter get eu", last: "GET primary/paths-filter/eu", stdout: "mode     deny\n"},
		{args: "primary filter get -resolved eu", last: "GET primary/dynamic-filter/eu", stdout: "dynamic_filtered_mounts        [payments/]\n"},
		{args: "primary filter get us", last: "GET primary/paths-filter/us", stderr: `no filter for "us"`, status: 2},
		{args: "primary filter delete eu", last: "DELETE primary/paths-filter/eu", stdout: "Removed the filter"},
		{args: "secondary enable -yes tok", last: `POST secondary/enable {"token":"tok"}`, stdout: "coffer replication status -watch"},
		{args: "secondary enable -yes -primary-ca-file=/ca.pem -primary-api-addr=https://p -", stdin: "tok\n", last: `POST secondary/enable {"ca_file":"/ca.pem","primary_api_addr":"https://p","token":"tok"}`},
		{args: "secondary enable tok", stderr: "this deletes everything", status: 1},
		{args: "secondary enable -yes -", stderr: "stdin was empty", status: 1},
		{args: "secondary promote", last: "POST secondary/promote {}", stdout: "This cluster is the primary."},
		{args: "secondary promote -force -yes", last: `POST secondary/promote {"force":true}`},
		{args: "secondary promote -force", stderr: "this loses what", status: 1},
		{args: "secondary disable -yes", last: "POST secondary/disable {}"},
		{args: "secondary update-primary tok", last: `POST secondary/update-primary {"token":"tok"}`},
		{args: "secondary update-primary -update-primary-addrs=a:1,b:2 -update-primary-addrs=c:3", last: `POST secondary/update-primary {"update_primary_addrs":["a:1","b:2","c:3"]}`},
		{args: "secondary update-primary -forget", last: `POST secondary/update-primary {"token":""}`, stdout: "follows no primary"},
		{args: "secondary update-primary -forget tok", stderr: "exclude each other", status: 1},
		{args: "secondary update-primary", stderr: "stdin is no terminal", status: 1},
		{args: "secondary public-key -field=secondary_public_key", last: "POST secondary/generate-public-key {}", stdout: "a2V5"},
		{args: "secondary filter eu", last: "GET secondary/dynamic-filter/eu", stderr: "no filter", status: 2},
		{args: "secondary filter", last: "GET status", stderr: "is no secondary", status: 2},
		{args: "repair", last: "POST sys/replication/recover {}", stdout: "The comparison has begun"},
		{args: "conflicts", last: "GET conflicts", stdout: "kv/a (version 2)    1:7              2:9               2026"},
		{args: "conflicts s/m/a", last: "GET conflicts?key=s%2Fm%2Fa"},
		{args: "status -field=state", last: "GET status", stdout: "running"},
		{args: "status -format=json", last: "GET status", stdout: `"cluster_id": "c1"`},
		{args: "status -watch -interval=soon", stderr: "-interval takes", status: 1},
		{args: "secundary", stderr: `did you mean "coffer replication secondary"?`, status: 1},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			r := record(t, replicationAnswers)
			stdout, stderr, status := coffer(t, tt.stdin, append([]string{"replication"}, strings.Fields(tt.args)...)...)
			last := ""
			if lines := r.lines(); len(lines) > 0 {
				last = strings.Replace(lines[len(lines)-1], replicationAPI, "", 1)
			}
			if last != tt.last || status != tt.status || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("status %d, last request %q\nstdout %q\nstderr %q\nwant %d, %q, %q, %q", status, last, stdout, stderr, tt.status, tt.last, tt.stdout, tt.stderr)
			}
		})
	}
}

// TestReplicationStatus draws each kind of cluster.
func TestReplicationStatus(t *testing.T) {
	tests := []struct {
		name, answer string
		want         []string
		not          string
	}{
		{"primary", primaryStatus, []string{
			"Mode primary\n", "Epoch 2, of cluster c1\n", "Position 2:90\n",
			"Secondary    Address    State Entries Behind    Bytes      Seconds    Rate    Last Equal    Last Heard\n",
			"eu           eu:8201    connected       3                 2.0 KiB    0.2        12/s    2026-01-02T03:04:04Z    0.4 s ago\n",
			"us           -          disconnected    0                 0 bytes    0.0        0/s     never    -\n",
		}, "Progress"},
		{"secondary", secondaryStatus, []string{
			"State streaming\n", "Secondary ID eu\n", "Last Repair checkpoint; 2 keys, 100 bytes in 0.5 s\n",
			"1          us:8201     connected       0                 0 bytes    0.0        7/s     2026-01-02T03:04:05Z    0.1 s ago\n",
			"2          us2:8201    disconnected    -                 -          -          -       -    -\n",
		}, "Progress"},
		{"disabled", `200 {"data":{"mode":"disabled"}}`, []string{"Mode disabled\n"}, "Secondary"},
		{"no secondary connected", `200 {"data":{"mode":"primary","fenced":3}}`, []string{"none\n", "the primary is cluster (unknown) in epoch 3"}, "Progress"},
		{"fenced", `200 {"data":{"mode":"primary","phase":"fenced","fenced":3,"fenced_by":{"epoch":3,"cluster_id":"c3","api_address":"https://c3:8200"},"reason":"this cluster is no longer the primary",
"other_primaries":[{"epoch":3,"cluster_id":"c3"},{"epoch":4,"cluster_id":"c4","api_address":"https://c4:8200"}],
"former_primaries":[{"cluster_id":"c0","cluster_addresses":["c0:8201"],"since":"2026-01-02T03:04:05Z","reason":"no route"}]}}`, []string{
			"State fenced\n", "Fenced the primary is cluster c3 in epoch 3 at https://c3:8200: this cluster takes no shared writes",
			"Other Primary cluster c4 in epoch 4 at https://c4:8200, which is not of this cluster's history\n",
			"Former Primary cluster c0 at c0:8201 may still take writes, has not confirmed since 2026-01-02T03:04:05Z: no route\n",
		}, "Not Connected"},
		{"final word", `200 {"data":{"mode":"secondary","phase":"disconnected","primary_final":true}}`,
			[]string{"Primary's Final Word it was demoted, and everything that it had is here: this cluster can be promoted\n"}, "Other"},
		{"backfill", `200 {"data":{"mode":"secondary","phase":"backfill","keys_done":50,"keys_total":200,"eta_seconds":90}}`,
			[]string{"Progress [######------------------]  25 %  50 of 200 keys, about 1m30s left\n"}, "Last Repair"},
		{"too slow", `200 {"data":{"mode":"secondary","phase":"backfill","keys_done":300,"keys_total":200,"eta_seconds":-1}}`,
			[]string{"[########################] 100 %  200 of 200 keys, the primary is written to faster than this\n"}, "left"},
		{"repairing", `200 {"data":{"mode":"secondary","phase":"repairing","last_repair":{"cause":"x","running":true,"units":1,"units_all":4}}}`,
			[]string{" 25 %  1 of 4 mounts and namespaces\n"}, "Last Repair"},
		{"away", `200 {"data":{"mode":"secondary","phase":"disconnected","connection_state":"transient_failure","reason":"no \u001b[31mroute"}}`,
			[]string{`Not Connected no \x1b[31mroute`}, "\x1b"},
	}
	gap := regexp.MustCompile(` {3,}`)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			record(t, map[string]string{"GET " + replicationAPI + "status": tt.answer})
			stdout, stderr, status := coffer(t, "", "replication", "status")
			if status != 0 || strings.Contains(stdout, tt.not) {
				t.Errorf("status %d, stderr %q, or %q is in\n%s", status, stderr, tt.not, stdout)
			}
			stdout = gap.ReplaceAllString(stdout, " ")
			for _, want := range tt.want {
				if !strings.Contains(stdout, gap.ReplaceAllString(want, " ")) {
					t.Errorf("%q is missing in\n%s", want, stdout)
				}
			}
		})
	}
	record(t, map[string]string{"GET " + replicationAPI + "status": `200 {"keys":1}`})
	if _, stderr, status := coffer(t, "", "replication", "status"); status != 2 || !strings.Contains(stderr, "not a status of replication") {
		t.Errorf("something else: status %d, %q", status, stderr)
	}
}

// TestReplicationWatch prints a line for each change, outlives a server that is away, and ends when interrupted.
func TestReplicationWatch(t *testing.T) {
	steps := []string{primaryStatus, primaryStatus, `503 {"errors":["sealed"]}`, secondaryStatus}
	asked := 0
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked >= len(steps) {
			interrupt()
			asked = len(steps) - 1
		}
		status, text, _ := strings.Cut(steps[asked], " ")
		asked++
		if status != "200" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprint(w, text)
	}))
	defer server.Close()
	clearEnv(t)
	t.Setenv("COFFER_ADDR", server.URL)
	var out, errs bytes.Buffer
	if status := run(ctx, []string{"coffer", "replication", "status", "-watch", "-interval=1ms"}, strings.NewReader(""), &out, &errs); status != 0 {
		t.Fatalf("status %d: %s", status, errs.String())
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	want := []string{
		"primary, running, at 2:90, eu connected 3 entries (0.2 s) behind, us disconnected 0 entries (0.0 s) behind",
		"no answer: sealed",
		"secondary, streaming, at 2:90, ready, 0 entries (0.0 s) behind",
	}
	if len(lines) != len(want) {
		t.Fatalf("printed %q, want %d lines", lines, len(want))
	}
	for i, line := range lines {
		if _, text, _ := strings.Cut(line, " "); text != want[i] {
			t.Errorf("line %d is %q, want %q behind the time", i, text, want[i])
		}
	}
}
