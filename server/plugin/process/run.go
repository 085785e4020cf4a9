package process

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"runtime"
	"strconv"
	"sync"

	"github.com/hashicorp/go-plugin/runner"
)

// run is one execution of a program: a runner.Runner.
type run struct {
	cmd            *exec.Cmd
	limits         Limits
	stdout, stderr io.ReadCloser
	ended          chan struct{} // closed when the process has ended
	end            sync.Once
}

var _ runner.Runner = (*run)(nil)

// newRun prepares an execution. protocol is the environment that go-plugin asks for; dir is where the sockets are.
func newRun(o Options, protocol []string, dir string) (*run, error) {
	cmd, err := o.Program.command(o.User)
	if err != nil {
		return nil, err
	}
	if err := o.User.own(dir); err != nil {
		return nil, err
	}
	cmd.Args = append([]string{o.Name}, o.Args...)
	cmd.Dir = dir
	cmd.Env = append(append([]string{"TMPDIR=" + dir, "GOMEMLIMIT=" + strconv.FormatUint(o.Limits.MemoryBytes*9/10, 10)}, o.Env...), protocol...)
	for _, prefix := range []string{"VAULT_", "BAO_"} { // plugins of both families
		cmd.Env = append(cmd.Env, prefix+"PLUGIN_AUTOMTLS_ENABLED=true", prefix+"PLUGIN_METADATA_MODE=false", prefix+"VERSION="+o.Version)
	}
	r := &run{cmd: cmd, limits: o.Limits, ended: make(chan struct{})}
	if r.stdout, err = cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if r.stderr, err = cmd.StderrPipe(); err != nil {
		return nil, err
	}
	r.stdout, r.stderr = newThrottle(r.stdout, o.Limits.LogBytes), newThrottle(r.stderr, o.Limits.LogBytes)
	return r, nil
}

// Start implements runner.Runner.
func (r *run) Start(context.Context) error {
	started := make(chan error)
	go func() {
		// The kernel ends the process with the thread that started it, so that it does not outlive a killed server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := r.cmd.Start()
		if err == nil {
			limitMemory(r.cmd.Process.Pid, r.limits.MemoryBytes)
		}
		started <- err
		if err == nil {
			<-r.ended
		}
	}()
	return <-started
}

// Wait implements runner.Runner.
func (r *run) Wait(context.Context) error {
	err := r.cmd.Wait()
	r.end.Do(func() { close(r.ended) })
	return err
}

// Kill implements runner.Runner.
func (r *run) Kill(context.Context) error {
	r.kill()
	return nil
}

// kill ends the process group, and stops listening to what may have left it.
func (r *run) kill() {
	if r.cmd.Process == nil {
		return
	}
	killGroup(r.cmd.Process.Pid)
	r.stdout.Close()
	r.stderr.Close()
}

// Stdout implements runner.Runner.
func (r *run) Stdout() io.ReadCloser { return r.stdout }

// Stderr implements runner.Runner.
func (r *run) Stderr() io.ReadCloser { return r.stderr }

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
