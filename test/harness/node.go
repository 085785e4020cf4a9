package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Node is one server process, or the place where one can be started.
type Node struct {
	ID      string
	URL     string // of the API
	Dir     string // data
	LogFile string // everything the processes wrote to stdout and stderr
	HTTP    *http.Client

	c       *Cluster
	config  string
	api     string // host:port
	cluster string // host:port it listens on
	dialled string // host:port the others dial
	binary  string // of another release, see Use; "": Binary

	mu      sync.Mutex
	process *os.Process
	ended   chan struct{} // closed when the process has been waited for
	status  string        // how it ended
}

func newNode(c *Cluster, id string) *Node {
	c.t.Helper()
	n := &Node{ID: id, c: c, HTTP: c.httpClient(), binary: c.opts.Binary}
	n.api = fmt.Sprintf("127.0.0.1:%d", FreePort(c.t))
	n.cluster = fmt.Sprintf("127.0.0.1:%d", FreePort(c.t))
	n.dialled = n.cluster
	n.URL = "https://" + n.api
	if c.opts.Plain {
		n.URL = "http://" + n.api
	}
	n.LogFile = filepath.Join(c.dir, id+".log")
	n.config = filepath.Join(c.dir, id+".hcl")
	if c.opts.Dir != nil {
		n.Dir = c.opts.Dir(id)
	}
	if n.Dir == "" {
		n.Dir = filepath.Join(c.dir, id)
	}
	cert, key := c.certs.issue(id)
	c.write(filepath.Join(c.dir, id+".crt"), cert)
	c.write(filepath.Join(c.dir, id+".key"), key)
	if c.Network != nil {
		n.dialled = c.Network.front(n)
	}
	return n
}

// configure writes the node's configuration, with or without the other nodes to join.
func (n *Node) configure(join bool) {
	n.c.t.Helper()
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("cluster_name = %q", "test")
	p("api_addr = %q", n.URL)
	p("cluster_addr = %q", n.dialled)
	p("%s", n.c.opts.Config)
	if n.binary == "" && !strings.Contains(n.c.opts.Config, "audit {") { // the previous release does not know the stanza
		p("audit {\n  file_roots = [%q]\n}", "/") // tests write where they like
	}
	p(`listener "tcp" {`)
	p("  address = %q", n.api)
	p("  cluster_address = %q", n.cluster)
	p("%s", n.c.opts.ListenerConfig)
	if n.c.opts.Plain {
		p("  tls_disable = true")
	} else {
		p("  tls_cert_file = %q", filepath.Join(n.c.dir, n.ID+".crt"))
		p("  tls_key_file = %q", filepath.Join(n.c.dir, n.ID+".key"))
	}
	p("}")
	p(`storage "raft" {`)
	p("  path = %q", n.Dir)
	p("  node_id = %q", n.ID)
	p("%s", n.c.opts.StorageConfig)
	if n.binary == "" && !strings.Contains(n.c.opts.StorageConfig, "ballast_size") { // likewise
		p("  ballast_size = 0\n  free_space_minimum = 0")
	}
	if join {
		for _, other := range n.c.Nodes {
			if other != n || n.c.opts.OneConfiguration {
				p("  retry_join {\n    leader_api_addr = %q\n    leader_ca_cert_file = %q\n  }", other.URL, n.c.CAFile)
			}
		}
	}
	p("}")
	if !n.c.opts.Shamir {
		p(`seal "static" {`)
		p("  current_key = %q", n.c.seal)
		p("  current_key_id = %q", "k1")
		p("}")
	}
	n.c.write(n.config, b.Bytes())
}

// Configure writes the configuration again, with the cluster's present nodes as those to join.
func (n *Node) Configure(join bool) { n.c.t.Helper(); n.configure(join) }

// Use makes the next start one of another release's binary; "" is the present one.
func (n *Node) Use(binary string) {
	n.c.t.Helper()
	n.binary = binary
	n.configure(!n.c.opts.NoRetryJoin)
}

// Start starts the process and waits until its API answers.
func (n *Node) Start() {
	n.c.t.Helper()
	if err := n.TryStart(); err != nil {
		n.c.t.Fatalf("starting %s: %v", n.ID, err)
	}
}

