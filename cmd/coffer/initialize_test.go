package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// nodeHere runs "coffer server" with a configuration until stop is called, which returns its exit status. url is "" if it ended before
// it was ready. The log is for after stop.
func nodeHere(t *testing.T, file string) (url string, log func() string, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	status := make(chan int, 1)
	go func() {
		status <- run(ctx, []string{"coffer", "server", "-config=" + file}, strings.NewReader(""), io.Discard, w)
		w.Close()
	}()
	ready, drained := make(chan string, 1), make(chan struct{})
	var all bytes.Buffer
	go func() {
		defer close(drained)
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			all.WriteString(lines.Text() + "\n")
			if at, ok := strings.CutPrefix(lines.Text(), "coffer: ready at "); ok {
				ready <- at
			}
		}
	}()
	select {
	case url = <-ready:
	case <-drained:
	}
	return url, func() string { <-drained; return all.String() }, func() int { cancel(); <-drained; return <-status }
}

// A first start founds the cluster as the configuration says; its audit devices have every request from the first on.
func TestInitializeByConfiguration(t *testing.T) {
	dir := t.TempDir()
	file, audit := filepath.Join(dir, "coffer.hcl"), filepath.Join(dir, "audit.log")
	const password = "hunter22-hunter22"
	t.Setenv("FIRST_PASSWORD", password)
	stanzas := `
listener "tcp" {
  address         = "127.0.0.1:0"
  cluster_address = "127.0.0.1:0"
  tls_disable     = true
}
storage "raft" { path = "` + filepath.Join(dir, "data") + `" }
seal "static" {
  current_key    = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
  current_key_id = "1"
}
audit "file" "disk" {
  options { file_path = "` + audit + `" }
}
initialize "first" {
  request "method" {
    operation = "update"
    path      = "sys/auth/userpass"
    data      = { type = "userpass" }
  }
  request "user" {
    operation = "update"
    path      = "auth/userpass/users/admin"
    data      = { password = { eval_source = "env" eval_type = "string" env_var = "FIRST_PASSWORD" require_present = true } token_policies = ["admin"] }
  }
  request "policy" {
    operation = "update"
    path      = "sys/policies/acl/admin"
    data      = { policy = "path \"*\" { capabilities = [\"read\", \"sudo\", \"delete\"] }" }
  }
}`
	if err := os.WriteFile(file, []byte(stanzas), 0o600); err != nil {
		t.Fatal(err)
	}
	url, log, stop := nodeHere(t, file)
	if url == "" {
		t.Fatal(log())
	}
	call := func(method, path, token, body string) (int, map[string]any) {
		req, err := http.NewRequest(method, url+"/v1/"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Vault-Token", token)
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var out map[string]any
		_ = json.NewDecoder(resp.Body).Decode(&out)
		return resp.StatusCode, out
	}
	var login map[string]any
	for deadline := time.Now().Add(time.Minute); ; {
		status, out := call(http.MethodPost, "auth/userpass/login/admin", "", `{"password": "`+password+`"}`)
		if login, _ = out["auth"].(map[string]any); status == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the user is not there in time")
		}
	}
	token, _ := login["client_token"].(string)
	if status, out := call(http.MethodDelete, "sys/audit/disk", token, ""); status != http.StatusBadRequest || !strings.Contains(string(asJSON(t, out)), "configuration") {
		t.Errorf("disabling a device of the configuration: %d, %v", status, out)
	}
	stop()
	if strings.Contains(log(), password) || !strings.Contains(log(), "root token is revoked") {
		t.Errorf("the log is\n%s", log())
	}
	text, err := os.ReadFile(audit)
	if err != nil || !strings.Contains(string(text), `"path":"sys/auth/userpass"`) || !strings.Contains(string(text), "auth/token/revoke-self") || strings.Contains(string(text), password) {
		t.Errorf("the audit log is\n%s, %v", text, err)
	}

	// The next start makes no request again, and the device goes with its stanza.
	without := stanzas[:strings.Index(stanzas, "audit ")] + stanzas[strings.Index(stanzas, "initialize "):]
	if err := os.WriteFile(file, []byte(without), 0o600); err != nil {
		t.Fatal(err)
	}
	url, log, stop = nodeHere(t, file)
	if url == "" {
		t.Fatal(log())
	}
	for deadline := time.Now().Add(time.Minute); ; {
		status, out := call(http.MethodGet, "sys/audit", token, "")
		if data, _ := out["data"].(map[string]any); status == http.StatusOK && len(data) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the device is left")
		}
	}
	stop()
	if strings.Contains(log(), "mount enabled") {
		t.Errorf("the second start made requests:\n%s", log())
	}
}

func asJSON(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
