//go:build unix

package run

import (
	"os"
	"strings"
	"syscall"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"golang.org/x/sys/unix"
)

// forwarded are the signals that the program gets in place of this process.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

// signalNamed returns the signal of a name, such as hup or SIGHUP.
func signalNamed(name string) (os.Signal, error) {
	if s := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG")); s != 0 {
		return s, nil
	}
	return nil, command.Usagef("-on-change is none, restart or the name of a signal such as HUP, not %q", name)
}
