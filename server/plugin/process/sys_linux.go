package process

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// User is who a plugin runs as.
type User struct{ uid, gid uint32 }

// FindUser returns the user with a name, if a server of this user may run plugins as that one.
func FindUser(name string) (*User, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	if err := permitted(os.Geteuid(), u); err != nil {
		return nil, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("user %q has no number", name)
	}
	return &User{uint32(uid), uint32(gid)}, nil
}

// permitted reports why a server of a user cannot run plugins as another one.
func permitted(euid int, u *user.User) error {
	if euid != 0 && strconv.Itoa(euid) != u.Uid {
		return fmt.Errorf("only a server that runs as root can run plugins as user %q: remove it, or run the server as root", u.Username)
	}
	return nil
}

// group is the one that reaches the sockets, as a number. "": the server's.
func (u *User) group() string {
	if u == nil {
		return ""
	}
	return strconv.FormatUint(uint64(u.gid), 10)
}

// command returns the program, to be executed by the descriptor that was checked.
func (p *Program) command(u *User) (*exec.Cmd, error) {
	cmd := exec.Command("/proc/self/fd/3") // the first of ExtraFiles
	cmd.ExtraFiles = []*os.File{p.file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID // the kernel ends all that is in it with the plugin
	switch {
	case os.Geteuid() != 0: // u is this user, if any
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER // which gives the right to make the other; the plugin sees itself as user 65534
	case u != nil:
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: u.uid, Gid: u.gid}
	}
	return cmd, nil
}

// start starts a command: outside of a PID namespace of its own if there can be none, as in containers that may not make any.
func start(cmd *exec.Cmd) (started *exec.Cmd, alone bool, err error) {
	if err = cmd.Start(); err == nil {
		return cmd, true, nil
	}
	attr := *cmd.SysProcAttr
	attr.Cloneflags = 0
	again := &exec.Cmd{
		Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Stdout: cmd.Stdout, Stderr: cmd.Stderr, ExtraFiles: cmd.ExtraFiles, SysProcAttr: &attr,
	}
	return again, false, again.Start()
}

// limitMemory limits what a process can write to.
func limitMemory(pid int, bytes uint64) {
	unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: bytes, Max: bytes}, nil) //nolint:errcheck // it has ended, then
	unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)                       //nolint:errcheck // as above
}

// awaitEnd returns when a process has ended. Its number is not another's until it is waited for.
func awaitEnd(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

func killGroup(pid int) { syscall.Kill(-pid, syscall.SIGKILL) } //nolint:errcheck // it has ended, then

// checkOwner rejects what others than root and the user of the server may change.
func checkOwner(name string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s must belong to root or to the user of the server", name)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s can be written by others: chmod go-w", name)
	}
	return nil
}
