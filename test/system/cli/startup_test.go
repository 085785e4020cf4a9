//go:build unix

package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// A hangup must not end a server that is still starting, as log rotation at boot may send one.
func TestHangupWhileStarting(t *testing.T) {
	dir := t.TempDir()
	cert, file := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "coffer.hcl")
	config := fmt.Sprintf(`
listener "tcp" {
  address       = "127.0.0.1:0"
  tls_cert_file = %q
  tls_key_file  = "/dev/null"
}
storage "raft" { path = %q }
`, cert, filepath.Join(dir, "data"))
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(cert, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Binary(t), "server", "-config="+file)
	var stderr bytes.Buffer
	cmd.Stderr, cmd.Env = &stderr, []string{"HOME=" + dir, "GORACE=atexit_sleep_ms=0"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	reading := make(chan *os.File, 1)
	go func() {
		f, err := os.OpenFile(cert, os.O_WRONLY, 0) // returns when the server reads its certificate
		if err != nil {
			t.Error(err)
		}
		reading <- f
	}()
	select {
	case f := <-reading:
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Error(err)
		}
		f.Close() // no certificate: the server says so and ends
		<-ended
	case err := <-ended:
		t.Errorf("the server ended too soon: %v", err)
	}
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(stderr.String(), "loading the certificate") {
		t.Errorf("the server ended with %v, %s", cmd.ProcessState, &stderr)
	}
}

// A server that cannot start leaves the file with the process id to the one that runs.
func TestPIDFileOfAnother(t *testing.T) {
	dir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	pid, file := filepath.Join(dir, "pid"), filepath.Join(dir, "coffer.hcl")
	config := fmt.Sprintf(`
pid_file = %q
listener "tcp" {
  address     = %q
  tls_disable = true
}
storage "raft" { path = %q }
`, pid, taken.Addr(), filepath.Join(dir, "data"))
	for name, content := range map[string]string{file: config, pid: "17\n"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), harness.Binary(t), "server", "-config="+file)
	cmd.Env = []string{"HOME=" + dir, "GORACE=atexit_sleep_ms=0"}
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "address already in use") {
		t.Errorf("the server ended with %v, %s", cmd.ProcessState, out)
	}
	if left, err := os.ReadFile(pid); err != nil || string(left) != "17\n" {
		t.Errorf("the file holds %q, %v", left, err)
	}
}

// A server outlives the reader of its log.
func TestReaderOfTheLogIsGone(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Binary(t), "server", "-dev", "-dev-listen-address=127.0.0.1:0", "-dev-no-store-token", "-dev-root-token-id=root", "-log-level=info")
	cmd.Env = []string{"HOME=" + dir, "TMPDIR=" + dir, "GORACE=atexit_sleep_ms=0"}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, lines := "", bufio.NewScanner(stderr)
	for url == "" && lines.Scan() {
		url, _, _ = strings.Cut(after(lines.Text(), "coffer: ready at "), " ")
	}
	stderr.Close()
	for range 3 {
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, url+"/v1/sys/rotate", nil) // which is logged
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Vault-Token", "root")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusNoContent {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
}

func after(text, mark string) string {
	_, rest, _ := strings.Cut(text, mark)
	return rest
}
