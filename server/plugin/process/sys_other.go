//go:build !linux

package process

import (
	"errors"
	"io/fs"
	"os/exec"
)

// User is who a plugin runs as.
type User struct{}

var errLinux = errors.New("plugins run on Linux only")

// FindUser returns the user with a name.
func FindUser(string) (*User, error) { return nil, errLinux }

func (u *User) group() string { return "" }

func (p *Program) command(*User) (*exec.Cmd, error) { return nil, errLinux }

func start(cmd *exec.Cmd) (*exec.Cmd, bool, error) { return cmd, false, errLinux }

func limitMemory(int, uint64) {}

func awaitEnd(int) {}

func killGroup(int) {}

func checkOwner(string, fs.FileInfo) error { return errLinux }
