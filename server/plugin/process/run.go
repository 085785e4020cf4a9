package process

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-plugin/runner"
)

// run is one execution of a program: a runner.Runner.
type run struct {
	cmd    *exec.Cmd
	limits Limits
	log    *slog.Logger
	// Ends of pipes: what the plugin says at its start, and what it logs.
	stdout, stderr *os.File

	ended  chan struct{} // closed when the process and its group have ended
	logged chan struct{} // closed when its log has been read
	err    error         // how it ended; set before ended is closed

	alone bool // in a PID namespace of its own
	mu    sync.Mutex
	pid   int // 0: it does not run
}

var _ runner.Runner = (*run)(nil)

// newRun prepares an execution. protocol is the environment that go-plugin asks for; dir is where the sockets are.
func newRun(o Options, protocol []string, dir string) (*run, error) {
	cmd, err := o.Program.command(o.User)
	if err != nil {
		return nil, err
	}
	cmd.Args = append([]string{o.Name}, o.Args...)
	cmd.Dir = dir
	cmd.Env = append(append([]string{"TMPDIR=" + dir, "GOMEMLIMIT=" + strconv.FormatUint(o.Limits.MemoryBytes*3/4, 10), "GOGC=200"}, o.Env...), protocol...)
	for _, prefix := range []string{"VAULT_", "BAO_"} { // plugins of both families
		cmd.Env = append(cmd.Env, prefix+"PLUGIN_AUTOMTLS_ENABLED=true", prefix+"PLUGIN_METADATA_MODE=false", prefix+"VERSION="+o.Version)
	}
	r := &run{cmd: cmd, limits: o.Limits, log: o.Logger.With("plugin", o.Name), ended: make(chan struct{}), logged: make(chan struct{})}
	var out, log *os.File
	if r.stdout, out, err = os.Pipe(); err != nil {
		return nil, err
	}
	if r.stderr, log, err = os.Pipe(); err != nil {
		return nil, errors.Join(err, r.stdout.Close(), out.Close())
	}
	cmd.Stdout, cmd.Stderr = out, log
	return r, nil
}

// lastWords is how long a plugin's log is read after its end: what has left its group may keep the pipe open.
const lastWords = time.Second

// Start implements runner.Runner.
func (r *run) Start(context.Context) error {
	started := make(chan error)
	go func() {
		// The kernel ends the process with the thread that started it, so that it does not outlive a killed server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		r.cmd, r.alone, err = start(r.cmd)
		for _, f := range []any{r.cmd.Stdout, r.cmd.Stderr} { // the process's ends
			f.(*os.File).Close()
		}
		if err != nil {
			r.stdout.Close()
			r.stderr.Close()
			started <- err
			return
		}
		r.mu.Lock()
		r.pid = r.cmd.Process.Pid
		r.mu.Unlock()
		limitMemory(r.pid, r.limits.MemoryBytes)
		started <- nil
		r.supervise()
	}()
	err := <-started
	if err == nil {
		go func() {
			defer close(r.logged)
			defer r.stderr.Close()
			(&journal{log: r.log, bytesPerSecond: r.limits.LogBytes}).follow(r.stderr)
		}()
	}
	return err
}

// supervise waits for the end of the process, and ends what it has started in its group.
func (r *run) supervise() {
	awaitEnd(r.pid)
	r.mu.Lock()
	killGroup(r.pid)
	r.err = r.cmd.Wait()
	r.pid = 0 // which may be another's now
	r.mu.Unlock()
	r.stopReading()
	close(r.ended)
	<-r.logged
	r.log.Info("plugin has ended", "err", r.err)
}

// stopReading gives what is in the pipes a moment to be read.
func (r *run) stopReading() {
	until := time.Now().Add(lastWords)
	r.stdout.SetReadDeadline(until) //nolint:errcheck // it is closed, then
	r.stderr.SetReadDeadline(until) //nolint:errcheck // as above
}

// Wait implements runner.Runner.
func (r *run) Wait(context.Context) error {
	<-r.ended
	return r.err
}

// Kill implements runner.Runner.
func (r *run) Kill(context.Context) error {
	r.kill()
	return nil
}

// kill ends the process group.
func (r *run) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pid != 0 {
		killGroup(r.pid)
	}
}

// Stdout implements runner.Runner.
func (r *run) Stdout() io.ReadCloser {
	return &throttled{ReadCloser: r.stdout, bytesPerSecond: r.limits.LogBytes}
}

// Stderr implements runner.Runner. The log is read here, since what go-plugin makes of it can end the server.
func (r *run) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name implements runner.Runner.
func (r *run) Name() string { return r.cmd.Args[0] }

// ID implements runner.Runner.
func (r *run) ID() string {
	if r.cmd.Process == nil {
		return ""
	}
	return strconv.Itoa(r.cmd.Process.Pid)
}

// Diagnose implements runner.Runner.
func (r *run) Diagnose(context.Context) string { return "" }

// PluginToHost implements runner.Runner. A plugin listens on a Unix socket in its own directory, and nowhere else.
func (r *run) PluginToHost(network, address string) (string, string, error) {
	if network != "unix" || !inside(address, r.cmd.Dir) {
		return "", "", errors.New("the plugin does not listen on a socket in the directory that it was given")
	}
	return network, address, nil
}

// HostToPlugin implements runner.Runner.
func (r *run) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}
