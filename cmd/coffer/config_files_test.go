package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/node/settings"
)

// checkConfig runs "coffer server -check".
func checkConfig(t *testing.T, text string) (status int, out string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "coffer.hcl")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	status = run(t.Context(), []string{"coffer", "server", "-config=" + file, "-check"}, strings.NewReader(""), &all, &all)
	return status, all.String()
}

// -check finds what the start would find, and tells what has no effect.
func TestCheckFindsWhatStartFinds(t *testing.T) {
	const valid = `storage "raft" { path = "/nonexistent/x" } listener "tcp" { tls_disable = true }` + "\n"
	if status, out := checkConfig(t, valid+"disable_mlock = true"); status != 0 || !strings.Contains(out, "Warning:") || !strings.Contains(out, `coffer.hcl:2: "disable_mlock"`) {
		t.Errorf("status %d, %s", status, out)
	}
	for text, want := range map[string]string{
		valid + `seal "static" { current_key = "AAAA" current_key_id = "a" nonsense = "1" }`:                                                        "nonsense",
		valid + `audit "http" "a" { options { uri = "https://x" } }`:                                                                                "unknown audit backend type",
		valid + `audit "file" "a" { options { mode = "0600" } }`:                                                                                    "file_path",
		`storage "raft" { path = "/x" } listener "tcp" { tls_cert_file = "/nonexistent/c" tls_key_file = "/nonexistent/k" }`:                        "/nonexistent/c",
		`storage "raft" { path = "/x" retry_join { leader_api_addr = "https://a:1" leader_ca_cert = "no" } } listener "tcp" { tls_disable = true }`: "leader_ca_cert",
	} {
		if status, out := checkConfig(t, text); status != 1 || !strings.Contains(out, want) {
			t.Errorf("%s: status %d, %s; want a word on %s", text, status, out, want)
		}
	}
}

// The flags of the log win over the file, and are checked as it is.
func TestFlagsOfRotation(t *testing.T) {
	dir := t.TempDir()
	file, log := filepath.Join(dir, "coffer.hcl"), filepath.Join(dir, "log")
	if err := os.WriteFile(file, []byte("log_level = \"trace\"\nlog_rotate_max_files = 7"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	args := []string{"coffer", "server", "-dev", "-config=" + file, "-log-rotate-max-files=few"}
	if status := run(t.Context(), args, strings.NewReader(""), io.Discard, &all); status != 1 || !strings.Contains(all.String(), "log_rotate_max_files") {
		t.Errorf("status %d, %s", status, &all)
	}
	_, stop := serverHere(t, "-config="+file, "-log-file="+log, "-log-format=json", "-log-rotate-bytes=300B", "-log-rotate-max-files=2")
	stop()
	files, err := filepath.Glob(filepath.Join(dir, "log*"))
	text, err2 := os.ReadFile(log)
	if err != nil || err2 != nil || len(files) != 3 || !strings.HasPrefix(string(text), "{") {
		t.Errorf("log files %q, the last one is %s, %v, %v", files, text, err, err2)
	}
}

// Variables of ours win over those of OpenBao, and those over Vault's.
func TestEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"VAULT_API_ADDR": "https://vault:1", "BAO_API_ADDR": "https://bao:1", "VAULT_RAFT_PATH": "/vault", "COFFER_RAFT_PATH": "/coffer",
		"VAULT_LOG_LEVEL": "NOTICE", "BAO_LOG_FORMAT": "standard", "VAULT_UI": "false", "VAULT_RAFT_RETRY_JOIN_AS_NON_VOTER": "1", "VAULT_SEAL_TYPE": "static",
	} {
		t.Setenv(name, value)
	}
	file := filepath.Join(t.TempDir(), "coffer.hcl")
	if err := os.WriteFile(file, []byte(`log_format = "json"`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := settings.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if c.APIAddr != "https://bao:1" || c.Storage.Path != "/coffer" || c.LogLevel != "info" || c.LogFormat != "text" || c.UI || !c.Storage.NonVoter || c.Seal.Type != "static" {
		t.Errorf("config = %+v", c)
	}
	t.Setenv("VAULT_SEAL_TYPE", "magic")
	if _, err := settings.Load(file); err == nil || !strings.Contains(err.Error(), "COFFER_SEAL_TYPE") {
		t.Errorf("an unknown seal: %v", err)
	}
}

// A listener at a socket serves who may open it, with the operator's headers; a listener of metrics serves nothing else.
func TestUnixListenerAndHeaders(t *testing.T) {
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "coffer.hcl")
	text := `
listener "unix" {
  address     = "` + socket + `"
  socket_mode = "0660"
  custom_response_headers {
    "default" = { "X-Site" = ["a"] }
    "403"     = { "X-Site" = "missing" }
  }
}
listener "tcp" {
  address     = "127.0.0.1:0"
  tls_disable = true
  telemetry { metrics_only = true }
}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	url, stop := serverHere(t, "-config="+file)
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket is %v, %v", info, err)
	}
	resp, err := http.Get(url + "/v1/sys/health")
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a listener of metrics responds %d", resp.StatusCode)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	for path, want := range map[string]string{"/v1/sys/health": "a", "/nothing": "missing"} {
		resp, err := client.Get("http://coffer" + path)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		if resp.Body.Close(); resp.Header.Get("X-Site") != want {
			t.Errorf("%s: %d with X-Site %q, want %q", path, resp.StatusCode, resp.Header.Get("X-Site"), want)
		}
	}
	stop()
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is left")
	}
}

// A development server on a busy port says what to do.
func TestDevPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("VAULT_DEV_LISTEN_ADDRESS", l.Addr().String())
	var stderr strings.Builder
	if status := run(t.Context(), []string{"coffer", "server", "-dev", "-dev-no-store-token"}, strings.NewReader(""), io.Discard, &stderr); status != 1 || !strings.Contains(stderr.String(), "-dev-listen-address") {
		t.Errorf("status %d, %s", status, &stderr)
	}
}