// TryStart starts the process and waits until its API answers. The error says how the process ended instead;
// the log has the reason.
func (n *Node) TryStart() error {
	n.c.t.Helper()
	if err := n.Launch(); err != nil {
		return err
	}
	var failure error
	Await(n.c.t, n.ID+"'s API", n.c.opts.ReadyIn, func() error {
		select {
		case <-n.ended:
			failure = fmt.Errorf("the process ended: %s", n.status)
			return nil
		default:
		}
		if n.Health() == 0 {
			return errors.New("no answer")
		}
		return nil
	})
	return failure
}

// Launch starts the process without waiting for anything.
func (n *Node) Launch() error {
	n.c.t.Helper()
	binary := cmp.Or(n.binary, Binary(n.c.t))
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil {
		return errors.New("it runs already")
	}
	out, err := os.OpenFile(n.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(binary, "server", "-config="+n.config)
	if files := n.c.opts.Files; files > 0 {
		cmd = exec.Command("/bin/sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files), binary, "server", "-config="+n.config)
	}
	cmd.Stdout, cmd.Stderr = out, out
	// What the race detector finds must be in the log; and a process which ends would wait a second for races that are
	// still going on.
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GORACE=") })
	cmd.Env = append(env, "GORACE=atexit_sleep_ms=0", "HOME="+n.c.dir)
	if n.c.opts.Memory {
		cmd.Env = append(cmd.Env, "GOGC=100") // the last one counts
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no orphan when the test is killed
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	n.process, n.ended, n.status = cmd.Process, ended, ""
	if n.c.Network != nil {
		n.c.Network.setPID(n.ID, cmd.Process.Pid)
	}
	go func() {
		err := cmd.Wait()
		n.mu.Lock()
		n.process, n.status = nil, "exit status 0"
		if err != nil {
			n.status = err.Error()
		}
		n.mu.Unlock()
		close(ended)
	}()
	return nil
}

// Running reports whether the process runs (stopped by SIGSTOP counts).
func (n *Node) Running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process != nil
}

// PID returns the process id, 0 if there is no process.
func (n *Node) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil {
		return 0
	}
	return n.process.Pid
}

// signal sends a signal to the process, if there is one, and returns the channel that closes at its end.
func (n *Node) signal(s syscall.Signal) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil {
		_ = n.process.Signal(s) // it may have ended just now
	}
	return n.ended
}

// Kill9 ends the process at once and waits for its end. Without a process nothing happens.
func (n *Node) Kill9() {
	if ended := n.signal(syscall.SIGKILL); ended != nil {
		<-ended
	}
	n.HTTP.CloseIdleConnections()
}

// Stop asks the process to end and waits for it.
func (n *Node) Stop() {
	n.c.t.Helper()
	ended := n.signal(syscall.SIGTERM)
	if ended == nil {
		return
	}
	select {
	case <-ended:
	case <-time.After(n.c.opts.ReadyIn):
		n.Kill9()
		n.c.t.Fatalf("%s did not stop within %v after SIGTERM", n.ID, n.c.opts.ReadyIn)
	}
	n.mu.Lock()
	status := n.status
	n.mu.Unlock()
	n.HTTP.CloseIdleConnections()
	if status != "exit status 0" {
		n.c.t.Errorf("%s after SIGTERM: %s", n.ID, status)
	}
}

// WaitEnd waits for the process to end by itself and returns how it ended.
func (n *Node) WaitEnd(within time.Duration) string {
	n.c.t.Helper()
	select {
	case <-n.ended:
	case <-time.After(within):
		n.c.t.Fatalf("%s still runs after %v", n.ID, within)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.status
}

// Pause stops the process with SIGSTOP, and returns when it has stopped; Resume lets it go on.
func (n *Node) Pause() {
	n.signal(syscall.SIGSTOP)
	n.mu.Lock()
	status := fmt.Sprintf("/proc/%d/stat", n.process.Pid)
	n.mu.Unlock()
	Await(n.c.t, n.ID+" to be stopped", time.Minute, func() error {
		text, err := os.ReadFile(status)
		if err == nil && !strings.Contains(string(text), ") T ") {
			return errors.New("it still runs")
		}
		return nil // where there is no /proc, the signal has to do
	})
}

// Resume sends SIGCONT.
func (n *Node) Resume() { n.signal(syscall.SIGCONT) }

// Reload sends SIGHUP.
func (n *Node) Reload() { n.signal(syscall.SIGHUP) }

// ClusterAddr returns the host:port of the node's own cluster listener.
func (n *Node) ClusterAddr() string { return n.cluster }

// Health returns the status code of sys/health, 0 if there is no answer.
func (n *Node) Health() int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	a, err := n.Do(ctx, "GET", "/v1/sys/health", "", nil)
	if err != nil {
		return 0
	}
	return a.Status
}

