package security_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// found returns which of the named texts are in the memory, the arguments or the environment of a process.
func found(t *testing.T, pid int, texts map[string]string) map[string]bool {
	t.Helper()
	in := map[string]bool{}
	look := func(text []byte) {
		for name, s := range texts {
			if bytes.Contains(text, []byte(s)) {
				in[name] = true
			}
		}
	}
	for _, file := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil {
			t.Fatal(err)
		}
		look(text)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	read := 0
	buf := make([]byte, 1<<20)
	const overlap = 256 // longer than what is looked for
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "r") {
			continue
		}
		for at := from; at < to; at += int64(len(buf) - overlap) {
			n, err := mem.ReadAt(buf[:min(int64(len(buf)), to-at)], at)
			if n == 0 && err != nil && !errors.Is(err, io.EOF) {
				break // not there, such as what is reserved only
			}
			read += n
			look(buf[:n])
		}
	}
	if read < 1<<20 {
		t.Fatalf("only %d bytes of memory could be read", read)
	}
	return in
}

// TestSealedMemory: what a node knew is not in its memory once an operator has sealed it. The process stays the one that the
// service manager started, it listens all the time, and the keys unseal it again.
func TestSealedMemory(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 1, harness.Options{Shamir: true})
	n := c.Nodes[0]
	root := user{t, n, c.RootToken, ""}
	root.must("PUT", "sys/mounts/kv", fields{"type": "kv"})
	root.must("PUT", "kv/a", fields{"value": hidden})
	root.must("GET", "kv/a", nil)
	pid := n.PID()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		t.Log("an ordinary user cannot read the memory of the server: what a sealed one holds is seen by tests that run as root")
	} else if err != nil {
		t.Fatal(err)
	}
	readable := err == nil
	if readable {
		mem.Close()
	}
	texts := map[string]string{"the root token": c.RootToken, "the secret": hidden}
	for i, share := range c.Keys[:2] {
		raw, err := base64.StdEncoding.DecodeString(share)
		if err != nil {
			t.Fatal(err)
		}
		texts[fmt.Sprintf("share %d", i+1)] = share
		texts[fmt.Sprintf("share %d, raw", i+1)] = string(raw)
		texts[fmt.Sprintf("share %d, hex", i+1)] = hex.EncodeToString(raw)
	}
	if readable {
		if in := found(t, pid, texts); !in["the secret"] || !in["the root token"] {
			t.Fatalf("of an unsealed node only %v was found: the search is broken", in)
		}
	}
	root.must("PUT", "sys/seal", nil)
	n.WaitHealth(503)
	if n.PID() != pid || !n.Running() {
		t.Errorf("process %d has become %d", pid, n.PID())
	}
	if readable {
		for name := range found(t, pid, texts) {
			t.Errorf("a sealed node holds %s in its memory, arguments or environment", name)
		}
	}
	if status := readStatus(t, pid, "Name:"); status != filepath.Base(harness.Binary(t)) {
		t.Errorf("the process is now named %q", status)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(limits)) {
		if f := strings.Fields(line); strings.HasPrefix(line, "Max core") && (f[4] != "0" || f[5] != "0") {
			t.Errorf("core dumps are possible: %s", line)
		}
	}
	n.Unseal()
	n.WaitHealth(200)
	if a := root.must("GET", "kv/a", nil); !strings.Contains(string(a.Body), hidden) {
		t.Errorf("after unsealing: %.200s", a.Body)
	}
	t.Run("twice", func(t *testing.T) { // as soon as it is sealed, without a pause for the client
		for range 3 {
			root.must("PUT", "sys/seal", nil)
			n.Unseal()
			n.WaitHealth(200)
		}
		if n.PID() != pid {
			t.Errorf("process %d has become %d", pid, n.PID())
		}
	})
}

func readStatus(t *testing.T, pid int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// TestSealedByCommandStaysSealed: a node that unseals by itself does not after an operator has sealed it, until it is started
// again; neither does one of a cluster, which goes on.
func TestSealedByCommandStaysSealed(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{})
	root := user{t, c.Leader(), c.RootToken, ""}
	root.must("PUT", "sys/mounts/kv", fields{"type": "kv"})
	sealed := c.Leader()
	root.must("PUT", "sys/seal", nil)
	sealed.WaitHealth(503)
	leader := c.Leader()
	root.at(leader).must("PUT", "kv/a", fields{"value": hidden})
	// Longer than a node that starts takes to unseal by itself: the log says that it has restarted and left it.
	harness.Await(t, "the sealed node to restart", time.Minute, func() error {
		if strings.Count(sealed.Log(), "coffer: ready at") < 2 {
			return errors.New("it has not")
		}
		return nil
	})
	if sealed.Health() != 503 {
		t.Errorf("the sealed node answers %d", sealed.Health())
	}
	if !strings.Contains(sealed.Log(), "stays sealed") {
		t.Error("its log does not say that it stays sealed")
	}
	sealed.Stop()
	sealed.Start()
	sealed.WaitHealth(200, 429)
	root.at(sealed).reads("kv/a")
}

// TestMemoryIsPrivate: from its start a server can neither be traced by processes of its own user nor dump core, whatever the
// limits it was started with.
func TestMemoryIsPrivate(t *testing.T) {
	t.Parallel()
	binary, err := os.Open(harness.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	dir, err := os.MkdirTemp("", "coffer-private-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cmd := exec.Command("/proc/self/fd/3", "server", "-dev", "-dev-listen-address=127.0.0.1:0", "-dev-no-store-token")
	cmd.ExtraFiles = []*os.File{binary}
	cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir, "TMPDIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 { // root's own files are root's, whatever the process does
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() }) //nolint:errcheck // it is killed
	text := make([]byte, 0, 64<<10)
	for !bytes.Contains(text, []byte("coffer: ready at")) {
		n, err := stderr.Read(text[len(text):cap(text)])
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		text = text[:len(text)+n]
	}
	info, err := os.Stat(fmt.Sprintf("/proc/%d/mem", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 {
		t.Errorf("the memory belongs to user %d, want root: processes of that user can read it", owner)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", cmd.Process.Pid))
	if err != nil || !bytes.Contains(limits, []byte("Max core file size        0                    0")) {
		t.Errorf("core dumps are possible, %v:\n%s", err, limits)
	}
}
