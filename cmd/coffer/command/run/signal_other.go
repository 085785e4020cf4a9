//go:build !unix

package run

import (
	"os"
	"syscall"

	"github.com/coffer-project/coffer/cmd/coffer/command"
)

// forwarded are the signals that the program gets in place of this process.
var forwarded = []os.Signal{os.Interrupt, syscall.SIGTERM}

// signalNamed rejects each name: there are no signals here.
func signalNamed(name string) (os.Signal, error) {
	return nil, command.Usagef("-on-change is none or restart on this system, not %q", name)
}