// WaitHealth waits until sys/health answers one of the codes.
func (n *Node) WaitHealth(codes ...int) {
	n.c.t.Helper()
	Await(n.c.t, fmt.Sprintf("%s to be healthy with %v", n.ID, codes), n.c.opts.ReadyIn, func() error {
		if !n.Running() {
			n.c.t.Fatalf("%s is not running: %s", n.ID, n.status)
		}
		if got := n.Health(); !slices.Contains(codes, got) {
			return fmt.Errorf("sys/health answers %d", got)
		}
		return nil
	})
}

// Unseal gives the node key shares until it is unsealed.
func (n *Node) Unseal() {
	n.c.t.Helper()
	n.HTTP.CloseIdleConnections()                                                  // those of the image before a seal end with it, and a PUT is not sent twice
	Await(n.c.t, n.ID+" to take its unseal keys", n.c.opts.ReadyIn, func() error { // the image may still change, and forgets the keys it has
		var last Answer
		for _, key := range n.c.Keys {
			ctx, cancel := context.WithTimeout(context.Background(), n.c.opts.ReadyIn)
			a, err := n.Do(ctx, "PUT", "/v1/sys/unseal", "", map[string]any{"key": key})
			cancel()
			if err != nil {
				return err
			}
			var status struct{ Sealed bool }
			if a.Decode(n.c.t, &status); a.Status == 200 && !status.Sealed {
				return nil
			}
			last = a
		}
		n.c.t.Fatalf("%s is still sealed after %d keys: %d %.500s", n.ID, len(n.c.Keys), last.Status, last.Body)
		return nil
	})
}

// AppliedIndex returns the index of the last log entry that the node has applied.
func (n *Node) AppliedIndex() (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	a, err := n.Do(ctx, "GET", "/v1/sys/leader", "", nil)
	if err != nil {
		return 0, err
	}
	var out struct {
		Applied uint64 `json:"raft_applied_index"`
	}
	if a.Status != 200 {
		return 0, fmt.Errorf("sys/leader answers %d", a.Status)
	}
	a.Decode(n.c.t, &out)
	return out.Applied, nil
}

// Log returns what the node's processes have written so far.
func (n *Node) Log() string { return n.LogSince(0) }

// LogSize returns how many bytes that is.
func (n *Node) LogSize() int64 {
	info, err := os.Stat(n.LogFile)
	if err != nil {
		return 0
	}
	return info.Size()
}

// LogSince returns what came after the first bytes.
func (n *Node) LogSince(size int64) string {
	file, err := os.Open(n.LogFile)
	if err != nil {
		return ""
	}
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, size, math.MaxInt64-size))
	if err != nil {
		return ""
	}
	return string(text)
}

// inspectLog fails the test for what no run may contain. What a plugin says when it crashes is the plugin's.
func (n *Node) inspectLog() {
	var own strings.Builder
	for line := range strings.Lines(n.Log()) {
		if !strings.Contains(line, "logger=plugin ") {
			own.WriteString(line)
		}
	}
	text := own.String()
	for _, bad := range []string{"WARNING: DATA RACE", "panic: ", "fatal error: ", "http: panic serving"} {
		if i := strings.Index(text, bad); i >= 0 {
			n.c.t.Errorf("%s wrote %q:\n%s", n.ID, bad, text[max(0, i-200):min(len(text), i+6000)])
		}
	}
	if token := n.c.RootToken; token != "" && strings.Contains(text, token) {
		n.c.t.Errorf("%s wrote the root token to its log", n.ID)
	}
}

// tail returns the last lines of a file.
func tail(file string, lines int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
