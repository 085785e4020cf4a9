package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A service manager hears when the server is ready and when it stops; the log and the process id are in files.
func TestServiceManager(t *testing.T) {
	dir, err := os.MkdirTemp("", "sm") // the name of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	in := func(name string) string { return filepath.Join(dir, name) }
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: in("notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	hear := func() string {
		t.Helper()
		b := make([]byte, 256)
		n, err := socket.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	t.Setenv("NOTIFY_SOCKET", in("notify"))
	config := fmt.Sprintf(`
listener "tcp" { address = "127.0.0.1:0" cluster_address = "127.0.0.1:0" tls_disable = true }
cluster_addr = "127.0.0.1:0"
storage "raft" { path = %q }
log_file = %q
log_format = "json"
pid_file = %q
`, in("data"), in("log"), in("pid"))
	if err := os.WriteFile(in("coffer.hcl"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var stderr strings.Builder
	status := make(chan int, 1)
	go func() {
		status <- run(ctx, []string{"coffer", "server", "-config=" + in("coffer.hcl")}, strings.NewReader(""), io.Discard, &stderr)
		if end, err := net.Dial("unixgram", in("notify")); err == nil { // so that the server does not wait for a reader
			end.Write([]byte("it has ended")) //nolint:errcheck // the same
			end.Close()
		}
	}()
	if got := hear(); got != "READY=1" {
		t.Errorf("the first word is %q", got)
	}
	if pid, err := os.ReadFile(in("pid")); err != nil || strings.TrimSpace(string(pid)) != strconv.Itoa(os.Getpid()) {
		t.Errorf("the pid file says %q, %v", pid, err)
	}

	// A log that was moved away is opened again.
	if err := os.Rename(in("log"), in("log.1")); err != nil {
		t.Fatal(err)
	}
	// What of the configuration waits for a restart is named.
	if err := os.WriteFile(in("coffer.hcl"), []byte(config+"cluster_name = \"other\"\nlog_level = \"debug\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	text := ""
	for !strings.Contains(text, "reloaded") {
		select {
		case <-again.C:
			raw, _ := os.ReadFile(in("log")) // it may not be there yet
			text = string(raw)
		case <-time.After(20 * time.Second):
			t.Fatal("the log was not reopened")
		}
	}
	if !strings.Contains(text, `"keys":["cluster_name"]`) {
		t.Errorf("the log does not say what waits for a restart: %s", text)
	}
	stop()
	if got := hear(); got != "STOPPING=1" {
		t.Errorf("the last word is %q", got)
	}
	if code := <-status; code != 0 {
		t.Errorf("status %d: %s", code, &stderr)
	}
	if _, err := os.Stat(in("pid")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the pid file is still there: %v", err)
	}
	old, err := os.ReadFile(in("log.1"))
	if err != nil || !strings.Contains(string(old), `"logger":"server"`) || !strings.Contains(string(old), `"msg":"serving"`) {
		t.Errorf("the log says %q, %v", old, err)
	}
}
