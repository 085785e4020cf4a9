package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/node/settings"
	"github.com/coffer-project/coffer/storage/storagetest/leaktest"
)

// serverHere runs a development server in this process until stop is called, which returns its exit status.
func serverHere(t *testing.T, args ...string) (url string, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	status := make(chan int, 1)
	args = append([]string{"coffer", "server", "-dev", "-dev-listen-address=127.0.0.1:0", "-dev-no-store-token"}, args...)
	go func() {
		status <- run(ctx, args, strings.NewReader(""), io.Discard, w)
		w.Close()
	}()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if at, ok := strings.CutPrefix(lines.Text(), "coffer: ready at "); ok {
			url = at
			break
		}
	}
	if url == "" {
		cancel()
		t.Fatalf("the server ended with status %d before it was ready", <-status)
	}
	drained := make(chan struct{})
	go func() { io.Copy(io.Discard, r); close(drained) }()
	return url, func() int {
		cancel()
		<-drained
		return <-status
	}
}

func TestServerEndsCompletely(t *testing.T) {
	before := leaktest.Running()
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	url, stop := serverHere(t, "-dev-root-token-id=root")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"/v1/sys/health", "/ui/", "/v1/secret/config"} {
		req, err := http.NewRequest(http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Vault-Token", "root")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("GET %s = %d, want 200", path, resp.StatusCode)
		}
	}
	if status := stop(); status != 0 {
		t.Errorf("the server ended with status %d", status)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
	if err := leaktest.Check(before); err != nil {
		t.Error(err)
	}
}

// With -dev-tls the server has a certificate for the names it is asked for, by a CA that stays the same in a directory that is given.
func TestDevelopmentServerWithTLS(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	certs := filepath.Join(t.TempDir(), "new")
	var authority []byte
	for _, args := range [][]string{{"-dev-tls-cert-dir=" + certs, "-dev-tls-san=coffer.test"}, {"-dev-tls-cert-dir=" + certs}, nil} {
		url, stop := serverHere(t, append(args, "-dev-tls")...)
		dir := certs
		if args == nil {
			found, err := filepath.Glob(filepath.Join(temp, "coffer-dev-*", "ca.pem"))
			if err != nil || len(found) != 1 {
				t.Fatalf("authorities in the temporary directory: %v, %v", found, err)
			}
			dir = filepath.Dir(found[0])
		}
		ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case authority == nil:
			authority = ca
		case bytes.Equal(authority, ca) != (dir == certs):
			t.Errorf("the CA in %s is the one before: %v", dir, bytes.Equal(authority, ca))
		}
		if mode, err := os.Stat(filepath.Join(dir, "key.pem")); err != nil || mode.Mode().Perm() != 0o600 {
			t.Errorf("the key's file: %v, %v", mode, err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		for _, name := range []string{"", "localhost", "coffer.test"} {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name}}}
			resp, err := client.Get(url + "/v1/sys/health")
			if err == nil {
				resp.Body.Close()
			}
			if valid := args != nil || name != "coffer.test"; valid != (err == nil) {
				t.Errorf("%v as %q: %v", args, name, err)
			}
		}
		if status := stop(); status != 0 {
			t.Errorf("the server ended with status %d", status)
		}
	}
	for _, refused := range []struct{ args, want string }{
		{"-dev-tls -dev-tls-san=another.test -dev-tls-cert-dir=" + certs, "not another.test"},
		{"-dev-tls-san=another.test", "need -dev-tls"},
	} {
		var stderr strings.Builder
		args := append([]string{"coffer", "server", "-dev", "-dev-no-store-token", "-dev-listen-address=127.0.0.1:0"}, strings.Fields(refused.args)...)
		if status := run(t.Context(), args, strings.NewReader(""), io.Discard, &stderr); status != 1 || !strings.Contains(stderr.String(), refused.want) {
			t.Errorf("%s: status %d, %s", refused.args, status, &stderr)
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

func TestCheckListsEveryProblem(t *testing.T) {
	file := filepath.Join(t.TempDir(), "coffer.hcl")
	config := `
listener "tcp" { address = "nonsense" tls_disable = true }
storage "raft" { path = "/x" retry_join { leader_api_addr = "no-url" } }
seal "magic" {}
colour = "red"
log_level = "loud"
default_lease_ttl = "soon"
`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	status := run(t.Context(), []string{"coffer", "server", "-config=" + file, "-check"}, strings.NewReader(""), io.Discard, &stderr)
	if status != 1 {
		t.Errorf("status = %d, want 1", status)
	}
	for _, want := range []string{`seal "magic"`, `"colour"`, `"log_level"`, `"default_lease_ttl"`, "coffer.hcl:5", "host:port", "leader_api_addr"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("stderr lacks %q:\n%s", want, &stderr)
		}
	}
}

func TestSecondProcessOnTheSameData(t *testing.T) {
	dir := t.TempDir()
	_, stop := serverHere(t, "-dev-data-dir="+dir)
	defer stop()
	var stderr strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	args := []string{"coffer", "server", "-dev", "-dev-listen-address=127.0.0.1:0", "-dev-no-store-token", "-dev-data-dir=" + dir}
	if status := run(ctx, args, strings.NewReader(""), io.Discard, &stderr); status != 1 || !strings.Contains(stderr.String(), "in use by another process") {
		t.Errorf("status = %d, stderr %q; want 1 and who holds the data", status, &stderr)
	}
}

// One configuration serves all nodes: variables say which one this is, and a node does not join itself.
func TestOneConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "coffer.hcl")
	text := `api_addr = "https://10.0.0.9:8200"
listener "tcp" { address = "0.0.0.0:8200" tls_disable = true }
storage "raft" {
  path = "/x"
  retry_join { leader_api_addr = "https://10.0.0.1:8200" }
  retry_join { leader_api_addr = "https://10.0.0.2:8200/" }
}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("COFFER_API_ADDR", "https://10.0.0.2:8200")
	t.Setenv("VAULT_CLUSTER_ADDR", "10.0.0.2:8201")
	t.Setenv("COFFER_RAFT_NODE_ID", "n2")
	c, err := settings.Load(file)
	if err == nil {
		err = c.Complete()
	}
	if err != nil {
		t.Fatal(err)
	}
	if c.APIAddr != "https://10.0.0.2:8200" || c.ClusterAddr != "10.0.0.2:8201" || c.Storage.NodeID != "n2" {
		t.Errorf("the node is %q at %q and %q", c.Storage.NodeID, c.APIAddr, c.ClusterAddr)
	}
	if j := c.Storage.RetryJoin; len(j) != 1 || j[0].LeaderAPIAddr != "https://10.0.0.1:8200" {
		t.Errorf("it joins %+v", j)
	}
}
