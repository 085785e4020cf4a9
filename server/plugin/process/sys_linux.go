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

// FindUser returns the user with a name.
func FindUser(name string) (*User, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("user %q has no number", name)
	}
	return &User{uint32(uid), uint32(gid)}, nil
}

// own gives the user a directory.
func (u *User) own(directory string) error {
	if u == nil {
		return nil
	}
	return os.Chown(directory, int(u.uid), int(u.gid))
}

// command returns the program, to be executed by the descriptor that was checked.
func (p *Program) command(u *User) (*exec.Cmd, error) {
	cmd := exec.Command("/proc/self/fd/3") // the first of ExtraFiles
	cmd.ExtraFiles = []*os.File{p.file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if u != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: u.uid, Gid: u.gid}
	}
	return cmd, nil
}

// limitMemory limits what a process can write to.
func limitMemory(pid int, bytes uint64) {
	unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: bytes, Max: bytes}, nil) //nolint:errcheck // it has ended, then
	unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)                       //nolint:errcheck // as above
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
