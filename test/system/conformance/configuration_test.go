package conformance_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// Nodes that start with one configuration found one cluster, as its initialize stanzas say, and have its audit device.
func TestThreeNodesByConfiguration(t *testing.T) {
	t.Parallel()
	audit := filepath.Join(t.TempDir(), "audit.log")
	c := harness.NewCluster(t, 3, harness.Options{Bare: true, OneConfiguration: true, Plain: true, Config: fmt.Sprintf(`
audit "file" "conf" {
  options { file_path = %q }
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
    data      = { password = "a long password" token_policies = ["admin"] }
  }
  request "policy" {
    operation = "update"
    path      = "sys/policies/acl/admin"
    data      = { policy = "path \"*\" { capabilities = [\"read\", \"list\", \"sudo\"] }" }
  }
}`, audit)})
	for _, n := range c.Nodes {
		n.WaitHealth(200, 429, 473)
	}
	for _, n := range c.Nodes {
		login := func() error {
			a, err := n.Do(t.Context(), http.MethodPost, "/v1/auth/userpass/login/admin", "", map[string]any{"password": "a long password"})
			if err == nil && a.Status != http.StatusOK {
				err = fmt.Errorf("status %d", a.Status)
			}
			return err
		}
		harness.Await(t, "a login at "+n.ID, time.Minute, login) // the user is made after the node is active
	}
	text, err := os.ReadFile(audit)
	if founded := strings.Count(string(text), `"type":"request"`); err != nil || !strings.Contains(string(text), "auth/token/revoke-self") || founded < 4 {
		t.Errorf("the audit log has %d requests, %v", founded, err)
	}
	for _, n := range c.Nodes {
		if has := strings.Contains(n.Log(), "its root token is revoked"); has != (n == c.Nodes[0]) {
			t.Errorf("%s founded the cluster: %v", n.ID, has)
		}
	}
}

// A node joins one that it knows by a name alone, whose certificate it checks with PEM in the configuration.
func TestJoinByName(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 1, harness.Options{})
	dir, first := filepath.Dir(c.Nodes[0].LogFile), c.Nodes[0]
	text, err := os.ReadFile(filepath.Join(dir, first.ID+".hcl"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(c.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	port := first.URL[strings.LastIndex(first.URL, ":")+1:]
	api, cluster := strconv.Itoa(harness.FreePort(t)), strconv.Itoa(harness.FreePort(t))
	config := strings.NewReplacer(
		port, api, first.ClusterAddr(), "127.0.0.1:"+cluster, strconv.Quote(first.Dir), strconv.Quote(filepath.Join(dir, "joiner")),
		`node_id = "`+first.ID+`"`, "node_id = \"joiner\"\n  retry_join {\n    leader_api_addr = \"https://localhost:"+port+"\"\n    leader_ca_cert = <<PEM\n"+string(ca)+"PEM\n  }",
	).Replace(string(text))
	file := filepath.Join(dir, "joiner.hcl")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, harness.Binary(t), "server", "-config="+file)
	var log bytes.Buffer
	cmd.Stderr, cmd.Env = &log, append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() //nolint:errcheck // it is ended
	defer cancel()
	harness.Await(t, "the node that joins by a name", time.Minute, func() error {
		peers := first.MustDo(http.MethodGet, "/v1/sys/storage/raft/configuration", nil)
		if !strings.Contains(string(peers.Body), `"joiner"`) {
			return fmt.Errorf("the members are %s", peers.Body)
		}
		return nil
	})
}

// The development cluster survives the end of one of its nodes, and leaves no process behind.
func TestDevelopmentCluster(t *testing.T) {
	t.Parallel()
	base := freePorts(t, 6)
	home := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Binary(t), "server", "-dev-ha", "-dev-root-token-id=root", "-dev-no-store-token", fmt.Sprintf("-dev-listen-address=127.0.0.1:%d", base))
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "GORACE=atexit_sleep_ms=0"}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "coffer: ready at ") {
		said.WriteString(lines.Text() + "\n")
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		io.Copy(io.Discard, stderr)
	}()
	nodes := regexp.MustCompile(`n([123])   (http://\S+)   process (\d+)`).FindAllStringSubmatch(said.String(), -1)
	if len(nodes) != 3 {
		cancel()
		<-drained
		t.Fatalf("the server said %s, and ended with %v", &said, cmd.Wait())
	}
	var pids []int
	for _, n := range nodes {
		pid, err := strconv.Atoi(n[3])
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	call := func(url, method, body string) error {
		req, err := http.NewRequestWithContext(ctx, method, url+"/v1/secret/data/a", strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("X-Vault-Token", "root")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: status %d, %w", method, resp.StatusCode, err)
		}
		return nil
	}
	if err := call(nodes[0][2], http.MethodPost, `{"data": {"x": "1"}}`); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	harness.Await(t, "a write without one node", time.Minute, func() error { return call(nodes[1][2], http.MethodPost, `{"data": {"x": "2"}}`) })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	<-drained
	if err := cmd.Wait(); err != nil {
		t.Errorf("the development cluster ended with %v", err)
	}
	for _, pid := range pids[1:] {
		if err := syscall.Kill(pid, 0); err == nil {
			t.Errorf("process %d is left", pid)
		}
	}
	if left, err := filepath.Glob(filepath.Join(home, "coffer-dev-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// freePorts returns the first of n ports in a row that are free.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		base, free := harness.FreePort(t), 0
		for ; free < n; free++ {
			l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", base+free))
			if err != nil {
				break
			}
			l.Close()
		}
		if free == n {
			return base
		}
	}
	t.Fatal("there are no free ports in a row")
	return 0
}
