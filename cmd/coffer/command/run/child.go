package run

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/local"
)

// dirVariable names the directory of the files to the program.
const dirVariable = "COFFER_SECRETS_DIR"

// grace is how long the program has to end when it is restarted.
const grace = 10 * time.Second

// Exit statuses of shells.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the signal
)

// child is the program, with what it gets.
type child struct {
	call      *command.Call
	args      []string
	passToken bool
	dir       *dir // nil: variables
	values    map[string]string
}

// set takes values: files are replaced at once, variables count from the next start.
func (p *child) set(values map[string]string) error {
	p.values = values
	if p.dir != nil {
		return p.dir.write(values)
	}
	return nil
}

func (p *child) environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return !p.passToken && (name == "COFFER_TOKEN" || name == "BAO_TOKEN" || name == "VAULT_TOKEN") || name == dirVariable
	})
	if p.dir != nil {
		return append(env, dirVariable+"="+p.dir.path)
	}
	for _, name := range slices.Sorted(maps.Keys(p.values)) {
		env = append(env, name+"="+p.values[name])
	}
	return env
}

func (p *child) start() (*exec.Cmd, <-chan error, error) {
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = p.call.In, p.call.Out, p.call.Err, p.environment()
	if err := cmd.Start(); err != nil {
		code := exitNotExecutable
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			code = exitNotFound
		}
		return nil, nil, &command.ExitError{Code: code, Err: fmt.Errorf("starting the program: %w", err)}
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return cmd, ended, nil
}

// supervise runs the program until it ends by itself, passes signals on to it, and does what onChange says when values have changed.
func (p *child) supervise(onChange string, signals <-chan os.Signal, changed <-chan map[string]string) error {
	// A terminal sends its signals to every process in front of it.
	terminal := command.IsTerminal(p.call.In)
	cmd, ended, err := p.start()
	if err != nil {
		return err
	}
	stopping := false
	for {
		select {
		case err := <-ended:
			return status(cmd, err)
		case s := <-signals:
			stopping = stopping || s == syscall.SIGTERM || s == syscall.SIGINT
			if !terminal || s != syscall.SIGINT && s != syscall.SIGQUIT {
				_ = cmd.Process.Signal(s)
			}
		case values := <-changed:
			if err := p.set(values); err != nil {
				p.call.Warnf("coffer run: %v", err)
				continue
			}
			switch {
			case onChange == onChangeNothing || stopping:
			case onChange == onChangeRestart:
				p.call.Warnf("coffer run: a secret has changed: restarting the program")
				end(cmd, ended)
				if cmd, ended, err = p.start(); err != nil {
					return err
				}
			default:
				s, _ := signalNamed(onChange)
				_ = cmd.Process.Signal(s)
			}
		}
	}
}

// end ends the program, by force if it does not end in time.
func end(cmd *exec.Cmd, ended <-chan error) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	force := time.AfterFunc(grace, func() { _ = cmd.Process.Kill() })
	defer force.Stop()
	<-ended
}

// status turns the end of the program into our own.
func status(cmd *exec.Cmd, err error) error {
	if err == nil {
		return nil
	}
	code := cmd.ProcessState.ExitCode()
	if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		code = exitSignal + int(w.Signal())
	}
	return &command.ExitError{Code: code}
}

// dir is a directory of files with values, which only this user can read.
type dir struct {
	path  string
	names []string
}

// newDir makes the directory, in memory where the system has a place for that.
func newDir(c *command.Call) (*dir, error) {
	for _, parent := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/dev/shm"} {
		if parent == "" {
			continue
		}
		if path, err := os.MkdirTemp(parent, "coffer-run-"); err == nil {
			return &dir{path: path}, nil
		}
	}
	path, err := os.MkdirTemp("", "coffer-run-")
	if err != nil {
		return nil, command.Usagef("making a directory for the secrets: %w", err)
	}
	c.Warnf("coffer run: the files are on disk, in %s: there is no directory in memory", path)
	return &dir{path: path}, nil
}

// write replaces the files: readers see the old value or the new one.
func (d *dir) write(values map[string]string) error {
	for name, value := range values {
		err := local.WritePrivate(filepath.Join(d.path, name), func(f *os.File) error {
			_, err := f.WriteString(value)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, name := range d.names {
		if _, ok := values[name]; !ok {
			_ = os.Remove(filepath.Join(d.path, name))
		}
	}
	d.names = slices.Collect(maps.Keys(values))
	return nil
}

func (d *dir) remove() { _ = os.RemoveAll(d.path) }
