package plugin_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// written is what a process has written so far.
type written struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *written) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *written) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// TestUnprivilegedServer kills a server that is not root's: what its plugin has started ends with it, if the kernel permits that.
func TestUnprivilegedServer(t *testing.T) {
	t.Parallel()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "unprivileged")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	config := filepath.Join(dir, "coffer.hcl")
	text := fmt.Sprintf("plugin_directory = %q\nplugin \"secret\" \"thing\" {\n  command = \"testplugin\"\n  sha256 = %q\n}\n", programs, sum)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", harness.FreePort(t))
	binary := harness.Binary(t)
	if os.Geteuid() == 0 { // it may be where only root finds it
		content, err := os.ReadFile(binary)
		if err != nil {
			t.Fatal(err)
		}
		binary = filepath.Join(dir, "coffer")
		if err := os.WriteFile(binary, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "server", "-dev", "-dev-no-store-token", "-dev-root-token-id=root", "-dev-listen-address="+address,
		"-config="+config, "-log-level=info")
	var log written
	cmd.Stdout, cmd.Stderr, cmd.Env = &log, &log, []string{"HOME=" + dir, "TMPDIR=" + dir, "GORACE=atexit_sleep_ms=0"}
	if os.Geteuid() == 0 {
		const nobody = 65534
		for _, readable := range []string{dir, programs} {
			if err := os.Chmod(readable, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := sync.OnceFunc(func() {
		stop()
		cmd.Wait() //nolint:errcheck // it was killed
	})
	t.Cleanup(ended)
	send := func(method, path, body string) (int, error) {
		req, err := http.NewRequestWithContext(ctx, method, "http://"+address+"/v1/"+path, strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		req.Header.Set("X-Vault-Token", "root")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		resp.Body.Close()
		return resp.StatusCode, nil
	}
	for _, request := range [][]string{
		{"POST", "sys/mounts/p", `{"type":"thing"}`}, {"POST", "p/data/a", `{"value":"1"}`}, {"GET", "p/data/a", ""}, {"GET", "p/misbehave/child", ""},
	} {
		harness.Await(t, strings.Join(request[:2], " "), patience, func() error {
			status, err := send(request[0], request[1], request[2])
			if err == nil && status != 200 && status != 204 && !strings.HasSuffix(request[1], "child") {
				err = fmt.Errorf("status %d: %s", status, log.String())
			}
			return err
		})
	}
	var children []int
	for _, plugin := range childrenOf(t, cmd.Process.Pid) {
		children = append(children, childrenOf(t, plugin)...)
	}
	if len(children) != 2 {
		t.Fatalf("the plugin's children are %v: %s", children, log.String())
	}
	ended()
	if !strings.Contains(log.String(), "pid_namespace=true") {
		for _, child := range children {
			syscall.Kill(child, syscall.SIGKILL) //nolint:errcheck // it has ended, then
		}
		t.Skip("the kernel permits this server no namespaces of its own")
	}
	for _, child := range children {
		gone(t, child)
	}
}
